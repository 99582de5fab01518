//! A Kafka broker inside this process, for demonstrations, examples and tests: librdkafka's mock cluster.

use std::time::Duration;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use crate::config::Properties;

/// A broker on a free loopback port, with consumer groups and rebalances, and nothing to install. It ends, and its
/// records are gone, when it is dropped; drop its clients first, or they report that it is down.
///
/// It is never for data that matters:
/// - A partition keeps at most 5 MiB or 100,000 batches, and drops the oldest without a word. A group that lags further
///   finds its offset out of range. So: several partitions, and a producer that does not run away from its consumers.
/// - It has no admin calls, no SASL, no TLS, no offsets by time, and `read_committed` returns aborted records.
/// - It is slow unless its clients are set to its ways: see [`properties`](Self::properties). A group's first join
///   takes 3 s all the same, and every rebalance as long as the session timeout less one second.
///
/// ```no_run
/// use seriatim_kafka::embedded::EmbeddedBroker;
///
/// let broker = EmbeddedBroker::start()?;
/// broker.create_topic("chat", 12)?;
/// println!("listening on {}", broker.bootstrap());
/// # Ok::<(), seriatim_kafka::embedded::EmbeddedBrokerError>(())
/// ```
pub struct EmbeddedBroker {
    cluster: MockCluster<'static, DefaultProducerContext>,
}

/// What an embedded broker could not do.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedBrokerError {
    /// It did not start.
    #[error("the embedded broker did not start: {reason}")]
    Start {
        /// The client library's words.
        reason: String,
    },
    /// The topic was not created.
    #[error("the embedded broker did not create topic {topic}: {reason}")]
    Topic {
        /// The topic.
        topic: String,
        /// The client library's words.
        reason: String,
    },
    /// The round trip was not set.
    #[error("the round trip of the embedded broker was not set: {reason}")]
    RoundTrip {
        /// The client library's words.
        reason: String,
    },
}

impl EmbeddedBroker {
    /// Starts a cluster of one broker.
    ///
    /// # Errors
    /// When the system has no room for another socket or thread.
    pub fn start() -> Result<Self, EmbeddedBrokerError> {
        let cluster = MockCluster::new(1).map_err(|error| EmbeddedBrokerError::Start {
            reason: error.to_string(),
        })?;
        Ok(Self { cluster })
    }

    /// With these its clients are quick. They are not for a real broker.
    pub fn properties() -> Properties {
        let mut properties = Properties::default();
        // A fetch that finds nothing is held for the full time, whatever is produced meanwhile.
        properties.insert("fetch.wait.max.ms", "5");
        // Each rebalance waits for the session timeout less one second, also when all members are there; and in the 3 s of
        // the first join, a member with a shorter session timeout would be expelled.
        properties.insert("session.timeout.ms", "3500");
        // Members learn of a rebalance in the answer to a heartbeat.
        properties.insert("heartbeat.interval.ms", "200");
        // Records are sent as they come: there is no network to spare.
        properties.insert("linger.ms", "1");
        properties
    }

    /// Where it listens, as `bootstrap.servers` wants it.
    pub fn bootstrap(&self) -> String {
        self.cluster.bootstrap_servers()
    }

    /// Lets every answer take so long from now on, as if there were a network.
    ///
    /// Of use while a group rebalances on a busy machine: a member whose answer comes after the leader's is turned away,
    /// and a second rebalance begins in which nobody may commit. The leader asks for metadata before it answers, so a
    /// round trip makes it the last.
    ///
    /// # Errors
    /// When the client library refuses it; it has no known reason to.
    pub fn set_round_trip(&self, time: Duration) -> Result<(), EmbeddedBrokerError> {
        const ALL_BROKERS: i32 = -1;
        self.cluster
            .broker_round_trip_time(ALL_BROKERS, time)
            .map_err(|error| EmbeddedBrokerError::RoundTrip {
                reason: error.to_string(),
            })
    }

    /// Creates a topic. One that is not created gets four partitions when it is first written to.
    ///
    /// # Errors
    /// When there is such a topic already, or `partitions` is not positive.
    pub fn create_topic(&self, name: &str, partitions: i32) -> Result<(), EmbeddedBrokerError> {
        let refused = |reason: String| EmbeddedBrokerError::Topic {
            topic: name.to_owned(),
            reason,
        };
        if partitions < 1 {
            return Err(refused(format!("{partitions} is no number of partitions")));
        }
        self.cluster
            .create_topic(name, partitions, 1)
            .map_err(|error| refused(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_listens_on_loopback_and_names_what_it_refuses() {
        let broker = EmbeddedBroker::start().unwrap();
        assert!(broker.bootstrap().starts_with("127.0.0.1:"), "{}", broker.bootstrap());
        broker.create_topic("chat", 3).unwrap();
        for (topic, partitions) in [("chat", 3), ("orders", 0)] {
            let refused = broker.create_topic(topic, partitions).unwrap_err();
            assert!(refused.to_string().contains(topic), "{refused}");
        }
    }
}
