//! Producing: the records of a session in the order of the calls, through every retry.
//!
//! [`SessionProducer`] is what users hold. Below it lies the [`Outbox`], which the dead letter sink uses as well: a
//! librdkafka producer with a gate in front, so that a full queue makes callers wait in turn instead of failing them.

use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header as KafkaHeader, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use seriatim_engine::record::Offset;
use seriatim_runtime::message::Header;
use siphasher::sip128::{Hasher128, SipHasher13};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::config::{self, ConfigError, Properties};

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
    order: Mutex<Order>,
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

/// Where a record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The partition's number.
    pub partition: i32,
    /// The offset; `None` when an earlier try had written the record and its answer was lost.
    pub offset: Option<Offset>,
}

/// A record that was not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProduceError {
    /// The record names no session.
    #[error("the record has no session key")]
    NoSession,
    /// The client can write only header names that are UTF-8.
    #[error("the name of a header is not UTF-8")]
    HeaderName,
    /// An earlier record of the session failed.
    #[error("the session is halted: an earlier record of it was not written; resume it when that is dealt with")]
    SessionHalted,
    /// There is no such topic, or it has fewer partitions than before.
    #[error("topic {topic} does not exist; create it, or correct the name")]
    UnknownTopic {
        /// The topic.
        topic: String,
    },
    /// The principal may not write there.
    #[error("not permitted to write to topic {topic}: {reason}; check the principal's ACLs")]
    Denied {
        /// The topic.
        topic: String,
        /// The broker's words.
        reason: String,
    },
    /// The record, or the batch it was in, is larger than allowed.
    #[error("too large for topic {topic}; raise the topic's `max.message.bytes` and the client's `message.max.bytes`")]
    TooLarge {
        /// The topic.
        topic: String,
    },
    /// No broker answers.
    #[error("no broker can be reached: {reason}")]
    Unreachable {
        /// The client's words.
        reason: String,
    },
    /// No acknowledgement came in time. The record may have been written all the same.
    #[error("topic {topic} acknowledged nothing within `delivery.timeout.ms`; the record may have been written")]
    Unacknowledged {
        /// The topic.
        topic: String,
    },
    /// The producer was dropped before the record was acknowledged. It may have been written.
    #[error("the producer was dropped before the record was acknowledged; flush it first")]
    Dropped,
    /// The producer lost track of what the cluster has, and can write no more.
    #[error("the producer can go on no more: {reason}; make a new one")]
    Fatal {
        /// The client's words.
        reason: String,
    },
    /// Anything else, in the broker's words.
    #[error("topic {topic} refused the record: {reason}")]
    Refused {
        /// The topic.
        topic: String,
        /// The broker's words.
        reason: String,
    },
}

/// Records that were not yet answered for when the time for a flush was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{outstanding} records are not acknowledged yet")]
pub struct FlushError {
    /// How many.
    pub outstanding: usize,
}

impl SessionProducer {
    /// Makes a producer. Brokers are connected to in the background.
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
            order: Mutex::new(Order::new(SEQUENCES_MAX)),
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
        let mut order = self.order();
        let session = order.session(record.topic, record.session);
        if self.outbox.context().halted.contains(session) {
            return Err(self.outbox.fatal().unwrap_or(ProduceError::SessionHalted));
        }
        order.observe_partitions(record.topic, partitions);
        let (producer, last) = order.last_sequence(session);
        let outgoing = Outgoing {
            topic: record.topic,
            partition: partition_of(record.session, partitions),
            key: record.key,
            value: record.value,
            headers: stamped(record.headers, producer, *last + 1)?,
            timestamp_ms: record.timestamp_ms,
        };
        let delivery = self.outbox.enqueue_for(Some(session), outgoing, room)?;
        *last += 1;
        Ok(delivery)
    }

    /// Lets a halted session go on: its next record is sent.
    pub fn resume(&self, topic: &str, session: &[u8]) {
        let mut order = self.order();
        let session = order.session(topic, session);
        if self.outbox.context().halted.remove(session) {
            // The lost record's number stays a gap: the numbers go on under another epoch.
            order.next_epoch();
        }
    }

    /// Lets all halted sessions go on. The only way when more than 100,000 are: then the producer refuses all.
    pub fn resume_all(&self) {
        let mut order = self.order();
        if self.outbox.context().halted.clear() {
            order.next_epoch();
        }
    }

    /// Waits until everything that was sent is answered for, written or failed. What is sent meanwhile waits.
    ///
    /// # Errors
    /// When that takes longer than `within`. Nothing is given up by it.
    pub async fn flush(&self, within: Duration) -> Result<(), FlushError> {
        self.outbox.flush(within).await
    }

    fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
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

