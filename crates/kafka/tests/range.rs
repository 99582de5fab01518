//! Offsets that are not in the log, on a real broker: records deleted before they were read, logs that are shorter than
//! what was committed, topics deleted and created anew.

mod member;

use std::time::Duration;

use member::{Member, WAIT, brokers, for_a_while, named, produce, until};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::topic_partition_list::{Offset as Place, TopicPartitionList};
use seriatim_engine::ack_map;
use seriatim_engine::record::Offset;
use seriatim_kafka::config::Properties;
use seriatim_kafka::groups::Groups;
use seriatim_kafka::range::OutOfRange;
use seriatim_runtime::ports::{Commit, Granted, Source, SourceTrouble};
use seriatim_testkit::broker;
use tokio::runtime::{Builder, Runtime};

struct Admin {
    client: AdminClient<DefaultClientContext>,
    runtime: Runtime,
}

impl Admin {
    fn new() -> Self {
        Self {
            client: ClientConfig::new()
                .set("bootstrap.servers", brokers())
                .create()
                .unwrap(),
            runtime: Builder::new_current_thread().enable_all().build().unwrap(),
        }
    }

    /// Deletes the records of partition 0 below an offset.
    fn delete_records(&self, topic: &str, below: i64) {
        let mut places = TopicPartitionList::new();
        places.add_partition_offset(topic, 0, Place::Offset(below)).unwrap();
        let deleted = self.client.delete_records(&places, &AdminOptions::new());
        self.runtime.block_on(deleted).unwrap();
    }

    /// Deletes a topic, and creates it anew with so many records in each partition.
    fn recreate(&self, topic: &str, partitions: i32, count: usize) {
        let deleted = self.client.delete_topics(&[topic], &AdminOptions::new());
        for topic in self.runtime.block_on(deleted).unwrap() {
            topic.unwrap();
        }
        broker::shared().create_topic(topic, partitions as u32, &[]).unwrap();
        produce(topic, 0..partitions, count);
    }
}

/// A group that has committed this for partition 0 of a topic with ten records, and has no member.
fn committed(test: &str, watermark: i64, metadata: &str) -> (String, String) {
    let (topic, group) = named(test, 1);
    produce(&topic, [0], 10);
    let mut member = Member::join(brokers(), &topic, &group, &[]);
    until([&mut member], "10 records", |[member]| member.seen() == 10);
    let commit = Commit {
        watermark: Offset::new(watermark),
        ..member.commit_of(0, metadata)
    };
    member.source.commit(&[commit], WAIT).unwrap();
    member.source.close();
    (topic, group)
}

fn join(topic: &str, group: &str, policy: OutOfRange) -> Member {
    Member::join_with(brokers(), topic, group, &[], policy)
}

/// Starts what was offered, as if this had been committed.
fn start_at(member: &mut Member, watermark: i64) {
    let granted = member.offered.pop().unwrap();
    member.start(&[Granted {
        committed: Some(Offset::new(watermark)),
        ..granted
    }]);
}

fn moved(member: &Member) -> &str {
    let [SourceTrouble::Moved(partition, text)] = &member.troubles[..] else {
        panic!("{:?}", member.troubles)
    };
    assert_eq!(partition.number(), 0);
    text
}

#[test]
fn deleted_records_are_skipped_when_the_partition_is_assigned() {
    let settled = ack_map::encode(Offset::new(3), [(Offset::new(7), Offset::new(7))], 4096);
    let (topic, group) = committed("deleted", 3, &settled.text);
    Admin::new().delete_records(&topic, 6);

    let mut member = join(&topic, &group, OutOfRange::Earliest);
    until([&mut member], "4 records", |[member]| member.seen() == 4);
    assert_eq!(member.seen[&0], [6, 7, 8, 9]);
    assert_eq!(member.skipped, [(0, 6)]);
    assert_eq!(member.offered[0].committed, Some(Offset::new(3)));
    assert_eq!(member.offered[0].metadata, settled.text, "it is of the same log");
    assert!(
        moved(&member).ends_with("it goes on at 6: 3 to 5 is lost"),
        "{}",
        moved(&member)
    );
    assert_eq!(member.lost, []);
}

