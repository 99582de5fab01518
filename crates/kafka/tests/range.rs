//! Offsets that are not in the log, on a real broker: records deleted before they were read, logs that are shorter than
//! what was committed, topics deleted and created anew.

mod admin;
mod member;

use std::thread;
use std::time::{Duration, Instant};

use admin::Admin;
use member::{Member, SOON, WAIT, brokers, for_a_while, named, produce, until};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::topic_partition_list::{Offset as Place, TopicPartitionList};
use seriatim_engine::ack_map;
use seriatim_engine::budget::Flow;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_engine::trail::Trail;
use seriatim_kafka::config::Properties;
use seriatim_kafka::groups::Groups;
use seriatim_kafka::range::OutOfRange;
use seriatim_runtime::ports::{Commit, Granted, Source, SourceTrouble};

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
    Member::join_with(brokers(), topic, group, COOPERATIVE, policy)
}

/// How the members of a group move partitions between them: the default, and the older way.
const COOPERATIVE: &[&str] = &[];
const EAGER: &[&str] = &["partition.assignment.strategy=range"];

/// Each way to move partitions with each policy that goes on, and one of two places.
fn ways_on(earliest: i64, latest: i64) -> impl Iterator<Item = (&'static [&'static str], OutOfRange, i64)> {
    [COOPERATIVE, EAGER].into_iter().flat_map(move |protocol| {
        [
            (protocol, OutOfRange::Earliest, earliest),
            (protocol, OutOfRange::Latest, latest),
        ]
    })
}

/// What the dispatcher says of a partition that it gives back at this watermark: the offset after it is settled.
fn told(watermark: i64, incarnation: Option<u64>) -> String {
    let mark = Offset::new(watermark);
    let settled = ack_map::encode(mark, [(mark.next(), mark.next())], 4096);
    let trail = Trail {
        incarnation,
        ..Trail::default()
    };
    settled.text + &trail.encode(mark, 4096)
}

/// A group that has committed 7 for a topic that was then deleted, and created anew with twenty records.
fn committed_for_a_former_topic(test: &str) -> (String, String) {
    let (topic, group) = committed(test, 7, "");
    let mut member = join(&topic, &group, OutOfRange::Stop);
    until([&mut member], "the offer", |[member]| member.offered.len() == 1);
    let metadata = told(7, member.offered[0].incarnation);
    assert!(metadata.contains(";t1:"), "this broker has topic ids");
    member.source.close();
    Admin::new().recreate(&topic, 1, 20);
    // The deletion has taken the group's commit along. Here comes one more, of somebody who had not heard of it.
    let groups = Groups::connect(brokers(), &Properties::default()).unwrap();
    let deadline = Instant::now() + SOON;
    while !groups.commits(&group).unwrap().is_empty() {
        assert!(Instant::now() < deadline, "the commit outlives its topic");
        thread::sleep(Duration::from_millis(20));
    }
    commit_from_outside(&topic, &group, 7, &metadata);
    assert_eq!(groups.commits(&group).unwrap()[0].metadata, metadata);
    (topic, group)
}