/// What gives the records of all sessions their places: partition counts, and the last number of each session.
struct Order {
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

/// A session of a topic, in 16 bytes whatever its key: a keyed hash, so long that no two sessions share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SessionTag(u64, u64);

impl Order {
    fn new(sequences_max: usize) -> Self {
        // The standard library's hasher has random keys: all the randomness that a name and a hash key need.
        let random = RandomState::new();
        let mut order = Self {
            hasher: SipHasher13::new_with_keys(random.hash_one(0), random.hash_one(1)),
            id: random.hash_one(2),
            epoch: 0,
            producer: String::new(),
            sequences: HashMap::new(),
            sequences_max,
            partitions: HashMap::new(),
        };
        order.next_epoch();
        order
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

/// The way of one record to its acknowledgement: a future of where it was written.
///
/// Dropping it changes nothing for the record.
///
/// # Panics
/// When polled again after it was ready.
#[derive(Debug)]
pub struct Delivery(Arc<Ticket>);

/// What librdkafka carries beside a record and brings back with the answer. The one allocation that is ours per record.
#[derive(Debug)]
struct Ticket {
    session: Option<SessionTag>,
    /// What the record holds of the gate.
    bytes: usize,
    state: Mutex<TicketState>,
}

#[derive(Debug)]
enum TicketState {
    Waiting(Option<Waker>),
    Answered(Result<Delivered, ProduceError>),
    Taken,
}

impl Ticket {
    fn state(&self) -> MutexGuard<'_, TicketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, answer: Result<Delivered, ProduceError>) {
        let before = std::mem::replace(&mut *self.state(), TicketState::Answered(answer));
        if let TicketState::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl Future for Delivery {
    type Output = Result<Delivered, ProduceError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state();
        if let TicketState::Waiting(waker) = &mut *state {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, TicketState::Taken) {
            TicketState::Answered(answer) => Poll::Ready(answer),
            _ => panic!("a delivery was polled after it was ready"),
        }
    }
}

/// What a queued record takes beside its bytes: librdkafka's message and headers, and the ticket.
const RECORD_OVERHEAD_BYTES: usize = 512;

/// A librdkafka producer with a gate in front of it. The gate lets in as many bytes as `queue.buffering.max.kbytes`
/// says, in the order of the calls; librdkafka's own limit would fail them instead.
pub(crate) struct Outbox {
    /// There until the drop.
    producer: Option<ThreadedProducer<OutboxContext>>,
}

/// A record on its way into an [`Outbox`].
pub(crate) struct Outgoing<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: i32,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) headers: OwnedHeaders,
    pub(crate) timestamp_ms: Option<i64>,
}

impl Outbox {
    pub(crate) fn open(mut config: ClientConfig) -> Result<Self, ConfigError> {
        let kbytes: usize = config
            .get("queue.buffering.max.kbytes")
            .and_then(|kbytes| kbytes.parse().ok())
            .expect("a default is set, and librdkafka has checked the user's");
        config.set("queue.buffering.max.kbytes", "2147483647");
        let context = OutboxContext::new(kbytes.saturating_mul(1024));
        let producer = config
            .create_with_context(context)
            .map_err(|error| ConfigError::Refused(error.to_string()))?;
        Ok(Self {
            producer: Some(producer),
        })
    }

    /// Waits for room for a record of so many bytes.
    pub(crate) async fn room(&self, bytes: usize) -> SemaphorePermit<'_> {
        let context = self.context();
        // A record larger than the gate is let in alone.
        let bytes = (bytes + RECORD_OVERHEAD_BYTES).min(context.gate_bytes);
        acquire(&context.gate, bytes).await
    }

    /// Puts a record into the queue. It leaves the gate when it is answered for.
    pub(crate) fn enqueue(&self, outgoing: Outgoing<'_>, room: SemaphorePermit<'_>) -> Result<Delivery, ProduceError> {
        self.enqueue_for(None, outgoing, room)
    }

    fn enqueue_for(
        &self,
        session: Option<SessionTag>,
        outgoing: Outgoing<'_>,
        room: SemaphorePermit<'_>,
    ) -> Result<Delivery, ProduceError> {
        let ticket = Arc::new(Ticket {
            session,
            bytes: room.num_permits(),
            state: Mutex::new(TicketState::Waiting(None)),
        });
        let record = BaseRecord {
            topic: outgoing.topic,
            partition: Some(outgoing.partition),
            payload: outgoing.value,
            key: outgoing.key,
            timestamp: outgoing.timestamp_ms,
            headers: Some(outgoing.headers),
            delivery_opaque: Arc::clone(&ticket),
        };
        match self.producer().send(record) {
            Ok(()) => {
                room.forget();
                Ok(Delivery(ticket))
            }
            Err((error, _)) => Err(self.explained(self.context().failed(&error, outgoing.topic))),
        }
    }