#[test]
fn deleted_records_are_skipped_while_it_runs_in_the_same_period() {
    for (policy, to) in [(OutOfRange::Earliest, 6), (OutOfRange::Latest, 10)] {
        let (topic, group) = committed("overtaken", 3, "");
        let mut member = join(&topic, &group, policy);
        member.starts = false;
        until([&mut member], "the offer", |[member]| member.offered.len() == 1);
        Admin::new().delete_records(&topic, 6);
        start_at(&mut member, 3);
        let epoch = member.epoch(0);
        until([&mut member], "the skip", |[member]| !member.skipped.is_empty());
        assert_eq!(member.skipped, [(0, to)]);
        produce(&topic, [0], 2);
        until([&mut member], "the new records", |[member]| {
            member.seen.get(&0).is_some_and(|seen| seen.ends_with(&[10, 11]))
        });
        assert_eq!(member.seen[&0], (to..12).collect::<Vec<_>>());
        assert_eq!((member.epoch(0), &member.lost[..]), (epoch, &[][..]));
        assert!(moved(&member).contains("3 to 5 is lost"), "{}", moved(&member));
    }
}

#[test]
fn deleted_records_stop_the_partition_unless_it_is_said() {
    let (topic, group) = committed("stopped", 3, "");
    Admin::new().delete_records(&topic, 6);
    let mut member = join(&topic, &group, OutOfRange::Stop);
    until([&mut member], "the trouble", |[member]| !member.troubles.is_empty());
    let told = member.troubles[0].to_string();
    assert!(
        told.contains("begins at 6 and ends at 10; stop the group and move it with `seriatim group seek"),
        "{told}"
    );
    for_a_while(&mut member, Duration::from_secs(1));
    assert_eq!(
        (member.seen(), &member.lost[..]),
        (0, &[][..]),
        "what was delivered may still be settled"
    );
}

#[test]
fn a_log_that_is_shorter_than_the_commit_is_begun_anew_and_the_commit_moves_down() {
    for (policy, at) in [(OutOfRange::Earliest, 0), (OutOfRange::Latest, 10)] {
        let (topic, group) = committed("shorter", 1_042, "of another log");
        let mut member = join(&topic, &group, policy);
        until([&mut member], "the skip", |[member]| !member.skipped.is_empty());
        assert_eq!(member.skipped, [(0, at)]);
        assert_eq!(
            (member.offered[0].committed, member.offered[0].metadata.as_str()),
            (None, "")
        );
        produce(&topic, [0], 2);
        until([&mut member], "the records", |[member]| {
            member.seen.get(&0).is_some_and(|seen| seen.ends_with(&[10, 11]))
        });
        assert_eq!(member.seen[&0], (at..12).collect::<Vec<_>>());
        assert!(moved(&member).contains("truncated"), "{}", moved(&member));
        member.source.commit(&[member.commit_of(0, "")], WAIT).unwrap();
        let groups = Groups::connect(brokers(), &Properties::default()).unwrap();
        assert_eq!(groups.commits(&group).unwrap()[0].offset, Offset::new(12));
    }
}

#[test]
fn a_log_that_became_shorter_while_it_was_read_begins_a_new_period() {
    for (policy, at) in [(OutOfRange::Earliest, 0), (OutOfRange::Latest, 10)] {
        let (topic, group) = committed("cut", 3, "");
        let mut member = join(&topic, &group, policy);
        member.starts = false;
        until([&mut member], "the offer", |[member]| member.offered.len() == 1);
        start_at(&mut member, 1_042);
        let old = member.epoch(0);
        member.starts = true;
        until([&mut member], "the skip", |[member]| !member.skipped.is_empty());
        assert_eq!((&member.lost[..], member.offered[0].committed), (&[old][..], None));
        assert_ne!(member.epoch(0), old);
        let late = Commit {
            epoch: old,
            watermark: Offset::new(1_042),
            metadata: String::new(),
        };
        assert!(member.source.commit(&[late], WAIT).is_err(), "it is fenced");
        produce(&topic, [0], 2);
        until([&mut member], "the records", |[member]| {
            member.seen.get(&0).is_some_and(|seen| seen.ends_with(&[10, 11]))
        });
        assert_eq!((member.seen[&0][0], &member.skipped[..]), (at, &[(0, at)][..]));
    }
}

