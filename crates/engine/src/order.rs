//! The checker that judges all of the above from outside.
//!
//! It sees nothing but the starts and the ends of handlers, shares no state with lanes and ledgers, and so can tell
//! when they err: in production with `--check`, in the simulator and in benchmarks. Order is judged per session and
//! epoch (one partition's order), overlap per session.
//!
//! What it remembers is one entry of 32 bytes per session, found by one table probe at each start and each end: the
//! last record that started, its attempt, and how it stands. In the table that is 38 to 76 bytes a session, up to
//! 76 MB for a million of them. Entries live until they can no longer matter:
//! [`committed`](OrderChecker::committed) and [`revoked`](OrderChecker::revoked) say which may go, and they are
//! dropped before the table would grow.
//!
//! A session whose records come from several partitions has an entry for each: the one of the epoch that it started
//! in last, and others that are spilled into a second table. So a session that alternates between partitions is judged
//! all the same, at the price of about three more probes for each change.
//!
//! Its limits: it believes what it is told, so a handler whose start is not reported is not judged. It knows the last
//! record of a session and not all of them: when an offset falls it reports [`Overtaken`](Violation::Overtaken)
//! whether or not that record had been settled. It does not judge what starts in an epoch that was revoked.

use std::error::Error;
use std::fmt;
use std::mem;

use hashbrown::{HashMap, HashTable};

use crate::assignment::AssignmentEpoch;
use crate::record::{Offset, SessionHash};

/// Judges whether handlers start and end in the promised order.
#[derive(Debug, Default)]
pub struct OrderChecker {
    /// By session: what it started last.
    recent: HashTable<Seen>,
    /// By session and epoch: what it started last there, when it has started elsewhere since.
    spilled: HashTable<Seen>,
    /// The epochs that something started in and that are not revoked, with the watermark last committed there.
    committed: HashMap<AssignmentEpoch, Offset>,
    resumed_attempts: bool,
    checked: u64,
    violations: u64,
}

impl OrderChecker {
    /// A checker that has seen nothing. A record's first attempt must be attempt 1.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets a record's first attempt in an epoch have any number from 1, as when attempt counts survive a restart.
    pub fn with_resumed_attempts(mut self) -> Self {
        self.resumed_attempts = true;
        self
    }

    /// Judges that a handler starts.
    ///
    /// After a violation the checker goes on from this start, so that one fault is reported about once.
    #[inline]
    pub fn started(
        &mut self,
        session: SessionHash,
        epoch: AssignmentEpoch,
        offset: Offset,
        attempt: u32,
    ) -> Result<(), Violation> {
        self.checked += 1;
        let start = Start {
            session,
            epoch,
            offset,
            attempt,
        };
        let judged = match self.recent.find_mut(session.0, |seen| seen.session == session) {
            Some(seen) if seen.epoch == epoch => seen.follow(start, self.resumed_attempts),
            _ => self.started_elsewhere(start),
        };
        self.count(judged)
    }

    /// Judges that a handler ended; `settled` when the session may go on with its next record, and not when this one
    /// is tried again.
    ///
    /// A record whose last attempt ended unsettled and whose dead letter is acknowledged later is reported a second
    /// time, as settled. The end of a handler whose epoch was revoked is no violation.
    #[inline]
    pub fn ended(
        &mut self,
        session: SessionHash,
        epoch: AssignmentEpoch,
        offset: Offset,
        settled: bool,
    ) -> Result<(), Violation> {
        let judged = match self.recent.find_mut(session.0, |seen| seen.session == session) {
            Some(seen) if seen.epoch == epoch && seen.offset == offset => seen.end(settled),
            _ => self.ended_elsewhere(session, epoch, offset, settled),
        };
        self.count(judged)
    }

    /// Takes note of a commit: what is settled below `watermark` need not be remembered one by one, for whatever
    /// starts there again is [`Repeated`](Violation::Repeated).
    pub fn committed(&mut self, epoch: AssignmentEpoch, watermark: Offset) {
        if let Some(committed) = self.committed.get_mut(&epoch) {
            *committed = watermark.max(*committed);
        }
    }

    /// Takes note that an epoch ended. What still runs in it is remembered: until it ends, nothing of its session may
    /// start.
    pub fn revoked(&mut self, epoch: AssignmentEpoch) {
        self.committed.remove(&epoch);
    }

    /// How many starts were judged.
    pub fn checked(&self) -> u64 {
        self.checked
    }

    /// How many violations were found.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// The bytes that the checker holds beside itself.
    pub fn heap_bytes(&self) -> usize {
        self.recent.allocation_size() + self.spilled.allocation_size() + self.committed.allocation_size()
    }

    #[inline]
    fn count(&mut self, judged: Result<(), Violation>) -> Result<(), Violation> {
        self.violations += u64::from(judged.is_err());
        judged
    }

