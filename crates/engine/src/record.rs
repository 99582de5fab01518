//! The names of things: partition, offset, record, session.

use std::fmt;
use std::sync::Arc;

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionId {
    topic: Arc<str>,
    number: i32,
}

impl PartitionId {
    /// Names partition `number` of `topic`.
    pub fn new(topic: impl Into<Arc<str>>, number: i32) -> Self {
        Self {
            topic: topic.into(),
            number,
        }
    }

    /// The topic's name.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The partition's number within its topic, from 0.
    pub fn number(&self) -> i32 {
        self.number
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.topic, self.number)
    }
}

/// The place of a record in its partition's log, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Offset(i64);

impl Offset {
    /// The first offset of every log.
    pub const ZERO: Offset = Offset(0);

    /// # Panics
    /// When `offset` is negative: Kafka's logical offsets (beginning, end, stored) are no places in a log.
    pub fn new(offset: i64) -> Self {
        assert!(offset >= 0, "an offset is not negative: {offset}");
        Self(offset)
    }

    /// The offset as Kafka counts it.
    pub fn get(self) -> i64 {
        self.0
    }

    /// The offset after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One record: its partition and its offset there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId {
    /// Where the record lies.
    pub partition: PartitionId,
    /// Its offset in that partition.
    pub offset: Offset,
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.partition, self.offset)
    }
}

/// A session, as the engine knows it: the keyed 64-bit hash of its session key.
///
/// The engine identifies a session by this hash alone. Two keys with the same hash (for a million sessions the odds are
/// one in 37 million) share a lane: they wait for each other, and the order of each is kept all the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionHash(pub u64);

// A hash is no secret, but it stands for a session key, and no session key is logged: print it as a short tag.
impl fmt::Debug for SessionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session#{:016x}", self.0)
    }
}
