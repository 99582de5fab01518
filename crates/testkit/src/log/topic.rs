//! Topics, their partitions, and what is appended to them.

use std::sync::Arc;

use seriatim_engine::record::{Offset, PartitionId, RecordId};
use seriatim_runtime::message::{Header, OwnedMessage, Timestamp};

/// A record to append: a key, a value, and whatever else matters to the test.
#[derive(Clone, Debug, Default)]
pub struct NewRecord {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    partition: Option<i32>,
    timestamp: Timestamp,
}

impl NewRecord {
    /// A record with this key and value.
    pub fn new(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        Self::from_parts(Some(key.as_ref()), Some(value.as_ref()))
    }

    /// A record whose key or value may be Kafka's null.
    pub fn from_parts(key: Option<&[u8]>, value: Option<&[u8]>) -> Self {
        Self {
            key: key.map(<[u8]>::to_vec),
            value: value.map(<[u8]>::to_vec),
            ..Self::default()
        }
    }

    /// Adds a header behind those there are.
    pub fn header(self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.raw_header(name.as_ref(), Some(value.as_ref()))
    }

    /// Adds a header whose value may be null.
    pub fn raw_header(mut self, name: &[u8], value: Option<&[u8]>) -> Self {
        self.headers.push((name.to_vec(), value.map(<[u8]>::to_vec)));
        self
    }

    /// Names the partition, whatever the key.
    pub fn partition(mut self, number: i32) -> Self {
        self.partition = Some(number);
        self
    }

    /// Sets the producer's time, in milliseconds since the Unix epoch.
    pub fn created_at(mut self, millis: i64) -> Self {
        self.timestamp = Timestamp::Created(millis);
        self
    }
}

#[derive(Default)]
pub(super) struct Topic {
    pub(super) partitions: Vec<Partition>,
    /// Counts the topics that had its name before.
    pub(super) incarnation: u64,
    /// Where the next record without key goes.
    next_keyless: usize,
}

#[derive(Default)]
pub(super) struct Partition {
    /// By rising offset.
    pub(super) records: Vec<(Offset, OwnedMessage)>,
    /// The offset of the next record.
    pub(super) end: i64,
}

impl Topic {
    pub(super) fn grow(&mut self, topic: &str, partitions: i32) {
        let (has, wanted) = (self.partitions.len(), partitions as usize);
        assert!(
            partitions > 0 && has <= wanted,
            "topic {topic} has {has} partitions, and cannot have {partitions}"
        );
        self.partitions.resize_with(wanted, Partition::default);
    }

    pub(super) fn count(&self) -> i32 {
        self.partitions.len() as i32
    }

    /// Where a partition's log ends.
    pub(super) fn end(&self, partition: i32) -> Offset {
        Offset::new(self.partitions[partition as usize].end)
    }

    pub(super) fn ids(&self, topic: &str) -> impl Iterator<Item = PartitionId> + use<> {
        let topic: Arc<str> = topic.into();
        (0..self.count()).map(move |number| PartitionId::new(Arc::clone(&topic), number))
    }

    pub(super) fn partition(&mut self, id: &PartitionId) -> &mut Partition {
        let found = self.partitions.get_mut(id.number() as usize);
        found.unwrap_or_else(|| panic!("there is no partition {id}"))
    }

    pub(super) fn append(&mut self, topic: &str, record: NewRecord) -> RecordId {
        let number = record.partition.unwrap_or_else(|| match &record.key {
            Some(key) => partition_of(key, self.count()),
            None => {
                self.next_keyless += 1;
                ((self.next_keyless - 1) % self.partitions.len()) as i32
            }
        });
        let id = PartitionId::new(topic, number);
        let partition = self.partition(&id);
        let offset = Offset::new(partition.end);
        partition.end += 1;
        let headers = record.headers.iter().map(|(name, value)| Header {
            name,
            value: value.as_deref(),
        });
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        let message = OwnedMessage::build(topic, number, offset, record.timestamp, key, value, headers);
        partition.records.push((offset, message));
        RecordId { partition: id, offset }
    }
}

impl Partition {
    /// The index of the first record at or above an offset.
    pub(super) fn first_at(&self, offset: Offset) -> usize {
        self.records.partition_point(|(at, _)| *at < offset)
    }
}

/// The partition of a key, as Java's producer chooses it: murmur2 without its sign.
pub fn partition_of(key: &[u8], partitions: i32) -> i32 {
    ((murmur2(key) & 0x7fff_ffff) % partitions as u32) as i32
}

/// MurmurHash2 with Kafka's seed (`org.apache.kafka.common.utils.Utils.murmur2`).
fn murmur2(bytes: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ bytes.len() as u32;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        let word = u32::from_le_bytes(word.try_into().expect("chunks of four")).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ (word ^ (word >> 24)).wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur2_gives_the_numbers_of_kafkas_own_test() {
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()) as i32, hash, "{text}");
        }
    }
}
