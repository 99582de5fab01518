//! The in-memory log is a source like any other: it passes the suite that the Kafka adapter passes.

use std::task::Waker;
use std::time::Duration;

use seriatim_engine::growth::Growth;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_testkit::log::{Log, LogSource, NewRecord};
use seriatim_testkit::suite::Harness;

struct InMemory(Log);

impl Harness for InMemory {
    type Source = LogSource;

    fn create_topic(&self, name: &str, partitions: i32) -> String {
        self.0.topic(name, partitions);
        name.to_owned()
    }

    fn produce(&self, partition: &PartitionId, key: &[u8], value: &[u8]) -> Offset {
        let record = NewRecord::new(key, value).partition(partition.number());
        self.0.append_record(partition.topic(), record).offset
    }

    fn member(&self, group: &str, topic: &str) -> (LogSource, Waker) {
        self.0.member(group, &[topic])
    }

    fn grow_topic(&self, topic: &str, partitions: i32) {
        self.0.topic(topic, partitions);
    }

    fn member_of_growing(&self, group: &str, topic: &str, growth: Growth) -> (LogSource, Waker) {
        self.0.set_growth(group, growth);
        self.member(group, topic)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn silence(&self) -> Duration {
        Duration::from_millis(30)
    }
}

seriatim_testkit::port_suite!(&InMemory(Log::new()));

/// Small batches are the same records.
mod in_small_batches {
    use super::*;

    fn in_small_batches() -> InMemory {
        let log = Log::new();
        log.set_batch_max(3);
        InMemory(log)
    }

    seriatim_testkit::port_suite!(&in_small_batches());
}
