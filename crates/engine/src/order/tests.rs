use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::assignment::Assignments;

const ALICE: SessionHash = SessionHash(0xa11ce);
const BOB: SessionHash = SessionHash(0xb0b);

fn epochs<const N: usize>() -> [AssignmentEpoch; N] {
    let mut assignments = Assignments::default();
    [(); N].map(|()| assignments.open(()))
}

fn offset(offset: i64) -> Offset {
    Offset::new(offset)
}

/// A checker that is told of one epoch's sessions in short.
struct Story {
    checker: OrderChecker,
    epoch: AssignmentEpoch,
}

impl Story {
    fn new() -> Self {
        let [epoch] = epochs();
        Self {
            checker: OrderChecker::new(),
            epoch,
        }
    }

    fn start(&mut self, session: SessionHash, n: i64, attempt: u32) -> Result<(), Violation> {
        self.checker.started(session, self.epoch, offset(n), attempt)
    }

    fn end(&mut self, session: SessionHash, n: i64, settled: bool) -> Result<(), Violation> {
        self.checker.ended(session, self.epoch, offset(n), settled)
    }

    /// Starts a record and settles it.
    fn run(&mut self, session: SessionHash, n: i64) -> Result<(), Violation> {
        self.start(session, n, 1)?;
        self.end(session, n, true)
    }
}

#[test]
fn sessions_run_side_by_side_each_in_order() -> Result<(), Violation> {
    let mut story = Story::new();
    story.start(ALICE, 0, 1)?;
    story.start(BOB, 1, 1)?;
    story.end(BOB, 1, true)?;
    story.start(BOB, 3, 1)?;
    story.end(ALICE, 0, false)?;
    story.start(ALICE, 0, 2)?;
    story.end(ALICE, 0, true)?;
    story.run(ALICE, 2)?;
    story.end(BOB, 3, true)?;
    assert_eq!((story.checker.checked(), story.checker.violations()), (5, 0));
    Ok(())
}

#[test]
fn an_overlap_is_caught_once_and_the_session_is_judged_on() -> Result<(), Violation> {
    let mut story = Story::new();
    story.start(ALICE, 0, 1)?;
    let violation = story.start(ALICE, 1, 1).unwrap_err();
    assert!(matches!(
        violation,
        Violation::Overlap {
            open_offset: Offset::ZERO,
            ..
        }
    ));
    assert_eq!(
        violation.to_string(),
        "overlap: session#00000000000a11ce started offset 1 of epoch 0.0 (attempt 1) while its handler of offset 0 \
         of epoch 0.0 was running: two handlers of one session ran at the same time"
    );
    story.end(ALICE, 0, true)?;
    story.end(ALICE, 1, true)?;
    story.run(ALICE, 2)?;
    assert_eq!(story.checker.violations(), 1);
    Ok(())
}

#[test]
fn a_record_that_overtakes_its_predecessor_is_caught() -> Result<(), Violation> {
    let mut story = Story::new();
    story.start(ALICE, 0, 1)?;
    story.end(ALICE, 0, false)?;
    // Offset 0 waits for its retry, and 1 does not wait for it.
    let violation = story.start(ALICE, 1, 1).unwrap_err();
    assert_eq!(
        violation.to_string(),
        "overtaken: session#00000000000a11ce started offset 1 of epoch 0.0 (attempt 1) before its offset 0 was \
         settled: the session's order was not kept"
    );
    Ok(())
}

#[test]
fn an_offset_that_falls_is_caught() -> Result<(), Violation> {
    let mut story = Story::new();
    story.run(ALICE, 7)?;
    let violation = story.start(ALICE, 6, 1).unwrap_err();
    assert_eq!(
        violation.to_string(),
        "overtaken: session#00000000000a11ce started offset 6 of epoch 0.0 (attempt 1) after its later offset 7: \
         the session's order was not kept"
    );
    Ok(())
}

#[test]
fn a_settled_record_that_starts_again_is_caught() -> Result<(), Violation> {
    let mut story = Story::new();
    story.run(ALICE, 7)?;
    let violation = story.start(ALICE, 7, 2).unwrap_err();
    assert!(
        violation
            .to_string()
            .starts_with("repeated: session#00000000000a11ce started offset 7")
    );
    Ok(())
}

