//! Periods of ownership: begun, drained, lost, and ended.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use seriatim_engine::ack_map;
use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::{Flow, Limits, Usage, flow};
use seriatim_engine::ledger::Ledger;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_engine::trail::{self, ATTEMPTS_TOLD_MAX, CRASHES_MAX, Suspicion, Trail};

use super::Dispatcher;
use super::commits::patience;
use super::standing::{Ages, Progress};
use super::suspects::Withheld;
use crate::mail::ToWorker;
use crate::ports::{Commit, CommitMode, Event, Granted, Records, Source, Start};

/// A partition that is ours.
pub(super) struct Owned {
    pub(super) partition: PartitionId,
    /// Of its topic, as far as the source can tell.
    pub(super) incarnation: Option<u64>,
    pub(super) ledger: Ledger,
    pub(super) usage: Usage,
    pub(super) flow: Flow,
    /// Since when it is held, if it is.
    pub(super) held_since: Option<Instant>,
    pub(super) phase: Phase,
    /// How far the last commit said it had got that was sent, and the last that was acknowledged.
    pub(super) sent: Option<Mark>,
    pub(super) acknowledged: Option<Mark>,
    pub(super) acknowledged_at: Instant,
    /// The end of its log, as the source has last told it.
    pub(super) end: Option<Offset>,
    pub(super) progress: Progress,
    pub(super) ages: Ages,
    /// Of the failing records, and of those that were failing when another owned them.
    pub(super) attempts: BTreeMap<Offset, u32>,
    /// What was failing then lies below this offset.
    pub(super) told_to: Offset,
    pub(super) suspicion: Suspicion,
    /// While there are suspects: those below this offset may be with a worker.
    pub(super) handed_to: Offset,
    /// Whether the commits say that the period goes on.
    pub(super) open: bool,
    /// Of what the commits tell beside what is settled.
    pub(super) revision: u64,
}

/// What was told of a record by who owned it before.
#[derive(Clone, Copy, Default)]
pub(super) struct Past {
    pub(super) attempts: u16,
    pub(super) poison: bool,
}

/// How far a partition has got. What is settled above a watermark only grows, so equal marks say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    watermark: Offset,
    settled_above: u64,
    revision: u64,
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
            revision: self.revision,
        })
    }

    /// Whether there is anything new since the last commit was sent.
    pub(super) fn is_dirty(&self) -> bool {
        self.mark() != self.sent
    }

    /// Whether the last commit that was acknowledged says all.
    pub(super) fn is_committed(&self) -> bool {
        self.mark() == self.acknowledged
    }

    /// Whether something was told of a record that is still to come.
    pub(super) fn has_past(&self) -> bool {
        let next = self.ledger.next_expected();
        next.is_some_and(|next| next < self.told_to)
            || matches!(self.suspicion, Suspicion::Poison(poison) if next <= Some(poison))
    }

    pub(super) fn past(&self, offset: Offset) -> Past {
        let attempts = self.attempts.get(&offset).copied().unwrap_or_default();
        Past {
            attempts: u16::try_from(attempts).unwrap_or(u16::MAX),
            poison: self.suspicion == Suspicion::Poison(offset),
        }
    }

    #[inline]
    pub(super) fn forget_attempts(&mut self, first: Offset, last: Offset) {
        if self.attempts.is_empty() {
            return;
        }
        while let Some((offset, _)) = self.attempts.range(first..=last).next() {
            let offset = *offset;
            self.attempts.remove(&offset);
        }
    }

    fn trail(&self, process: u32, watermark: Offset) -> Trail {
        let (crashes, handed_to, suspects_to) = match self.suspicion {
            Suspicion::Below { crashes, to } => (crashes, self.handed_to, to),
            Suspicion::Poison(poison) if watermark <= poison => (CRASHES_MAX, poison.next(), poison.next()),
            Suspicion::Poison(_) | Suspicion::None => (0, self.ledger.next_expected().unwrap_or(watermark), watermark),
        };
        let failing = self.attempts.range(watermark..).take(ATTEMPTS_TOLD_MAX);
        Trail {
            open: self.open,
            process,
            incarnation: self.incarnation,
            crashes,
            handed_to,
            suspects_to,
            attempts: failing.map(|(offset, attempts)| (*offset, *attempts)).collect(),
        }
    }

    /// The commit that says how far it has got, with as much of the ack map as has room. Whether all of it has, is the
    /// second part.
    pub(super) fn commit(
        &self,
        epoch: AssignmentEpoch,
        process: u32,
        metadata_len_max: usize,
    ) -> Option<(Commit, bool)> {
        let watermark = self.ledger.watermark()?.offset();
        let trail = self.trail(process, watermark).encode(watermark, metadata_len_max);
        let ack_map = ack_map::encode(watermark, self.ledger.settled_ranges(), metadata_len_max - trail.len());
        let commit = Commit {
            epoch,
            watermark,
            metadata: ack_map.text + &trail,
        };
        Some((commit, !ack_map.truncated))
    }
}

