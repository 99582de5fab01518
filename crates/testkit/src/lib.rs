//! In-memory log, seeded simulator, a fixture for a real broker, and the port test suites.

pub mod broker;
