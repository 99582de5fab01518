//! Virtual time: it stands still until it is advanced.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A clock that its driver moves. Clones are the same clock.
#[derive(Clone)]
pub(crate) struct Clock {
    /// The state machines take times of this type; only differences matter.
    base: Instant,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    now: Duration,
    timers: BTreeMap<TimerId, Waker>,
    next_timer: u64,
}

/// When it is due, and its number.
type TimerId = (Duration, u64);

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            base: Instant::now(),
            inner: Arc::default(),
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.lock().now
    }

    pub(crate) fn instant(&self) -> Instant {
        self.base + self.now()
    }

    pub(crate) fn since_start(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.base)
    }

    pub(crate) fn next_timer(&self) -> Option<Duration> {
        self.lock().timers.keys().next().map(|(due, _)| *due)
    }

    /// Moves time on, and wakes what slept until then.
    pub(crate) fn advance_to(&self, now: Duration) {
        let due: Vec<Waker> = {
            let mut inner = self.lock();
            assert!(inner.now <= now, "time does not go back");
            inner.now = now;
            let later = inner.timers.split_off(&(now, u64::MAX));
            std::mem::replace(&mut inner.timers, later).into_values().collect()
        };
        due.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        Sleep {
            clock: self.clone(),
            due: self.now() + duration,
            timer: None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Sleep {
    clock: Clock,
    due: Duration,
    timer: Option<TimerId>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let clock = self.clock.clone();
        let mut inner = clock.lock();
        if inner.now >= self.due {
            return Poll::Ready(());
        }
        inner.next_timer += 1;
        let timer = (self.due, inner.next_timer);
        if let Some(old) = self.timer.replace(timer) {
            inner.timers.remove(&old);
        }
        inner.timers.insert(timer, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.clock.lock().timers.remove(&timer);
        }
    }
}