impl<S: Source> Dispatcher<S> {
    pub(super) fn assign(&mut self, granted: Vec<Granted>, now: Instant) {
        let mut starts = Vec::with_capacity(granted.len());
        for granted in granted {
            let (ledger, trail) = self.open_ledger(&granted);
            let from = granted.first_wanted();
            let handed_to = from.unwrap_or_default();
            let suspicion = trail.suspicion(self.config.process, handed_to, granted.end);
            let Granted {
                partition,
                end,
                incarnation,
                ..
            } = granted;
            let mut owned = Owned {
                partition: partition.clone(),
                incarnation,
                ledger,
                usage: Usage::default(),
                flow: Flow::Flowing,
                held_since: None,
                phase: Phase::Active,
                sent: None,
                acknowledged: None,
                acknowledged_at: now,
                end,
                progress: Progress {
                    watermark: from,
                    since: now,
                    reported: false,
                },
                ages: Ages::default(),
                told_to: trail.attempts.last().map_or(Offset::ZERO, |(last, _)| last.next()),
                attempts: trail.attempts.into_iter().collect(),
                suspicion,
                handed_to,
                open: true,
                revision: 0,
            };
            owned.sent = owned.mark();
            owned.acknowledged = owned.sent;
            // That it is open now is new.
            owned.revision += 1;
            let suspected = owned.is_suspected();
            let epoch = self.owned.open(owned);
            self.unopened.push(epoch);
            if suspected {
                let messages = VecDeque::new();
                self.withheld.push(Withheld { epoch, messages });
            }
            starts.push(Start { partition, epoch, from });
        }
        self.source.start(&starts);
        self.commit_open(now);
        if self.stopping {
            // Granted while we leave: given back with the rest.
            self.drain(starts.into_iter().map(|start| start.epoch).collect(), now);
        }
    }

    /// The ledger of a granted partition, with what was settled above its watermark by whoever owned it before, and what
    /// was told of the rest.
    fn open_ledger(&self, granted: &Granted) -> (Ledger, Trail) {
        let partition = &granted.partition;
        self.observer.observe(Event::Assigned(partition, granted.committed));
        let (mut ledger, mut told) = (Ledger::new(granted.first_wanted()), Trail::default());
        if let Some(committed) = granted.committed {
            match ack_map::decode(&granted.metadata, committed, granted.end) {
                Ok(settled) => {
                    ledger.restore(settled);
                    told = trail::decode(&granted.metadata, committed).unwrap_or_default();
                }
                // Never skip on doubt.
                Err(error) => self.observer.observe(Event::AckMapIgnored(partition, error)),
            }
        }
        (ledger, told)
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
            self.withheld.retain(|withheld| withheld.epoch != *epoch);
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
        for epoch in &drain.epochs {
            let owned = self.owned.get_mut(*epoch).expect("retained above");
            if std::mem::take(&mut owned.open) {
                owned.revision += 1;
            }
        }
        // Tried again until the deadline. Without it the next owner repeats what was settled since the last commit:
        // nothing is lost.
        let at_most = patience(Some(drain.deadline), now);
        if self.commit_and_wait(&drain.epochs, at_most, now) && now < drain.deadline {
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
    pub(super) fn commit_and_wait(&mut self, epochs: &[AssignmentEpoch], at_most: Duration, now: Instant) -> bool {
        let commits = self.commits_of(epochs);
        if commits.is_empty() {
            return false;
        }
        match self.source.commit(&commits, CommitMode::Wait(at_most)) {
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
        self.withheld.retain(|withheld| withheld.epoch != epoch);
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
        // Before their client.
        self.records = Records::default();
        self.source.close();
        for tail in &self.workers {
            tail.link.inbox.put(ToWorker::Stop);
        }
    }
}
