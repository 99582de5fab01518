//! Producing: the records of a session in the order of the calls, through every retry.
//!
//! [`SessionProducer`] is what users hold. It counts the records of each session; the `outbox` below it sends them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use rdkafka::message::{Header as KafkaHeader, OwnedHeaders};
use seriatim_runtime::message::Header;
use siphasher::sip128::{Hasher128, SipHasher13};
use tokio::sync::SemaphorePermit;

use crate::config::{self, ConfigError, Properties};
pub use crate::outbox::{Delivered, Delivery, FlushError, ProduceError};
use crate::outbox::{Outbox, Outgoing, SessionTag};

/// The header with a record's number in its session, in text, from 1: see [`SessionProducer`].
pub const SEQUENCE_HEADER: &str = "seriatim-seq";

/// The header that names the producer and its epoch, within which the numbers of a session have no gap.
pub const PRODUCER_HEADER: &str = "seriatim-producer";

/// Writes the records of each session in the order in which they were sent, while many are on their way.
///
/// # Order
/// What was sent first is written first: [`send`](Self::send) returns when the record has its place in the session,
/// and awaiting its [`Delivery`] is not needed for the order. A session lies in one partition, the one that Java's
/// partitioner chooses for a record whose key is the session. Retries, leader changes and broker failures neither
/// reorder nor repeat a record. Calls for one session that run at the same time are in no order.
///
/// # Failure
/// A record fails when the cluster refuses it (it is too large, the topic is unknown or closed to us), and not because
/// time passes: an unreachable cluster makes callers wait, unless `delivery.timeout.ms` is set. Then the session is
/// *halted*: `send` refuses its records until [`resume`](Self::resume), so that nothing follows the lost record
/// unnoticed. What was sent before the failure was known may already be written behind it, and the `Delivery` of each
/// says so. Who must exclude that awaits every `Delivery` before the session's next `send`. Kafka refuses whole
/// batches, so one bad record may halt other sessions of its partition too.
///
/// # Sequence
/// Every record carries [`SEQUENCE_HEADER`] and [`PRODUCER_HEADER`], by which a reader finds a record that is missing,
/// repeated or out of place. The numbers of all sessions start anew, under the next producer epoch, when 900,000
/// sessions are counted, after a resume, and when a topic's number of partitions changes.
pub struct SessionProducer {
    outbox: Outbox,
    sequencer: Mutex<Sequencer>,
}

/// A record to send.
///
/// ```
/// # use seriatim_kafka::producer::SessionRecord;
/// let record = SessionRecord { value: Some(b"make it Paris"), ..SessionRecord::new("chat", b"s1") };
/// assert_eq!(record.key, Some(&b"s1"[..]));
/// ```
#[derive(Clone, Copy)]
pub struct SessionRecord<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The session key: it decides the partition. Not empty.
    pub session: &'a [u8],
    /// The record's key: the session, unless that stands elsewhere in the record.
    pub key: Option<&'a [u8]>,
    /// The record's value; `None` is Kafka's null.
    pub value: Option<&'a [u8]>,
    /// The headers, before ours. Of ours only the ones that the producer sets are kept.
    pub headers: &'a [Header<'a>],
    /// Milliseconds since the Unix epoch; `None` is now.
    pub timestamp_ms: Option<i64>,
}

impl SessionProducer {
    /// Makes a producer, to be used within a tokio runtime. Brokers are connected to in the background.
    ///
    /// Before it is dropped, [`flush`](Self::flush) it: what is still on its way is lost otherwise.
    ///
    /// # Errors
    /// When `properties` cannot work.
    pub fn connect(brokers: &str, properties: &Properties) -> Result<Self, ConfigError> {
        // To give up on a record while its successor goes on is just what this producer is to prevent. So time alone
        // fails none.
        let defaults = [("delivery.timeout.ms", "0")];
        let config = config::producer_config_for(&defaults, brokers, properties)?;
        Ok(Self {
            outbox: Outbox::open(config)?,
            sequencer: Mutex::new(Sequencer::new(SEQUENCES_MAX)),
        })
    }

    /// Gives `record` its place in its session. Waits only for room in the queue, and for the topic's first metadata.
    ///
    /// Dropping the future before it is ready sends nothing; dropping the [`Delivery`] changes nothing.
    ///
    /// # Errors
    /// When the record cannot be sent at all. No place is taken then.
    pub async fn send(&self, record: SessionRecord<'_>) -> Result<Delivery, ProduceError> {
        if record.session.is_empty() {
            return Err(ProduceError::NoSession);
        }
        let room = self.outbox.room(record.len()).await;
        let partitions = self.outbox.partitions(record.topic).await?;
        self.enqueue(&record, partitions, room)
    }

