//! Tier 2: a worker owns the lanes of its sessions and polls their handlers.

mod leaving;
mod outcomes;
mod starts;

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use seriatim_engine::lane::Queued;
use seriatim_engine::lanes::Lanes;
use seriatim_engine::order::{OrderChecker, Violation};
use seriatim_engine::retry::Retry;

use self::leaving::Leaving;
pub use self::outcomes::AttemptTimeout;
use self::starts::Current;
use crate::context::Context;
use crate::lease::Lease;
use crate::letter::Letters;
use crate::mail::{Failed, Link, Settled, ToWorker, Unstartable};
use crate::pins::Pins;
use crate::ports::{Event, Observer};
use crate::record::Record;
use crate::slots::{Handled, Slots};

/// How a worker treats its records.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// When a failed attempt is made again.
    pub retry: Retry,
    /// How many handlers of this worker may wait at a time.
    pub in_flight_max: usize,
    /// How long an attempt may take before it is cancelled and counted as a transient failure; `None` for ever.
    pub attempt_timeout: Option<Duration>,
    /// Whether the order checker judges every start and end.
    pub check: bool,
}

/// Records started in one step: short enough to look at timers and finished handlers often, long enough to cost nothing.
const STARTS_PER_STEP: usize = 256;

/// Records started between two looks at the clock and at urgent mail: a process may be frozen anywhere, and go on after its
/// lease has ended; a partition may be lost in the middle of a step. So many a worker may start yet then.
pub const STARTS_PER_LOOK: usize = 16;

/// How often a cancelled attempt that something still holds on to is looked at.
const ABANDONED_RECHECK: Duration = Duration::from_millis(10);

/// A record in a lane.
struct Work {
    record: Record,
    bytes: u32,
    unstartable: Option<Unstartable>,
}

// A million of them may wait: a line of the cache each, beside the record's own memory.
const _: () = assert!(size_of::<Queued<Work>>() <= 64);

/// When to step a worker again, unless it is woken before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once: there is more to do.
    Now,
    /// At this time; `None` for only when woken.
    At(Option<Instant>),
    /// Never: it has been told to stop.
    Stopped,
}

/// Whether a worker may start anything.
pub(crate) struct Beats {
    pub(crate) lease: Arc<Lease>,
    /// The clock; `None` where time stands still during a step.
    pub(crate) look: Option<fn() -> Instant>,
}

/// The state machine. `C` calls the handler, `F` is what the handler returns.
pub struct Worker<C, F> {
    call: C,
    config: WorkerConfig,
    link: Link,
    lanes: Lanes<Work>,
    slots: Slots<F>,
    letters: Letters,
    beats: Beats,
    observer: Arc<dyn Observer>,
    checker: Option<OrderChecker>,
    /// Mail in order, without what was acted on ahead of it.
    mail: VecDeque<ToWorker>,
    current: Option<Current>,
    settled: Vec<Settled>,
    failed: Vec<Failed>,
    batch_done: bool,
    leaving: Leaving,
    /// No attempt can run out of time before.
    overdue_from: Option<Instant>,
    abandoned: Vec<u32>,
    pins: Pins,
    stopped: bool,
    incoming: Vec<ToWorker>,
    woken: Vec<u32>,
}