#[test]
fn a_log_that_became_shorter_commits_nothing_more_when_it_stops() {
    let (topic, group) = committed("cut-stopped", 3, "");
    let mut member = join(&topic, &group, OutOfRange::Stop);
    member.starts = false;
    until([&mut member], "the offer", |[member]| member.offered.len() == 1);
    start_at(&mut member, 1_042);
    let old = member.epoch(0);
    until([&mut member], "the loss", |[member]| member.lost == [old]);
    assert!(
        member.troubles[0].to_string().contains("stands still"),
        "{:?}",
        member.troubles
    );
    let late = Commit {
        epoch: old,
        watermark: Offset::new(1_042),
        metadata: String::new(),
    };
    assert!(member.source.commit(&[late], WAIT).is_err(), "it is fenced");
    // And the next member of the group gets the partition all the same.
    let mut next = join(&topic, &group, OutOfRange::Stop);
    next.starts = false;
    member.source.close();
    until([&mut next], "the offer", |[next]| next.offered.len() == 1);
    assert_eq!(next.offered[0].committed, Some(Offset::new(3)));
}

#[test]
fn a_topic_that_is_created_anew_while_it_is_read_is_begun_anew() {
    let (topic, group) = named("recreated", 1);
    produce(&topic, [0], 10);
    let mut member = join(&topic, &group, OutOfRange::Earliest);
    until([&mut member], "10 records", |[member]| member.seen() == 10);
    let old = member.commit_of(0, "");
    member.source.commit(std::slice::from_ref(&old), WAIT).unwrap();

    Admin::new().recreate(&topic, 1, 3);
    until([&mut member], "the new topic's records", |[member]| {
        !member.skipped.is_empty() && member.seen[&0] == [0, 1, 2]
    });
    assert_eq!(
        (&member.skipped[..], &member.lost[..]),
        (&[(0, 0)][..], &[old.epoch][..])
    );
    assert!(
        moved(&member).contains("its topic deleted and created anew"),
        "{}",
        moved(&member)
    );
    assert!(member.source.commit(&[old], WAIT).is_err(), "it is of the old topic");
    member.source.commit(&[member.commit_of(0, "")], WAIT).unwrap();
    let groups = Groups::connect(brokers(), &Properties::default()).unwrap();
    assert_eq!(groups.commits(&group).unwrap()[0].offset, Offset::new(3));
}

#[test]
fn a_topic_that_is_created_anew_stops_its_partition_and_takes_no_commit_of_the_old_one() {
    let (topic, group) = named("recreated-stop", 1);
    produce(&topic, [0], 10);
    let mut member = join(&topic, &group, OutOfRange::Stop);
    until([&mut member], "10 records", |[member]| member.seen() == 10);
    let old = member.commit_of(0, "");

    Admin::new().recreate(&topic, 1, 3);
    until([&mut member], "the loss", |[member]| member.lost == [old.epoch]);
    let told = member.troubles[0].to_string();
    assert!(told.starts_with(&format!("{topic}[0] stands still: ")), "{told}");
    assert!(told.contains("its topic deleted and created anew"), "{told}");
    assert!(member.source.commit(&[old], WAIT).is_err(), "it is of the old topic");
    let groups = Groups::connect(brokers(), &Properties::default()).unwrap();
    assert_eq!(groups.commits(&group).unwrap(), []);
}
