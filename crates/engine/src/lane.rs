//! One session's FIFO.

use std::time::Instant;

use crate::assignment::AssignmentEpoch;
use crate::record::{Offset, SessionHash};

/// A record that waits in a lane, with what the engine needs to know of it.
#[derive(Debug)]
pub struct Queued<R> {
    /// The record itself; the engine does not look inside.
    pub record: R,
    /// The period of ownership in which it was delivered.
    pub epoch: AssignmentEpoch,
    /// Its offset.
    pub offset: Offset,
    /// Attempts made so far.
    pub attempts: u32,
    /// The record behind it in its lane: a place in the worker's store.
    pub(crate) next: u32,
    /// The order of arrival at this worker, over all partitions.
    pub(crate) sequence: u64,
}

/// No place.
pub(crate) const NONE: u32 = u32::MAX;

impl<R> Queued<R> {
    /// A record that has not been tried.
    pub fn new(record: R, epoch: AssignmentEpoch, offset: Offset) -> Self {
        Self {
            record,
            epoch,
            offset,
            attempts: 0,
            next: NONE,
            sequence: 0,
        }
    }

    /// As one that has made so many attempts.
    pub fn with_attempts(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }
}

/// A lane's place among its worker's lanes. Valid until the lane is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub(crate) u32);

/// What a lane does with its oldest record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneState {
    /// The record may start.
    Ready,
    /// The record's handler runs, or its dead letter is being written, in this slot of the worker.
    Running {
        /// The worker's own name for where it runs.
        slot: u32,
    },
    /// The record's next attempt is not due yet.
    Waiting {
        /// When it is.
        until: Instant,
    },
}

/// One session's records in offset order, at most one of them running. It exists while it has records: an idle lane is
/// evicted at once, since making one anew costs no more than finding it.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) session: SessionHash,
    pub(crate) state: LaneState,
    /// The oldest record, and the newest: places in the worker's store of queued records.
    pub(crate) head: u32,
    pub(crate) tail: u32,
    /// When the oldest record's first attempt started, and when one first failed.
    pub(crate) first_started: Option<Instant>,
    pub(crate) first_failed: Option<Instant>,
}

// As many of them as there are busy sessions: a line of the cache each.
const _: () = assert!(size_of::<Lane>() <= 64);

impl Lane {
    pub(crate) fn new(session: SessionHash, state: LaneState, node: u32) -> Self {
        Self {
            session,
            state,
            head: node,
            tail: node,
            first_started: None,
            first_failed: None,
        }
    }

    pub(crate) fn set_head(&mut self, node: u32) {
        self.head = node;
        (self.first_started, self.first_failed) = (None, None);
    }
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The handler ended well.
    Handled,
    /// The attempt failed, and another may help; not before the delay, if one is given.
    Transient(Option<std::time::Duration>),
    /// The attempt failed, and none will succeed.
    Permanent,
    /// The record's dead letter was acknowledged.
    DeadLettered,
    /// The record's dead letter could not be written, for the n-th time.
    DeadLetterFailed(u32),
    /// The attempt was cancelled because its partition leaves: the record is another owner's to handle.
    Cancelled,
}

/// What follows from an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The record is settled; the lane goes on with its next one.
    Settled,
    /// The record is tried again at this time; the lane waits.
    RetryAt(Instant),
    /// The record ended in failure: write its dead letter, and report that as the next outcome.
    DeadLetter(Fate),
    /// The record was dropped unsettled.
    Dropped,
}

/// How a record ended in failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The handler said that no attempt will succeed.
    Permanent,
    /// The retry policy allows no further attempt.
    Exhausted,
}