fn commit_from_outside(topic: &str, group: &str, watermark: i64, metadata: &str) {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers())
        .set("group.id", group)
        .create()
        .unwrap();
    let mut places = TopicPartitionList::new();
    let mut place = places.add_partition(topic, 0);
    place.set_offset(Place::Offset(watermark)).unwrap();
    place.set_metadata(metadata);
    consumer.commit(&places, rdkafka::consumer::CommitMode::Sync).unwrap();
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
    for (protocol, policy, to) in ways_on(6, 10) {
        let (topic, group) = committed("overtaken", 3, "");
        let mut member = Member::join_with(brokers(), &topic, &group, protocol, policy);
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

/// Starts what was offered of partitions 0 to 3 of a topic with ten records each, the first two where there is no record any
/// more.
fn start_where_two_are_gone(member: &mut Member, topic: &str) {
    member.starts = false;
    until([&mut *member], "the offer", |[member]| member.offered.len() == 4);
    member.starts = true;
    Admin::new().delete_records_of(topic, [0, 1], 6);
    let mut granted = std::mem::take(&mut member.offered);
    for granted in granted.iter_mut().filter(|granted| granted.partition.number() < 2) {
        granted.committed = Some(Offset::new(3));
    }
    member.start(&granted);
}

#[test]
fn an_eager_member_that_skips_goes_on_with_all_else_where_it_was() {
    let (topic, group) = named("eager-skip", 4);
    produce(&topic, 0..4, 10);
    let mut member = Member::join_with(brokers(), &topic, &group, EAGER, OutOfRange::Earliest);
    start_where_two_are_gone(&mut member, &topic);
    let epochs = [0, 1, 2, 3].map(|number| member.epoch(number));
    member.source.set_flow(epochs[3], Flow::Held);
    until([&mut member], "both skips", |[member]| member.skipped.len() == 2);
    produce(&topic, 0..4, 10);
    until([&mut member], "the new records", |[member]| {
        (0..3).all(|number| member.seen.get(&number).is_some_and(|seen| seen.ends_with(&[19])))
    });
    assert_eq!(member.seen.get(&3), None, "it is held");
    member.source.set_flow(epochs[3], Flow::Flowing);
    until([&mut member], "what was held", |[member]| {
        member.seen.get(&3).is_some_and(|seen| seen.len() == 20)
    });

    member.skipped.sort_unstable();
    assert_eq!(member.skipped, [(0, 6), (1, 6)]);
    for (number, from) in [(0, 6), (1, 6), (2, 0), (3, 0)] {
        assert_eq!(member.seen[&number], (from..20).collect::<Vec<_>>(), "{number}");
    }
    assert_eq!([0, 1, 2, 3].map(|number| member.epoch(number)), epochs);
    assert_eq!((&member.lost[..], &member.revoked[..]), (&[][..], &[][..]));
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
    for (protocol, policy, at) in ways_on(0, 10) {
        let (topic, group) = committed("cut", 3, "");
        let mut member = Member::join_with(brokers(), &topic, &group, protocol, policy);
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
        moved(&member).contains("was deleted and created anew"),
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
    assert!(told.contains("was deleted and created anew"), "{told}");
    assert!(member.source.commit(&[old], WAIT).is_err(), "it is of the old topic");
    let groups = Groups::connect(brokers(), &Properties::default()).unwrap();
    assert_eq!(groups.commits(&group).unwrap(), []);
}

#[test]
fn a_commit_for_a_former_topic_is_not_believed_though_the_new_one_has_the_offset() {
    for (policy, at) in [(OutOfRange::Earliest, 0), (OutOfRange::Latest, 20)] {
        let (topic, group) = committed_for_a_former_topic("former");
        let mut member = join(&topic, &group, policy);
        until([&mut member], "the skip", |[member]| !member.skipped.is_empty());
        assert_eq!(member.skipped, [(0, at)]);
        let offered = &member.offered[0];
        assert_eq!((offered.committed, offered.metadata.as_str()), (None, ""));
        produce(&topic, [0], 2);
        until([&mut member], "the records", |[member]| {
            member.seen.get(&0).is_some_and(|seen| seen.ends_with(&[20, 21]))
        });
        assert_eq!(member.seen[&0], (at..22).collect::<Vec<_>>(), "nothing is skipped");
        assert!(
            moved(&member).contains("was deleted and created anew, and the next offset, 7, is of the former log"),
            "{}",
            moved(&member)
        );
        // And what is committed now is of the new one.
        let metadata = told(22, member.offered[0].incarnation);
        let commit = member.commit_of(0, &metadata);
        member.source.commit(&[commit], WAIT).unwrap();
        member.source.close();
        let mut next = join(&topic, &group, policy);
        until([&mut next], "the offer", |[next]| next.offered.len() == 1);
        assert_eq!(next.offered[0].committed, Some(Offset::new(22)));
        assert_eq!(
            (next.offered[0].metadata.as_str(), next.troubles.len()),
            (&metadata[..], 0)
        );
    }
}

#[test]
fn a_commit_for_a_former_topic_stops_the_partition_unless_it_is_said() {
    let (topic, group) = committed_for_a_former_topic("former-stopped");
    let mut member = join(&topic, &group, OutOfRange::Stop);
    until([&mut member], "the trouble", |[member]| !member.troubles.is_empty());
    let told = member.troubles[0].to_string();
    assert!(told.starts_with(&format!("{topic}[0] stands still: ")), "{told}");
    assert!(
        told.contains("was deleted and created anew") && told.contains("begins at 0 and ends at 20; stop the group"),
        "{told}"
    );
    for_a_while(&mut member, Duration::from_secs(1));
    assert_eq!((member.offered.len(), member.seen()), (0, 0));
    member.source.close();

    // As the message says. A commit by hand is of no incarnation, and is believed.
    let groups = Groups::connect(brokers(), &Properties::default()).unwrap();
    let start = (PartitionId::new(topic.as_str(), 0), Offset::ZERO);
    assert_eq!(groups.seek(&group, &[start]).unwrap(), []);
    let mut next = join(&topic, &group, OutOfRange::Stop);
    until([&mut next], "all records", |[next]| next.seen() == 20);
}

#[test]
fn a_topic_that_is_created_anew_is_noticed_at_once_though_nobody_says_so() {
    let (in_a_moment, after_a_while) = (Duration::ZERO, Duration::from_secs(2));
    for (protocol, away) in [
        (COOPERATIVE, in_a_moment),
        (EAGER, in_a_moment),
        (COOPERATIVE, after_a_while),
    ] {
        let (topic, group) = named("noticed", 3);
        produce(&topic, 0..3, 10);
        // Who asks by the clock alone asks in five minutes.
        let mut member = Member::join_with(brokers(), &topic, &group, protocol, OutOfRange::Earliest);
        until([&mut member], "30 records", |[member]| member.seen() == 30);
        let old = [0, 1, 2].map(|number| member.commit_of(number, ""));
        // It asks once a second at most, and has asked when the partitions were given.
        for_a_while(&mut member, Duration::from_secs(2));

        // Whoever goes on at 10, as if nothing were, finds ten records.
        let admin = Admin::new();
        admin.delete(&topic);
        for_a_while(&mut member, away);
        admin.create(&topic, 3, 20);
        // Long enough for the client to have fetched of the new topic when it is asked next.
        thread::sleep(Duration::from_secs(1));
        until([&mut member], "the new topic's records", |[member]| {
            member.skipped.len() == 3 && member.seen.values().all(|seen| seen.len() == 20)
        });
        for seen in member.seen.values() {
            assert_eq!(*seen, (0..20).collect::<Vec<_>>());
        }
        member.skipped.sort_unstable();
        assert_eq!(member.skipped, [(0, 0), (1, 0), (2, 0)]);
        for old in old {
            assert!(member.lost.contains(&old.epoch), "{:?}", member.lost);
            assert!(member.source.commit(&[old], WAIT).is_err(), "it is of the old topic");
        }
        assert_eq!(
            member.messages.len(),
            30 + 60,
            "nothing of the new topic was delivered as the old one's"
        );
    }
}

/// How often a member asks which topics there are.
const ASKS_EACH_SECOND: &str = "topic.metadata.refresh.interval.ms=1000";

#[test]
fn a_topic_that_is_created_anew_and_grows_past_what_was_read_is_begun_anew() {
    let (topic, group) = named("outgrown", 1);
    produce(&topic, [0], 10);
    let mut member = Member::join_with(brokers(), &topic, &group, &[ASKS_EACH_SECOND], OutOfRange::Earliest);
    until([&mut member], "10 records", |[member]| member.seen() == 10);
    let old = member.commit_of(0, "");

    Admin::new().recreate(&topic, 1, 20);
    until([&mut member], "the new topic's records", |[member]| {
        !member.skipped.is_empty() && member.seen[&0].len() == 20
    });
    assert_eq!(member.seen[&0], (0..20).collect::<Vec<_>>());
    assert!(member.lost.contains(&old.epoch), "{:?}", member.lost);
    assert!(member.source.commit(&[old], WAIT).is_err(), "it is of the old topic");
    let [.., SourceTrouble::Moved(_, text)] = &member.troubles[..] else {
        panic!("{:?}", member.troubles)
    };
    assert!(text.contains("deleted and created anew"), "{text}");
    let first = member.offered[0].incarnation;
    let now = member.offered.last().unwrap().incarnation;
    assert!(first.is_some() && now.is_some() && first != now, "{first:?}, {now:?}");
}