impl<C, F> Worker<C, F>
where
    C: Fn(Record, Context) -> F,
    F: Future<Output = Handled>,
{
    pub(crate) fn new(
        call: C,
        config: WorkerConfig,
        link: Link,
        letters: Letters,
        observer: Arc<dyn Observer>,
        beats: Beats,
    ) -> Self {
        Self {
            call,
            link,
            lanes: Lanes::new(config.retry),
            slots: Slots::new(),
            letters,
            beats,
            observer,
            checker: config.check.then(|| OrderChecker::new().with_resumed_attempts()),
            mail: VecDeque::new(),
            current: None,
            settled: Vec::new(),
            failed: Vec::new(),
            batch_done: false,
            leaving: Leaving::default(),
            overdue_from: None,
            abandoned: Vec::new(),
            pins: Pins::default(),
            stopped: false,
            incoming: Vec::new(),
            woken: Vec::new(),
            config,
        }
    }

    /// Does what can be done now. Outcomes come before intake, so memory falls before it rises.
    pub fn step(&mut self, now: Instant) -> Next {
        self.take_mail(now);
        self.poll_woken(now);
        self.cancel_overdue(now);
        self.recheck_abandoned(now);
        let mut starts = STARTS_PER_STEP;
        let may_start = self.start(&mut starts, now);
        self.report();
        if self.stopped {
            Next::Stopped
        } else if !may_start {
            // Woken when the lease is renewed.
            Next::At(self.next_check(now))
        } else if starts == 0 || (self.lanes.has_ready() && self.slots.held() < self.config.in_flight_max) {
            Next::Now
        } else {
            Next::At(self.next_due(now))
        }
    }

    /// Starts what may start, as long as the lease holds; whether it does.
    fn start(&mut self, starts: &mut usize, now: Instant) -> bool {
        let mut looked = now;
        while *starts > 0 {
            if !self.beats.lease.holds(looked) && !self.beats.lease.pause(looked) {
                return false;
            }
            // After the lease: what was lost before it was renewed is known here.
            if self.link.urgent.load(Ordering::Acquire) {
                *starts = 0;
                break;
            }
            let mut burst = STARTS_PER_LOOK.min(*starts);
            *starts -= burst;
            self.start_ready(&mut burst, now);
            self.admit(&mut burst, now);
            *starts += burst;
            if burst > 0 {
                break;
            }
            looked = self.beats.look.map_or(now, |look| look());
        }
        true
    }

    /// Asks that `waker` be woken by mail or by a handler. Returns whether there is something to do already.
    pub fn wake_by_next(&self, waker: &Waker) -> bool {
        // Both, always: each is disarmed by its own wake only.
        let mail = self.link.inbox.wake_by_next(waker);
        let woken = self.slots.wake_by_next(waker);
        mail || woken
    }

    /// Revokes and cancellations are acted on ahead of the batches before them: their partition's records there are
    /// skipped, not started for nothing.
    fn take_mail(&mut self, now: Instant) {
        // Read as it is cleared: either its mail is found below, or it is set again.
        self.link.urgent.swap(false, Ordering::Acquire);
        let mut incoming = std::mem::take(&mut self.incoming);
        self.link.inbox.take(&mut incoming);
        let (mut revoked, mut cancelled) = (Vec::new(), Vec::new());
        for mail in incoming.drain(..) {
            match mail {
                ToWorker::Revoke(epoch) => revoked.push(epoch),
                ToWorker::Cancel(epoch) => cancelled.push(epoch),
                ToWorker::Stop => self.stopped = true,
                ToWorker::Renewed => {}
                other => self.mail.push_back(other),
            }
        }
        self.incoming = incoming;
        // None is cancelled before it is revoked.
        self.revoke(&revoked);
        self.cancel_all(&cancelled, now);
    }

    fn next_due(&self, now: Instant) -> Option<Instant> {
        let retry = if self.slots.held() < self.config.in_flight_max {
            self.lanes.next_due()
        } else {
            None
        };
        [retry, self.next_check(now)].into_iter().flatten().min()
    }

    /// When what runs is to be looked at next.
    fn next_check(&self, now: Instant) -> Option<Instant> {
        let overdue = self.overdue_from.filter(|_| self.slots.held() > 0);
        let recheck = (!self.abandoned.is_empty()).then(|| now + ABANDONED_RECHECK);
        [overdue, recheck].into_iter().flatten().min()
    }
}

fn report_violation(judged: Result<(), Violation>, observer: &dyn Observer) {
    if let Err(violation) = judged {
        observer.observe(Event::Violation(&violation));
    }
}
