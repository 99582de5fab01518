//! Tier 1: the dispatcher owns the source. It admits records to their partition's ledger, routes each session to its
//! worker, takes outcomes back and commits.

mod commits;
mod intake;
mod ownership;
mod standing;
mod suspects;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use seriatim_engine::assignment::{AssignmentEpoch, Assignments};
use seriatim_engine::budget::{Flow, Limits, Usage};
use seriatim_engine::record::RecordId;
use seriatim_engine::route::Router;

use self::intake::Tail;
use self::ownership::{Drain, Owned, Phase};
use self::suspects::Withheld;
use crate::lease::Lease;
use crate::mail::{Failed, FromWorker, Link, Settled, ToWorker};
use crate::ports::{Event, Observer, Records, Source, SourceError, SourceEvent};
use crate::session_by::{MissingSession, SessionBy, SessionKeyError};

/// How a dispatcher treats its partitions.
#[derive(Clone, Debug)]
pub struct DispatcherConfig {
    /// Which part of a record names its session.
    pub session_by: SessionBy,
    /// What becomes of a record without a session key.
    pub missing_session: MissingSession,
    /// How much may be unsettled.
    pub limits: Limits,
    /// How often progress is committed.
    pub commit_interval: Duration,
    /// How long a drain lets running handlers finish before it cancels them.
    pub drain_timeout: Duration,
    /// After what time without progress a partition's blocking record is reported; `None` for never.
    pub stuck_after: Option<Duration>,
    /// Tells this process from others that own its partitions before and after it.
    pub process: u32,
    /// The key of the session hash. Not secret, but best not known to whoever chooses session keys.
    pub hash_key: (u64, u64),
}

/// Batches that may lie before a worker: one that it works on, and a few fetched ahead, so that it never idles between
/// two fetches.
const BATCHES_PER_WORKER_MAX: usize = 8;

/// When everything is settled, the commit does not wait for its interval, but this long since the last one.
const QUIET_COMMIT_INTERVAL: Duration = Duration::from_millis(50);

/// Brokers keep at most this many bytes of metadata beside a commit, unless configured otherwise.
const METADATA_LEN_MAX: usize = 4096;

/// The longest wait for the source: how late a stop or a timer may be noticed if nothing else wakes the dispatcher.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// How long the source may have nothing before the consumer counts as idle, and commits as soon as all is settled.
const IDLE_AFTER: Duration = Duration::from_millis(2);

/// The state machine.
pub struct Dispatcher<S: Source> {
    source: S,
    /// Ends the source's wait.
    waker: Waker,
    config: DispatcherConfig,
    router: Router,
    owned: Assignments<Owned>,
    workers: Vec<Tail<S::Message>>,
    observer: Arc<dyn Observer>,
    usage: Usage,
    /// Of everything together; a single partition's is in [`Owned`].
    flow: Flow,
    /// Since when the intake of everything is held, if it is.
    held_since: Option<Instant>,
    /// Partitions whose intake is held: few, and looked at in each step.
    held: Vec<AssignmentEpoch>,
    drains: Vec<Drain>,
    /// Periods that no commit says are open yet.
    unopened: Vec<AssignmentEpoch>,
    /// One entry for each partition under suspicion.
    withheld: Vec<Withheld<S::Message>>,
    /// Suspects are named again from here on, after a commit that failed.
    name_from: Option<Instant>,
    lease: Arc<Lease>,
    /// Whether it held when last looked at, or nothing waited for it.
    lease_held: bool,
    commit_in_flight: bool,
    /// How long the broker lets a commit's metadata be, as far as its refusals have taught.
    metadata_len_max: usize,
    committed_at: Option<Instant>,
    looked_through_at: Option<Instant>,
    stop: Arc<Stop>,
    stopping: bool,
    /// Whether the source had nothing when last asked.
    idle: bool,
    dead_worker: bool,
    /// Why it stops, when not because it was asked to.
    failure: Option<RunError>,
    /// The last batch, or what of it was beyond the budget and waits for room.
    records: Records<S::Message>,
    from_worker: Vec<FromWorker>,
}

/// The request to stop, from outside.
#[derive(Debug, Default)]
pub(crate) struct Stop(AtomicBool);