    /// How many partitions `topic` has, as the cluster said within the last minutes.
    pub(crate) async fn partitions(&self, topic: &str) -> Result<i32, ProduceError> {
        let context = self.context();
        if let Some(answer) = context.census.recent(topic) {
            return answer;
        }
        // One asks; the others wait for its answer rather than ask a thousand times.
        let _turn = acquire(&context.census_turn, 1).await;
        if let Some(answer) = context.census.recent(topic) {
            return answer;
        }
        let producer = self.producer().clone();
        let asked = topic.to_owned();
        let answer = spawn_blocking(move || count_partitions(&producer, &asked))
            .await
            .map_err(|_| ProduceError::Dropped)?;
        context.census.note(topic, answer)
    }

    pub(crate) async fn flush(&self, within: Duration) -> Result<(), FlushError> {
        let context = self.context();
        // All of the gate is free when nothing is on its way.
        match timeout(within, acquire(&context.gate, context.gate_bytes)).await {
            Ok(_all) => Ok(()),
            Err(_) => Err(FlushError {
                outstanding: self.producer().in_flight_count().max(0) as usize,
            }),
        }
    }

    /// librdkafka's last word, if it has given up.
    pub(crate) fn fatal(&self) -> Option<ProduceError> {
        let (_, reason) = self.producer().client().fatal_error()?;
        Some(ProduceError::Fatal { reason })
    }

    fn explained(&self, error: ProduceError) -> ProduceError {
        match error {
            ProduceError::Fatal { .. } => self.fatal().unwrap_or(error),
            other => other,
        }
    }

    fn context(&self) -> &OutboxContext {
        self.producer().context()
    }

    fn producer(&self) -> &ThreadedProducer<OutboxContext> {
        self.producer.as_ref().expect("there until the drop")
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        // The end of a librdkafka client joins threads, for half a second and more: not on a worker of the runtime. All
        // records that are still on their way are answered with `Dropped`.
        let producer = self.producer.take();
        let spawned = thread::Builder::new().name("seriatim-outbox-end".into());
        let _ = spawned.spawn(move || drop(producer));
    }
}

async fn acquire(semaphore: &Semaphore, permits: usize) -> SemaphorePermit<'_> {
    let permits = u32::try_from(permits).expect("bounded at the making of the gate");
    semaphore.acquire_many(permits).await.expect("it is never closed")
}

/// How long a topic may be unknown before it is an error: news of a new topic takes a moment to reach all brokers.
const UNKNOWN_TOPIC_PATIENCE: Duration = Duration::from_secs(3);
const METADATA_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks the cluster. Blocks.
fn count_partitions(producer: &ThreadedProducer<OutboxContext>, topic: &str) -> Result<i32, ProduceError> {
    let deadline = Instant::now() + UNKNOWN_TOPIC_PATIENCE;
    loop {
        let metadata = producer
            .client()
            .fetch_metadata(Some(topic), METADATA_TIMEOUT)
            .map_err(|error| explain(&error, topic))?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let code = match found.map(|found| (found.error(), found.partitions().len())) {
            Some((None, partitions @ 1..)) => return Ok(partitions as i32),
            Some((Some(error), _)) => RDKafkaErrorCode::from(error),
            _ => RDKafkaErrorCode::UnknownTopicOrPartition,
        };
        match explain(&KafkaError::MetadataFetch(code), topic) {
            ProduceError::UnknownTopic { .. } if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(100));
            }
            error => return Err(error),
        }
    }
}

/// What librdkafka's threads share with ours.
struct OutboxContext {
    gate: Semaphore,
    gate_bytes: usize,
    halted: Halted,
    census: Census,
    census_turn: Semaphore,
}

impl OutboxContext {
    fn new(gate_bytes: usize) -> Self {
        // A semaphore hands out at most this many permits at a time.
        let gate_bytes = gate_bytes.min(u32::MAX as usize);
        Self {
            gate: Semaphore::new(gate_bytes),
            gate_bytes,
            halted: Halted::default(),
            census: Census::default(),
            census_turn: Semaphore::new(1),
        }
    }

    fn failed(&self, error: &KafkaError, topic: &str) -> ProduceError {
        let error = explain(error, topic);
        if matches!(error, ProduceError::UnknownTopic { .. }) {
            self.census.forget(topic);
        }
        error
    }
}

