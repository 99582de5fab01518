//! What a worker starts: records of its batches, and lanes whose turn has come.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::Instant;

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::lane::{LaneId, Outcome, Queued};
use seriatim_engine::record::{Offset, SessionHash};

use super::{Work, Worker, report_violation};
use crate::context::Context;
use crate::mail::{Batch, Entry, Settled, ToWorker, Unstartable};
use crate::record::Record;
use crate::slots::{Handled, Seat, Tenant};

/// Lanes that may be ready and wait for a slot before a worker admits no more. What is left in its batches costs no lane;
/// the dispatcher sees that the worker has enough before it, and reads no more for the others either. So this is many: a
/// worker that has as many is behind for good.
const READY_MAX: usize = 1024;

/// The batch that is worked through.
pub(super) struct Current {
    batch: Batch,
    /// The first record that has not been looked at.
    next: usize,
}

/// How many records ahead it is asked whether their sessions are busy, so that the answer is near when it is needed.
const TOUCHED_AHEAD: usize = 8;

impl<C, F> Worker<C, F>
where
    C: Fn(Record, Context) -> F,
    F: Future<Output = Handled>,
{
    /// Starts lanes whose turn has come, oldest record first, as long as there are slots.
    pub(super) fn start_ready(&mut self, starts: &mut usize, now: Instant) {
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
    pub(super) fn admit(&mut self, starts: &mut usize, now: Instant) {
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
                    self.current = Some(Current { batch, next: 0 });
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

    fn admit_batch(&mut self, mut current: Current, starts: &mut usize, now: Instant) {
        let (from, len) = (current.next, current.batch.entries.len());
        let until = len.min(from + *starts);
        for index in from..until {
            let entry = current.batch.entries[index];
            current.batch.shared.prefetch(index);
            if let Some(ahead) = current.batch.entries.get(index + TOUCHED_AHEAD) {
                self.lanes.touch_session(ahead.session);
            }
            if self.leaving.has(entry.epoch) {
                continue;
            }
            let must_wait = entry.unstartable.is_some()
                || self.lanes.is_busy(entry.session)
                || self.slots.held() >= self.config.in_flight_max
                || self.lanes.has_ready();
            if must_wait {
                self.enqueue(&current.batch, index, entry);
            } else {
                self.start_at_once(&current.batch, index, entry, now);
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

    fn enqueue(&mut self, batch: &Batch, index: usize, entry: Entry) {
        let Batch { shared, bytes, .. } = batch;
        let record = match shared.pin(*bytes, &self.pins) {
            true => shared.record(index),
            false => shared.copy(index),
        };
        let queued = Work::queued(record, entry, self.failed_before(entry));
        if let Some(slot) = self.lanes.enqueue(entry.session, queued) {
            self.slots.newer_waits(slot);
        }
    }

    /// The short way: a record of an idle session whose handler does not wait needs no lane, no copy, no allocation.
    #[inline]
    fn start_at_once(&mut self, batch: &Batch, index: usize, entry: Entry, now: Instant) {
        let slot = self.slots.vacant();
        let deadline = self.deadline(now);
        let Batch { shared, bytes, .. } = batch;
        let (record, kept) = if self.pins.has_room() || shared.is_pinned() {
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
        let record = kept.unwrap_or_else(|| {
            shared.pin(*bytes, &self.pins);
            shared.record(index)
        });
        let queued = Work::queued(record, entry, attempt);
        let lane = self.lanes.open_running(entry.session, queued, slot, now);
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
}

impl Work {
    fn queued(record: Record, entry: Entry, attempts: u32) -> Queued<Self> {
        let work = Self {
            record,
            bytes: entry.bytes,
            unstartable: entry.unstartable,
        };
        Queued::new(work, entry.epoch, entry.offset).with_attempts(attempts)
    }
}
