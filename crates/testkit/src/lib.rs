//! What tests of Seriatim, and of handlers that run on it, are made of.
//!
//! For your own tests: [`log`], an in-memory log that takes the place of the brokers.
//!
//! For the tests of Seriatim itself, in reading order:
//!
//! 1. [`log`] and [`backend`]: the log, and how a consumer is built on it.
//! 2. [`suite`]: what every source must do, the log and Kafka alike.
//! 3. [`history`]: what happened, written down at the ports.
//! 4. [`judge`]: whether that is what was promised.
//! 5. [`sim`]: several instances on virtual time, with everything going wrong, by seed.
//! 6. [`story`]: one instance on virtual time, told record by record.
//! 7. [`broker`]: a real Kafka for a test.
//! 8. [`proxy`]: a wire to it that can be broken.

pub mod backend;
pub mod broker;
pub mod history;
pub mod judge;
pub mod log;
pub mod proxy;
mod rng;
pub mod sim;
pub mod story;
pub mod suite;
