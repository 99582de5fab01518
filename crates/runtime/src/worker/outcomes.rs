//! What a worker's handlers come to: settled, tried again, dead-lettered, or dropped.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use seriatim_engine::lane::{Fate, LaneId, Outcome, Verdict};

use super::{Worker, report_violation};
use crate::context::Context;
use crate::failure::{Failure, FailureClass};
use crate::mail::{Failed, FromWorker, Settled};
use crate::ports::{DeadLetterReason, Event};
use crate::record::Record;
use crate::slots::{Cancelled, Handled, Progress, Seat};

/// How often attempts that ran out of time are looked for, at most.
const DEADLINE_RESOLUTION: Duration = Duration::from_millis(1);

/// Slots whose memory is asked for before the first of them is polled: about as many misses as a processor has under way.
const TOUCHED_TOGETHER: usize = 16;

impl<C, F> Worker<C, F>
where
    C: Fn(Record, Context) -> F,
    F: Future<Output = Handled>,
{
    pub(super) fn poll_woken(&mut self, now: Instant) {
        let mut woken = std::mem::take(&mut self.woken);
        self.slots.take_woken(&mut woken);
        for group in woken.chunks(TOUCHED_TOGETHER) {
            let mut lanes = [None; TOUCHED_TOGETHER];
            for (lane, slot) in lanes.iter_mut().zip(group) {
                *lane = self.slots.touch(*slot);
            }
            // Each look needs what the one before it has read.
            let lanes = || lanes.iter().copied().flatten();
            lanes().for_each(|lane| self.lanes.touch(lane));
            lanes().for_each(|lane| self.lanes.touch_next(lane));
            for next in lanes().filter_map(|lane| self.lanes.behind(lane)) {
                next.record.record.touch();
            }
            for slot in group {
                if let Some(progress) = self.slots.poll(*slot) {
                    self.conclude(*slot, progress, now);
                }
            }
        }
        woken.clear();
        self.woken = woken;
    }

    pub(super) fn cancel_overdue(&mut self, now: Instant) {
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
            let why = if self.leaving.has(epoch) {
                Cancelled::Leaving
            } else {
                Cancelled::Overdue
            };
            self.cancel(slot, why, now);
        }
    }

    pub(super) fn recheck_abandoned(&mut self, now: Instant) {
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
    pub(super) fn conclude(&mut self, slot: u32, progress: Progress, now: Instant) {
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
                if self.leaving.has(seat.epoch) && self.lanes.drop_queued_in(seat.lane, |epoch| epoch == seat.epoch) {
                    self.letters.forget(seat.lane);
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

    pub(super) fn settle(&mut self, lane: LaneId, outcome: Outcome, now: Instant) {
        let head = self.lanes.head(lane);
        Settled::push(&mut self.settled, head.epoch, head.offset, head.record.bytes);
        let verdict = self.lanes.finish(lane, outcome, now);
        debug_assert_eq!(verdict, Verdict::Settled);
    }

    /// An attempt failed: the record waits for its next one, becomes a dead letter in the same slot, or is dropped
    /// because its partition leaves.
    pub(super) fn fail(&mut self, slot: u32, seat: Seat, failure: Failure, now: Instant) {
        let outcome = match failure.class() {
            FailureClass::Permanent => Outcome::Permanent,
            FailureClass::Transient if self.leaving.has(seat.epoch) => {
                self.note_failed(seat);
                return self.drop_unsettled(slot, seat, now);
            }
            FailureClass::Transient => Outcome::Transient(failure.delay()),
        };
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
                let first_failure = self.lanes.first_failed(seat.lane).unwrap_or(now);
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

    /// A record that waits for its next attempt may wait long: it is copied out of the client's memory.
    fn unpin(&mut self, lane: LaneId) {
        let work = &mut self.lanes.head_mut(lane).record;
        work.record = work.record.detached();
    }

    fn drop_unsettled(&mut self, slot: u32, seat: Seat, now: Instant) {
        self.letters.forget(seat.lane);
        self.lanes.finish(seat.lane, Outcome::Cancelled, now);
        self.slots.vacate(slot);
    }

    pub(super) fn note_end(&mut self, lane: LaneId, settled: bool) {
        if let Some(checker) = &mut self.checker {
            let head = self.lanes.head(lane);
            let ended = checker.ended(self.lanes.session(lane), head.epoch, head.offset, settled);
            report_violation(ended, &*self.observer);
        }
    }

    /// Sends what was settled, and says which leaving partitions are quiet.
    pub(super) fn report(&mut self) {
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
        self.report_quiet();
    }
}

/// An attempt ran out of time. A transient failure of its record.
#[derive(Debug, thiserror::Error)]
#[error("the attempt was cancelled after {0:?}")]
pub struct AttemptTimeout(pub Duration);
