//! The Kafka adapter: source, dead letter sink and session producer over librdkafka.
//!
//! Read the modules in this order:
//!
//! 1. [`config`]: librdkafka's properties: ours, the user's, and those that nobody may change.
//! 2. `native`: librdkafka's consumer by its C interface, the only module with `unsafe`. Over it `delivery`, `rebalance`,
//!    `commit`, `trouble`, [`range`] and [`growth`], and over these the [`source`].
//! 3. `outbox`: the gate in front of a producer's queue, and over it the session [`producer`].
//! 4. [`dead_letters`]: the sink, over the same gate.
//!
//! Beside them stand [`reader`], which reads topics as they lie in the log, in no group; [`groups`], which looks at groups
//! from outside; [`embedded`], a broker within the process for demonstrations and tests; and [`anchor`], what benchmarks
//! measure against. rdkafka's types appear in no public signature.

pub mod config;

mod native;
mod delivery;
mod rebalance;
mod commit;
mod lease;
mod trouble;
pub mod range;
pub mod growth;
pub mod source;

mod outbox;
pub mod producer;
pub mod dead_letters;

pub mod reader;
pub mod groups;
pub mod embedded;
pub mod anchor;
