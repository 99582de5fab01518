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

fn logged(line: &str) -> bool {
    let logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    logged.iter().any(|logged| logged.contains(line))
}

fn join(topic: &str, group: &str, policy: OutOfRange) -> Member {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(|| tracing::subscriber::set_global_default(Log).unwrap());
    Member::join_with(brokers(), topic, group, &[LOGS_RESETS], policy)
}

/// A member that holds all four partitions of a topic, whose logs begin at 6 and end at 10. It was to go on at 3, and has not
/// read yet that it cannot. And another member, which owns nothing yet.
fn all_refused_and_none_heard(test: &str, policy: OutOfRange) -> (Member, Member) {
    let (topic, group) = named(test, 4);
    produce(&topic, 0..4, 10);
    let mut member = join(&topic, &group, policy);
    member.starts = false;
    until([&mut member], "the offer", |[member]| member.offered.len() == 4);
    Admin::new().delete_records_of(&topic, 0..4, 6);
    let mut granted = std::mem::take(&mut member.offered);
    for granted in &mut granted {
        granted.committed = Some(Offset::new(3));
    }
    member.start(&granted);
    for number in 0..4 {
        member.source.set_flow(member.epoch(number), Flow::Held);
    }
    until([&mut member], "the refusals", |_| {
        (0..4).all(|number| logged(&format!("{topic} [{number}]: offset reset (at offset 3")))
    });

    let mut other = join(&topic, &group, policy);
    other.starts = false;
    until([&mut member, &mut other], "a revocation", |[member, _]| {
        !member.revoked.is_empty()
    });
    assert_eq!((member.revoked.len(), member.troubles.len()), (2, 0));
    let paused = |number| logged(&format!("Pause {topic} [{number}]: "));
    assert!((0..4).all(paused), "the client stops all for a rebalance");
    (member, other)
}

/// Gives two of the partitions to the other member, with this committed.
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
    let (mut member, mut other) = all_refused_and_none_heard("unread", OutOfRange::Earliest);
    give(&mut member, &mut other, 0);
    let kept = member.owned();
    release(&mut member, &kept);
    until([&mut member, &mut other], "what is left of two logs", |[member, _]| {
        member.seen() == 8
    });
    member.skipped.sort_unstable();
    assert_eq!(member.skipped, [(kept[0], 6), (kept[1], 6)]);
    assert_eq!(member.lost, []);
}

#[test]
fn what_stopped_before_a_rebalance_is_told_after_it() {
    let (mut member, mut other) = all_refused_and_none_heard("unread-stop", OutOfRange::Stop);
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

#[test]
fn what_was_said_of_an_earlier_period_is_not_held_against_a_later_one() {
    let (mut member, mut other) = all_refused_and_none_heard("outlived", OutOfRange::Latest);
    let before = member.owned();
    give(&mut member, &mut other, 6);
    let kept = member.owned();
    other.source.close();
    until([&mut member], "the offer of the rest", |[member]| {
        member.offered.len() == 2
    });
    // From 6 on there are records.
    let granted = std::mem::take(&mut member.offered);
    member.start(&granted);
    release(&mut member, &kept);
    until([&mut member], "the jumps of what was kept", |[member]| {
        kept.iter().all(|number| member.skipped.contains(&(*number, 10)))
    });
    let returned: Vec<_> = before.into_iter().filter(|number| !kept.contains(number)).collect();
    until([&mut member], "what is left of two logs", |[member]| {
        returned
            .iter()
            .all(|number| member.seen.get(number).is_some_and(|seen| seen.len() == 4))
    });
    assert_eq!(member.skipped.len(), 2, "{:?}, kept: {kept:?}", member.skipped);
    for trouble in &member.troubles {
        assert!(
            matches!(trouble, SourceTrouble::Moved(partition, _) if kept.contains(&partition.number())),
            "{trouble}"
        );
    }
}
