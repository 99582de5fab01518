//! A Kafka cluster to run on.

use std::task::Waker;

use seriatim_kafka::config::{ConfigError, Properties};
use seriatim_kafka::dead_letters::KafkaDeadLetters;
use seriatim_kafka::growth::Growth;
use seriatim_kafka::range::{OutOfRange, OutOfRangePolicy};
use seriatim_kafka::source::{ConnectError, KafkaSource, SourceSettings, StartAt};
use seriatim_runtime::backend::Backend;

/// A Kafka cluster, and how to talk to it.
#[derive(Clone, Debug)]
pub struct Cluster {
    brokers: String,
    properties: Properties,
    start_at: StartAt,
    out_of_range: OutOfRangePolicy,
    growth: Growth,
}

impl Cluster {
    /// The cluster whose brokers are listed, e.g. `localhost:9092,localhost:9093`.
    pub fn new(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            properties: Properties::default(),
            start_at: StartAt::default(),
            out_of_range: OutOfRangePolicy::default(),
            growth: Growth::default(),
        }
    }

    /// Sets a property of the Kafka client, in librdkafka's names. Those that Seriatim owns are refused when the
    /// consumer starts.
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(&name.into(), value.into());
        self
    }

    /// Sets all properties of the Kafka client.
    pub fn properties(mut self, properties: Properties) -> Self {
        self.properties = properties;
        self
    }

    /// Says where a partition begins for which the group has committed nothing.
    pub fn start_at(mut self, start_at: StartAt) -> Self {
        self.start_at = start_at;
        self
    }

    /// Says what becomes of a partition whose next offset is not in its log, of all topics that have no policy of their
    /// own: [`OutOfRange::Stop`] unless it is said.
    pub fn out_of_range(mut self, policy: OutOfRange) -> Self {
        self.out_of_range.set(policy);
        self
    }

    /// Says it for one topic.
    pub fn topic_out_of_range(mut self, topic: impl Into<String>, policy: OutOfRange) -> Self {
        self.out_of_range.set_topic(topic, policy);
        self
    }

    /// Says what becomes of partitions that are added to a topic while it is read: [`Growth::Warn`] unless it is said.
    pub fn growth(mut self, growth: Growth) -> Self {
        self.growth = growth;
        self
    }
}

/// Why a cluster's clients cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A property is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The consumer cannot be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl Backend for Cluster {
    type Source = KafkaSource;
    type DeadLetters = KafkaDeadLetters;
    type Error = ClusterError;

    fn dead_letters(&self, group: &str) -> Result<KafkaDeadLetters, ClusterError> {
        Ok(KafkaDeadLetters::connect(&self.brokers, group, &self.properties)?)
    }

    fn join(self, group: &str, topics: &[String]) -> Result<(KafkaSource, Waker), ClusterError> {
        Ok(KafkaSource::connect(SourceSettings {
            brokers: self.brokers,
            group: group.to_owned(),
            topics: topics.to_vec(),
            start_at: self.start_at,
            out_of_range: self.out_of_range,
            growth: self.growth,
            properties: self.properties,
        })?)
    }
}
