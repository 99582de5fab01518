//! Periods of ownership: begun, drained, lost, and ended.

use std::time::Instant;

use seriatim_engine::ack_map;
use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::{Flow, Limits, Usage, flow};
use seriatim_engine::ledger::Ledger;
use seriatim_engine::record::{Offset, PartitionId};

use super::Dispatcher;
use crate::mail::ToWorker;
use crate::ports::{Commit, CommitMode, Event, Granted, Source, Start};

/// A partition that is ours.
pub(super) struct Owned {
    pub(super) partition: PartitionId,
    pub(super) ledger: Ledger,
    pub(super) usage: Usage,
    pub(super) flow: Flow,
    pub(super) phase: Phase,
    /// How far the last commit said it had got that was sent, and the last that was acknowledged.
    pub(super) sent: Option<Mark>,
    pub(super) acknowledged: Option<Mark>,
    pub(super) acknowledged_at: Instant,
    pub(super) progress: Progress,
}

/// How far a partition has got. What is settled above a watermark only grows, so equal marks say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    watermark: Offset,
    settled_above: u64,
}

/// Where a partition is in its period of ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Active,
    /// Leaving: this many workers have not said yet that nothing of it runs.
    Draining {
        quiet_awaited: usize,
    },
}

/// Since when the watermark has stood where it stands.
pub(super) struct Progress {
    pub(super) watermark: Option<Offset>,
    pub(super) since: Instant,
    pub(super) reported: bool,
}

/// Partitions on their way out.
pub(super) struct Drain {
    pub(super) epochs: Vec<AssignmentEpoch>,
    pub(super) began: Instant,
    pub(super) deadline: Instant,
    /// Whether the deadline came first.
    pub(super) cancelled: bool,
}

impl Owned {
    pub(super) fn is_draining(&self) -> bool {
        self.phase != Phase::Active
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.phase == Phase::Draining { quiet_awaited: 0 }
    }

    pub(super) fn next_flow(&self, limits: &Limits) -> Flow {
        flow(
            self.flow,
            self.usage,
            limits.partition_records_max,
            limits.partition_bytes_max,
        )
    }

    pub(super) fn mark(&self) -> Option<Mark> {
        self.ledger.watermark().map(|watermark| Mark {
            watermark: watermark.offset(),
            settled_above: self.ledger.settled_above(),
        })
    }

    /// Whether anything was settled since the last commit was sent.
    pub(super) fn is_dirty(&self) -> bool {
        self.mark() != self.sent
    }

    /// The commit that says how far it has got, with as much of the ack map as has room. Whether all of it has, is the
    /// second part.
    pub(super) fn commit(&self, epoch: AssignmentEpoch, metadata_len_max: usize) -> Option<(Commit, bool)> {
        let watermark = self.ledger.watermark()?.offset();
        let ack_map = ack_map::encode(watermark, self.ledger.settled_ranges(), metadata_len_max);
        let commit = Commit {
            epoch,
            watermark,
            metadata: ack_map.text,
        };
        Some((commit, !ack_map.truncated))
    }
}

