//! What a consumer runs on.

use std::error::Error;
use std::task::Waker;

use crate::ports::{DeadLetters, Source};

/// A place with topics and consumer groups: a Kafka cluster, or the in-memory log of `seriatim-testkit`.
pub trait Backend: Send + 'static {
    /// Delivers the records of one member of a group.
    type Source: Source + 'static;
    /// Keeps dead letters.
    type DeadLetters: DeadLetters;
    /// Why a connection cannot be made at all. Brokers that are down are no such reason: the source keeps trying.
    type Error: Error + Send + Sync + 'static;

    /// Where dead letters of the group's consumers go.
    ///
    /// # Errors
    /// When the configuration is wrong.
    fn dead_letters(&self, group: &str) -> Result<Self::DeadLetters, Self::Error>;

    /// Joins `group` for `topics`. Called on the thread that will own the source.
    ///
    /// # Errors
    /// When the configuration is wrong.
    fn join(self, group: &str, topics: &[String]) -> Result<(Self::Source, Waker), Self::Error>;
}