    fn enqueue(
        &self,
        record: &SessionRecord<'_>,
        partitions: i32,
        room: SemaphorePermit<'_>,
    ) -> Result<Delivery, ProduceError> {
        // Held until the record is in the queue: numbers and places are given in the same order.
        let mut sequencer = self.sequencer();
        let session = sequencer.session(record.topic, record.session);
        if self.outbox.is_halted(session) {
            return Err(self.outbox.fatal().unwrap_or(ProduceError::SessionHalted));
        }
        sequencer.observe_partitions(record.topic, partitions);
        let (producer, last) = sequencer.last_sequence(session);
        let outgoing = Outgoing {
            topic: record.topic,
            partition: partition_of(record.session, partitions),
            key: record.key,
            value: record.value,
            headers: stamped(record.headers, producer, *last + 1)?,
            timestamp_ms: record.timestamp_ms,
            session: Some(session),
        };
        let delivery = self.outbox.enqueue(outgoing, room)?;
        *last += 1;
        Ok(delivery)
    }

    /// Lets a halted session go on: its next record is sent.
    pub fn resume(&self, topic: &str, session: &[u8]) {
        let mut sequencer = self.sequencer();
        let session = sequencer.session(topic, session);
        if self.outbox.resume(session) {
            // The lost record's number is a gap in this epoch, as it should be. The next epoch has none.
            sequencer.next_epoch();
        }
    }

    /// Lets all halted sessions go on. The only way when more than 100,000 are: then the producer refuses all.
    pub fn resume_all(&self) {
        let mut sequencer = self.sequencer();
        if self.outbox.resume_all() {
            sequencer.next_epoch();
        }
    }

    /// Waits until everything that was sent is answered for, written or failed. What is sent meanwhile waits.
    ///
    /// # Errors
    /// When that takes longer than `within`. Nothing is given up by it.
    pub async fn flush(&self, within: Duration) -> Result<(), FlushError> {
        self.outbox.flush(within).await
    }

    /// How many records were sent and are not answered for yet.
    pub fn outstanding(&self) -> usize {
        self.outbox.outstanding()
    }

    fn sequencer(&self) -> MutexGuard<'_, Sequencer> {
        self.sequencer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> SessionRecord<'a> {
    /// A record of `session`, with the session as its key and no value.
    pub fn new(topic: &'a str, session: &'a [u8]) -> Self {
        Self {
            topic,
            session,
            key: Some(session),
            value: None,
            headers: &[],
            timestamp_ms: None,
        }
    }

    fn len(&self) -> usize {
        let len = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
        let headers: usize = self
            .headers
            .iter()
            .map(|header| header.name.len() + len(header.value))
            .sum();
        len(self.key) + len(self.value) + headers
    }
}

/// The partition, of a topic with `partitions`, in which Java's default partitioner puts a record with this key.
pub fn partition_of(key: &[u8], partitions: i32) -> i32 {
    (murmur2(key) & 0x7fff_ffff) as i32 % partitions
}

