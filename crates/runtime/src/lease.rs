//! Until when what is assigned may be worked on without a word from the group.
//!
//! A process that was frozen, or is cut off from its coordinator, does not hear that its partitions are another's. So the
//! source says until when they are certainly its own, the dispatcher passes that on, and workers start nothing later.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// What the dispatcher writes and the workers read.
#[derive(Debug)]
pub(crate) struct Lease {
    origin: Instant,
    /// Nanoseconds after `origin`.
    ends: AtomicU64,
    /// Whether a worker has work that it did not start because the lease had ended.
    paused: AtomicBool,
}

/// No end is known.
const ENDLESS: u64 = u64::MAX;

impl Lease {
    /// A lease without end; `origin` is any time before all others.
    pub(crate) fn new(origin: Instant) -> Self {
        Self {
            origin,
            ends: AtomicU64::new(ENDLESS),
            paused: AtomicBool::new(false),
        }
    }

    pub(crate) fn set_end(&self, ends: Option<Instant>) {
        let nanos = ends.map_or(ENDLESS, |ends| self.nanos(ends));
        self.ends.store(nanos, Ordering::SeqCst);
    }

    /// A worker pauses. Returns whether it need not, since the lease was renewed meanwhile: one of the two sees the other,
    /// for each writes before it reads, in one order for all.
    #[cold]
    pub(crate) fn pause(&self, now: Instant) -> bool {
        self.paused.store(true, Ordering::SeqCst);
        self.holds(now)
    }

    /// Whether workers are to be told that they may go on. Says so once.
    pub(crate) fn take_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst) && self.paused.swap(false, Ordering::SeqCst)
    }

    /// Whether something may be started at this time.
    #[inline]
    pub(crate) fn holds(&self, now: Instant) -> bool {
        let ends = self.ends.load(Ordering::SeqCst);
        ends == ENDLESS || self.nanos(now) < ends
    }

    fn nanos(&self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.origin);
        u64::try_from(since.as_nanos()).unwrap_or(ENDLESS - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_holds_up_to_its_end_and_not_at_it() {
        let origin = Instant::now();
        let (before, ends) = (origin + Duration::from_secs(1), origin + Duration::from_secs(2));
        let lease = Lease::new(origin);
        assert!(lease.holds(ends));
        lease.set_end(Some(ends));
        assert!(lease.holds(before) && !lease.holds(ends));
        assert!(!lease.take_paused());
        assert!(!lease.pause(ends));
        lease.set_end(None);
        assert!(lease.holds(ends));
        assert!(lease.take_paused() && !lease.take_paused());
    }
}
