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
mod tests;