#[test]
fn a_lost_attempt_is_caught() -> Result<(), Violation> {
    let mut story = Story::new();
    for (session, attempt) in [(ALICE, 2), (BOB, 0)] {
        let violation = story.start(session, 0, attempt).unwrap_err();
        assert!(matches!(violation, Violation::AttemptGap { due: 1, .. }), "{violation}");
        story.end(session, 0, true)?;
    }
    story.start(ALICE, 1, 1)?;
    for attempt in [1, 3, 5] {
        story.end(ALICE, 1, false)?;
        let violation = story.start(ALICE, 1, attempt).unwrap_err();
        assert!(matches!(violation, Violation::AttemptGap { .. }), "{violation}");
    }
    story.end(ALICE, 1, false)?;
    story.start(ALICE, 1, 6)
}

#[test]
fn attempts_that_outlive_a_restart_are_allowed_when_asked_for() -> Result<(), Violation> {
    let [epoch] = epochs();
    let mut checker = OrderChecker::new().with_resumed_attempts();
    checker.started(ALICE, epoch, offset(0), 4)?;
    checker.ended(ALICE, epoch, offset(0), false)?;
    checker.started(ALICE, epoch, offset(0), 5)?;
    checker.ended(ALICE, epoch, offset(0), true)?;
    let violation = checker.started(ALICE, epoch, offset(1), 0).unwrap_err();
    assert!(
        matches!(violation, Violation::AttemptGap { due: 1, .. }),
        "no attempt has the number 0"
    );
    Ok(())
}

#[test]
fn an_end_without_a_start_is_caught() -> Result<(), Violation> {
    let mut story = Story::new();
    story.run(ALICE, 0)?;
    for (session, n) in [(ALICE, 0), (ALICE, 1), (BOB, 0)] {
        let violation = story.end(session, n, true).unwrap_err();
        assert!(matches!(violation, Violation::NotOpen { .. }), "{violation}");
    }
    Ok(())
}

#[test]
fn a_dead_letter_settles_its_record_when_it_is_acknowledged() -> Result<(), Violation> {
    let mut story = Story::new();
    story.start(ALICE, 0, 1)?;
    story.end(ALICE, 0, false)?;
    story.end(ALICE, 0, true)?;
    story.run(ALICE, 1)
}

#[test]
fn a_session_in_two_partitions_is_ordered_in_each_and_never_runs_twice() -> Result<(), Violation> {
    let [orders, invoices] = epochs();
    let mut checker = OrderChecker::new();
    for n in 0..4 {
        for (epoch, base) in [(orders, 100), (invoices, 0)] {
            checker.started(ALICE, epoch, offset(base + n), 1)?;
            checker.ended(ALICE, epoch, offset(base + n), true)?;
        }
    }
    let fell = checker.started(ALICE, orders, offset(102), 1).unwrap_err();
    assert!(matches!(fell, Violation::Overtaken { last_offset, .. } if last_offset == offset(103)));
    let overlap = checker.started(ALICE, invoices, offset(4), 1).unwrap_err();
    assert!(matches!(overlap, Violation::Overlap { open_epoch, .. } if open_epoch == orders));
    Ok(())
}

#[test]
fn a_dead_letter_is_acknowledged_while_its_session_runs_in_another_partition() -> Result<(), Violation> {
    let [orders, invoices] = epochs();
    let mut checker = OrderChecker::new();
    checker.started(ALICE, orders, offset(5), 1)?;
    checker.ended(ALICE, orders, offset(5), false)?;
    checker.started(ALICE, invoices, offset(0), 1)?;
    checker.ended(ALICE, orders, offset(5), true)?;
    let twice = checker.ended(ALICE, orders, offset(5), true).unwrap_err();
    assert!(matches!(twice, Violation::NotOpen { .. }));

    // Once its epoch is revoked a late acknowledgement is nobody's concern.
    checker.revoked(orders);
    checker.ended(ALICE, orders, offset(5), true)?;
    checker.ended(ALICE, invoices, offset(0), true)
}

