use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::assignment::Assignments;
use crate::record::Offset;

/// Lanes that tell a story: records are written `a1` for session `a`, offset 1.
struct Story {
    lanes: Lanes<&'static str>,
    epoch: AssignmentEpoch,
    now: Instant,
    running: BTreeMap<&'static str, LaneId>,
    started: Vec<&'static str>,
}

impl Story {
    fn new(retry: Retry) -> Self {
        Self {
            lanes: Lanes::new(retry),
            epoch: Assignments::default().open(()),
            now: Instant::now(),
            running: BTreeMap::new(),
            started: Vec::new(),
        }
    }

    fn deliver(&mut self, records: &'static str) -> &mut Self {
        for record in records.split(' ') {
            let session = SessionHash(u64::from(record.as_bytes()[0]));
            let offset = Offset::new(record[1..].parse().unwrap());
            self.lanes.enqueue(session, Queued::new(record, self.epoch, offset));
        }
        self
    }

    fn start(&mut self) -> &mut Self {
        while let Some(lane) = self.lanes.next(0, self.now) {
            let record = self.lanes.head(lane).record;
            self.started.push(record);
            assert!(self.running.insert(record, lane).is_none());
        }
        self
    }

    fn end(&mut self, record: &str, outcome: Outcome) -> Verdict {
        let lane = self.running.remove(record).expect("it runs");
        self.lanes.finish(lane, outcome, self.now)
    }

    fn expect_started(&mut self, records: &str) {
        assert_eq!(self.started.join(" "), records);
        self.started.clear();
    }
}

#[test]
fn a_session_waits_for_its_record_and_for_no_other() {
    let mut story = Story::new(Retry::default());
    story.deliver("a1 a2 b3 a4").start().expect_started("a1 b3");
    story.end("b3", Outcome::Handled);
    story.start().expect_started("");
    story.end("a1", Outcome::Handled);
    story.start().expect_started("a2");
    story.end("a2", Outcome::Handled);
    story.start().expect_started("a4");
    story.end("a4", Outcome::Handled);
    assert!(story.lanes.is_empty(), "an idle session has no lane");
}

#[test]
fn a_failed_record_is_retried_before_the_next_of_its_session() {
    let mut story = Story::new(Retry::default());
    story.deliver("a1 a2 b3").start().expect_started("a1 b3");
    let Verdict::RetryAt(until) = story.end("a1", Outcome::Transient(None)) else {
        panic!("a first failure is retried");
    };
    story.end("b3", Outcome::Handled);
    story.start();
    story.now = until;
    story.start();
    assert_eq!(story.lanes.head(story.running["a1"]).attempts, 2);
    story.expect_started("a1");
}

#[test]
fn a_dead_letter_holds_its_session_until_it_is_acknowledged() {
    let mut story = Story::new(Retry::default());
    story.deliver("a1 a2").start().expect_started("a1");
    let lane = story.running["a1"];
    assert_eq!(
        story.lanes.finish(lane, Outcome::Permanent, story.now),
        Verdict::DeadLetter(Fate::Permanent)
    );
    story.start().expect_started("");
    let Verdict::RetryAt(until) = story.lanes.finish(lane, Outcome::DeadLetterFailed(1), story.now) else {
        panic!("a letter that was not written is written again");
    };
    story.now = until;
    assert_eq!(story.lanes.next(0, story.now), Some(lane));
    assert_eq!(
        story.lanes.finish(lane, Outcome::DeadLettered, story.now),
        Verdict::Settled
    );
    story.start().expect_started("a2");
}

#[test]
fn what_runs_when_its_partition_leaves_still_holds_its_session() {
    let mut story = Story::new(Retry::default());
    story.deliver("a1 a2 b3").start().expect_started("a1 b3");
    let ended = story.epoch;
    let lane = story.running["a1"];
    story.end("b3", Outcome::Handled);
    story
        .lanes
        .drop_queued(|epoch| epoch == ended, |_| panic!("what runs is not dropped"));

    // The partition comes back at once, while a1 of the ended epoch still runs.
    let mut assignments = Assignments::default();
    assignments.open(());
    story.epoch = assignments.open(());
    story.deliver("a1 a2").start().expect_started("");
    assert_eq!(
        story.lanes.finish(lane, Outcome::Cancelled, story.now),
        Verdict::Dropped
    );
    story.running.clear();
    story.start().expect_started("a1");
}

