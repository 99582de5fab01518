//! What a source delivers: messages in the client's own memory, read through one small trait.

use seriatim_engine::record::Offset;

/// A record as the source's client holds it. Kafka's implementation points into librdkafka's buffers; [`OwnedMessage`]
/// has its own memory.
pub trait Message: Send + Sync + 'static {
    /// Topic and partition number.
    fn partition(&self) -> (&str, i32);
    /// Offset in the partition.
    fn offset(&self) -> Offset;
    /// When the record was created or appended.
    fn timestamp(&self) -> Timestamp;
    /// The record's key; `None` is Kafka's null, not the empty key.
    fn key(&self) -> Option<&[u8]>;
    /// The record's value; `None` is Kafka's null (a tombstone), not the empty value.
    fn value(&self) -> Option<&[u8]>;
    /// The header at `index`, in the order of the record; `None` past the last.
    fn header(&self, index: usize) -> Option<Header<'_>>;

    /// Says that the message at `next` is read next, and those behind it soon. A client whose messages lie scattered in
    /// memory brings them into the processor's cache meanwhile.
    fn prefetch(messages: &[Self], next: usize)
    where
        Self: Sized,
    {
        let _ = (messages, next);
    }

    /// Frees messages that were delivered together: once a batch, where a client can do that at less than once each.
    fn free(messages: Vec<Self>)
    where
        Self: Sized,
    {
        drop(messages);
    }
}

/// One header of a record. Names may repeat and need not be UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// The header's name, as it stands in the log.
    pub name: &'a [u8],
    /// The header's value; `None` is Kafka's null.
    pub value: Option<&'a [u8]>,
}

/// A record's time in milliseconds since the Unix epoch, and who set it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timestamp {
    /// The record has no time.
    #[default]
    None,
    /// Set by the producer.
    Created(i64),
    /// Set by the broker at the append.
    Appended(i64),
}

impl Timestamp {
    /// Milliseconds since the Unix epoch, whoever set them.
    pub fn millis(self) -> Option<i64> {
        match self {
            Timestamp::None => None,
            Timestamp::Created(millis) | Timestamp::Appended(millis) => Some(millis),
        }
    }
}

/// A message with memory of its own: its parts and the topic's name lie in one allocation.
#[derive(Clone, Debug)]
pub struct OwnedMessage {
    topic: Span,
    partition: i32,
    offset: Offset,
    timestamp: Timestamp,
    key: Option<Span>,
    value: Option<Span>,
    headers: Box<[(Span, Option<Span>)]>,
    bytes: Box<[u8]>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    end: u32,
}

impl OwnedMessage {
    /// Copies `message` out of its client's memory.
    pub fn copied(message: &dyn Message) -> Self {
        let (topic, partition) = message.partition();
        Self::build(
            topic,
            partition,
            message.offset(),
            message.timestamp(),
            message.key(),
            message.value(),
            (0..).map_while(|index| message.header(index)),
        )
    }

    /// Builds a message from its parts.
    pub fn build<'a>(
        topic: &str,
        partition: i32,
        offset: Offset,
        timestamp: Timestamp,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl Iterator<Item = Header<'a>>,
    ) -> Self {
        let len = topic.len() + key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len);
        let mut bytes = Vec::with_capacity(len);
        let mut append = |part: &[u8]| {
            let start = bytes.len() as u32;
            bytes.extend_from_slice(part);
            // Kafka bounds a record batch by 2 GiB, so every place in it fits.
            let end = u32::try_from(bytes.len()).expect("a record is smaller than 4 GiB");
            Span { start, end }
        };
        let topic = append(topic.as_bytes());
        let key = key.map(&mut append);
        let value = value.map(&mut append);
        let headers = headers
            .map(|header| (append(header.name), header.value.map(&mut append)))
            .collect();
        Self {
            topic,
            partition,
            offset,
            timestamp,
            key,
            value,
            headers,
            bytes: bytes.into_boxed_slice(),
        }
    }

    fn part(&self, span: Span) -> &[u8] {
        &self.bytes[span.start as usize..span.end as usize]
    }
}

impl Message for OwnedMessage {
    fn partition(&self) -> (&str, i32) {
        let topic = std::str::from_utf8(self.part(self.topic));
        (topic.expect("it was copied from a text"), self.partition)
    }

    fn offset(&self) -> Offset {
        self.offset
    }

    fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    fn key(&self) -> Option<&[u8]> {
        self.key.map(|span| self.part(span))
    }

    fn value(&self) -> Option<&[u8]> {
        self.value.map(|span| self.part(span))
    }

    fn header(&self, index: usize) -> Option<Header<'_>> {
        self.headers.get(index).map(|(name, value)| Header {
            name: self.part(*name),
            value: value.map(|span| self.part(span)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_null_empty_and_repeated_parts_apart() {
        let headers = [
            Header {
                name: b"a",
                value: Some(b"1"),
            },
            Header {
                name: b"a",
                value: None,
            },
            Header {
                name: b"\xff\xfe",
                value: Some(b""),
            },
        ];
        let original = OwnedMessage::build(
            "orders",
            3,
            Offset::new(42),
            Timestamp::Created(7),
            Some(b""),
            None,
            headers.into_iter(),
        );
        let copy = OwnedMessage::copied(&original);
        assert_eq!(copy.partition(), ("orders", 3));
        assert_eq!(copy.offset(), Offset::new(42));
        assert_eq!(copy.timestamp(), Timestamp::Created(7));
        assert_eq!(copy.key(), Some(&b""[..]));
        assert_eq!(copy.value(), None);
        let copied: Vec<_> = (0..).map_while(|index| copy.header(index)).collect();
        assert_eq!(copied, headers);
    }
}
