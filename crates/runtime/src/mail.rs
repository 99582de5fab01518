//! What the two tiers send each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::Usage;
use seriatim_engine::record::{Offset, SessionHash};

use crate::mailbox::Mailbox;
use crate::record::Shared;

/// From the dispatcher.
pub(crate) enum ToWorker {
    /// Records of this worker's sessions, in order.
    Records(Batch),
    /// The partition leaves: start nothing more of it, and say when nothing of it runs.
    Revoke(AssignmentEpoch),
    /// The drain's deadline is reached: cancel what runs.
    Cancel(AssignmentEpoch),
    /// The partition has left; no batch behind this holds a record of it.
    Closed(AssignmentEpoch),
    /// What was paused because the lease had ended may go on.
    Renewed,
    /// There is nothing more to do.
    Stop,
}

/// A worker's share of one fetched batch.
pub(crate) struct Batch {
    pub(crate) shared: Shared,
    /// One entry a message of `shared`.
    pub(crate) entries: Vec<Entry>,
    pub(crate) bytes: usize,
}

/// What the dispatcher found out about a record.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) session: SessionHash,
    pub(crate) epoch: AssignmentEpoch,
    pub(crate) offset: Offset,
    pub(crate) bytes: u32,
    /// Attempts that failed before this period of ownership.
    pub(crate) attempts: u16,
    pub(crate) unstartable: Option<Unstartable>,
}

/// Why a record becomes a dead letter without being started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unstartable {
    /// It has no readable session key.
    Undecodable,
    /// It was in flight at several crashes in a row.
    Poison,
}

/// To the dispatcher.
pub(crate) enum FromWorker {
    /// These are settled; or nothing is, and the worker has room for another batch.
    Settled(Vec<Settled>),
    /// Attempts of these records failed; they are still unsettled.
    Failed(Vec<Failed>),
    /// Nothing of this partition runs any more.
    Quiet(AssignmentEpoch),
    /// The worker panicked, and its sessions stand still.
    Died,
}

/// A record whose attempts have failed so far.
pub(crate) struct Failed {
    pub(crate) epoch: AssignmentEpoch,
    pub(crate) offset: Offset,
    pub(crate) attempts: u32,
}

/// Records of a partition that are settled, one offset after another.
pub(crate) struct Settled {
    pub(crate) epoch: AssignmentEpoch,
    pub(crate) first: Offset,
    pub(crate) last: Offset,
    /// Of all of them together.
    pub(crate) usage: Usage,
}

impl Settled {
    /// Appends a record to the last run of `runs`, or begins another.
    #[inline]
    pub(crate) fn push(runs: &mut Vec<Settled>, epoch: AssignmentEpoch, offset: Offset, bytes: u32) {
        let usage = Usage::record(bytes as usize);
        match runs.last_mut() {
            Some(run) if run.epoch == epoch && run.last.next() == offset => {
                run.last = offset;
                run.usage.add(usage);
            }
            _ => runs.push(Settled {
                epoch,
                first: offset,
                last: offset,
                usage,
            }),
        }
    }
}

/// The two ends of a worker's mail.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) inbox: Mailbox<ToWorker>,
    pub(crate) outbox: Mailbox<FromWorker>,
    /// Whether there is mail that a worker acts on ahead of what it is about to start.
    pub(crate) urgent: Arc<AtomicBool>,
    /// Batches sent and not yet worked through: what the dispatcher limits.
    pub(crate) batches: Arc<AtomicUsize>,
    pub(crate) counters: Arc<WorkerCounters>,
}

impl Link {
    pub(crate) fn new() -> Self {
        Self {
            inbox: Mailbox::new(),
            outbox: Mailbox::new(),
            urgent: Arc::default(),
            batches: Arc::default(),
            counters: Arc::default(),
        }
    }

    /// Sends what the worker is to act on in the middle of a step.
    pub(crate) fn send_urgent(&self, mail: ToWorker) {
        self.inbox.put(mail);
        // After the mail, so that a worker that sees this finds it.
        self.urgent.store(true, Ordering::Release);
    }
}

/// What a worker has done so far, for statistics: written by the batch, read at any time.
#[derive(Debug, Default)]
pub struct WorkerCounters {
    /// Records settled, dead letters among them.
    pub settled: AtomicU64,
    /// Attempts that failed and were to be made again.
    pub retries: AtomicU64,
    /// Records dead-lettered.
    pub dead_letters: AtomicU64,
    /// Handlers that wait now.
    pub in_flight: AtomicU64,
    /// Sessions with unsettled records now.
    pub sessions: AtomicU64,
    /// Starts that the order checker judged.
    pub checked: AtomicU64,
    /// Violations that it found.
    pub violations: AtomicU64,
}