impl<S: Source> Dispatcher<S> {
    pub(super) fn assign(&mut self, granted: Vec<Granted>, now: Instant) {
        let mut starts = Vec::with_capacity(granted.len());
        for granted in granted {
            let ledger = self.open_ledger(&granted);
            let Granted {
                partition, committed, ..
            } = granted;
            let mut owned = Owned {
                partition: partition.clone(),
                ledger,
                usage: Usage::default(),
                flow: Flow::Flowing,
                phase: Phase::Active,
                sent: None,
                acknowledged: None,
                acknowledged_at: now,
                progress: Progress {
                    watermark: committed,
                    since: now,
                    reported: false,
                },
            };
            owned.sent = owned.mark();
            owned.acknowledged = owned.sent;
            let epoch = self.owned.open(owned);
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

    /// The ledger of a granted partition, with what was settled above its watermark by whoever owned it before.
    fn open_ledger(&self, granted: &Granted) -> Ledger {
        let partition = &granted.partition;
        self.observer.observe(Event::Assigned(partition, granted.committed));
        let mut ledger = Ledger::new(granted.committed);
        if let Some(committed) = granted.committed {
            match ack_map::decode(&granted.metadata, committed, granted.end) {
                Ok(settled) => ledger.restore(settled),
                // Never skip on doubt.
                Err(error) => self.observer.observe(Event::AckMapIgnored(partition, error)),
            }
        }
        ledger
    }

    /// Begins to give partitions back: nothing more of them starts, what runs may finish until the deadline.
    pub(super) fn drain(&mut self, mut epochs: Vec<AssignmentEpoch>, now: Instant) {
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
                tail.link.send_urgent(ToWorker::Revoke(*epoch));
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

    pub(super) fn advance_drains(&mut self, now: Instant) {
        for mut drain in std::mem::take(&mut self.drains) {
            if self.is_drained(&drain, now) {
                let uncommitted = self.finish_drain(drain, now);
                self.drains.extend(uncommitted);
                continue;
            }
            if drain.deadline <= now && !drain.cancelled {
                self.cancel_drain(&mut drain);
            }
            self.drains.push(drain);
        }
    }

    /// Whether nothing of the drain's partitions runs. A commit that is under way is waited for, up to the deadline: if
    /// the client sent it again later, it would move the watermark back.
    pub(super) fn is_drained(&self, drain: &Drain, now: Instant) -> bool {
        let quiet = |epoch: &AssignmentEpoch| self.owned.get(*epoch).is_none_or(Owned::is_quiet);
        drain.epochs.iter().all(quiet) && (!self.commit_in_flight || drain.deadline <= now)
    }

    /// The deadline has come: handlers are dropped, which leaves nothing of theirs running in this process, except for
    /// blocking work, whose sessions wait for it.
    pub(super) fn cancel_drain(&mut self, drain: &mut Drain) {
        drain.cancelled = true;
        for epoch in &drain.epochs {
            for tail in &self.workers {
                tail.link.send_urgent(ToWorker::Cancel(*epoch));
            }
        }
    }

    /// Nothing of these partitions runs. Commit what they settled, then give them back: in this order, so that the next
    /// owner starts at the watermark. Returns the drain when its commit is to be tried again.
    fn finish_drain(&mut self, mut drain: Drain, now: Instant) -> Option<Drain> {
        // Lost meanwhile: nothing is committed, nothing is given back.
        drain.epochs.retain(|epoch| self.owned.get(*epoch).is_some());
        // Tried again until the deadline. Without it the next owner repeats what was settled since the last commit:
        // nothing is lost.
        if self.commit_and_wait(&drain.epochs, now) && now < drain.deadline {
            return Some(drain);
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
        None
    }

    /// Commits what these have settled. Returns whether that failed and is worth another try.
    fn commit_and_wait(&mut self, epochs: &[AssignmentEpoch], now: Instant) -> bool {
        let commits = self.commits_of(epochs);
        if commits.is_empty() {
            return false;
        }
        match self.source.commit(&commits, CommitMode::Wait) {
            Ok(()) => {
                self.note_committed(Ok(commits), now);
                false
            }
            Err(error) => {
                let again = error.retriable || error.metadata_too_long;
                self.note_committed(Err(error), now);
                again
            }
        }
    }

    /// These are another's already: cancel, and commit nothing.
    pub(super) fn lose(&mut self, epochs: &[AssignmentEpoch]) {
        for epoch in epochs {
            let Some(owned) = self.close(*epoch) else { continue };
            self.observer.observe(Event::Lost(&owned.partition));
        }
    }

    /// Ends the period of ownership: outcomes that come later are fenced, and workers forget it.
    pub(super) fn close(&mut self, epoch: AssignmentEpoch) -> Option<Owned> {
        let owned = self.owned.close(epoch)?;
        self.usage.sub(owned.usage);
        for tail in &self.workers {
            if !owned.is_draining() {
                tail.link.send_urgent(ToWorker::Revoke(epoch));
            }
            tail.link.send_urgent(ToWorker::Cancel(epoch));
            tail.link.inbox.put(ToWorker::Closed(epoch));
        }
        Some(owned)
    }

    pub(super) fn begin_stop(&mut self, now: Instant) {
        if self.stopping || !(self.stop.is_requested() || self.failure.is_some()) {
            return;
        }
        self.stopping = true;
        let epochs = self.owned.iter().map(|(epoch, _)| epoch).collect();
        self.drain(epochs, now);
    }

    pub(super) fn finish(&mut self) {
        self.source.close();
        for tail in &self.workers {
            tail.link.inbox.put(ToWorker::Stop);
        }
    }
}
