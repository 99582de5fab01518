//! The way out: a librdkafka producer with a gate in front, so that a full queue makes callers wait in turn instead of
//! failing them. The session producer and the dead letter sink both send by it.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Message as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use seriatim_engine::record::Offset;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::config::{self, ConfigError};
use crate::trouble::LastFailure;

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

/// A session of a topic, in 16 bytes whatever its key: a keyed hash, so long that no two sessions share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionTag(pub(crate) u64, pub(crate) u64);

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
    /// What to halt when the record fails.
    pub(crate) session: Option<SessionTag>,
}

impl Outbox {
    pub(crate) fn open(mut config: ClientConfig) -> Result<Self, ConfigError> {
        let kbytes: usize = config
            .get("queue.buffering.max.kbytes")
            .and_then(|kbytes| kbytes.parse().ok())
            .expect("a default is set, and librdkafka has checked the user's");
        config.set("queue.buffering.max.kbytes", "2147483647");
        let last_failure = LastFailure::none(config::brokers_of(&config));
        let context = OutboxContext::new(kbytes.saturating_mul(1024), last_failure);
        let producer = config.create_with_context(context).map_err(config::client_refused)?;
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
        let ticket = Arc::new(Ticket {
            session: outgoing.session,
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
        let context = self.context();
        context.enter(room);
        match self.producer().send(record) {
            Ok(()) => Ok(Delivery(ticket)),
            Err((error, _)) => {
                context.leave(ticket.bytes);
                Err(self.fatal().unwrap_or(context.failed(&error, outgoing.topic)))
            }
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
                outstanding: self.outstanding(),
            }),
        }
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.context().outstanding.load(Ordering::Acquire)
    }

    /// librdkafka's last word, if it has given up.
    pub(crate) fn fatal(&self) -> Option<ProduceError> {
        let (_, reason) = self.producer().client().fatal_error()?;
        Some(ProduceError::Fatal { reason })
    }

    /// Whether a record of the session failed, and the session waits for its [`resume`](Self::resume).
    pub(crate) fn is_halted(&self, session: SessionTag) -> bool {
        self.context().halted.contains(session)
    }

    /// Lets a session go on. Returns whether it was halted.
    pub(crate) fn resume(&self, session: SessionTag) -> bool {
        self.context().halted.remove(session)
    }

    /// Lets all sessions go on. Returns whether any was halted.
    pub(crate) fn resume_all(&self) -> bool {
        self.context().halted.clear()
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
const METADATA_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the cluster. Blocks.
fn count_partitions(producer: &ThreadedProducer<OutboxContext>, topic: &str) -> Result<i32, ProduceError> {
    let deadline = Instant::now() + UNKNOWN_TOPIC_PATIENCE;
    loop {
        let metadata = producer
            .client()
            .fetch_metadata(Some(topic), METADATA_TIMEOUT)
            .map_err(|error| producer.context().explain(&error, topic))?;
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
    /// A permit a byte.
    gate: Semaphore,
    gate_bytes: usize,
    /// Records inside.
    outstanding: AtomicUsize,
    /// Bytes of records that have left, not yet given back to the gate.
    left_bytes: AtomicUsize,
    halted: Halted,
    census: Census,
    census_turn: Semaphore,
    last_failure: LastFailure,
}

impl OutboxContext {
    fn new(gate_bytes: usize, last_failure: LastFailure) -> Self {
        // A semaphore hands out at most this many permits at a time.
        let gate_bytes = gate_bytes.min(u32::MAX as usize);
        Self {
            gate: Semaphore::new(gate_bytes),
            gate_bytes,
            outstanding: AtomicUsize::new(0),
            left_bytes: AtomicUsize::new(0),
            halted: Halted::default(),
            census: Census::default(),
            census_turn: Semaphore::new(1),
            last_failure,
        }
    }

    fn enter(&self, room: SemaphorePermit<'_>) {
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        room.forget();
    }

    /// A record has left. Room is given back by the sixteenth of the gate: else, with the gate full, each record that
    /// leaves would wake the caller for just one other. The last one inside gives back all, so nobody waits for good.
    fn leave(&self, bytes: usize) {
        let left_bytes = self.left_bytes.fetch_add(bytes, Ordering::AcqRel) + bytes;
        let last = self.outstanding.fetch_sub(1, Ordering::AcqRel) == 1;
        if last || left_bytes >= self.gate_bytes / 16 {
            self.gate.add_permits(self.left_bytes.swap(0, Ordering::AcqRel));
        }
    }

    fn failed(&self, error: &KafkaError, topic: &str) -> ProduceError {
        let error = self.explain(error, topic);
        if matches!(error, ProduceError::UnknownTopic { .. }) {
            self.census.forget(topic);
        }
        error
    }

    /// As [`explain`], with why no broker answers.
    fn explain(&self, error: &KafkaError, topic: &str) -> ProduceError {
        match explain(error, topic) {
            ProduceError::Unreachable { reason } => ProduceError::Unreachable {
                reason: self.last_failure.text().unwrap_or(reason),
            },
            other => other,
        }
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
        self.leave(ticket.bytes);
    }
}

impl ClientContext for OutboxContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        config::log(level, facility, text);
    }

    fn stats_raw(&self, _statistics: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        self.last_failure.note(&error, reason);
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

/// How many partitions each topic has, as the cluster said last.
#[derive(Default)]
struct Census(Mutex<HashMap<String, Count>>);

struct Count {
    partitions: Result<i32, ProduceError>,
    asked: Instant,
}

impl Census {
    fn recent(&self, topic: &str) -> Option<Result<i32, ProduceError>> {
        let counts = self.counts();
        let count = counts.get(topic)?;
        let valid = match count.partitions {
            Ok(_) => CENSUS_INTERVAL,
            Err(_) => CENSUS_RETRY_INTERVAL,
        };
        (count.asked.elapsed() < valid).then(|| count.partitions.clone())
    }

    /// Takes an answer in, and returns what counts now: an old number stays while no broker gives a new one.
    fn note(&self, topic: &str, answer: Result<i32, ProduceError>) -> Result<i32, ProduceError> {
        let mut counts = self.counts();
        let before = counts.get(topic).and_then(|count| count.partitions.clone().ok());
        let partitions = match (answer, before) {
            (Err(ProduceError::Unreachable { .. }), Some(before)) => Ok(before),
            (answer, _) => answer,
        };
        let count = Count {
            partitions: partitions.clone(),
            asked: Instant::now(),
        };
        counts.insert(topic.to_owned(), count);
        partitions
    }

    fn forget(&self, topic: &str) {
        self.counts().remove(topic);
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<String, Count>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_halted_sessions_halt_all() {
        let halted = Halted::default();
        let (one, other) = (SessionTag(1, 0), SessionTag(0, 1));
        halted.insert(one);
        assert!(halted.contains(one) && !halted.contains(other));
        assert!(halted.remove(one) && !halted.remove(one));
        assert!(!halted.any.load(Ordering::Acquire));

        (0..HALTED_MAX as u64).for_each(|n| halted.insert(SessionTag(7, n)));
        assert!(halted.contains(other));
        assert!(!halted.remove(SessionTag(7, 0)), "which others failed is not known");
        assert!(halted.clear());
        assert!(!halted.contains(other));
    }
}