    /// The session is new, or has started in another epoch since: its entry for this epoch, if any, becomes the recent
    /// one.
    fn started_elsewhere(&mut self, start: Start) -> Result<(), Violation> {
        let committed = *self.committed.entry(start.epoch).or_insert(Offset::ZERO);
        let before = self.recall(start.session, start.epoch);
        let left = self.replace_recent(start);
        if let Some(left) = left {
            self.spill(left);
        }
        match (left, before) {
            (Some(left), _) if left.open > 0 => Err(left.overlap(start)),
            (_, Some(before)) => before.judge(start, self.resumed_attempts),
            (_, None) if start.offset < committed => Err(Violation::Repeated { start }),
            (_, None) => judge_first_attempt(start, self.resumed_attempts),
        }
    }

    /// Makes this start the recent one of its session; what was so before.
    fn replace_recent(&mut self, start: Start) -> Option<Seen> {
        if let Some(recent) = self
            .recent
            .find_mut(start.session.0, |seen| seen.session == start.session)
        {
            let seen = Seen::opened(start, recent.open);
            return Some(mem::replace(recent, seen));
        }
        make_room(&mut self.recent, &self.committed);
        self.recent
            .insert_unique(start.session.0, Seen::opened(start, 0), Seen::hash);
        None
    }

    /// What ended is not what the session started last: a dead letter of another partition that is acknowledged, the
    /// older handler of an overlap, or nothing that ever started.
    fn ended_elsewhere(
        &mut self,
        session: SessionHash,
        epoch: AssignmentEpoch,
        offset: Offset,
        settled: bool,
    ) -> Result<(), Violation> {
        let recent = self.recent.find_mut(session.0, |seen| seen.session == session);
        let overlapped = recent.is_some_and(|recent| recent.end_overlapped());
        let spilled = self.spilled.find_mut(session.0, |seen| seen.is(session, epoch));
        match spilled {
            Some(spilled) if spilled.offset == offset && settled && !spilled.settled => spilled.settled = true,
            _ if overlapped => {}
            // Its epoch ended: its entry may be gone, and nothing depends on it any more.
            _ if !self.committed.contains_key(&epoch) => {}
            _ => return Err(Violation::NotOpen { session, epoch, offset }),
        }
        Ok(())
    }

    /// Takes a session's entry for `epoch` from the spilled ones.
    fn recall(&mut self, session: SessionHash, epoch: AssignmentEpoch) -> Option<Seen> {
        let entry = self
            .spilled
            .find_entry(session.0, |seen| seen.is(session, epoch))
            .ok()?;
        Some(entry.remove().0)
    }

    /// Keeps an entry beside the recent one.
    fn spill(&mut self, seen: Seen) {
        make_room(&mut self.spilled, &self.committed);
        self.spilled
            .insert_unique(seen.hash(), Seen { open: 0, ..seen }, Seen::hash);
    }
}

/// A handler's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The session.
    pub session: SessionHash,
    /// The epoch, and so the partition, that the record was received in.
    pub epoch: AssignmentEpoch,
    /// The record's offset.
    pub offset: Offset,
    /// The number of the attempt, from 1.
    pub attempt: u32,
}

/// A promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A handler starts while another one of its session runs.
    Overlap {
        /// What starts.
        start: Start,
        /// The epoch of the record whose handler runs.
        open_epoch: AssignmentEpoch,
        /// The offset of the record whose handler runs.
        open_offset: Offset,
    },
    /// A record starts before its predecessor in the session and epoch was settled, or after its successor started.
    Overtaken {
        /// What starts.
        start: Start,
        /// What the session started last in this epoch.
        last_offset: Offset,
        /// Whether that was settled; if so, the offset fell.
        last_settled: bool,
    },
    /// A record starts that was settled in this epoch.
    Repeated {
        /// What starts.
        start: Start,
    },
    /// An attempt does not follow the one before it by 1, or a first attempt is not 1.
    AttemptGap {
        /// What starts.
        start: Start,
        /// The attempt that was due.
        due: u32,
    },
    /// A handler ended that does not run.
    NotOpen {
        /// The session.
        session: SessionHash,
        /// The epoch of the record.
        epoch: AssignmentEpoch,
        /// The record's offset.
        offset: Offset,
    },
}

/// The last start of a session in an epoch, and how it stands.
#[derive(Clone, Copy, Debug)]
struct Seen {
    session: SessionHash,
    epoch: AssignmentEpoch,
    offset: Offset,
    attempt: u32,
    settled: bool,
    /// How many handlers of the session run, whatever their epoch: 0 or 1, unless there was an overlap.
    open: u8,
}

const _: () = assert!(
    size_of::<Seen>() == 32,
    "the documentation states the bytes of a session"
);

impl Seen {
    /// The entry of a start, when `open` handlers of the session ran before it.
    fn opened(start: Start, open: u8) -> Self {
        Self {
            session: start.session,
            epoch: start.epoch,
            offset: start.offset,
            attempt: start.attempt,
            settled: false,
            open: open.saturating_add(1),
        }
    }

