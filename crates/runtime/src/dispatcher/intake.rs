//! From a batch of the source to the workers' batches.

use std::sync::atomic::Ordering;
use std::time::Instant;

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::{Flow, Limits, Usage, flow};
use seriatim_engine::ledger::Admission;
use seriatim_engine::record::{PartitionId, RecordId, SessionHash};
use seriatim_engine::route::Router;

use super::ownership::Past;
use super::{Dispatcher, RunError};
use crate::mail::{Batch, Entry, Link, ToWorker, Unstartable};
use crate::message::Message;
use crate::ports::{Event, Records, Run, Source};
use crate::record::Shared;
use crate::session_by::{MissingSession, SessionBy, SessionKeyError};

/// Reported bytes of a record beside its key and value: the client's own bookkeeping, about.
const RECORD_OVERHEAD_BYTES: usize = 64;

impl<S: Source> Dispatcher<S> {
    /// Admits records in order, until all are, or until a limit of the whole is passed: then the record that has passed it
    /// is the last, and what lies behind it is left in `records`. At least one record is admitted.
    pub(super) fn admit(&mut self, records: &mut Records<S::Message>, now: Instant) {
        let mut messages = records.messages.drain(..);
        let mut runs = records.runs.drain(..);
        let mut left = None;
        for run in runs.by_ref() {
            let first = messages.as_slice().first();
            let first = first.map(|message| (message.offset(), message.timestamp()));
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
            let mut withheld = self.withheld.iter_mut().find(|withheld| withheld.epoch == run.epoch);
            if let Some((offset, written)) = first {
                owned.ages.note(offset, written, owned.ledger.oldest_unsettled());
            }
            let has_past = owned.has_past();
            let room = room_below(&self.config.limits, self.usage);
            let mut admitted = Usage::ZERO;
            while admitted.records <= room.records && admitted.bytes <= room.bytes {
                let Some(message) = messages.next() else { break };
                let offset = message.offset();
                match owned.ledger.admit(offset) {
                    Admission::Admitted => {}
                    Admission::AlreadySettled | Admission::Behind => continue,
                }
                admitted.add(Usage::record(bytes_of(&message)));
                if let Some(withheld) = &mut withheld {
                    withheld.messages.push_back(message);
                    continue;
                }
                let past = if has_past { owned.past(offset) } else { Past::default() };
                match intake.route(message, &owned.partition, past) {
                    Ok(()) => {}
                    Err(failure) => {
                        // Admitted and never settled: the commit stays below it.
                        self.failure.get_or_insert(failure);
                        break;
                    }
                }
            }
            let rest = messages.len();
            owned.usage.add(admitted);
            self.usage.add(admitted);
            self.hold_if_full(run.epoch, now);
            if rest > 0 {
                left = Some(Run { len: rest, ..run });
            }
            let limits = &self.config.limits;
            if rest > 0
                || self
                    .usage
                    .exceeds(limits.unsettled_records_max, limits.unsettled_bytes_max)
            {
                break;
            }
        }
        let left: Vec<_> = left.into_iter().chain(runs).collect();
        let messages_left: Vec<_> = messages.collect();
        // Ordinarily nothing is, and the vectors are used again.
        if !left.is_empty() {
            (records.messages, records.runs) = (messages_left, left);
        }
        if !self.unopened.is_empty() {
            self.commit_open(now);
        }
        for tail in &mut self.workers {
            tail.send();
        }
    }

    fn hold_if_full(&mut self, epoch: AssignmentEpoch, now: Instant) {
        let Some(owned) = self.owned.get_mut(epoch) else { return };
        if owned.flow == Flow::Flowing && owned.next_flow(&self.config.limits) == Flow::Held {
            owned.flow = Flow::Held;
            owned.held_since = Some(now);
            self.held.push(epoch);
            self.source.set_flow(epoch, Flow::Held);
            self.observer.observe(Event::FlowChanged(&owned.partition, Flow::Held));
        }
    }

    /// Resumes what has fallen below its limits.
    pub(super) fn adjust_flow(&mut self, now: Instant) {
        let limits = &self.config.limits;
        self.flow = flow(
            self.flow,
            self.usage,
            limits.unsettled_records_max,
            limits.unsettled_bytes_max,
        );
        self.held_since = match self.flow {
            Flow::Held => self.held_since.or(Some(now)),
            Flow::Flowing => None,
        };
        self.held.retain(|epoch| {
            let Some(owned) = self.owned.get_mut(*epoch).filter(|owned| !owned.is_draining()) else {
                return false;
            };
            owned.flow = owned.next_flow(limits);
            if owned.flow == Flow::Flowing {
                owned.held_since = None;
                self.source.set_flow(*epoch, Flow::Flowing);
                self.observer
                    .observe(Event::FlowChanged(&owned.partition, Flow::Flowing));
            }
            owned.flow == Flow::Held
        });
    }
}

/// A worker's link, and the batch that is being made for it.
pub(super) struct Tail<M> {
    pub(super) link: Link,
    pub(super) messages: Vec<M>,
    pub(super) entries: Vec<Entry>,
    pub(super) bytes: usize,
}

/// From a partition's record to its worker's batch.
pub(super) struct Intake<'a, M> {
    pub(super) epoch: AssignmentEpoch,
    pub(super) router: &'a Router,
    pub(super) session_by: &'a SessionBy,
    pub(super) missing_session: MissingSession,
    pub(super) workers: &'a mut [Tail<M>],
}

/// How much may be admitted until the limits of the whole are reached. One record more passes them.
fn room_below(limits: &Limits, usage: Usage) -> Usage {
    Usage {
        records: limits.unsettled_records_max.saturating_sub(usage.records),
        bytes: limits.unsettled_bytes_max.saturating_sub(usage.bytes),
    }
}

/// What a record counts for.
#[inline]
fn bytes_of(message: &impl Message) -> usize {
    message.key().map_or(0, <[u8]>::len) + message.value().map_or(0, <[u8]>::len) + RECORD_OVERHEAD_BYTES
}

impl<M: Message> Intake<'_, M> {
    /// Puts `message` into its session's worker's batch.
    #[inline]
    pub(super) fn route(&mut self, message: M, partition: &PartitionId, past: Past) -> Result<(), RunError> {
        let (session, undecodable) = match self.session_by.key_of(&message) {
            Ok(key) => (self.router.session(&key), false),
            Err(error) => self.without_session(&message, partition, error)?,
        };
        let unstartable = match (undecodable, past.poison) {
            (true, _) => Some(Unstartable::Undecodable),
            (false, true) => Some(Unstartable::Poison),
            (false, false) => None,
        };
        let bytes = bytes_of(&message);
        let tail = &mut self.workers[self.router.worker(session)];
        tail.entries.push(Entry {
            session,
            epoch: self.epoch,
            offset: message.offset(),
            // Kafka bounds a record by 2 GiB.
            bytes: bytes as u32,
            attempts: past.attempts,
            unstartable,
        });
        tail.bytes += bytes;
        tail.messages.push(message);
        Ok(())
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
    pub(super) fn send(&mut self) {
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
