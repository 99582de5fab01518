//! The dead letter sink: records that ended in failure, kept in a topic of their own with their cause.
//!
//! A letter has the record's key, value and headers unchanged, and says where the record came from in the headers that
//! Spring's tools read and why it is dead in ours: see [`header`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rdkafka::ClientConfig;
use rdkafka::message::{Header as KafkaHeader, OwnedHeaders};
use seriatim_runtime::message::Timestamp;
use seriatim_runtime::ports::{DeadLetter, DeadLetterError, DeadLetters};
use seriatim_runtime::record::Record;
use sha2::{Digest, Sha256};

use crate::config::{self, ConfigError, Properties};
use crate::outbox::{Delivered, FlushError, Outbox, Outgoing, ProduceError};
use crate::producer::partition_of;

/// The headers of a dead letter, beside those of its record.
pub mod header {
    /// The record's topic.
    pub const ORIGINAL_TOPIC: &str = "kafka_dlt-original-topic";
    /// The record's partition: 4 bytes, big-endian.
    pub const ORIGINAL_PARTITION: &str = "kafka_dlt-original-partition";
    /// The record's offset: 8 bytes, big-endian.
    pub const ORIGINAL_OFFSET: &str = "kafka_dlt-original-offset";
    /// The record's time in milliseconds since the Unix epoch, -1 for none: 8 bytes, big-endian.
    pub const ORIGINAL_TIMESTAMP: &str = "kafka_dlt-original-timestamp";
    /// Who set that time: `CreateTime`, `LogAppendTime` or `NoTimestampType`.
    pub const ORIGINAL_TIMESTAMP_TYPE: &str = "kafka_dlt-original-timestamp-type";
    /// The consumer group that gave the record up.
    pub const ORIGINAL_CONSUMER_GROUP: &str = "kafka_dlt-original-consumer-group";
    /// The class of the last error.
    pub const EXCEPTION_FQCN: &str = "kafka_dlt-exception-fqcn";
    /// The text of the last error.
    pub const EXCEPTION_MESSAGE: &str = "kafka_dlt-exception-message";
    /// The record's session key; absent when it has none.
    pub const SESSION: &str = "seriatim-session";
    /// How many attempts were made, in decimal.
    pub const ATTEMPTS: &str = "seriatim-attempts";
    /// Why the record is dead: `permanent`, `exhausted`, …; `oversize` when the value is replaced by its hash.
    pub const REASON: &str = "seriatim-reason";
    /// With the reason `oversize`: why the record was dead before its size mattered.
    pub const CAUSE: &str = "seriatim-cause";
    /// When the first attempt failed, as RFC 3339. The letter's own time is when the last one failed.
    pub const FIRST_FAILURE: &str = "seriatim-first-failure";
    /// How often the record was redriven, in decimal: the redrive counts, and a letter passes on what its record says.
    pub const REDRIVES: &str = "seriatim-redrives";
}

/// The dead letter topic of a topic, unless configured: `{topic}` stands for the topic's name.
pub const TOPIC_PATTERN: &str = "{topic}.dlq";

/// Ours over those of all producers.
const DEFAULTS: &[(&str, &str)] = &[
    // A broker refuses whole batches, and one letter must not be refused for another's sake.
    ("batch.num.messages", "1"),
    ("linger.ms", "0"),
    // What a topic could hold, its dead letter topic may hold: the broker is the judge of sizes.
    ("message.max.bytes", "1000000000"),
    // Time enough for a change of leaders. Then the worker is told why its session waits, and publishes again.
    ("delivery.timeout.ms", "30000"),
];

/// Writes dead letters to Kafka. A letter is published when all replicas in sync have it.
///
/// The letters of one session lie in one partition, in order. A publish whose future is dropped, or whose answer is
/// lost, may have been written: the letter is then there twice.
///
/// Header names that are not UTF-8, which Kafka's protocol does not foresee, are written with U+FFFD in place of what
/// is wrong: the client takes no other.
pub struct KafkaDeadLetters {
    config: ClientConfig,
    group: String,
    pattern: String,
    outbox: Mutex<Arc<Outbox>>,
}

impl KafkaDeadLetters {
    /// Makes the sink of `group`, which writes to the topics that [`TOPIC_PATTERN`] names.
    ///
    /// # Errors
    /// When `properties` cannot work.
    pub fn connect(brokers: &str, group: &str, properties: &Properties) -> Result<Self, ConfigError> {
        let config = config::producer_config_for(DEFAULTS, brokers, properties)?;
        Ok(Self {
            outbox: Mutex::new(Arc::new(Outbox::open(config.clone())?)),
            config,
            group: group.to_owned(),
            pattern: TOPIC_PATTERN.to_owned(),
        })
    }

    /// Writes to other topics: in `pattern`, `{topic}` stands for a record's topic.
    pub fn topic(mut self, pattern: impl Into<String>) -> Self {
        self.pattern = pattern.into();
        self
    }

    /// Waits until every letter that was published is answered for. Call it before the sink is dropped.
    ///
    /// # Errors
    /// When that takes longer than `within`.
    pub async fn flush(&self, within: Duration) -> Result<(), FlushError> {
        self.outbox().flush(within).await
    }

    async fn write(&self, outbox: &Outbox, letter: &DeadLetter) -> Result<Delivered, ProduceError> {
        let value = letter.record.value();
        match self.write_with(outbox, letter, value, None).await {
            Err(ProduceError::TooLarge { .. }) if value.is_some() => {
                let stand_in = stand_in(&letter.record);
                let reason = Some(OVERSIZE);
                self.write_with(outbox, letter, Some(stand_in.as_bytes()), reason).await
            }
            written => written,
        }
    }

