//! Tier 1: the dispatcher owns the source. It admits records to their partition's ledger, routes each session to its
//! worker, takes outcomes back and commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use seriatim_engine::assignment::{AssignmentEpoch, Assignments};
use seriatim_engine::budget::{Flow, Limits, Usage, flow};
use seriatim_engine::ledger::{Admission, Ledger};
use seriatim_engine::record::{Offset, PartitionId, RecordId, SessionHash};
use seriatim_engine::route::Router;

use crate::message::Message;
use crate::ports::{
    Commit, CommitError, CommitMode, Event, Granted, Observer, Records, Source, SourceError, SourceEvent, Start,
};
use crate::record::Shared;
use crate::session_by::{MissingSession, SessionBy, SessionKeyError};
use crate::worker::{Batch, Entry, FromWorker, Link, Settled, ToWorker};

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
    /// The key of the session hash. Not secret, but best not known to whoever chooses session keys.
    pub hash_key: (u64, u64),
}

/// Batches that may lie before a worker: one that it works on, and a few fetched ahead, so that it never idles between
/// two fetches.
const BATCHES_PER_WORKER_MAX: usize = 8;

/// An unchanged watermark is committed again this often: lag monitors call a group stopped that commits nothing, and
/// brokers forget offsets that are not refreshed.
const RECOMMIT_INTERVAL: Duration = Duration::from_secs(60);

/// When everything is settled, the commit does not wait for its interval, but this long since the last one.
const QUIET_COMMIT_INTERVAL: Duration = Duration::from_millis(50);

/// The longest wait for the source: how late a stop or a timer may be noticed if nothing else wakes the dispatcher.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// How often the commit at the end of a drain is tried, while the broker says that it may succeed.
const DRAIN_COMMITS_MAX: usize = 3;

/// How often the partitions are looked through for a stuck one.
const STUCK_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Reported bytes of a record beside its key and value: the client's own bookkeeping, about.
const RECORD_OVERHEAD_BYTES: usize = 64;

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
    /// Partitions whose intake is held: few, and looked at in each step.
    held: Vec<AssignmentEpoch>,
    drains: Vec<Drain>,
    commit_in_flight: bool,
    committed_at: Option<Instant>,
    stuck_looked_at: Option<Instant>,
    stop: Arc<Stop>,
    stopping: bool,
    /// Why it stops, when not because it was asked to.
    failure: Option<RunError>,
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

/// A partition that is ours.
struct Owned {
    partition: PartitionId,
    ledger: Ledger,
    usage: Usage,
    flow: Flow,
    phase: Phase,
    /// The watermark of the last commit that was sent, and of the last that was acknowledged.
    sent: Option<Offset>,
    acknowledged: Option<Offset>,
    acknowledged_at: Instant,
    progress: Progress,
}

/// Where a partition is in its period of ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Active,
    /// Leaving: this many workers have not said yet that nothing of it runs.
    Draining {
        quiet_awaited: usize,
    },
}

/// Since when the watermark has stood where it stands.
struct Progress {
    watermark: Option<Offset>,
    since: Instant,
    reported: bool,
}

/// Partitions on their way out.
struct Drain {
    epochs: Vec<AssignmentEpoch>,
    began: Instant,
    deadline: Instant,
    /// Whether the deadline came first.
    cancelled: bool,
}

