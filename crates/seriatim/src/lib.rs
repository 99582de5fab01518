//! Kafka records in strict order per session, in parallel across sessions.
