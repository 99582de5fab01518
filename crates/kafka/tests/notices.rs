//! What the client says of a partition that is out of its log, when it is read only after a rebalance, on a real broker.
//!
//! It says so once, in the queue of the records, and fetches no more of the partition. While all is held the queue is not read.

mod admin;
mod member;

use std::fmt::{Debug, Write};
use std::sync::{Mutex, Once, PoisonError};

use admin::Admin;
use member::{Member, WAIT, brokers, named, produce, until};
use seriatim_engine::budget::Flow;
use seriatim_engine::record::Offset;
use seriatim_kafka::range::OutOfRange;
use seriatim_runtime::ports::{Commit, Source, SourceTrouble};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// What the client logs: the only sign that a fetch was refused, as long as nothing is read.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

const LOGS_RESETS: &str = "debug=topic";

/// How the members of a group move partitions between them.
const COOPERATIVE: &str = "partition.assignment.strategy=cooperative-sticky";
const EAGER: &str = "partition.assignment.strategy=range";

/// Where logs begin whose first records are deleted.
const FIRST: i64 = 6;

/// A place beyond their ends, to which they get later.
const BEYOND: i64 = 1_042;

struct Log;

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "librdkafka"
    }

    fn event(&self, event: &Event<'_>) {
        struct Line(String);
        impl Visit for Line {
            fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
                let _ = write!(self.0, "{value:?} ");
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        LOGGED.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// How often such a line was logged.
fn logged(line: &str) -> usize {
    let logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    logged.iter().filter(|logged| logged.contains(line)).count()
}

/// How often the client stopped a partition for a rebalance.
fn paused(topic: &str, number: i32) -> usize {
    logged(&format!("Pause {topic} [{number}]: "))
}

fn join(topic: &str, group: &str, protocol: &str, policy: OutOfRange) -> Member {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(|| tracing::subscriber::set_global_default(Log).unwrap());
    Member::join_with(brokers(), topic, group, &[LOGS_RESETS, protocol], policy)
}

/// A member that holds all four partitions of a topic with ten records each, has been refused to go on at this place, where there
/// is none, and has not read so yet. And another member, which owns nothing yet, and to which two of them are to be given.
fn all_refused_and_none_heard(topic: &str, group: &str, policy: OutOfRange, place: i64) -> (Member, Member) {
    let (member, other) = all_refused(topic, group, COOPERATIVE, policy, place);
    assert_eq!(member.revoked.len(), 2);
    (member, other)
}

fn all_refused(topic: &str, group: &str, protocol: &str, policy: OutOfRange, place: i64) -> (Member, Member) {
    produce(topic, 0..4, 10);
    let mut member = join(topic, group, protocol, policy);
    member.starts = false;
    until([&mut member], "the offer", |[member]| member.offered.len() == 4);
    if place < FIRST {
        Admin::new().delete_records_of(topic, 0..4, FIRST);
    }
    let mut granted = std::mem::take(&mut member.offered);
    for granted in &mut granted {
        granted.committed = Some(Offset::new(place));
    }
    member.start(&granted);
    for number in 0..4 {
        member.source.set_flow(member.epoch(number), Flow::Held);
    }
    until([&mut member], "the refusals", |_| {
        (0..4).all(|number| logged(&format!("{topic} [{number}]: offset reset (at offset {place} ")) == 1)
    });

    let mut other = join(topic, group, protocol, policy);
    other.starts = false;
    until([&mut member, &mut other], "a revocation", |[member, _]| {
        !member.revoked.is_empty() && (0..4).all(|number| paused(topic, number) > 0)
    });
    assert_eq!(member.troubles.len(), 0);
    (member, other)
}

/// Gives back what is wanted for the other member, with this committed.
fn give(member: &mut Member, other: &mut Member, watermark: i64) {
    let revoked = std::mem::take(&mut member.revoked);
    let commit = |epoch| Commit {
        epoch,
        watermark: Offset::new(watermark),
        metadata: String::new(),
    };
    let commits: Vec<_> = revoked.iter().copied().map(commit).collect();
    member.source.commit(&commits, WAIT).unwrap();
    member.source.relinquish(&revoked);
    for epoch in revoked {
        member.assignments.close(epoch);
    }
    until([member, other], "the offer to the other", |[_, other]| {
        other.offered.len() == 2
    });
}

fn release(member: &mut Member, numbers: &[i32]) {
    for number in numbers {
        member.source.set_flow(member.epoch(*number), Flow::Flowing);
    }
}

#[test]
fn what_was_said_before_a_rebalance_is_heard_after_it() {
    let (topic, group) = named("unread", 4);
    let (mut member, mut other) = all_refused_and_none_heard(&topic, &group, OutOfRange::Earliest, 3);
    give(&mut member, &mut other, 0);
    let kept = member.owned();
    release(&mut member, &kept);
    until([&mut member, &mut other], "what is left of two logs", |[member, _]| {
        member.seen() == 8
    });
    member.skipped.sort_unstable();
    assert_eq!(member.skipped, [(kept[0], FIRST), (kept[1], FIRST)]);
    assert_eq!(member.lost, []);
}

#[test]
fn what_stopped_before_a_rebalance_is_told_after_it() {
    let (topic, group) = named("unread-stop", 4);
    let (mut member, mut other) = all_refused_and_none_heard(&topic, &group, OutOfRange::Stop, 3);
    give(&mut member, &mut other, 0);
    let kept = member.owned();
    release(&mut member, &kept);
    until([&mut member, &mut other], "both troubles", |[member, _]| {
        member.troubles.len() == 2
    });
    for trouble in &member.troubles {
        assert!(
            matches!(trouble, SourceTrouble::OutOfRange(partition, _) if kept.contains(&partition.number())),
            "{trouble}"
        );
    }
}

/// What was refused at `place` is given back to the member, which is to go on with it at `from`, in a log that is longer by now.
fn check_outlived(test: &str, place: i64, from: i64) {
    let (topic, group) = named(test, 4);
    let (mut member, mut other) = all_refused_and_none_heard(&topic, &group, OutOfRange::Latest, place);
    let before = member.owned();
    give(&mut member, &mut other, from);
    let kept = member.owned();
    let returned: Vec<_> = before.into_iter().filter(|number| !kept.contains(number)).collect();
    other.source.close();
    until([&mut member], "the offer of the rest", |[member]| {
        member.offered.len() == 2
    });
    produce(&topic, 0..4, 1_100);
    member.starts = true;
    let granted = std::mem::take(&mut member.offered);
    member.start(&granted);
    release(&mut member, &kept);
    until([&mut member], "the jumps of what was kept", |[member]| {
        kept.iter().all(|number| member.skipped.contains(&(*number, 1_110)))
    });
    until([&mut member], "all of what came back", |[member]| {
        let seen = |number| member.seen.get(number);
        returned
            .iter()
            .all(|number| seen(number).is_some_and(|seen| seen.ends_with(&[1_109])))
    });
    for number in &returned {
        assert!(member.seen[number].iter().copied().eq(from..1_110), "{number}");
    }
    assert_eq!(member.skipped.len(), 2, "{:?}, kept: {kept:?}", member.skipped);
    for trouble in &member.troubles {
        assert!(
            matches!(trouble, SourceTrouble::Moved(partition, _) if kept.contains(&partition.number())),
            "{trouble}"
        );
    }
}

#[test]
fn what_was_said_of_an_earlier_period_is_not_held_against_a_later_one() {
    check_outlived("outlived", 3, FIRST);
}

#[test]
fn nor_when_the_later_one_gets_to_that_place() {
    check_outlived("outlived-beyond", BEYOND, 0);
}

#[test]
fn what_was_said_between_two_periods_leaves_no_gap_in_the_later_one() {
    let (topic, group) = named("gap", 4);
    let (mut member, mut other) = all_refused_and_none_heard(&topic, &group, OutOfRange::Earliest, BEYOND);
    give(&mut member, &mut other, 0);
    let kept = member.owned();
    member.starts = true;
    release(&mut member, &kept);
    until([&mut member, &mut other], "the logs that were kept", |[member, _]| {
        member.seen() == 20
    });
    other.source.close();
    until([&mut member], "all four logs", |[member]| member.seen() == 40);

    // By the next rebalance there is a record at that place, and none before it was passed on.
    for number in 0..4 {
        member.source.set_flow(member.epoch(number), Flow::Held);
    }
    produce(&topic, 0..4, 1_100);
    let before = [0, 1, 2, 3].map(|number| paused(&topic, number));
    let (another, _) = named("gap-another", 1);
    let mut third = join(&another, &group, COOPERATIVE, OutOfRange::Earliest);
    until([&mut member, &mut third], "the rebalance", |_| {
        (0..4).all(|number| paused(&topic, number) > before[number as usize])
    });
    release(&mut member, &[0, 1, 2, 3]);
    until([&mut member, &mut third], "the last records", |[member, _]| {
        member.seen.values().all(|seen| seen.ends_with(&[1_109]))
    });
    for (number, seen) in &member.seen {
        assert!(seen.iter().copied().eq(0..1_110), "{number}: {} records", seen.len());
    }
    assert_eq!(
        (member.skipped.len(), member.troubles.len()),
        (2, 2),
        "of what was kept"
    );
}

#[test]
fn what_was_said_between_two_periods_moves_nothing_under_the_eager_protocol_either() {
    let (topic, group) = named("eager-outlived", 4);
    let (mut member, mut other) = all_refused(&topic, &group, EAGER, OutOfRange::Latest, 3);
    assert_eq!(member.revoked.len(), 4);
    give(&mut member, &mut other, FIRST);
    until([&mut member, &mut other], "two again", |[member, _]| {
        member.offered.len() == 2
    });
    other.source.close();
    until([&mut member], "and then all", |[member]| member.offered.len() == 6);
    let granted = member.offered.split_off(2);
    member.start(&granted);
    until([&mut member], "what is left of all logs", |[member]| {
        member.seen() == 16
    });
    produce(&topic, 0..4, 1);
    until([&mut member], "what is new", |[member]| member.seen() == 20);
    for seen in member.seen.values() {
        assert_eq!(*seen, (FIRST..11).collect::<Vec<_>>());
    }
    assert_eq!((member.skipped.len(), member.troubles.len()), (0, 0));
}