#[test]
fn a_partition_that_comes_back_starts_nothing_while_its_old_handler_runs() -> Result<(), Violation> {
    let [before, after] = epochs();
    let mut checker = OrderChecker::new();
    checker.started(ALICE, before, offset(5), 1)?;
    checker.started(BOB, before, offset(6), 1)?;
    checker.revoked(before);
    // Bob's handler is cancelled; what it leaves open starts again in the new epoch.
    checker.ended(BOB, before, offset(6), false)?;
    checker.started(BOB, after, offset(6), 1)?;
    // Many new sessions start, so that the table drops what it can, and Alice's old handler still runs.
    for n in 0..1_000 {
        checker.started(SessionHash(n), after, offset(7), 1)?;
    }
    let overlap = checker.started(ALICE, after, offset(5), 1).unwrap_err();
    assert!(matches!(overlap, Violation::Overlap { open_epoch, .. } if open_epoch == before));
    checker.ended(ALICE, before, offset(5), true)
}

#[test]
fn what_a_commit_let_go_is_still_caught_when_it_starts_again() {
    let [epoch] = epochs();
    let mut checker = OrderChecker::new();
    let session = |n: i64| SessionHash((n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    // A new session with each record; a commit every 1,000.
    for n in 0..200_000 {
        checker.started(session(n), epoch, offset(n), 1).unwrap();
        checker.ended(session(n), epoch, offset(n), true).unwrap();
        if n % 1_000 == 0 {
            checker.committed(epoch, offset(n));
        }
    }
    assert!(checker.heap_bytes() < 512 << 10, "{} bytes", checker.heap_bytes());
    checker.committed(epoch, Offset::ZERO);
    let violation = checker.started(session(3), epoch, offset(3), 1).unwrap_err();
    assert!(matches!(violation, Violation::Repeated { .. }));
}

#[test]
fn a_session_costs_what_the_documentation_says() {
    let [epoch] = epochs();
    let mut checker = OrderChecker::new();
    for n in 0..100_000u64 {
        checker
            .started(
                SessionHash(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                epoch,
                Offset::ZERO,
                1,
            )
            .unwrap();
    }
    let bytes = checker.heap_bytes() / 100_000;
    assert!((38..=76).contains(&bytes), "{bytes} bytes a session");
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Start(Start),
    End(Start, bool),
    Commit(AssignmentEpoch, Offset),
    Revoke(AssignmentEpoch),
}

/// How an attempt ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    Fails,
    Settles,
    /// It fails, and the acknowledgement of its dead letter settles it.
    DeadLetters,
}

type Lane = (SessionHash, AssignmentEpoch);

/// Makes legal histories: a session runs one attempt at a time, and each of its epochs is in order.
#[derive(Default)]
struct Lanes {
    waiting: BTreeMap<Lane, VecDeque<(Start, Ending)>>,
    running: BTreeMap<SessionHash, (Start, Ending)>,
    unacknowledged: BTreeMap<Lane, Start>,
    unsettled: BTreeSet<(AssignmentEpoch, Offset)>,
    history: Vec<Event>,
}

impl Lanes {
    /// Receives a record whose last attempt ends like this, after so many that failed.
    fn receive(&mut self, (session, epoch): Lane, offset: Offset, failures: u32, last: Ending) {
        self.unsettled.insert((epoch, offset));
        let waiting = self.waiting.entry((session, epoch)).or_default();
        for attempt in 1..=failures + 1 {
            let ending = if attempt <= failures { Ending::Fails } else { last };
            let start = Start {
                session,
                epoch,
                offset,
                attempt,
            };
            waiting.push_back((start, ending));
        }
    }

    /// Does the next thing in the lane; false when there is none.
    fn step(&mut self, lane: Lane) -> bool {
        let (session, epoch) = lane;
        if let Some((start, ending)) = self.running.remove(&session) {
            self.end(start, ending);
        } else if let Some(start) = self.unacknowledged.remove(&lane) {
            self.settle(start);
        } else if let Some((start, ending)) = self.waiting.get_mut(&(session, epoch)).and_then(VecDeque::pop_front) {
            self.running.insert(session, (start, ending));
            self.history.push(Event::Start(start));
        } else {
            return false;
        }
        true
    }

    fn end(&mut self, start: Start, ending: Ending) {
        match ending {
            Ending::Settles => return self.settle(start),
            // A dead letter of an epoch that was revoked meanwhile is fenced: nobody reports its acknowledgement.
            Ending::DeadLetters if self.waiting.contains_key(&(start.session, start.epoch)) => {
                self.unacknowledged.insert((start.session, start.epoch), start);
            }
            Ending::DeadLetters | Ending::Fails => {}
        }
        self.history.push(Event::End(start, false));
    }

    fn settle(&mut self, start: Start) {
        self.unsettled.remove(&(start.epoch, start.offset));
        self.history.push(Event::End(start, true));
    }

    fn commit(&mut self, epoch: AssignmentEpoch) {
        let oldest = self.unsettled.iter().find(|unsettled| unsettled.0 == epoch);
        if let Some(&(_, watermark)) = oldest {
            self.history.push(Event::Commit(epoch, watermark));
        }
    }

    fn revoke(&mut self, epoch: AssignmentEpoch) {
        self.waiting.retain(|lane, _| lane.1 != epoch);
        self.unacknowledged.retain(|lane, _| lane.1 != epoch);
        self.unsettled.retain(|unsettled| unsettled.0 != epoch);
        self.history.push(Event::Revoke(epoch));
    }
}

fn legal_history() -> impl Strategy<Value = Vec<Event>> {
    let ending = prop_oneof![4 => Just(Ending::Settles), 1 => Just(Ending::DeadLetters)];
    let record = (
        1u64..6,
        0usize..3,
        prop_oneof![3 => Just(0u32), 1 => 1u32..4],
        ending,
        1i64..10,
    );
    let records = prop::collection::vec(record, 1..60);
    let steps = prop::collection::vec((0u8..100, any::<Index>()), 0..300);
    (records, steps).prop_map(|(records, steps)| {
        let epochs = epochs::<3>();
        let mut lanes = Lanes::default();
        let mut next = [0i64; 3];
        for (session, partition, failures, last, gap) in records {
            lanes.receive(
                (SessionHash(session), epochs[partition]),
                offset(next[partition]),
                failures,
                last,
            );
            next[partition] += gap;
        }
        for (what, which) in steps {
            match what {
                0 => lanes.revoke(*which.get(&epochs)),
                1..10 => lanes.commit(*which.get(&epochs)),
                _ => {
                    let known = lanes.waiting.keys().copied().collect::<Vec<_>>();
                    if known.is_empty() {
                        break;
                    }
                    // A lane that has nothing to do leaves the step to the next one that has.
                    let first = which.index(known.len());
                    let _stepped = (first..first + known.len()).any(|n| lanes.step(known[n % known.len()]));
                }
            }
        }
        lanes.history
    })
}

fn tell(checker: &mut OrderChecker, event: Event) -> Result<(), Violation> {
    match event {
        Event::Start(start) => checker.started(start.session, start.epoch, start.offset, start.attempt)?,
        Event::End(start, settled) => checker.ended(start.session, start.epoch, start.offset, settled)?,
        Event::Commit(epoch, watermark) => checker.committed(epoch, watermark),
        Event::Revoke(epoch) => checker.revoked(epoch),
    }
    Ok(())
}

/// Replays a history; the checker afterwards, and the first violation with its place.
fn replay(history: &[Event]) -> (OrderChecker, Option<(usize, Violation)>) {
    let mut checker = OrderChecker::new();
    let mut first = None;
    for (place, &event) in history.iter().enumerate() {
        let judged = tell(&mut checker, event);
        first = first.or(judged.err().map(|violation| (place, violation)));
    }
    (checker, first)
}

fn starts(history: &[Event]) -> Vec<(usize, Start)> {
    let starts = history.iter().enumerate().filter_map(|(place, event)| match event {
        Event::Start(start) => Some((place, *start)),
        _ => None,
    });
    starts.collect()
}

/// All pairs of starts in the same lane, the earlier one first.
fn pairs(history: &[Event]) -> Vec<((usize, Start), (usize, Start))> {
    let starts = starts(history);
    let pairs = starts
        .iter()
        .enumerate()
        .flat_map(|(n, &a)| starts[n + 1..].iter().map(move |&b| (a, b)));
    pairs
        .filter(|((_, a), (_, b))| (a.session, a.epoch) == (b.session, b.epoch))
        .collect()
}

/// The places of settles after which the same lane starts something again.
fn settles_followed_by_a_start(history: &[Event]) -> Vec<usize> {
    let starts = starts(history);
    let follows = |place: usize, settled: &Start| {
        let later = starts.iter().filter(|&&(later, _)| later > place);
        later
            .map(|(_, start)| start)
            .any(|start| (start.session, start.epoch) == (settled.session, settled.epoch))
    };
    let events = history.iter().enumerate();
    let settles = events.filter(|(place, event)| matches!(event, Event::End(start, true) if follows(*place, start)));
    settles.map(|(place, _)| place).collect()
}

proptest! {
    #[test]
    fn every_legal_history_passes(history in legal_history()) {
        let (checker, violation) = replay(&history);
        prop_assert_eq!(violation, None);
        prop_assert_eq!(checker.violations(), 0);
        prop_assert_eq!(checker.checked() as usize, starts(&history).len());
    }

    #[test]
    fn two_starts_that_are_swapped_are_caught(history in legal_history(), which: Index) {
        let pairs = pairs(&history);
        prop_assume!(!pairs.is_empty());
        let ((a, _), (b, _)) = *which.get(&pairs);
        let mut swapped = history;
        swapped.swap(a, b);
        let (checker, violation) = replay(&swapped);
        prop_assert!(violation.is_some_and(|(place, _)| place >= a));
        prop_assert!(checker.violations() > 0);
    }

    #[test]
    fn two_records_that_are_processed_in_the_wrong_order_are_caught(history in legal_history(), which: Index) {
        let pairs = pairs(&history).into_iter().filter(|((_, a), (_, b))| a.offset != b.offset).collect::<Vec<_>>();
        prop_assume!(!pairs.is_empty());
        let ((_, a), (_, b)) = *which.get(&pairs);
        let other = |start: &Start| {
            let ours = (start.session, start.epoch) == (a.session, a.epoch);
            let offset = match start.offset {
                offset if ours && offset == a.offset => b.offset,
                offset if ours && offset == b.offset => a.offset,
                offset => offset,
            };
            Start { offset, ..*start }
        };
        let exchanged = history.iter().map(|event| match event {
            Event::Start(start) => Event::Start(other(start)),
            Event::End(start, settled) => Event::End(other(start), *settled),
            event => *event,
        });
        let (_, violation) = replay(&exchanged.collect::<Vec<_>>());
        let caught = matches!(violation, Some((_, Violation::Overtaken { .. } | Violation::Repeated { .. })));
        prop_assert!(caught, "{:?}", violation);
    }

    #[test]
    fn a_settle_that_is_lost_is_caught(history in legal_history(), which: Index) {
        let settles = settles_followed_by_a_start(&history);
        prop_assume!(!settles.is_empty());
        let mut lost = history;
        lost.remove(*which.get(&settles));
        let (_, violation) = replay(&lost);
        let caught = matches!(violation, Some((_, Violation::Overlap { .. } | Violation::Overtaken { .. })));
        prop_assert!(caught, "{:?}", violation);
    }

    #[test]
    fn a_session_that_goes_on_although_its_record_failed_is_caught(history in legal_history(), which: Index) {
        let settles = settles_followed_by_a_start(&history);
        prop_assume!(!settles.is_empty());
        let mut failed = history;
        if let Event::End(_, settled) = &mut failed[*which.get(&settles)] {
            *settled = false;
        }
        prop_assert!(replay(&failed).1.is_some());
    }

    #[test]
    fn nothing_depends_on_how_much_is_remembered(history in legal_history(), noise in 0u64..200) {
        // Other sessions fill the tables, so that entries are dropped at other times.
        let [_, _, _, elsewhere] = epochs();
        let mut checker = OrderChecker::new();
        let mut noise = (1_000..1_000 + noise).map(SessionHash);
        for event in history {
            if let Some(session) = noise.next() {
                prop_assert!(checker.started(session, elsewhere, Offset::ZERO, 1).is_ok());
            }
            prop_assert_eq!(tell(&mut checker, event), Ok(()));
        }
    }
}