impl ProducerContext for OutboxContext {
    type DeliveryOpaque = Arc<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Arc<Ticket>) {
        let answer = match result {
            Ok(message) => Ok(Delivered {
                partition: message.partition(),
                offset: (message.offset() >= 0).then(|| Offset::new(message.offset())),
            }),
            Err((error, message)) => Err(self.failed(error, message.topic())),
        };
        // Halted before the answer is seen, so that who has seen it is refused for certain.
        if let (Err(_), Some(session)) = (&answer, ticket.session) {
            self.halted.insert(session);
        }
        ticket.answer(answer);
        self.gate.add_permits(ticket.bytes);
    }
}

impl ClientContext for OutboxContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        config::log(level, facility, text);
    }

    fn stats_raw(&self, _statistics: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(target: "librdkafka", %error, "{reason}");
    }
}

/// librdkafka's error in our words.
fn explain(error: &KafkaError, topic: &str) -> ProduceError {
    use RDKafkaErrorCode as Code;
    let topic = topic.to_owned();
    let reason = error.to_string();
    match error.rdkafka_error_code() {
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition | Code::InvalidTopic) => {
            ProduceError::UnknownTopic { topic }
        }
        Some(Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed) => {
            ProduceError::Denied { topic, reason }
        }
        Some(Code::MessageSizeTooLarge) => ProduceError::TooLarge { topic },
        Some(Code::MessageTimedOut) => ProduceError::Unacknowledged { topic },
        Some(Code::BrokerTransportFailure | Code::OperationTimedOut | Code::AllBrokersDown | Code::Resolve) => {
            ProduceError::Unreachable { reason }
        }
        Some(Code::PurgeQueue | Code::PurgeInflight) => ProduceError::Dropped,
        Some(Code::Fatal) => ProduceError::Fatal { reason },
        _ => ProduceError::Refused { topic, reason },
    }
}

/// More failed sessions than this, 2 MiB of them, are a failure of all.
const HALTED_MAX: usize = 100_000;

/// The sessions of which a record was lost.
#[derive(Default)]
struct Halted {
    /// Whether there is any: all that the ordinary case looks at.
    any: AtomicBool,
    sessions: Mutex<HashSet<SessionTag>>,
}

impl Halted {
    fn contains(&self, session: SessionTag) -> bool {
        self.any.load(Ordering::Acquire) && {
            let sessions = self.sessions();
            sessions.len() >= HALTED_MAX || sessions.contains(&session)
        }
    }

    fn insert(&self, session: SessionTag) {
        let mut sessions = self.sessions();
        if sessions.len() < HALTED_MAX {
            sessions.insert(session);
        }
        self.any.store(true, Ordering::Release);
    }

    /// Whether the session was halted.
    fn remove(&self, session: SessionTag) -> bool {
        let mut sessions = self.sessions();
        let removed = sessions.len() < HALTED_MAX && sessions.remove(&session);
        self.any.store(!sessions.is_empty(), Ordering::Release);
        removed
    }

    /// Whether any session was halted.
    fn clear(&self) -> bool {
        let mut sessions = self.sessions();
        sessions.clear();
        self.any.swap(false, Ordering::AcqRel)
    }

    fn sessions(&self) -> MutexGuard<'_, HashSet<SessionTag>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every client of a cluster learns of new partitions within this time, as librdkafka's and Java's do.
const CENSUS_INTERVAL: Duration = Duration::from_secs(300);

/// A refusal is passed on to all who ask within this time.
const CENSUS_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How many partitions each topic has, or why that is not known, and when the cluster was asked.
#[derive(Default)]
struct Census(Mutex<HashMap<String, (Result<i32, ProduceError>, Instant)>>);

impl Census {
    fn recent(&self, topic: &str) -> Option<Result<i32, ProduceError>> {
        let topics = self.topics();
        let (answer, asked) = topics.get(topic)?;
        let valid = if answer.is_ok() {
            CENSUS_INTERVAL
        } else {
            CENSUS_RETRY_INTERVAL
        };
        (asked.elapsed() < valid).then(|| answer.clone())
    }

    /// Takes an answer in, and returns what counts now: an old number stays when there is no new one.
    fn note(&self, topic: &str, answer: Result<i32, ProduceError>) -> Result<i32, ProduceError> {
        let mut topics = self.topics();
        let counts = match (topics.get(topic), answer) {
            (Some((Ok(before), _)), Err(ProduceError::Unreachable { .. })) => Ok(*before),
            (_, answer) => answer,
        };
        topics.insert(topic.to_owned(), (counts.clone(), Instant::now()));
        counts
    }

    fn forget(&self, topic: &str) {
        self.topics().remove(topic);
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<String, (Result<i32, ProduceError>, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
