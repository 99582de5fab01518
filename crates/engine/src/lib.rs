//! Pure ordering logic: no async, no clock, no threads, no Kafka.
//!
//! Time is an argument, randomness is seeded, and nothing here does I/O, so every structure can be tested against a
//! naive model and stepped by a simulator. Read the modules in this order:
//!
//! 1. [`record`]: the names of things: partition, offset, session.
//! 2. [`route`]: from a session key to its hash, from its hash to its worker.
//! 3. [`ledger`]: which offsets of a partition are unsettled, and so how far a commit may go.
//! 4. [`ack_map`]: what is settled above that, as text to commit beside it.
//! 5. [`trail`]: what is told beside it of the unsettled: attempts, and what may have crashed the process.
//! 6. [`lane`] and [`lanes`]: one session's FIFO, and all of a worker's.
//! 7. [`retry`]: when a failed attempt is tried again, and when it no longer is.
//! 8. [`assignment`]: periods of ownership, which fence whatever arrives late.
//! 9. [`growth`]: partitions that are added to a topic, and what they wait for.
//! 10. [`budget`]: how much may be unsettled before intake is held.
//! 11. [`order`]: the checker that judges all of the above from outside.

pub mod record;
pub mod route;
pub mod ledger;
pub mod ack_map;
pub mod trail;
pub mod lane;
pub mod lanes;
pub mod retry;
pub mod assignment;
pub mod growth;
pub mod budget;
pub mod order;
