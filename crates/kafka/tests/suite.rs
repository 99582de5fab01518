//! The Kafka source on a real broker passes the suite that the in-memory log passes.

use std::sync::OnceLock;
use std::task::Waker;
use std::time::{Duration, SystemTime};

use rdkafka::config::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_kafka::source::{KafkaSource, SourceSettings, StartAt};
use seriatim_testkit::broker;
use seriatim_testkit::suite::{self, Harness};
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
        let record = FutureRecord::to(partition.topic())
            .partition(partition.number())
            .key(key)
            .payload(value);
        let sent = self.producer.send_result(record).map_err(|(error, _)| error).unwrap();
        let delivered = self
            .runtime
            .block_on(sent)
            .unwrap()
            .map_err(|(error, _)| error)
            .unwrap();
        Offset::new(delivered.offset)
    }

    fn member(&self, group: &str, topic: &str) -> (KafkaSource, Waker) {
        KafkaSource::connect(SourceSettings {
            brokers: broker::shared().bootstrap().to_owned(),
            group: group.to_owned(),
            topics: vec![topic.to_owned()],
            start_at: StartAt::Earliest,
            out_of_range: Default::default(),
            // A member hears of a rebalance in the answer to a heartbeat.
            properties: "heartbeat.interval.ms=300\nsession.timeout.ms=6000".parse().unwrap(),
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

macro_rules! suite {
    ($($name:ident)+) => {
        $(
            #[test]
            fn $name() {
                suite::$name(RealBroker::shared());
            }
        )+
    };
}

suite! {
    delivers_each_partition_in_offset_order
    delivers_under_the_epoch_that_was_started
    a_record_keeps_its_parts
    commit_with_metadata_comes_back
    a_background_commit_is_answered
    an_ended_epoch_commits_nothing
    hold_loses_and_reorders_nothing
    a_held_partition_holds_up_no_other
    no_room_reports_everything_but_records
    a_waker_ends_the_wait
    a_poll_waits_for_records
    a_revoked_partition_is_delivered_on_from_its_commit_and_only_after_relinquish
    the_last_commit_before_relinquish_is_where_the_next_owner_starts
    closing_hands_everything_over
    reports_the_end_of_the_log
}