#[test]
fn partitions_that_leave_together_are_dropped_in_one_look_at_each_record() {
    let mut story = Story::new(Retry::default());
    let mut assignments = Assignments::default();
    let epochs: Vec<_> = (0..10).map(|_| assignments.open(())).collect();
    for epoch in &epochs {
        story.epoch = *epoch;
        story.deliver("a1 b2");
    }
    let looks = Cell::new(0);
    let stays = epochs[4];
    let leaves = |epoch| {
        looks.set(looks.get() + 1);
        epoch != stays
    };
    let mut lost_heads = 0;
    story.lanes.drop_queued(leaves, |_| lost_heads += 1);
    assert_eq!((looks.get(), lost_heads), (20, 2));
    story.start().expect_started("a1 b2");
    story.end("a1", Outcome::Handled);
    story.end("b2", Outcome::Handled);
    assert!(story.lanes.is_empty());
}

/// What the model knows of a session: its records in order, and whether the first one runs.
#[derive(Default)]
struct Model {
    records: VecDeque<(Offset, AssignmentEpoch)>,
    running: Option<LaneId>,
    due: Option<Instant>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_history_keeps_each_session_in_order_and_one_at_a_time(
        steps in proptest::collection::vec((0u8..12, 0u64..6, 0u8..6), 1..400),
        seed in any::<u64>(),
    ) {
        let retry = Retry { attempts_max: 3, jitter_seed: seed, ..Retry::default() };
        let mut lanes = Lanes::new(retry);
        let mut assignments = Assignments::default();
        let mut epochs = [assignments.open(()), assignments.open(())];
        let mut model: BTreeMap<u64, Model> = BTreeMap::new();
        let mut now = Instant::now();
        let mut next_offset = 0;

        for (what, session, choice) in steps {
            match what {
                0..=4 => {
                    let epoch = epochs[usize::from(choice) % epochs.len()];
                    let offset = Offset::new(next_offset);
                    next_offset += 1;
                    let runs = lanes.enqueue(SessionHash(session), Queued::new((), epoch, offset));
                    let known = model.entry(session).or_default();
                    prop_assert_eq!(runs.is_some(), known.running.is_some());
                    known.records.push_back((offset, epoch));
                }
                5..=7 => {
                    let Some(lane) = lanes.next(0, now) else {
                        let startable = |known: &Model| known.running.is_none()
                            && !known.records.is_empty()
                            && known.due.is_none_or(|due| due <= now);
                        prop_assert!(!model.values().any(startable), "something could start");
                        continue;
                    };
                    let known = model.get_mut(&lanes.session(lane).0).unwrap();
                    prop_assert!(known.running.is_none(), "two records of a session run");
                    prop_assert!(known.due.is_none_or(|due| due <= now), "started before its retry was due");
                    prop_assert_eq!(known.records[0].0, lanes.head(lane).offset);
                    known.running = Some(lane);
                    known.due = None;
                }
                8..=9 => {
                    let Some(known) = model.get_mut(&session) else { continue };
                    let Some(lane) = known.running.take() else { continue };
                    let outcome = match choice {
                        0..=2 => Outcome::Handled,
                        3 => Outcome::Transient(None),
                        4 => Outcome::DeadLettered,
                        _ => Outcome::Cancelled,
                    };
                    match lanes.finish(lane, outcome, now) {
                        Verdict::Settled | Verdict::Dropped => { known.records.pop_front(); }
                        Verdict::RetryAt(until) => known.due = Some(until),
                        Verdict::DeadLetter(_) => known.running = Some(lane),
                    }
                }
                10 => now += Duration::from_millis(u64::from(choice) * 100),
                _ => {
                    let index = usize::from(choice) % epochs.len();
                    let epoch = std::mem::replace(&mut epochs[index], assignments.open(()));
                    lanes.drop_queued(|of| of == epoch, |_| {});
                    for known in model.values_mut() {
                        let head_stays = known.running.is_some();
                        let mut position = 0;
                        let had = known.records.front().copied();
                        known.records.retain(|(_, of)| {
                            position += 1;
                            *of != epoch || (head_stays && position == 1)
                        });
                        if known.records.front().copied() != had {
                            known.due = None;
                        }
                    }
                }
            }
            let busy = model.values().filter(|known| !known.records.is_empty()).count();
            prop_assert_eq!(lanes.len(), busy);
        }
    }
}
