//! What benchmarks need of the client beside Seriatim: the loop that most programs have, to measure against with the
//! same settings, and a loader that fills topics fast. Nothing else uses this.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{CommitMode, Consumer, ConsumerContext, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::config::{self, ConfigError, Properties};

/// Why a benchmark's client could not do its part.
#[derive(Debug, thiserror::Error)]
pub enum AnchorError {
    /// A property is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The client or the cluster refused.
    #[error("{doing} failed: {reason}")]
    Client {
        /// What was being done.
        doing: &'static str,
        /// The client's words.
        reason: String,
    },
}

fn failed(doing: &'static str) -> impl FnOnce(KafkaError) -> AnchorError {
    move |error| AnchorError::Client {
        doing,
        reason: error.to_string(),
    }
}

/// Hands the values of `topic`, from its beginning, to `each` until it breaks, and then commits what was read, as a plain
/// program does: rdkafka's `StreamConsumer`, one record at a time on one task, with the settings of our own consumer.
///
/// # Errors
/// When the client cannot be made, and at the first error that it reports.
pub async fn stream(
    brokers: &str,
    group: &str,
    topic: &str,
    properties: &Properties,
    mut each: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<(), AnchorError> {
    let mut config = config::consumer_config(brokers, group, properties)?;
    config.set("auto.offset.reset", "earliest");
    let consumer: StreamConsumer<Logged> = config
        .create_with_context(Logged)
        .map_err(failed("making a consumer"))?;
    consumer.subscribe(&[topic]).map_err(failed("subscribing"))?;

    // By partition: the next offset to read.
    let mut next = Vec::new();
    loop {
        let message = consumer.recv().await.map_err(failed("reading"))?;
        let partition = message.partition() as usize;
        if partition >= next.len() {
            next.resize(partition + 1, None);
        }
        next[partition] = Some(message.offset() + 1);
        if each(message.payload().unwrap_or_default()).is_break() {
            break;
        }
    }

    let mut offsets = TopicPartitionList::new();
    for (partition, next) in next.into_iter().enumerate() {
        if let Some(next) = next {
            offsets
                .add_partition_offset(topic, partition as i32, Offset::Offset(next))
                .map_err(failed("committing"))?;
        }
    }
    consumer
        .commit(&offsets, CommitMode::Sync)
        .map_err(failed("committing"))
}

/// Enough to reach every partition.
const WARM_UP_RECORDS: u32 = 1_000;

/// How long the cluster may take to say what it has.
const METADATA_TIMEOUT: Duration = Duration::from_secs(10);

/// Writes records as fast as the cluster takes them: idempotent, pipelined, partitioned by Java's murmur2 of the key.
pub struct Loader {
    producer: ThreadedProducer<Deliveries>,
    topic: String,
}

impl Loader {
    /// Makes a loader of `topic` whose records wait up to `linger` for company.
    ///
    /// # Errors
    /// When `properties` cannot work.
    pub fn connect(brokers: &str, topic: &str, linger: Duration, properties: &Properties) -> Result<Self, AnchorError> {
        let mut config = config::producer_config(brokers, properties)?;
        config.set("linger.ms", linger.as_millis().to_string());
        let producer = config
            .create_with_context(Deliveries::default())
            .map_err(failed("making a producer"))?;
        Ok(Self {
            producer,
            topic: topic.to_owned(),
        })
    }

    /// Brings the client to where it is in the middle of a run: connected to the brokers, with a producer id, and knowing
    /// the topic. It writes records to `beside` for that, another topic with as many partitions.
    ///
    /// # Errors
    /// When that fails, or takes longer than `within`.
    pub fn warm_up(&self, beside: &str, within: Duration) -> Result<(), AnchorError> {
        let client = self.producer.client();
        let asked = client.fetch_metadata(Some(&self.topic), METADATA_TIMEOUT);
        asked.map_err(failed("asking for the topic"))?;
        for number in 0..WARM_UP_RECORDS {
            self.send_to(beside, &number.to_le_bytes(), &[0; 100])?;
        }
        self.producer.flush(within).map_err(failed("writing"))?;
        self.producer.context().acknowledged.store(0, Ordering::Release);
        Ok(())
    }

    /// Queues a record; waits while the queue is full.
    ///
    /// # Errors
    /// When the client refuses the record.
    pub fn send(&self, key: &[u8], value: &[u8]) -> Result<(), AnchorError> {
        self.send_to(&self.topic, key, value)
    }

    fn send_to(&self, topic: &str, key: &[u8], value: &[u8]) -> Result<(), AnchorError> {
        let mut record = BaseRecord::to(topic).key(key).payload(value);
        loop {
            record = match self.producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), record)) => record,
                Err((error, _)) => return Err(failed("writing")(error)),
            };
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until everything is acknowledged, and returns how many records that were.
    ///
    /// # Errors
    /// When a record was not written, or the acknowledgements do not come within `within`.
    pub fn finish(self, within: Duration) -> Result<u64, AnchorError> {
        self.producer.flush(within).map_err(failed("writing"))?;
        let deliveries = self.producer.context();
        match deliveries.lost.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(failed("writing")(error)),
            None => Ok(deliveries.acknowledged.load(Ordering::Acquire)),
        }
    }
}

/// Counts a loader's acknowledgements.
#[derive(Default)]
struct Deliveries {
    acknowledged: AtomicU64,
    lost: Mutex<Option<KafkaError>>,
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match result {
            Ok(_) => {
                self.acknowledged.fetch_add(1, Ordering::Release);
            }
            Err((error, _)) => {
                let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
                lost.get_or_insert_with(|| error.clone());
            }
        }
    }
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        config::log(level, facility, text);
    }
}

/// A context that only logs.
struct Logged;

impl ClientContext for Logged {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        config::log(level, facility, text);
    }
}

impl ConsumerContext for Logged {}
