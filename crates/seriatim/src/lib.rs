//! Kafka records in strict order per session, in parallel across sessions.
//!
//! Kafka orders a partition, not a session. Seriatim handles the records of one session one after another, in offset
//! order, through retries, rebalances and restarts, while thousands of sessions of the same partition go on side by side.
//!
//! ```no_run
//! use seriatim::prelude::*;
//!
//! # fn book(_: &str, _: u32) -> Result<(), std::io::Error> { Ok(()) }
//! #[tokio::main]
//! async fn main() -> seriatim::Result {
//!     Seriatim::group("bookings")
//!         .brokers("localhost:9092")
//!         .topic("chat")
//!         .session_by(SessionBy::header("session-id"))
//!         .run(|record: Record, cx: Context| async move {
//!             let command = record.text().map_err(Failure::permanent)?; // never retried: a dead letter at once
//!             book(command, cx.attempt())?;                             // any error is transient: retried in place
//!             Ok(())
//!         })
//!         .await                                                        // until Ctrl-C or SIGTERM, then drains
//! }
//! ```
//!
//! What is promised, and what is not, stands in the repository's README. A handler that ends well settles its record;
//! one that fails is tried again, before any later record of its session; one that can never succeed becomes a dead
//! letter. After a crash, records that were in flight may be handled again, so effects should be idempotent:
//! [`Record::id`](runtime::record::Record::id) is the same on every attempt.

mod blocking;
mod builder;
mod cluster;
mod error;
mod handle;
mod log;

pub use blocking::{Blocking, blocking};
pub use builder::{Builder, Seriatim, default_workers};
pub use cluster::{Cluster, ClusterError};
pub use error::{BuildError, Error, Result};
pub use handle::{Handle, Stats};
pub use log::LogEvents;

pub use seriatim_engine as engine;
pub use seriatim_kafka as kafka;
pub use seriatim_runtime as runtime;

/// What nearly every program needs.
pub mod prelude {
    pub use crate::{Builder, Cluster, Handle, Seriatim, Stats, blocking};
    pub use seriatim_engine::budget::Limits;
    pub use seriatim_engine::retry::Retry;
    pub use seriatim_kafka::growth::Growth;
    pub use seriatim_kafka::range::OutOfRange;
    pub use seriatim_runtime::context::Context;
    pub use seriatim_runtime::failure::Failure;
    pub use seriatim_runtime::ports::Handler;
    pub use seriatim_runtime::record::Record;
    pub use seriatim_runtime::session_by::{MissingSession, SessionBy};
}
