//! The in-memory log is a source like any other: it passes the suite that the Kafka adapter passes.

use std::task::Waker;
use std::time::Duration;

use seriatim_engine::record::{Offset, PartitionId};
use seriatim_testkit::log::{Log, LogSource, NewRecord};
use seriatim_testkit::suite::{self, Harness};

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

    fn patience(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn silence(&self) -> Duration {
        Duration::from_millis(30)
    }
}

macro_rules! suite {
    ($($name:ident)+) => {
        $(
            #[test]
            fn $name() {
                suite::$name(&InMemory(Log::new()));
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

#[test]
fn small_batches_are_the_same_records() {
    let log = Log::new();
    log.set_batch_max(3);
    suite::all(&InMemory(log));
}