    async fn write_with(
        &self,
        outbox: &Outbox,
        letter: &DeadLetter,
        value: Option<&[u8]>,
        reason: Option<&str>,
    ) -> Result<Delivered, ProduceError> {
        let record = &letter.record;
        let topic = self.pattern.replace("{topic}", record.topic());
        let room = outbox.room(len(record, value)).await;
        let partitions = outbox.partitions(&topic).await?;
        let outgoing = Outgoing {
            topic: &topic,
            partition: match &letter.session {
                Some(session) => partition_of(session, partitions),
                None => record.partition() % partitions,
            },
            key: record.key(),
            value,
            headers: headers(letter, &self.group, reason),
            timestamp_ms: Some(millis(letter.last_failure)),
            session: None,
        };
        outbox.enqueue(outgoing, room)?.await
    }

    fn outbox(&self) -> Arc<Outbox> {
        Arc::clone(&self.outbox.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a new producer in the place of one that can go on no more.
    fn replace(&self, dead: &Arc<Outbox>) {
        let mut current = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&current, dead)
            && let Ok(outbox) = Outbox::open(self.config.clone())
        {
            *current = Arc::new(outbox);
        }
    }
}

impl DeadLetters for KafkaDeadLetters {
    async fn publish(&self, letter: DeadLetter) -> Result<(), DeadLetterError> {
        let outbox = self.outbox();
        match self.write(&outbox, &letter).await {
            Ok(_) => Ok(()),
            Err(error) => {
                if outbox.fatal().is_some() {
                    self.replace(&outbox);
                }
                Err(DeadLetterError(Box::new(error)))
            }
        }
    }
}

const OVERSIZE: &str = "oversize";

/// What stands in for a value that the dead letter topic cannot hold: enough to find the value at its origin, as long
/// as it is there, and to know it again.
fn stand_in(record: &Record) -> String {
    let value = record.payload();
    let sha256: String = Sha256::digest(value).iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        r#"{{"sha256":"{sha256}","bytes":{},"topic":"{}","partition":{},"offset":{}}}"#,
        value.len(),
        // Of letters, digits, dots, dashes and underscores: nothing to escape.
        record.topic(),
        record.partition(),
        record.offset()
    )
}

/// The record's headers and, behind them, the letter's. Those of an earlier death of the record give way.
fn headers(letter: &DeadLetter, group: &str, oversize: Option<&str>) -> OwnedHeaders {
    let record = &letter.record;
    let (timestamp, timestamp_type) = match record.timestamp() {
        Timestamp::None => (-1, "NoTimestampType"),
        Timestamp::Created(millis) => (millis, "CreateTime"),
        Timestamp::Appended(millis) => (millis, "LogAppendTime"),
    };
    let cause = letter.reason.as_str();
    let first_failure = rfc3339(letter.first_failure);
    let attempts = letter.attempts.to_string();
    let ours: [(&str, Option<&[u8]>); 13] = [
        (header::ORIGINAL_TOPIC, Some(record.topic().as_bytes())),
        (header::ORIGINAL_PARTITION, Some(&record.partition().to_be_bytes())),
        (header::ORIGINAL_OFFSET, Some(&record.offset().to_be_bytes())),
        (header::ORIGINAL_TIMESTAMP, Some(&timestamp.to_be_bytes())),
        (header::ORIGINAL_TIMESTAMP_TYPE, Some(timestamp_type.as_bytes())),
        (header::ORIGINAL_CONSUMER_GROUP, Some(group.as_bytes())),
        (header::EXCEPTION_FQCN, Some(letter.error_class.as_bytes())),
        (header::EXCEPTION_MESSAGE, Some(letter.error_text.as_bytes())),
        (header::SESSION, letter.session.as_deref()),
        (header::ATTEMPTS, Some(attempts.as_bytes())),
        (header::REASON, Some(oversize.unwrap_or(cause).as_bytes())),
        (header::CAUSE, oversize.map(|_| cause.as_bytes())),
        (header::FIRST_FAILURE, Some(first_failure.as_bytes())),
    ];

    let mut all = OwnedHeaders::new_with_capacity(record.headers().count() + ours.len() + 1);
    let mut redrives = None;
    for theirs in record.headers() {
        let name = String::from_utf8_lossy(theirs.name);
        if name == header::REDRIVES {
            redrives = theirs.value;
        } else if !ours.iter().any(|(ours, _)| *ours == name) {
            all = with(all, &name, theirs.value);
        }
    }
    let present = ours.into_iter().filter(|(_, value)| value.is_some());
    let all = present.fold(all, |all, (name, value)| with(all, name, value));
    with(all, header::REDRIVES, redrives.or(Some(b"0")))
}

fn with(headers: OwnedHeaders, key: &str, value: Option<&[u8]>) -> OwnedHeaders {
    headers.insert(KafkaHeader { key, value })
}

fn len(record: &Record, value: Option<&[u8]>) -> usize {
    let len = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
    let headers: usize = record
        .headers()
        .map(|header| header.name.len() + len(header.value))
        .sum();
    len(record.key()) + len(value) + headers
}

fn millis(time: SystemTime) -> i64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as i64)
}

fn rfc3339(time: SystemTime) -> String {
    // A clock that is set before 1970 is set wrong.
    humantime::format_rfc3339_millis(time.max(SystemTime::UNIX_EPOCH)).to_string()
}
