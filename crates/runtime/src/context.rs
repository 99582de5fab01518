//! What a handler is told about its attempt.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use tokio::sync::Notify;

/// One attempt, as its handler sees it. Cheap to clone and to pass to tasks that the handler spawns.
///
/// The session's next record starts only when the handler has returned *and* every context of a cancelled attempt has
/// been dropped. So work that outlives a dropped future, on a blocking thread or in a spawned task, keeps its session's
/// place as long as it holds its context.
pub struct Context {
    signals: Arc<Signals>,
    attempt: u32,
    deadline: Option<Instant>,
}

impl Context {
    pub(crate) fn new(signals: Arc<Signals>, attempt: u32, deadline: Option<Instant>) -> Self {
        Self {
            signals,
            attempt,
            deadline,
        }
    }

    /// Which try of this record this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When the attempt is cancelled and counted as a transient failure; `None` without an attempt timeout.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the attempt was cancelled: out of time, or its partition is leaving. An async handler is simply dropped;
    /// blocking work should ask now and then, and stop.
    pub fn is_cancelled(&self) -> bool {
        self.signals.is_set(CANCELLED)
    }

    /// Whether the attempt was cancelled because its partition leaves: from now on another instance may start this record.
    /// What cannot be undone should end at once, or be ended.
    pub fn is_leaving(&self) -> bool {
        self.signals.is_set(LEAVING)
    }

    /// Whether a newer record of the same session waits behind this one. A handler may use it to cut short what the
    /// newer record will supersede.
    pub fn newer_record_waits(&self) -> bool {
        self.signals.is_set(NEWER_WAITS)
    }

    /// Returns when a newer record of the same session waits, at once if one does already.
    pub async fn newer_record(&self) {
        self.signals.wait_for(NEWER_WAITS).await;
    }

    /// Returns when the attempt is cancelled. Of use in tasks that the handler spawned, since the handler itself is
    /// dropped.
    pub async fn cancelled(&self) {
        self.signals.wait_for(CANCELLED).await;
    }
}

impl Clone for Context {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.signals), self.attempt, self.deadline)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("attempt", &self.attempt)
            .field("cancelled", &self.is_cancelled())
            .field("leaving", &self.is_leaving())
            .field("newer_record_waits", &self.newer_record_waits())
            .finish()
    }
}

const CANCELLED: u8 = 1;
const NEWER_WAITS: u8 = 2;
const LEAVING: u8 = 4;

/// The worker's side of a [`Context`]: one per slot, reused from attempt to attempt.
pub(crate) struct Signals {
    flags: AtomicU8,
    changed: Notify,
}

impl Signals {
    pub(crate) fn new() -> Self {
        Self {
            flags: AtomicU8::new(0),
            changed: Notify::new(),
        }
    }

    /// Makes ready for another attempt, when no context of the last one is left.
    pub(crate) fn reset(&self) {
        self.flags.store(0, Ordering::Relaxed);
    }

    pub(crate) fn cancel(&self) {
        self.set(CANCELLED);
    }

    /// The attempt is cancelled now, or has been before, and its partition is another's.
    pub(crate) fn leave(&self) {
        self.set(LEAVING);
    }

    pub(crate) fn newer_waits(&self) {
        self.set(NEWER_WAITS);
    }

    fn set(&self, flag: u8) {
        if self.flags.fetch_or(flag, Ordering::AcqRel) & flag == 0 {
            self.changed.notify_waiters();
        }
    }

    fn is_set(&self, flag: u8) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    async fn wait_for(&self, flag: u8) {
        loop {
            // Registered before the look, so that a signal between the two is not missed.
            let changed = self.changed.notified();
            if self.is_set(flag) {
                return;
            }
            changed.await;
        }
    }
}
