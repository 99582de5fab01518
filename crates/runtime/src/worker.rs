//! Tier 2: a worker owns the lanes of its sessions and polls their handlers.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::lane::{Fate, LaneId, Outcome, Queued, Verdict};
use seriatim_engine::lanes::Lanes;
use seriatim_engine::order::OrderChecker;
use seriatim_engine::record::{Offset, SessionHash};
use seriatim_engine::retry::Retry;

use crate::context::Context;
use crate::failure::{Failure, FailureClass};
use crate::lease::Lease;
use crate::letter::Letters;
use crate::mail::{Batch, Entry, Failed, FromWorker, Link, Settled, ToWorker, Unstartable};
use crate::pins::{Pin, Pins};
use crate::ports::{DeadLetterReason, Event, Observer};
use crate::record::Record;
use crate::slots::{Cancelled, Handled, Progress, Seat, Slots, Tenant};

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
/// lease has ended; a partition may be lost in the middle of a step.
const STARTS_PER_LOOK: usize = 16;

/// How often a cancelled attempt that something still holds on to is looked at.
const ABANDONED_RECHECK: Duration = Duration::from_millis(10);

/// How often attempts that ran out of time are looked for, at most.
const DEADLINE_RESOLUTION: Duration = Duration::from_millis(1);

/// Lanes that may be ready and wait for a slot before a worker admits no more. What is left in its batches costs no lane;
/// the dispatcher sees that the worker has enough before it, and reads no more for the others either. So this is many: a
/// worker that has as many is behind for good.
const READY_MAX: usize = 8192;

/// A record in a lane.
struct Work {
    record: Record,
    /// When it lies in the client's memory.
    pin: Option<Pin>,
    bytes: u32,
    unstartable: Option<Unstartable>,
    first_failure: Option<Instant>,
}

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
    leaving: Vec<Leaving>,
    /// No attempt can run out of time before.
    overdue_from: Option<Instant>,
    abandoned: Vec<u32>,
    pins: Pins,
    stopped: bool,
    incoming: Vec<ToWorker>,
    woken: Vec<u32>,
}

/// The batch that is worked through.
struct Current {
    batch: Batch,
    /// The first record that has not been looked at.
    next: usize,
    /// Its chunk, once a record of it waits.
    pin: Option<Pin>,
}

