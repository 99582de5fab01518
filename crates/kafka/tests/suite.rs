//! The Kafka source on a real broker passes the suite that the in-memory log passes.

mod member;

use std::sync::OnceLock;
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime};

use member::grow;
use rdkafka::config::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::RDKafkaErrorCode;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_kafka::growth::Growth;
use seriatim_kafka::source::{KafkaSource, SourceSettings, StartAt};
use seriatim_testkit::broker;
use seriatim_testkit::suite::Harness;
use tokio::runtime::{Builder, Runtime};

struct RealBroker {
    producer: FutureProducer,
    runtime: Runtime,
}

impl RealBroker {
    /// One for all tests: a connection of its own would cost each of them more than its records.
    fn shared() -> &'static Self {
        static SHARED: OnceLock<RealBroker> = OnceLock::new();
        SHARED.get_or_init(|| Self {
            producer: ClientConfig::new()
                .set("bootstrap.servers", broker::shared().bootstrap())
                .set("linger.ms", "0")
                .set("topic.metadata.refresh.interval.ms", "200")
                .create()
                .unwrap(),
            runtime: Builder::new_current_thread().build().unwrap(),
        })
    }
}

impl Harness for RealBroker {
    type Source = KafkaSource;

    fn create_topic(&self, name: &str, partitions: i32) -> String {
        let nanos = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let topic = format!("{name}-{nanos}");
        broker::shared().create_topic(&topic, partitions as u32, &[]).unwrap();
        topic
    }

    fn produce(&self, partition: &PartitionId, key: &[u8], value: &[u8]) -> Offset {
        let deadline = Instant::now() + self.patience();
        loop {
            let record = FutureRecord::to(partition.topic())
                .partition(partition.number())
                .key(key)
                .payload(value);
            let sent = self.producer.send_result(record).map_err(|(error, _)| error);
            let delivered = sent.and_then(|sent| self.runtime.block_on(sent).unwrap().map_err(|(error, _)| error));
            match delivered {
                Ok(delivered) => return Offset::new(delivered.offset),
                // It was added a moment ago.
                Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownPartition) => {
                    assert!(Instant::now() < deadline, "{partition} is not known yet");
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => panic!("{partition} takes no record: {error}"),
            }
        }
    }

    fn member(&self, group: &str, topic: &str) -> (KafkaSource, Waker) {
        self.member_of_growing(group, topic, Growth::default())
    }

    fn grow_topic(&self, topic: &str, partitions: i32) {
        grow(topic, partitions as usize);
    }

    fn member_of_growing(&self, group: &str, topic: &str, growth: Growth) -> (KafkaSource, Waker) {
        // A member hears of a rebalance in the answer to a heartbeat, and of new partitions when it asks.
        let properties = "heartbeat.interval.ms=300\nsession.timeout.ms=6000\ntopic.metadata.refresh.interval.ms=1000";
        KafkaSource::connect(SourceSettings {
            brokers: broker::shared().bootstrap().to_owned(),
            group: group.to_owned(),
            topics: vec![topic.to_owned()],
            start_at: StartAt::Earliest,
            out_of_range: Default::default(),
            growth,
            properties: properties.parse().unwrap(),
        })
        .unwrap()
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn silence(&self) -> Duration {
        Duration::from_millis(700)
    }
}

seriatim_testkit::port_suite!(RealBroker::shared());