/// Austin Appleby's MurmurHash2 for 32 bits, with the seed of `org.apache.kafka.common.utils.Utils.murmur2`.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let (words, tail) = data.as_chunks::<4>();
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !tail.is_empty() {
        for (index, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// `headers`, and ours behind them. What an earlier producer stamped on a record that is sent on is not true of this one.
fn stamped(headers: &[Header<'_>], producer: &str, sequence: u64) -> Result<OwnedHeaders, ProduceError> {
    let mut all = OwnedHeaders::new_with_capacity(headers.len() + 2);
    for header in headers {
        let key = std::str::from_utf8(header.name).map_err(|_| ProduceError::HeaderName)?;
        if key != SEQUENCE_HEADER && key != PRODUCER_HEADER {
            let value = header.value;
            all = all.insert(KafkaHeader { key, value });
        }
    }
    let sequence = sequence.to_string();
    Ok(all
        .insert(KafkaHeader {
            key: SEQUENCE_HEADER,
            value: Some(&sequence),
        })
        .insert(KafkaHeader {
            key: PRODUCER_HEADER,
            value: Some(producer),
        }))
}

/// What just fits a table of 2^20 slots: 26 MiB. One more would double it.
const SEQUENCES_MAX: usize = 917_504;

/// What gives each record its number in its session.
struct Sequencer {
    hasher: SipHasher13,
    id: u64,
    epoch: u64,
    /// Id and epoch, as the header says them.
    producer: String,
    sequences: HashMap<SessionTag, u64>,
    sequences_max: usize,
    /// By topic, as of its last record.
    partitions: HashMap<String, i32>,
}

impl Sequencer {
    fn new(sequences_max: usize) -> Self {
        // The standard library's hasher has random keys: all the randomness that a name and a hash key need.
        let random = RandomState::new();
        let mut sequencer = Self {
            hasher: SipHasher13::new_with_keys(random.hash_one(0), random.hash_one(1)),
            id: random.hash_one(2),
            epoch: 0,
            producer: String::new(),
            sequences: HashMap::new(),
            sequences_max,
            partitions: HashMap::new(),
        };
        sequencer.next_epoch();
        sequencer
    }

    fn session(&self, topic: &str, session: &[u8]) -> SessionTag {
        let mut hasher = self.hasher;
        hasher.write(topic.as_bytes());
        // No topic's name holds this byte, so none is another with a session's beginning.
        hasher.write_u8(0);
        hasher.write(session);
        let (high, low) = hasher.finish128().as_u64();
        SessionTag(high, low)
    }

    /// The producer's name, and the last number that was given to a record of `session`: 0 before its first.
    fn last_sequence(&mut self, session: SessionTag) -> (&str, &mut u64) {
        if self.sequences.len() >= self.sequences_max && !self.sequences.contains_key(&session) {
            self.next_epoch();
        }
        (&self.producer, self.sequences.entry(session).or_insert(0))
    }

    /// All sessions count from 1 again.
    fn next_epoch(&mut self) {
        self.epoch += 1;
        self.producer = format!("{:016x}/{}", self.id, self.epoch);
        self.sequences.clear();
    }

    /// Takes notice of how many partitions `topic` has: a change moves sessions, and no sequence spans two partitions.
    fn observe_partitions(&mut self, topic: &str, now: i32) {
        match self.partitions.get_mut(topic) {
            Some(before) if *before == now => {}
            Some(before) => {
                tracing::warn!(
                    topic,
                    before,
                    now,
                    "partitions were added: sessions have moved to others"
                );
                *before = now;
                self.next_epoch();
            }
            None => {
                self.partitions.insert(topic.to_owned(), now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lies_where_java_puts_it() {
        // From `Utils.murmur2` of kafka-clients 4.3.1, and `toPositive(…) % 12`.
        let java: [(&[u8], u32, i32); 10] = [
            (b"", 0x106e_08d9, 9),
            (b"a", 0xa2d0_b27c, 4),
            (b"21", 0xc5f2_f8ec, 0),
            (b"abc", 0x1c94_221b, 3),
            (b"foobar", 0xd0e4_7bbe, 6),
            (b"session-17", 0x3c14_2acb, 7),
            (b"a-little-bit-long-string", 0xc53b_1da0, 8),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", 0xfc7d_49cd, 5),
            ("книга".as_bytes(), 0xb980_e9af, 11),
            (b"\xff\x80\x00\x01\xfe\x9c\xaa", 0xb524_b61e, 10),
        ];
        for (key, hash, partition) in java {
            assert_eq!(murmur2(key), hash, "{key:?}");
            assert_eq!(partition_of(key, 12), partition, "{key:?}");
        }
    }

    #[test]
    fn sessions_count_apart_and_anew_in_each_epoch() {
        let mut sequencer = Sequencer::new(2);
        let mut next = |topic, session: &[u8]| {
            let session = sequencer.session(topic, session);
            let (producer, last) = sequencer.last_sequence(session);
            *last += 1;
            (producer.rsplit_once('/').unwrap().1.to_owned(), *last)
        };
        assert_eq!(next("chat", b"a"), ("1".into(), 1));
        assert_eq!(next("chat", b"a"), ("1".into(), 2));
        assert_eq!(next("mail", b"a"), ("1".into(), 1), "the same session in another topic");
        assert_eq!(next("chat", b"a"), ("1".into(), 3));
        assert_eq!(next("chat", b"b"), ("2".into(), 1), "one session more than fit");
        assert_eq!(next("chat", b"a"), ("2".into(), 1));
    }

    #[test]
    fn a_change_of_partitions_begins_an_epoch() {
        let mut sequencer = Sequencer::new(10);
        sequencer.observe_partitions("chat", 4);
        sequencer.observe_partitions("mail", 6);
        sequencer.observe_partitions("chat", 4);
        assert_eq!(sequencer.epoch, 1);
        sequencer.observe_partitions("chat", 8);
        assert_eq!(sequencer.epoch, 2);
    }
}