/// A partition on its way out.
struct Leaving {
    epoch: AssignmentEpoch,
    /// Whether the drain's deadline has come. What cannot be cancelled is waited for until then.
    cancelled: bool,
    quiet: bool,
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
            leaving: Vec::new(),
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
        for mail in incoming.drain(..) {
            match mail {
                ToWorker::Revoke(epoch) => self.revoke(epoch),
                ToWorker::Cancel(epoch) => self.cancel_epoch(epoch, now),
                ToWorker::Stop => self.stopped = true,
                ToWorker::Renewed => {}
                other => self.mail.push_back(other),
            }
        }
        self.incoming = incoming;
    }

    fn revoke(&mut self, epoch: AssignmentEpoch) {
        self.leaving.push(Leaving {
            epoch,
            cancelled: false,
            quiet: false,
        });
        self.drop_queued(epoch);
        for slot in self.slots_of(epoch, false) {
            self.slots.cancel(slot, Cancelled::Leaving);
        }
    }

    /// A back-off is cut short by this too: the next owner starts the record afresh.
    fn drop_queued(&mut self, epoch: AssignmentEpoch) {
        let letters = &mut self.letters;
        self.lanes.drop_queued(epoch, |lane| letters.forget(lane));
    }

    fn cancel_epoch(&mut self, epoch: AssignmentEpoch, now: Instant) {
        for leaving in &mut self.leaving {
            leaving.cancelled |= leaving.epoch == epoch;
        }
        for slot in self.slots_of(epoch, true) {
            self.cancel(slot, Cancelled::Leaving, now);
        }
    }

    fn slots_of(&self, epoch: AssignmentEpoch, running: bool) -> Vec<u32> {
        self.slots
            .seats()
            .filter(|(_, seat, runs)| *runs == running && seat.epoch == epoch)
            .map(|(slot, ..)| slot)
            .collect()
    }

    fn cancel(&mut self, slot: u32, why: Cancelled, now: Instant) {
        match self.slots.cancel(slot, why) {
            Some(progress) => self.conclude(slot, progress, now),
            None => self.abandoned.push(slot),
        }
    }

    fn is_leaving(&self, epoch: AssignmentEpoch) -> bool {
        !self.leaving.is_empty() && self.leaving.iter().any(|leaving| leaving.epoch == epoch)
    }

    fn poll_woken(&mut self, now: Instant) {
        let mut woken = std::mem::take(&mut self.woken);
        self.slots.take_woken(&mut woken);
        for slot in woken.drain(..) {
            if let Some(progress) = self.slots.poll(slot) {
                self.conclude(slot, progress, now);
            }
        }
        self.woken = woken;
    }

    fn cancel_overdue(&mut self, now: Instant) {
        let (Some(timeout), Some(from)) = (self.config.attempt_timeout, self.overdue_from) else {
            return;
        };
        if now < from {
            return;
        }
        let mut overdue = Vec::new();
        let mut earliest = now + timeout;
        for (slot, seat, runs) in self.slots.seats() {
            match seat.deadline {
                Some(_) if self.slots.is_overdue(slot, now) => overdue.push((slot, seat.epoch)),
                Some(deadline) if runs => earliest = earliest.min(deadline),
                _ => {}
            }
        }
        // Whatever starts later runs out of time later than `now + timeout`.
        self.overdue_from = Some(earliest.max(now + DEADLINE_RESOLUTION));
        for (slot, epoch) in overdue {
            // What its partition leaves behind is not tried again, whenever its context is let go.
            let why = if self.is_leaving(epoch) {
                Cancelled::Leaving
            } else {
                Cancelled::Overdue
            };
            self.cancel(slot, why, now);
        }
    }

    fn recheck_abandoned(&mut self, now: Instant) {
        for slot in std::mem::take(&mut self.abandoned) {
            match self.slots.poll(slot) {
                Some(progress) => self.conclude(slot, progress, now),
                None if self.slots.is_abandoned(slot) => self.abandoned.push(slot),
                // A late wake had it looked at before.
                None => {}
            }
        }
    }

    /// Takes what the tenant of `slot` came to.
    fn conclude(&mut self, slot: u32, progress: Progress, now: Instant) {
        match progress {
            Progress::Handled(seat, Ok(())) => {
                self.note_end(seat.lane, true);
                self.settle(seat.lane, Outcome::Handled, now);
                self.slots.vacate(slot);
            }
            Progress::Handled(seat, Err(failure)) => {
                self.note_end(seat.lane, false);
                self.fail(slot, seat, failure, now);
            }
            Progress::Published(seat, Ok(())) => {
                if self.lanes.head(seat.lane).record.unstartable.is_none() {
                    self.note_end(seat.lane, true);
                }
                self.letters.published(seat.lane, &*self.observer);
                self.link.counters.dead_letters.fetch_add(1, Ordering::Relaxed);
                self.settle(seat.lane, Outcome::DeadLettered, now);
                self.slots.vacate(slot);
            }
            Progress::Published(seat, Err(error)) => {
                let tries = self.letters.failed(seat.lane, &error, &*self.observer);
                self.unpin(seat.lane);
                self.lanes.finish(seat.lane, Outcome::DeadLetterFailed(tries), now);
                if self.is_leaving(seat.epoch) {
                    self.drop_queued(seat.epoch);
                }
                self.slots.vacate(slot);
            }
            Progress::Released(seat, why) => {
                self.note_end(seat.lane, false);
                match (why, self.config.attempt_timeout) {
                    (Cancelled::Overdue, Some(timeout)) => {
                        self.fail(slot, seat, Failure::transient(AttemptTimeout(timeout)), now);
                    }
                    _ => self.drop_unsettled(slot, seat, now),
                }
            }
            Progress::Withdrawn(seat) => self.drop_unsettled(slot, seat, now),
        }
    }

    fn settle(&mut self, lane: LaneId, outcome: Outcome, now: Instant) {
        let head = self.lanes.head(lane);
        Settled::push(&mut self.settled, head.epoch, head.offset, head.record.bytes);
        let verdict = self.lanes.finish(lane, outcome, now);
        debug_assert_eq!(verdict, Verdict::Settled);
    }

    /// A record that waits for its next attempt may wait long: it is copied out of the client's memory.
    fn unpin(&mut self, lane: LaneId) {
        let work = &mut self.lanes.head_mut(lane).record;
        if work.pin.is_some() {
            work.record = work.record.detached();
            work.pin = None;
        }
    }

    fn drop_unsettled(&mut self, slot: u32, seat: Seat, now: Instant) {
        self.letters.forget(seat.lane);
        self.lanes.finish(seat.lane, Outcome::Cancelled, now);
        self.slots.vacate(slot);
    }

    /// An attempt failed: the record waits for its next one, becomes a dead letter in the same slot, or is dropped
    /// because its partition leaves.
    fn fail(&mut self, slot: u32, seat: Seat, failure: Failure, now: Instant) {
        let outcome = match failure.class() {
            FailureClass::Permanent => Outcome::Permanent,
            FailureClass::Transient if self.is_leaving(seat.epoch) => {
                self.note_failed(seat);
                return self.drop_unsettled(slot, seat, now);
            }
            FailureClass::Transient => Outcome::Transient(failure.delay()),
        };
        let head = self.lanes.head_mut(seat.lane);
        let first_failure = *head.record.first_failure.get_or_insert(now);
        match self.lanes.finish(seat.lane, outcome, now) {
            Verdict::RetryAt(until) => {
                self.note_failed(seat);
                self.link.counters.retries.fetch_add(1, Ordering::Relaxed);
                self.unpin(seat.lane);
                let head = self.lanes.head(seat.lane);
                self.observer.observe(Event::Retrying {
                    record: &head.record.record,
                    attempt: head.attempts,
                    delay: until - now,
                    failure: &failure,
                });
                self.slots.vacate(slot);
            }
            Verdict::DeadLetter(fate) => {
                if fate == Fate::Exhausted {
                    self.note_failed(seat);
                }
                let reason = match fate {
                    Fate::Permanent => DeadLetterReason::Permanent,
                    Fate::Exhausted => DeadLetterReason::Exhausted,
                };
                let head = self.lanes.head(seat.lane);
                let (record, attempts) = (head.record.record.clone(), head.attempts);
                let publication = self
                    .letters
                    .begin(seat.lane, record, reason, attempts, &failure, first_failure, now);
                self.slots.publish(slot, seat, publication);
            }
            Verdict::Settled | Verdict::Dropped => unreachable!("a failure neither settles nor drops"),
        }
    }

    /// The dispatcher is told how often the record has failed, short of the last attempt: its failure ends in a dead letter,
    /// and whoever has to write that makes the attempt again.
    fn note_failed(&mut self, seat: Seat) {
        let head = self.lanes.head(seat.lane);
        let attempts = head.attempts.min(self.config.retry.attempts_max.saturating_sub(1));
        if attempts > 0 {
            self.failed.push(Failed {
                epoch: seat.epoch,
                offset: head.offset,
                attempts,
            });
        }
    }

    /// Starts lanes whose turn has come, oldest record first, as long as there are slots.
    fn start_ready(&mut self, starts: &mut usize, now: Instant) {
        while *starts > 0 && self.slots.held() < self.config.in_flight_max {
            let slot = self.slots.vacant();
            let Some(lane) = self.lanes.next(slot, now) else {
                return;
            };
            *starts -= 1;
            self.start_lane(slot, lane, now);
        }
    }

    fn start_lane(&mut self, slot: u32, lane: LaneId, now: Instant) {
        let seat = Seat {
            lane,
            epoch: self.lanes.head(lane).epoch,
            deadline: None,
        };
        if let Some(publication) = self.letters.again(lane) {
            self.slots.occupy(slot, Tenant::Vacated);
            self.slots.publish(slot, seat, publication);
            return;
        }
        let head = self.lanes.head(lane);
        if let Some(unstartable) = head.record.unstartable {
            let record = head.record.record.clone();
            // Of these none is made in this period.
            let attempts = head.attempts - 1;
            let publication = match unstartable {
                Unstartable::Undecodable => self.letters.undecodable(lane, record, now),
                Unstartable::Poison => self.letters.poison(lane, record, attempts, now),
            };
            self.slots.occupy(slot, Tenant::Vacated);
            self.slots.publish(slot, seat, publication);
            return;
        }
        let (record, attempt) = (head.record.record.clone(), head.attempts);
        let seat = Seat {
            deadline: self.deadline(now),
            ..seat
        };
        self.note_start(self.lanes.session(lane), seat.epoch, record.raw_offset(), attempt);
        let cx = self.slots.context(slot, attempt, seat.deadline);
        if self.lanes.newer_waits(lane) {
            self.slots.newer_waits(slot);
        }
        let call = &self.call;
        match self.slots.start(slot, || call(record, cx)) {
            Some(Ok(())) => {
                self.note_end(lane, true);
                self.settle(lane, Outcome::Handled, now);
            }
            Some(Err(failure)) => {
                self.slots.occupy(slot, Tenant::Vacated);
                self.note_end(lane, false);
                self.fail(slot, seat, failure, now);
            }
            None => self.slots.occupy(slot, Tenant::Handler(seat)),
        }
    }

    /// Works through the mail in order.
    fn admit(&mut self, starts: &mut usize, now: Instant) {
        while *starts > 0 {
            if let Some(current) = self.current.take() {
                if self.has_enough() {
                    self.current = Some(current);
                    return;
                }
                self.admit_batch(current, starts, now);
                continue;
            }
            match self.mail.pop_front() {
                Some(ToWorker::Records(batch)) => {
                    self.current = Some(Current {
                        batch,
                        next: 0,
                        pin: None,
                    });
                }
                Some(ToWorker::Closed(epoch)) => self.close(epoch),
                Some(ToWorker::Revoke(_) | ToWorker::Cancel(_) | ToWorker::Renewed | ToWorker::Stop) => {
                    unreachable!("acted on when taken")
                }
                None => return,
            }
        }
    }

    /// Whether no slot is free, and more lanes wait for one than will be for a while.
    fn has_enough(&self) -> bool {
        self.lanes.ready() >= READY_MAX && self.slots.held() >= self.config.in_flight_max
    }

    fn close(&mut self, epoch: AssignmentEpoch) {
        self.leaving.retain(|leaving| leaving.epoch != epoch);
        if let Some(checker) = &mut self.checker {
            checker.revoked(epoch);
        }
    }

    fn admit_batch(&mut self, mut current: Current, starts: &mut usize, now: Instant) {
        let (from, len) = (current.next, current.batch.entries.len());
        let until = len.min(from + *starts);
        for index in from..until {
            let entry = current.batch.entries[index];
            current.batch.shared.prefetch(index);
            if self.is_leaving(entry.epoch) {
                continue;
            }
            let must_wait = entry.unstartable.is_some()
                || self.lanes.is_busy(entry.session)
                || self.slots.held() >= self.config.in_flight_max
                || self.lanes.has_ready();
            if must_wait {
                self.enqueue(&mut current, index, entry);
            } else {
                self.start_at_once(&mut current, index, entry, now);
            }
        }
        *starts -= until - from;
        if until == len {
            self.link.batches.fetch_sub(1, Ordering::Release);
            self.batch_done = true;
        } else {
            current.next = until;
            self.current = Some(current);
        }
    }

    fn enqueue(&mut self, current: &mut Current, index: usize, entry: Entry) {
        let pin = current.pin(&self.pins);
        let record = match &pin {
            Some(_) => current.batch.shared.record(index),
            None => current.batch.shared.copy(index),
        };
        let work = Work::new(record, pin, entry);
        let queued = Queued {
            attempts: self.failed_before(entry),
            ..Queued::new(work, entry.epoch, entry.offset)
        };
        if let Some(slot) = self.lanes.enqueue(entry.session, queued) {
            self.slots.newer_waits(slot);
        }
    }

    /// The short way: a record of an idle session whose handler does not wait needs no lane, no copy, no allocation.
    #[inline]
    fn start_at_once(&mut self, current: &mut Current, index: usize, entry: Entry, now: Instant) {
        let slot = self.slots.vacant();
        let deadline = self.deadline(now);
        let shared = &current.batch.shared;
        let (record, kept) = if current.pin.is_some() || self.pins.has_room() {
            (shared.record(index), None)
        } else {
            let copy = shared.copy(index);
            (copy.clone(), Some(copy))
        };
        let attempt = self.failed_before(entry) + 1;
        self.note_start(entry.session, entry.epoch, entry.offset, attempt);
        let cx = self.slots.context(slot, attempt, deadline);
        let call = &self.call;
        let handled = self.slots.start(slot, || call(record, cx));
        if let Some(Ok(())) = handled {
            if let Some(checker) = &mut self.checker {
                let ended = checker.ended(entry.session, entry.epoch, entry.offset, true);
                report_violation(ended, &*self.observer);
            }
            Settled::push(&mut self.settled, entry.epoch, entry.offset, entry.bytes);
            return;
        }
        let work = match kept {
            Some(copy) => Work::new(copy, None, entry),
            None => {
                let pin = current.pin(&self.pins);
                Work::new(current.batch.shared.record(index), pin, entry)
            }
        };
        let queued = Queued {
            attempts: attempt,
            first_started: Some(now),
            ..Queued::new(work, entry.epoch, entry.offset)
        };
        let lane = self.lanes.open_running(entry.session, queued, slot);
        let seat = Seat {
            lane,
            epoch: entry.epoch,
            deadline,
        };
        match handled {
            None => self.slots.occupy(slot, Tenant::Handler(seat)),
            Some(Err(failure)) => {
                self.slots.occupy(slot, Tenant::Vacated);
                self.note_end(lane, false);
                self.fail(slot, seat, failure, now);
            }
            Some(Ok(())) => unreachable!("returned above"),
        }
    }

    /// Attempts that failed in earlier periods. There is always one left.
    #[inline]
    fn failed_before(&self, entry: Entry) -> u32 {
        match entry.attempts {
            0 => 0,
            attempts => u32::from(attempts).min(self.config.retry.attempts_max.saturating_sub(1)),
        }
    }

    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        let deadline = now + self.config.attempt_timeout?;
        self.overdue_from.get_or_insert(deadline);
        Some(deadline)
    }

    #[inline]
    fn note_start(&mut self, session: SessionHash, epoch: AssignmentEpoch, offset: Offset, attempt: u32) {
        if let Some(checker) = &mut self.checker {
            report_violation(checker.started(session, epoch, offset, attempt), &*self.observer);
        }
    }

    fn note_end(&mut self, lane: LaneId, settled: bool) {
        if let Some(checker) = &mut self.checker {
            let head = self.lanes.head(lane);
            let ended = checker.ended(self.lanes.session(lane), head.epoch, head.offset, settled);
            report_violation(ended, &*self.observer);
        }
    }

    /// Sends what was settled, and says which leaving partitions are quiet.
    fn report(&mut self) {
        if !self.failed.is_empty() {
            // Before what was settled of them since.
            let failed = std::mem::take(&mut self.failed);
            self.link.outbox.put(FromWorker::Failed(failed));
        }
        if !self.settled.is_empty() || self.batch_done {
            self.batch_done = false;
            let counters = &self.link.counters;
            let records = self.settled.iter().map(|run| run.usage.records as u64).sum();
            counters.settled.fetch_add(records, Ordering::Relaxed);
            let settled = std::mem::take(&mut self.settled);
            self.link.outbox.put(FromWorker::Settled(settled));
        }
        let counters = &self.link.counters;
        counters.in_flight.store(self.slots.held() as u64, Ordering::Relaxed);
        counters.sessions.store(self.lanes.len() as u64, Ordering::Relaxed);
        if let Some(checker) = &self.checker {
            counters.checked.store(checker.checked(), Ordering::Relaxed);
            counters.violations.store(checker.violations(), Ordering::Relaxed);
        }
        for leaving in &mut self.leaving {
            let holds_up =
                |(_, seat, runs): (u32, Seat, bool)| seat.epoch == leaving.epoch && (runs || !leaving.cancelled);
            if !leaving.quiet && !self.slots.seats().any(holds_up) {
                leaving.quiet = true;
                self.link.outbox.put(FromWorker::Quiet(leaving.epoch));
            }
        }
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

impl Current {
    /// A hold of the chunk, if there is room for one.
    fn pin(&mut self, pins: &Pins) -> Option<Pin> {
        if self.pin.is_none() {
            self.pin = pins.pin(self.batch.bytes);
        }
        self.pin.clone()
    }
}

impl Work {
    fn new(record: Record, pin: Option<Pin>, entry: Entry) -> Self {
        Self {
            record,
            pin,
            bytes: entry.bytes,
            unstartable: entry.unstartable,
            first_failure: None,
        }
    }
}

fn report_violation(judged: Result<(), seriatim_engine::order::Violation>, observer: &dyn Observer) {
    if let Err(violation) = judged {
        observer.observe(Event::Violation(&violation));
    }
}

/// An attempt ran out of time. A transient failure of its record.
#[derive(Debug, thiserror::Error)]
#[error("the attempt was cancelled after {0:?}")]
pub struct AttemptTimeout(pub Duration);
