//! What a source delivers: messages in the client's own memory, read through one small trait.

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;

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

/// A message with memory of its own: one allocation, which clones share.
// Records that wait are kept like this, a million of them perhaps, so it is packed by hand: a head of a few numbers (`word`),
// then the end of each part, then the parts themselves, one behind the other. Parts are topic, key and value, and each header's
// name and value.
#[derive(Clone)]
pub struct OwnedMessage(Arc<[u8]>);

/// Where the numbers of the head stand, in words of four bytes.
mod word {
    /// Two words.
    pub(super) const OFFSET: usize = 0;
    /// Two words.
    pub(super) const MILLIS: usize = 2;
    /// What kind of time it is.
    pub(super) const TIMESTAMP: usize = 4;
    pub(super) const PARTITION: usize = 5;
    /// How many there are.
    pub(super) const HEADERS: usize = 6;
    /// The end of each part.
    pub(super) const ENDS: usize = 7;
}

const WORD: usize = size_of::<u32>();

const TOPIC: usize = 0;
const KEY: usize = 1;
const VALUE: usize = 2;
/// The name of the first header, and its value behind it.
const HEADER: usize = 3;

/// Marks the end of a part that is null.
const NULL: u32 = 1 << 31;

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
    ///
    /// # Panics
    /// When the parts are 2 GiB or more, which Kafka's records never are.
    pub fn build<'a>(
        topic: &str,
        partition: i32,
        offset: Offset,
        timestamp: Timestamp,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl Iterator<Item = Header<'a>>,
    ) -> Self {
        let headers: Vec<_> = headers.collect();
        let named = headers.iter().flat_map(|header| [Some(header.name), header.value]);
        let parts = [Some(topic.as_bytes()), key, value].into_iter().chain(named);
        let start = first_part(headers.len());
        let len = start + parts.clone().flatten().map(<[u8]>::len).sum::<usize>();
        assert!(len < NULL as usize, "a record is smaller than 2 GiB");

        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, len).collect();
        let room = Arc::get_mut(&mut bytes).expect("nobody has it but us");
        let (kind, millis) = match timestamp {
            Timestamp::None => (0, 0),
            Timestamp::Created(millis) => (1, millis),
            Timestamp::Appended(millis) => (2, millis),
        };
        write(room, word::OFFSET, offset.get().to_ne_bytes());
        write(room, word::MILLIS, millis.to_ne_bytes());
        write(room, word::TIMESTAMP, u32::to_ne_bytes(kind));
        write(room, word::PARTITION, partition.to_ne_bytes());
        write(room, word::HEADERS, (headers.len() as u32).to_ne_bytes());
        let mut end = start;
        for (index, part) in parts.enumerate() {
            let null = if part.is_none() { NULL } else { 0 };
            let part = part.unwrap_or_default();
            room[end..end + part.len()].copy_from_slice(part);
            end += part.len();
            write(room, word::ENDS + index, (end as u32 | null).to_ne_bytes());
        }
        Self(bytes)
    }

    /// Reads the head, so that it is near.
    #[inline]
    pub(crate) fn touch(&self) {
        black_box(self.0[0]);
    }

    fn number<const BYTES: usize>(&self, word: usize) -> [u8; BYTES] {
        let at = word * WORD;
        self.0[at..at + BYTES].try_into().expect("as many as asked for")
    }

    fn headers(&self) -> usize {
        u32::from_ne_bytes(self.number(word::HEADERS)) as usize
    }

    fn end(&self, part: usize) -> u32 {
        u32::from_ne_bytes(self.number(word::ENDS + part))
    }

    fn part(&self, part: usize) -> Option<&[u8]> {
        let start = match part.checked_sub(1) {
            Some(before) => (self.end(before) & !NULL) as usize,
            None => first_part(self.headers()),
        };
        let end = self.end(part);
        (end & NULL == 0).then(|| &self.0[start..end as usize])
    }
}

/// Where the first part begins.
fn first_part(headers: usize) -> usize {
    (word::ENDS + HEADER + 2 * headers) * WORD
}

fn write<const BYTES: usize>(room: &mut [u8], word: usize, number: [u8; BYTES]) {
    let at = word * WORD;
    room[at..at + BYTES].copy_from_slice(&number);
}

impl Message for OwnedMessage {
    fn partition(&self) -> (&str, i32) {
        let topic = std::str::from_utf8(self.part(TOPIC).unwrap_or_default());
        let number = i32::from_ne_bytes(self.number(word::PARTITION));
        (topic.expect("it was copied from a text"), number)
    }

    fn offset(&self) -> Offset {
        Offset::new(i64::from_ne_bytes(self.number(word::OFFSET)))
    }

    fn timestamp(&self) -> Timestamp {
        let millis = i64::from_ne_bytes(self.number(word::MILLIS));
        match u32::from_ne_bytes(self.number(word::TIMESTAMP)) {
            0 => Timestamp::None,
            1 => Timestamp::Created(millis),
            _ => Timestamp::Appended(millis),
        }
    }

    fn key(&self) -> Option<&[u8]> {
        self.part(KEY)
    }

    fn value(&self) -> Option<&[u8]> {
        self.part(VALUE)
    }

    fn header(&self, index: usize) -> Option<Header<'_>> {
        (index < self.headers()).then(|| {
            let name = HEADER + 2 * index;
            Header {
                name: self.part(name).unwrap_or_default(),
                value: self.part(name + 1),
            }
        })
    }
}

// Neither key nor payload: messages end up in logs.
impl fmt::Debug for OwnedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (topic, partition) = self.partition();
        write!(f, "OwnedMessage({topic}[{partition}]@{})", self.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Null, empty, and something.
    const PARTS: [Option<&[u8]>; 3] = [None, Some(b""), Some(b"\xff\xfe")];

    fn headers(message: &OwnedMessage) -> Vec<Header<'_>> {
        (0..).map_while(|index| message.header(index)).collect()
    }

    #[test]
    fn a_copy_keeps_null_empty_and_repeated_parts_apart() {
        let timestamps = [Timestamp::None, Timestamp::Created(-7), Timestamp::Appended(i64::MAX)];
        let named = PARTS.map(|value| [b"a".as_slice(), b""].map(|name| Header { name, value }));
        let named = named.as_flattened();
        for (key, value, timestamp) in PARTS
            .into_iter()
            .flat_map(|key| PARTS.map(|value| (key, value)))
            .flat_map(|(key, value)| timestamps.map(|timestamp| (key, value, timestamp)))
        {
            for named in [named, &named[..1], &[]] {
                let offset = Offset::new(i64::MAX - 1);
                let original = OwnedMessage::build("orders", 3, offset, timestamp, key, value, named.iter().copied());
                let copy = OwnedMessage::copied(&original);
                assert_eq!((copy.partition(), copy.offset()), (("orders", 3), offset));
                assert_eq!(copy.timestamp(), timestamp);
                assert_eq!((copy.key(), copy.value()), (key, value));
                assert_eq!(headers(&copy), named);
            }
        }
    }

    #[test]
    fn neither_key_nor_value_is_printed() {
        let header = Header {
            name: b"session-id",
            value: Some(b"secret"),
        };
        let message = OwnedMessage::build(
            "orders",
            3,
            Offset::new(42),
            Timestamp::None,
            Some(b"secret"),
            Some(b"secret"),
            [header].into_iter(),
        );
        assert_eq!(format!("{message:?}"), "OwnedMessage(orders[3]@42)");
    }
}