    /// Judges a start that follows this one in the same epoch, and takes its place.
    #[inline]
    fn follow(&mut self, start: Start, resumed_attempts: bool) -> Result<(), Violation> {
        let judged = self.judge(start, resumed_attempts);
        *self = Self::opened(start, self.open);
        judged
    }

    #[inline]
    fn judge(&self, start: Start, resumed_attempts: bool) -> Result<(), Violation> {
        if self.open > 0 {
            return Err(self.overlap(start));
        }
        let again = start.offset == self.offset;
        if again && self.settled {
            return Err(Violation::Repeated { start });
        }
        if start.offset < self.offset || !again && !self.settled {
            return Err(Violation::Overtaken {
                start,
                last_offset: self.offset,
                last_settled: self.settled,
            });
        }
        match again {
            true => judge_attempt(start, self.attempt.saturating_add(1)),
            false => judge_first_attempt(start, resumed_attempts),
        }
    }

    fn overlap(&self, start: Start) -> Violation {
        Violation::Overlap {
            start,
            open_epoch: self.epoch,
            open_offset: self.offset,
        }
    }

    #[inline]
    fn end(&mut self, settled: bool) -> Result<(), Violation> {
        let dead_lettered = self.open == 0 && settled && !self.settled;
        if self.open == 0 && !dead_lettered {
            return Err(Violation::NotOpen {
                session: self.session,
                epoch: self.epoch,
                offset: self.offset,
            });
        }
        self.open = self.open.saturating_sub(1);
        self.settled |= settled;
        Ok(())
    }

    /// Ends the older of two handlers that overlap; false when there are not two.
    fn end_overlapped(&mut self) -> bool {
        let overlapped = self.open > 1;
        self.open -= u8::from(overlapped);
        overlapped
    }

    /// Whether anything that may still be reported depends on this entry.
    fn matters(&self, committed: &HashMap<AssignmentEpoch, Offset>) -> bool {
        let told_by_watermark = |&watermark: &Offset| self.settled && self.offset < watermark;
        self.open > 0 || !committed.get(&self.epoch).is_none_or(told_by_watermark)
    }

    fn is(&self, session: SessionHash, epoch: AssignmentEpoch) -> bool {
        self.session == session && self.epoch == epoch
    }

    /// A session is a keyed hash already.
    fn hash(&self) -> u64 {
        self.session.0
    }
}

#[inline]
fn judge_first_attempt(start: Start, resumed_attempts: bool) -> Result<(), Violation> {
    let resumed = resumed_attempts && start.attempt > 0;
    judge_attempt(start, if resumed { start.attempt } else { 1 })
}

#[inline]
fn judge_attempt(start: Start, due: u32) -> Result<(), Violation> {
    if start.attempt != due {
        return Err(Violation::AttemptGap { start, due });
    }
    Ok(())
}

/// Before a full table grows, drops what no longer matters. It then has a quarter of its entries free at least, so
/// that each walk is paid for by as many insertions.
fn make_room(table: &mut HashTable<Seen>, committed: &HashMap<AssignmentEpoch, Offset>) {
    let entries = table.len();
    if entries == table.capacity() {
        table.retain(|seen| seen.matters(committed));
        table.reserve(entries / 4 + 1, Seen::hash);
    }
}

impl Error for Violation {}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            session,
            epoch,
            offset,
            attempt,
        } = self;
        write!(
            f,
            "{session:?} started offset {offset} of {epoch:?} (attempt {attempt})"
        )
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap {
                start,
                open_epoch,
                open_offset,
            } => write!(
                f,
                "overlap: {start} while its handler of offset {open_offset} of {open_epoch:?} was running: two handlers \
                 of one session ran at the same time"
            ),
            Self::Overtaken {
                start,
                last_offset,
                last_settled: false,
            } => write!(
                f,
                "overtaken: {start} before its offset {last_offset} was settled: the session's order was not kept"
            ),
            Self::Overtaken { start, last_offset, .. } => write!(
                f,
                "overtaken: {start} after its later offset {last_offset}: the session's order was not kept"
            ),
            Self::Repeated { start } => write!(
                f,
                "repeated: {start}, which was settled in this epoch: its effects may have happened twice"
            ),
            Self::AttemptGap { start, due } => write!(
                f,
                "attempt gap: {start} where attempt {due} was due: an attempt was lost or counted twice"
            ),
            Self::NotOpen { session, epoch, offset } => write!(
                f,
                "not open: {session:?} ended offset {offset} of {epoch:?}, which was not running: its start was not \
                 reported, or it ended twice"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
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
            } else if let Some((start, ending)) = self.waiting.get_mut(&(session, epoch)).and_then(VecDeque::pop_front)
            {
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
        let settles =
            events.filter(|(place, event)| matches!(event, Event::End(start, true) if follows(*place, start)));
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
}
