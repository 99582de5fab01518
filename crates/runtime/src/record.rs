//! The record that a handler gets.

use std::fmt;
use std::sync::{Arc, OnceLock};

use seriatim_engine::record::{Offset, PartitionId, RecordId};

use crate::message::{Header, Message, OwnedMessage, Timestamp};
use crate::pins::{Pinned, Pins};

/// One Kafka record: partition, offset, key, value, headers, time.
///
/// Cloning is cheap (a reference count). A record that is handled without waiting is read where the client put it; one
/// that has to wait is copied out first, so that it does not pin the client's fetch buffer.
#[derive(Clone)]
pub struct Record(Place);

#[derive(Clone)]
enum Place {
    /// In the client's memory.
    Shared {
        chunk: Arc<dyn Chunk>,
        index: u32,
    },
    Own(OwnedMessage),
}

/// Messages that share one allocation and are freed together.
trait Chunk: Send + Sync {
    fn message(&self, index: usize) -> &dyn Message;
    /// See [`Message::prefetch`].
    fn prefetch(&self, next: usize);
    /// Where it is kept that the chunk counts as pinned.
    fn pinned(&self) -> &OnceLock<Pinned>;
}

struct Messages<M: Message> {
    messages: Vec<M>,
    pinned: OnceLock<Pinned>,
}

impl<M: Message> Chunk for Messages<M> {
    fn message(&self, index: usize) -> &dyn Message {
        &self.messages[index]
    }

    fn prefetch(&self, next: usize) {
        M::prefetch(&self.messages, next);
    }

    fn pinned(&self) -> &OnceLock<Pinned> {
        &self.pinned
    }
}

impl<M: Message> Drop for Messages<M> {
    fn drop(&mut self) {
        M::free(std::mem::take(&mut self.messages));
    }
}

/// A worker's share of one fetched batch, still in the client's memory.
pub(crate) struct Shared(Arc<dyn Chunk>);

impl Shared {
    pub(crate) fn new<M: Message>(messages: Vec<M>) -> Self {
        Self(Arc::new(Messages {
            messages,
            pinned: OnceLock::new(),
        }))
    }

    /// See [`Message::prefetch`].
    pub(crate) fn prefetch(&self, next: usize) {
        self.0.prefetch(next);
    }

    /// Whether records may wait in the client's memory.
    pub(crate) fn is_pinned(&self) -> bool {
        self.0.pinned().get().is_some()
    }

    /// Pins the chunk, which is of so many bytes, if there is room. Returns whether it is pinned.
    pub(crate) fn pin(&self, bytes: usize, pins: &Pins) -> bool {
        self.is_pinned()
            || pins
                .pin(bytes)
                .is_some_and(|pinned| self.0.pinned().set(pinned).is_ok())
    }

    /// The record at `index`, in the client's memory.
    #[inline]
    pub(crate) fn record(&self, index: usize) -> Record {
        Record(Place::Shared {
            chunk: Arc::clone(&self.0),
            index: index as u32,
        })
    }

    /// The record at `index`, copied out of the client's memory.
    pub(crate) fn copy(&self, index: usize) -> Record {
        Record::from(OwnedMessage::copied(self.0.message(index)))
    }
}

impl From<OwnedMessage> for Record {
    fn from(message: OwnedMessage) -> Self {
        Self(Place::Own(message))
    }
}

impl Record {
    /// A copy with memory of its own, which pins no fetch buffer: for records that a handler keeps.
    pub fn detached(&self) -> Record {
        match &self.0 {
            Place::Shared { .. } => Record::from(OwnedMessage::copied(self.message())),
            Place::Own(_) => self.clone(),
        }
    }

    pub(crate) fn message(&self) -> &dyn Message {
        match &self.0 {
            Place::Shared { chunk, index } => chunk.message(*index as usize),
            Place::Own(message) => message,
        }
    }

    /// The topic's name.
    pub fn topic(&self) -> &str {
        self.message().partition().0
    }

    /// The partition's number.
    pub fn partition(&self) -> i32 {
        self.message().partition().1
    }

    /// The offset in the partition.
    pub fn offset(&self) -> i64 {
        self.message().offset().get()
    }

    /// Partition and offset as one name, e.g. `orders[3]@1042`: stable across attempts and restarts, and so an
    /// idempotency key.
    pub fn id(&self) -> RecordId {
        let (topic, number) = self.message().partition();
        RecordId {
            partition: PartitionId::new(topic, number),
            offset: self.message().offset(),
        }
    }

    /// The record's time and who set it.
    pub fn timestamp(&self) -> Timestamp {
        self.message().timestamp()
    }

    /// The key; `None` is Kafka's null.
    pub fn key(&self) -> Option<&[u8]> {
        self.message().key()
    }

    /// The value; `None` is Kafka's null (a tombstone).
    pub fn value(&self) -> Option<&[u8]> {
        self.message().value()
    }

    /// The value, with null read as empty.
    pub fn payload(&self) -> &[u8] {
        self.value().unwrap_or_default()
    }

    /// The value as UTF-8 text.
    ///
    /// # Errors
    /// When the value is not UTF-8. Null reads as the empty text.
    pub fn text(&self) -> Result<&str, std::str::Utf8Error> {
        std::str::from_utf8(self.payload())
    }

    /// The value decoded from JSON.
    ///
    /// # Errors
    /// When the value is no JSON of this shape. Null reads as the empty text, which is no JSON.
    pub fn json<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(self.payload())
    }

    /// The headers, in the record's order.
    pub fn headers(&self) -> impl Iterator<Item = Header<'_>> {
        (0..).map_while(|index| self.message().header(index))
    }

    /// The value of the last header called `name`, as Kafka's clients read it; `None` when there is none or it is null.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers()
            .filter(|header| header.name == name.as_bytes())
            .last()
            .and_then(|header| header.value)
    }

    /// Reads what a handler will want first, where it is no longer near.
    #[inline]
    pub(crate) fn touch(&self) {
        if let Place::Own(message) = &self.0 {
            message.touch();
        }
    }

    pub(crate) fn raw_offset(&self) -> Offset {
        self.message().offset()
    }
}

// Neither key nor payload: records end up in logs.
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({}, {} bytes)", self.id(), self.payload().len())
    }
}