/// A worker's link, and the batch that is being made for it.
struct Tail<M> {
    link: Link,
    messages: Vec<M>,
    entries: Vec<Entry>,
    bytes: usize,
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
            held: Vec::new(),
            drains: Vec::new(),
            commit_in_flight: false,
            committed_at: None,
            stuck_looked_at: None,
            stop,
            stopping: false,
            failure: None,
            records: Records::default(),
            from_worker: Vec::new(),
        }
    }

    /// Does what can be done now, then waits for the source, at most until the next timer.
    ///
    /// # Errors
    /// When the source can never deliver again.
    pub fn step(&mut self, now: Instant) -> Result<Progressed, SourceError> {
        self.take_outcomes();
        self.begin_stop(now);
        self.advance_drains(now);
        if self.stopping && self.drains.is_empty() {
            self.finish();
            return Ok(Progressed::Stopped);
        }
        self.commit_due(now);
        self.look_for_stuck(now);
        self.adjust_flow();
        self.receive(now)?;
        Ok(Progressed::On)
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
                    FromWorker::Quiet(epoch) => self.note_quiet(epoch),
                }
            }
        }
        self.from_worker = outcomes;
    }

    fn settle(&mut self, settled: &[Settled]) {
        for settled in settled {
            // An outcome of a period that has ended is fenced here: what it settled may be another owner's by now.
            if let Some(owned) = self.owned.get_mut(settled.epoch) {
                owned.ledger.settle(settled.offset);
                let usage = Usage::record(settled.bytes as usize);
                owned.usage.sub(usage);
                self.usage.sub(usage);
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
        let intake = self.has_room();
        let wait = self.wait_for(now, intake);
        let event = self.source.poll(wait, intake.then_some(&mut records));
        match event? {
            None => {}
            Some(SourceEvent::Records) => self.admit(&mut records),
            Some(SourceEvent::Assigned(granted)) => self.assign(granted, now),
            Some(SourceEvent::Revoked(epochs)) => self.drain(epochs, now),
            Some(SourceEvent::Lost(epochs)) => self.lose(&epochs),
            Some(SourceEvent::Committed(answer)) => self.note_committed(answer, now),
            Some(SourceEvent::Ends(_)) => {}
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
        if !intake || !self.drains.is_empty() || !self.held.is_empty() {
            let outcomes = |tail: &Tail<_>| tail.link.outbox.wake_by_next(&self.waker);
            if self.workers.iter().fold(false, |any, tail| outcomes(tail) || any) {
                return Duration::ZERO;
            }
        }
        let commit = self.next_commit();
        let running = self.drains.iter().filter(|drain| !drain.cancelled);
        let drain = running.map(|drain| drain.deadline).min();
        let due = [commit, drain].into_iter().flatten().min();
        due.map_or(WAIT_MAX, |due| due.saturating_duration_since(now).min(WAIT_MAX))
    }

    fn admit(&mut self, records: &mut Records<S::Message>) {
        let mut messages = records.messages.drain(..);
        for run in records.runs.drain(..) {
            let mut messages = messages.by_ref().take(run.len);
            let Some(owned) = self.owned.get_mut(run.epoch).filter(|owned| !owned.is_draining()) else {
                // The partition has left, or leaves: the next owner is given these.
                messages.for_each(drop);
                continue;
            };
            let mut intake = Intake {
                epoch: run.epoch,
                router: &self.router,
                session_by: &self.config.session_by,
                missing_session: self.config.missing_session,
                workers: &mut self.workers,
            };
            let mut admitted = Usage::ZERO;
            for message in &mut messages {
                let offset = message.offset();
                match owned.ledger.admit(offset) {
                    Admission::Admitted => {}
                    Admission::AlreadySettled | Admission::Behind => continue,
                }
                match intake.route(message, &owned.partition) {
                    Ok(bytes) => admitted.add(Usage::record(bytes)),
                    Err(failure) => {
                        // Admitted and never settled: the commit stays below it.
                        self.failure.get_or_insert(failure);
                        break;
                    }
                }
            }
            messages.for_each(drop);
            owned.usage.add(admitted);
            self.usage.add(admitted);
            self.hold_if_full(run.epoch);
        }
        drop(messages);
        for tail in &mut self.workers {
            tail.send();
        }
    }

    fn hold_if_full(&mut self, epoch: AssignmentEpoch) {
        let Some(owned) = self.owned.get_mut(epoch) else { return };
        if owned.flow == Flow::Flowing && owned.next_flow(&self.config.limits) == Flow::Held {
            owned.flow = Flow::Held;
            self.held.push(epoch);
            self.source.set_flow(epoch, Flow::Held);
            self.observer.observe(Event::FlowChanged(&owned.partition, Flow::Held));
        }
    }

    /// Resumes what has fallen below its limits.
    fn adjust_flow(&mut self) {
        let limits = &self.config.limits;
        self.flow = flow(self.flow, self.usage, limits.unsettled_records_max, limits.unsettled_bytes_max);
        self.held.retain(|epoch| {
            let Some(owned) = self.owned.get_mut(*epoch).filter(|owned| !owned.is_draining()) else {
                return false;
            };
            owned.flow = owned.next_flow(limits);
            if owned.flow == Flow::Flowing {
                self.source.set_flow(*epoch, Flow::Flowing);
                self.observer.observe(Event::FlowChanged(&owned.partition, Flow::Flowing));
            }
            owned.flow == Flow::Held
        });
    }

    // --- ownership ------------------------------------------------------------------------------------------------

    fn assign(&mut self, granted: Vec<Granted>, now: Instant) {
        let mut starts = Vec::with_capacity(granted.len());
        for Granted { partition, committed, .. } in granted {
            self.observer.observe(Event::Assigned(&partition, committed));
            let epoch = self.owned.open(Owned {
                partition: partition.clone(),
                ledger: Ledger::new(committed),
                usage: Usage::default(),
                flow: Flow::Flowing,
                phase: Phase::Active,
                sent: committed,
                acknowledged: committed,
                acknowledged_at: now,
                progress: Progress {
                    watermark: committed,
                    since: now,
                    reported: false,
                },
            });
            starts.push(Start {
                partition,
                epoch,
                from: committed,
            });
        }
        self.source.start(&starts);
        if self.stopping {
            // Granted while we leave: given back with the rest.
            self.drain(starts.into_iter().map(|start| start.epoch).collect(), now);
        }
    }

    /// Begins to give partitions back: nothing more of them starts, what runs may finish until the deadline.
    fn drain(&mut self, mut epochs: Vec<AssignmentEpoch>, now: Instant) {
        epochs.retain(|epoch| self.owned.get(*epoch).is_some_and(|owned| !owned.is_draining()));
        if epochs.is_empty() {
            return;
        }
        for epoch in &epochs {
            let owned = self.owned.get_mut(*epoch).expect("retained above");
            owned.phase = Phase::Draining {
                quiet_awaited: self.workers.len(),
            };
            for tail in &self.workers {
                tail.link.inbox.put(ToWorker::Revoke(*epoch));
            }
        }
        self.observer.observe(Event::DrainBegan(epochs.len()));
        self.drains.push(Drain {
            epochs,
            began: now,
            deadline: now + self.config.drain_timeout,
            cancelled: false,
        });
    }

    fn advance_drains(&mut self, now: Instant) {
        let mut index = 0;
        while index < self.drains.len() {
            if self.is_drained(&self.drains[index], now) {
                let drain = self.drains.swap_remove(index);
                self.finish_drain(drain, now);
                continue;
            }
            if self.drains[index].deadline <= now && !self.drains[index].cancelled {
                self.cancel_drain(index);
            }
            index += 1;
        }
    }

    /// Whether nothing of the drain's partitions runs. A commit that is under way is waited for, up to the deadline: if
    /// the client sent it again later, it would move the watermark back.
    fn is_drained(&self, drain: &Drain, now: Instant) -> bool {
        let quiet = |epoch: &AssignmentEpoch| self.owned.get(*epoch).is_none_or(Owned::is_quiet);
        drain.epochs.iter().all(quiet) && (!self.commit_in_flight || drain.deadline <= now)
    }

    /// The deadline has come: handlers are dropped, which leaves nothing of theirs running in this process, except for
    /// blocking work, whose sessions wait for it.
    fn cancel_drain(&mut self, index: usize) {
        let drain = &mut self.drains[index];
        drain.cancelled = true;
        for epoch in &drain.epochs {
            for tail in &self.workers {
                tail.link.inbox.put(ToWorker::Cancel(*epoch));
            }
        }
    }

    /// Nothing of these partitions runs. Commit what they settled, then give them back: in this order, so that the next
    /// owner starts at the watermark.
    fn finish_drain(&mut self, mut drain: Drain, now: Instant) {
        // Lost meanwhile: nothing is committed, nothing is given back.
        drain.epochs.retain(|epoch| self.owned.get(*epoch).is_some());
        let commits: Vec<Commit> = drain.epochs.iter().filter_map(|epoch| self.commit_of(*epoch)).collect();
        if !commits.is_empty() {
            self.commit_and_wait(commits, now);
        }
        self.source.relinquish(&drain.epochs);
        for epoch in &drain.epochs {
            if let Some(owned) = self.close(*epoch) {
                self.observer.observe(Event::Released(&owned.partition));
            }
        }
        self.observer.observe(Event::DrainEnded {
            took: now.saturating_duration_since(drain.began),
            cancelled: drain.cancelled,
        });
    }

    fn commit_and_wait(&mut self, commits: Vec<Commit>, now: Instant) {
        for _ in 0..DRAIN_COMMITS_MAX {
            match self.source.commit(&commits, CommitMode::Wait) {
                Ok(()) => return self.note_committed(Ok(commits), now),
                Err(error) => {
                    // Without success the next owner repeats what was settled since the last commit: nothing is lost.
                    self.observer.observe(Event::CommitFailed(&error));
                    if !error.retriable {
                        return;
                    }
                }
            }
        }
    }

    /// These are another's already: cancel, and commit nothing.
    fn lose(&mut self, epochs: &[AssignmentEpoch]) {
        for epoch in epochs {
            let Some(owned) = self.close(*epoch) else { continue };
            self.observer.observe(Event::Lost(&owned.partition));
        }
    }

    /// Ends the period of ownership: outcomes that come later are fenced, and workers forget it.
    fn close(&mut self, epoch: AssignmentEpoch) -> Option<Owned> {
        let owned = self.owned.close(epoch)?;
        self.usage.sub(owned.usage);
        for tail in &self.workers {
            if !owned.is_draining() {
                tail.link.inbox.put(ToWorker::Revoke(epoch));
            }
            tail.link.inbox.put(ToWorker::Cancel(epoch));
            tail.link.inbox.put(ToWorker::Closed(epoch));
        }
        Some(owned)
    }

    fn begin_stop(&mut self, now: Instant) {
        if self.stopping || !(self.stop.is_requested() || self.failure.is_some()) {
            return;
        }
        self.stopping = true;
        let epochs = self.owned.iter().map(|(epoch, _)| epoch).collect();
        self.drain(epochs, now);
    }

    fn finish(&mut self) {
        self.source.close();
        for tail in &self.workers {
            tail.link.inbox.put(ToWorker::Stop);
        }
    }

    // --- commits --------------------------------------------------------------------------------------------------

    fn commit_of(&self, epoch: AssignmentEpoch) -> Option<Commit> {
        let owned = self.owned.get(epoch)?;
        let watermark = owned.ledger.watermark()?.offset();
        (owned.acknowledged != Some(watermark)).then(|| Commit {
            epoch,
            watermark,
            metadata: String::new(),
        })
    }

    fn next_commit(&self) -> Option<Instant> {
        let quiet = self.usage.records == 0 && self.owned.iter().any(|(_, owned)| owned.is_dirty());
        let interval = if quiet {
            QUIET_COMMIT_INTERVAL.min(self.config.commit_interval)
        } else {
            self.config.commit_interval
        };
        (!self.commit_in_flight).then_some(())?;
        self.committed_at.map(|at| at + interval)
    }

    /// Sends what is due. One commit at a time, so that none overtakes another.
    fn commit_due(&mut self, now: Instant) {
        let due = !self.commit_in_flight && self.next_commit().is_none_or(|due| due <= now);
        if !due {
            return;
        }
        self.committed_at = Some(now);
        let mut commits = Vec::new();
        for (epoch, owned) in self.owned.iter_mut() {
            let Some(watermark) = owned.ledger.watermark() else { continue };
            let stale = now.saturating_duration_since(owned.acknowledged_at) >= RECOMMIT_INTERVAL;
            if !owned.is_draining() && (owned.is_dirty() || stale) {
                owned.sent = Some(watermark.offset());
                commits.push(Commit {
                    epoch,
                    watermark: watermark.offset(),
                    metadata: String::new(),
                });
            }
        }
        if commits.is_empty() {
            return;
        }
        match self.source.commit(&commits, CommitMode::Background) {
            Ok(()) => self.commit_in_flight = true,
            Err(error) => self.note_committed(Err(error), now),
        }
    }

    fn note_committed(&mut self, answer: Result<Vec<Commit>, CommitError>, now: Instant) {
        self.commit_in_flight = false;
        match answer {
            Ok(commits) => {
                for commit in commits {
                    if let Some(owned) = self.owned.get_mut(commit.epoch) {
                        owned.acknowledged = Some(commit.watermark);
                        owned.acknowledged_at = now;
                        self.observer.observe(Event::Committed(&owned.partition, commit.watermark));
                    }
                }
            }
            Err(error) => {
                // Whatever was sent counts as not sent, and is committed again when next due.
                for (_, owned) in self.owned.iter_mut() {
                    owned.sent = owned.acknowledged;
                }
                self.observer.observe(Event::CommitFailed(&error));
            }
        }
    }

    fn look_for_stuck(&mut self, now: Instant) {
        let Some(stuck_after) = self.config.stuck_after else { return };
        if self.stuck_looked_at.is_some_and(|at| now < at + STUCK_LOOK_INTERVAL) {
            return;
        }
        self.stuck_looked_at = Some(now);
        for (_, owned) in self.owned.iter_mut() {
            let watermark = owned.ledger.watermark().map(|watermark| watermark.offset());
            let blocking = owned.ledger.oldest_unsettled();
            let progress = &mut owned.progress;
            // A partition without unsettled records is idle, not stuck.
            let Some(blocking) = blocking.filter(|_| progress.watermark == watermark) else {
                *progress = Progress {
                    watermark,
                    since: now,
                    reported: false,
                };
                continue;
            };
            let stood = now.saturating_duration_since(progress.since);
            if stood >= stuck_after && !progress.reported {
                progress.reported = true;
                let record = RecordId {
                    partition: owned.partition.clone(),
                    offset: blocking,
                };
                self.observer.observe(Event::Stuck(record, stood));
            }
        }
    }
}

impl Owned {
    fn is_draining(&self) -> bool {
        self.phase != Phase::Active
    }

    fn is_quiet(&self) -> bool {
        self.phase == Phase::Draining { quiet_awaited: 0 }
    }

    fn next_flow(&self, limits: &Limits) -> Flow {
        flow(self.flow, self.usage, limits.partition_records_max, limits.partition_bytes_max)
    }

    /// Whether the watermark has moved since the last commit was sent.
    fn is_dirty(&self) -> bool {
        self.ledger
            .watermark()
            .is_some_and(|watermark| self.sent != Some(watermark.offset()))
    }
}

/// From a partition's record to its worker's batch.
struct Intake<'a, M> {
    epoch: AssignmentEpoch,
    router: &'a Router,
    session_by: &'a SessionBy,
    missing_session: MissingSession,
    workers: &'a mut [Tail<M>],
}

impl<M: Message> Intake<'_, M> {
    /// Puts `message` into its session's worker's batch. Returns the bytes that it counts for.
    #[inline]
    fn route(&mut self, message: M, partition: &PartitionId) -> Result<usize, RunError> {
        let (session, undecodable) = match self.session_by.key_of(&message) {
            Ok(key) => (self.router.session(&key), false),
            Err(error) => self.without_session(&message, partition, error)?,
        };
        let bytes = message.key().map_or(0, <[u8]>::len)
            + message.value().map_or(0, <[u8]>::len)
            + RECORD_OVERHEAD_BYTES;
        let tail = &mut self.workers[self.router.worker(session)];
        tail.entries.push(Entry {
            session,
            epoch: self.epoch,
            offset: message.offset(),
            // Kafka bounds a record by 2 GiB.
            bytes: bytes as u32,
            undecodable,
        });
        tail.bytes += bytes;
        tail.messages.push(message);
        Ok(bytes)
    }

    #[cold]
    fn without_session(
        &self,
        message: &M,
        partition: &PartitionId,
        error: SessionKeyError,
    ) -> Result<(SessionHash, bool), RunError> {
        let session = self.router.partition_session(partition);
        match self.missing_session {
            MissingSession::PartitionAsSession => Ok((session, false)),
            MissingSession::DeadLetter => Ok((session, true)),
            MissingSession::Fail => Err(RunError::MissingSession {
                record: RecordId {
                    partition: partition.clone(),
                    offset: message.offset(),
                },
                error,
            }),
        }
    }
}

impl<M: Message> Tail<M> {
    /// Sends the batch that was made, in one piece.
    fn send(&mut self) {
        if self.entries.is_empty() {
            return;
        }
        let batch = Batch {
            shared: Shared::new(std::mem::take(&mut self.messages)),
            entries: std::mem::take(&mut self.entries),
            bytes: std::mem::take(&mut self.bytes),
        };
        self.link.batches.fetch_add(1, Ordering::AcqRel);
        self.link.inbox.put(ToWorker::Records(batch));
    }
}
