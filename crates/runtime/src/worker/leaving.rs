//! Partitions on their way out: what of them waits is dropped, what runs is waited for, or cancelled.
//!
//! A consumer may lose a thousand partitions at once. What takes a look at everything is done once for all of them.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::time::Instant;

use seriatim_engine::assignment::AssignmentEpoch;

use super::Worker;
use crate::context::Context;
use crate::mail::FromWorker;
use crate::record::Record;
use crate::slots::{Cancelled, Handled};

/// Partitions on their way out.
#[derive(Default)]
pub(super) struct Leaving {
    by_epoch: HashMap<AssignmentEpoch, Departure>,
    /// Those of which it was not said yet that nothing of them runs.
    loud: Vec<AssignmentEpoch>,
}

#[derive(Default)]
struct Departure {
    /// Whether the drain's deadline has come. What cannot be cancelled is waited for until then.
    cancelled: bool,
    quiet: bool,
}

impl Leaving {
    #[inline]
    pub(super) fn has(&self, epoch: AssignmentEpoch) -> bool {
        !self.by_epoch.is_empty() && self.by_epoch.contains_key(&epoch)
    }

    /// Whether a seat of this epoch keeps its partition from being quiet.
    fn is_held_up(&self, epoch: AssignmentEpoch, runs: bool) -> bool {
        let departure = self.by_epoch.get(&epoch);
        departure.is_some_and(|departure| !departure.quiet && (runs || !departure.cancelled))
    }

    fn forget(&mut self, epoch: AssignmentEpoch) {
        self.by_epoch.remove(&epoch);
        self.loud.retain(|loud| *loud != epoch);
    }
}

impl<C, F> Worker<C, F>
where
    C: Fn(Record, Context) -> F,
    F: Future<Output = Handled>,
{
    /// Starts nothing more of these. A back-off is cut short by this too: the next owner starts the record afresh.
    pub(super) fn revoke(&mut self, epochs: &[AssignmentEpoch]) {
        if epochs.is_empty() {
            return;
        }
        let leaves: HashSet<_> = epochs.iter().copied().collect();
        self.leaving
            .by_epoch
            .extend(epochs.iter().map(|epoch| (*epoch, Departure::default())));
        self.leaving.loud.extend(epochs);
        let letters = &mut self.letters;
        self.lanes
            .drop_queued(|epoch| leaves.contains(&epoch), |lane| letters.forget(lane));
        for slot in self.slots_of(&leaves, false) {
            self.slots.cancel(slot, Cancelled::Leaving);
        }
    }

    /// Drops what still runs of these.
    pub(super) fn cancel_all(&mut self, epochs: &[AssignmentEpoch], now: Instant) {
        if epochs.is_empty() {
            return;
        }
        for epoch in epochs {
            if let Some(departure) = self.leaving.by_epoch.get_mut(epoch) {
                departure.cancelled = true;
            }
        }
        let leave = epochs.iter().copied().collect();
        // Attempts that ran out of time, and whose contexts are still held.
        for slot in self.slots_of(&leave, false) {
            self.slots.leave(slot);
        }
        for slot in self.slots_of(&leave, true) {
            self.slots.leave(slot);
            self.cancel(slot, Cancelled::Leaving, now);
        }
    }

    pub(super) fn cancel(&mut self, slot: u32, why: Cancelled, now: Instant) {
        match self.slots.cancel(slot, why) {
            Some(progress) => self.conclude(slot, progress, now),
            None => self.abandoned.push(slot),
        }
    }

    fn slots_of(&self, epochs: &HashSet<AssignmentEpoch>, running: bool) -> Vec<u32> {
        self.slots
            .seats()
            .filter(|(_, seat, runs)| *runs == running && epochs.contains(&seat.epoch))
            .map(|(slot, ..)| slot)
            .collect()
    }

    /// Says of which partitions nothing runs any more.
    pub(super) fn report_quiet(&mut self) {
        if self.leaving.loud.is_empty() {
            return;
        }
        let mut held_up = HashSet::new();
        for (_, seat, runs) in self.slots.seats() {
            if self.leaving.is_held_up(seat.epoch, runs) {
                held_up.insert(seat.epoch);
                if held_up.len() == self.leaving.loud.len() {
                    return;
                }
            }
        }
        let Leaving { by_epoch, loud } = &mut self.leaving;
        for epoch in loud.extract_if(.., |epoch| !held_up.contains(epoch)) {
            by_epoch.entry(epoch).or_default().quiet = true;
            self.link.outbox.put(FromWorker::Quiet(epoch));
        }
    }

    pub(super) fn close(&mut self, epoch: AssignmentEpoch) {
        self.leaving.forget(epoch);
        if let Some(checker) = &mut self.checker {
            checker.revoked(epoch);
        }
    }
}
