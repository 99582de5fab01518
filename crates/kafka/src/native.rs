//! librdkafka by its C interface: the only module of the project with `unsafe`, and each block with its argument.
//!
//! rust-rdkafka's own consumers are not used, for three reasons:
//!
//! - The batch call, which takes half their time a record or less, is not in them.
//! - Their destructor closes the group and destroys the client in one go. A record that a handler keeps must hold up the
//!   second, and must not hold up the first.
//! - They report no answer to a commit in the background: their events need `rd_kafka_commit_queue`, and they call
//!   `rd_kafka_commit`.
//!
//! - [`message`]: a record in librdkafka's memory.
//! - [`queue`]: the queue that all partitions deliver to, and the bell that ends a wait on it.
//! - [`client`]: the member of the group: its assignment, its commits.
//! - [`event`]: what it says.
//! - [`admin`]: questions about any group, and commits for one without members, which rust-rdkafka does not wrap either.
//! - [`topics`]: and about topics.
//! - [`news`]: when the client has heard of topics by itself.
#![allow(unsafe_code)]

pub(crate) mod admin;
pub(crate) mod client;
pub(crate) mod event;
pub(crate) mod message;
pub(crate) mod news;
pub(crate) mod queue;
pub(crate) mod topics;