impl Stop {
    pub(crate) fn request(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_requested(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Why a run ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The source can never deliver again.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A record has no session key, and the policy is to stop.
    #[error("{record} has no session key: {error}")]
    MissingSession {
        /// The record; it is not settled.
        record: RecordId,
        /// What is missing.
        #[source]
        error: SessionKeyError,
    },
    /// A worker's or the dispatcher's thread panicked. Nothing unsettled was committed.
    #[error("a thread of the consumer panicked, which is a defect of the library; its message is on standard error")]
    Panicked,
}

/// Whether to step a dispatcher again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progressed {
    /// Again.
    On,
    /// It has drained, committed and left the group.
    Stopped,
}

impl<S: Source> Dispatcher<S> {
    pub(crate) fn new(
        source: S,
        waker: Waker,
        config: DispatcherConfig,
        links: Vec<Link>,
        observer: Arc<dyn Observer>,
        lease: Arc<Lease>,
        stop: Arc<Stop>,
    ) -> Self {
        let workers = links
            .into_iter()
            .map(|link| Tail {
                link,
                messages: Vec::new(),
                entries: Vec::new(),
                bytes: 0,
            })
            .collect::<Vec<_>>();
        Self {
            router: Router::new(config.hash_key, workers.len()),
            source,
            waker,
            config,
            owned: Assignments::default(),
            workers,
            observer,
            usage: Usage::default(),
            flow: Flow::Flowing,
            held_since: None,
            held: Vec::new(),
            drains: Vec::new(),
            unopened: Vec::new(),
            withheld: Vec::new(),
            name_from: None,
            lease,
            lease_held: true,
            commit_in_flight: false,
            metadata_len_max: METADATA_LEN_MAX,
            committed_at: None,
            looked_through_at: None,
            stop,
            stopping: false,
            idle: false,
            dead_worker: false,
            failure: None,
            records: Records::default(),
            from_worker: Vec::new(),
        }
    }

    /// Does what can be done now, then waits for the source, at most until the next timer.
    ///
    /// # Errors
    /// When the source can never deliver again, or a worker has died. The group is left without another commit then.
    pub fn step(&mut self, now: Instant) -> Result<Progressed, RunError> {
        self.take_outcomes();
        if self.dead_worker {
            // Before their client.
            self.records = Records::default();
            self.source.close();
            return Err(RunError::Panicked);
        }
        self.begin_stop(now);
        self.advance_drains(now);
        if self.stopping && self.drains.is_empty() {
            self.finish();
            return Ok(Progressed::Stopped);
        }
        self.commit_due(now);
        self.release_suspects(now);
        self.adjust_flow(now);
        self.look_through(now);
        self.receive(now)?;
        self.pass_lease_on(now);
        Ok(Progressed::On)
    }

    /// `now` is from before the wait for the source, so a lease that ended meanwhile is seen to have in the next step.
    /// Workers look at their own clock.
    fn pass_lease_on(&mut self, now: Instant) {
        let term = self.source.lease();
        self.lease.set_end(term.map(|term| term.ends));
        let holds = self.lease.holds(now);
        if holds && self.lease.take_paused() {
            for tail in &self.workers {
                tail.link.inbox.put(ToWorker::Renewed);
            }
        }
        // A group for which nothing was committed yet, and that has nothing to do, cannot ask for an answer, and needs none.
        let held = holds || self.usage.records == 0;
        if held != self.lease_held {
            self.lease_held = held;
            self.observer.observe(match held {
                true => Event::LeaseRenewed,
                false => Event::LeaseEnded,
            });
        }
    }

    /// What is admitted and not settled, of all partitions.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Why it stopped, if not because it was asked to.
    pub fn take_failure(&mut self) -> Option<RunError> {
        self.failure.take()
    }

    // --- outcomes -------------------------------------------------------------------------------------------------

    fn take_outcomes(&mut self) {
        let mut outcomes = std::mem::take(&mut self.from_worker);
        for worker in 0..self.workers.len() {
            self.workers[worker].link.outbox.take(&mut outcomes);
            for outcome in outcomes.drain(..) {
                match outcome {
                    FromWorker::Settled(settled) => self.settle(&settled),
                    FromWorker::Failed(failed) => self.note_failed(&failed),
                    FromWorker::Quiet(epoch) => self.note_quiet(epoch),
                    FromWorker::Died => self.dead_worker = true,
                }
            }
        }
        self.from_worker = outcomes;
    }

    fn settle(&mut self, settled: &[Settled]) {
        for settled in settled {
            // An outcome of a period that has ended is fenced here: what it settled may be another owner's by now.
            if let Some(owned) = self.owned.get_mut(settled.epoch) {
                owned.ledger.settle_run(settled.first, settled.last);
                owned.forget_attempts(settled.first, settled.last);
                owned.usage.sub(settled.usage);
                self.usage.sub(settled.usage);
            }
        }
    }

    fn note_failed(&mut self, failed: &[Failed]) {
        for failed in failed {
            if let Some(owned) = self.owned.get_mut(failed.epoch) {
                owned.attempts.insert(failed.offset, failed.attempts);
                owned.revision += 1;
            }
        }
    }

    fn note_quiet(&mut self, epoch: AssignmentEpoch) {
        if let Some(Owned {
            phase: Phase::Draining { quiet_awaited },
            ..
        }) = self.owned.get_mut(epoch)
        {
            *quiet_awaited -= 1;
        }
    }

    // --- intake ---------------------------------------------------------------------------------------------------

    fn receive(&mut self, now: Instant) -> Result<(), SourceError> {
        let mut records = std::mem::take(&mut self.records);
        let mut intake = self.has_room();
        let mut wait = self.wait_for(now, intake);
        if intake && !records.runs.is_empty() {
            // What was kept comes before anything that is read after it.
            self.admit(&mut records, now);
            (intake, wait) = (false, Duration::ZERO);
        }
        let event = self.source.poll(wait, intake.then_some(&mut records))?;
        self.idle = event.is_none();
        match event {
            None => {}
            Some(SourceEvent::Records) => self.admit(&mut records, now),
            Some(SourceEvent::Assigned(granted)) => self.assign(granted, now),
            Some(SourceEvent::Revoked(epochs)) => self.drain(epochs, now),
            Some(SourceEvent::Lost(epochs)) => self.lose(&epochs),
            Some(SourceEvent::Committed(answer)) => {
                self.commit_in_flight = false;
                self.note_committed(answer, now);
            }
            Some(SourceEvent::Ends(ends)) => self.note_ends(&ends),
            Some(SourceEvent::Skipped(epoch, to)) => {
                // What was delivered before is still to be settled: it goes ahead, whatever the budget says.
                while !records.runs.is_empty() {
                    self.admit(&mut records, now);
                }
                if let Some(owned) = self.owned.get_mut(epoch) {
                    owned.ledger.skip_to(to);
                }
            }
            Some(SourceEvent::Grown {
                topic,
                before,
                after,
                held,
            }) => self.observer.observe(Event::TopicGrown {
                topic: &topic,
                before,
                after,
                held,
            }),
            Some(SourceEvent::Trouble(trouble)) => self.observer.observe(Event::Trouble(&trouble)),
        }
        self.records = records;
        Ok(())
    }

    /// Whether more may be read: within the budget, and no worker has more batches before it than it needs.
    fn has_room(&self) -> bool {
        let taken = |tail: &Tail<_>| tail.link.batches.load(Ordering::Acquire) < BATCHES_PER_WORKER_MAX;
        self.flow == Flow::Flowing && !self.stopping && self.workers.iter().all(taken)
    }

    /// How long the source may wait. Outcomes end the wait only when something waits for them: otherwise they are taken
    /// with the next records, and no worker has to wake this thread for each batch.
    fn wait_for(&self, now: Instant, intake: bool) -> Duration {
        // An idle consumer commits as soon as its last record is settled.
        let quiet =
            (self.idle && self.usage.records > 0).then(|| self.committed_at.unwrap_or(now) + QUIET_COMMIT_INTERVAL);
        let quiet_due = quiet.is_some_and(|due| due <= now);
        if !intake || !self.drains.is_empty() || !self.held.is_empty() || !self.withheld.is_empty() || quiet_due {
            // All of them are asked, also when one has something already.
            let ready = self
                .workers
                .iter()
                .filter(|tail| tail.link.outbox.wake_by_next(&self.waker));
            if ready.count() > 0 {
                return Duration::ZERO;
            }
        }
        let commit = self.next_commit();
        let running = self.drains.iter().filter(|drain| !drain.cancelled);
        let drain = running.map(|drain| drain.deadline).min();
        let due = [commit, drain, quiet.filter(|_| !quiet_due), self.name_from]
            .into_iter()
            .flatten()
            .min();
        let longest = if self.idle { WAIT_MAX } else { IDLE_AFTER };
        due.map_or(longest, |due| due.saturating_duration_since(now).min(longest))
    }
}
