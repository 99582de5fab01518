//! One period of ownership, as the judge follows it: a naive ledger of its own.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use seriatim_engine::record::{Offset, PartitionId};
use seriatim_engine::trail::CRASHES_MAX;
use seriatim_runtime::ports::DeadLetterReason;

use crate::history::Ended;

pub(super) struct Epoch {
    pub(super) instance: u32,
    pub(super) partition: PartitionId,
    /// Where reading began, as the index of a record.
    pub(super) start: usize,
    /// Below this index everything is settled.
    pub(super) watermark: usize,
    /// From `start` on.
    settled: Vec<bool>,
    pub(super) phase: Phase,
    /// Whether the group dropped its owner.
    pub(super) fenced: bool,
    /// Whether another period of the partition has begun since.
    pub(super) superseded: bool,
    /// Whether the commit that is sent next, and the last that was, have no room for all that is settled.
    pub(super) map_cut: (bool, bool),
    pub(super) held: bool,
    /// The index of the next record to be delivered, and what it was when its instance was last silent.
    position: usize,
    position_before_silence: usize,
    /// Records that were delivered and are not settled.
    pub(super) unsettled: usize,
    pub(super) attempts: HashMap<usize, Attempts>,
    pub(super) commit: CommitState,
    /// The highest watermark that was sent.
    pub(super) sent: Offset,
    /// Whether it has counted as a crash.
    pub(super) crashed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Active,
    Draining(Duration),
    Released,
    Lost,
}

/// How the last commit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitState {
    Stands,
    UnderWay,
    Failed,
}

/// The attempts of a record that is not settled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempts {
    pub(super) made: u32,
    pub(super) ended: Option<Ended>,
    pub(super) not_before: Option<Duration>,
}

impl Epoch {
    /// A period that begins at a record, with what is said to be settled from there on.
    pub(super) fn new(instance: u32, partition: PartitionId, start: usize, settled: Vec<bool>) -> Self {
        let mut epoch = Self {
            instance,
            partition,
            start,
            watermark: start,
            settled,
            phase: Phase::Active,
            fenced: false,
            superseded: false,
            map_cut: (false, false),
            held: false,
            position: start,
            position_before_silence: start,
            unsettled: 0,
            attempts: HashMap::new(),
            commit: CommitState::Stands,
            sent: Offset::ZERO,
            crashed: false,
        };
        epoch.move_watermark();
        epoch
    }

    pub(super) fn is_settled(&self, place: usize) -> bool {
        place.checked_sub(self.start).and_then(|place| self.settled.get(place)) == Some(&true)
    }

    /// Its instance was not heard of for long.
    pub(super) fn note_silence(&mut self) {
        self.position_before_silence = self.position;
    }

    /// Whether the record was there when its instance was last silent.
    pub(super) fn was_delivered_before_silence(&self, place: usize) -> bool {
        place < self.position_before_silence
    }

    /// The records that were delivered. After a crash nobody may know that some of them were settled.
    pub(super) fn delivered(&self) -> Range<usize> {
        self.start..self.position
    }

    /// How often the `told_max` oldest failing records have failed, at least: whether a cancelled attempt counts is open.
    pub(super) fn failing(&self, told_max: usize, attempts_max: u32) -> Vec<(usize, u32)> {
        let mut failing: Vec<_> = self
            .attempts
            .iter()
            .filter(|(_, attempts)| attempts.made > 0)
            .map(|(place, attempts)| (*place, attempts.failed().min(attempts_max - 1)))
            .collect();
        failing.sort_unstable();
        failing.truncate(told_max);
        failing
    }

    /// Counts records as delivered, from this index on at the earliest; returns how many of them are not settled.
    pub(super) fn deliver(&mut self, from: usize, records: usize) -> usize {
        let from = from.max(self.position);
        let places = from..from + records;
        self.position = places.end;
        let unsettled = places.filter(|place| !self.is_settled(*place)).count();
        self.unsettled += unsettled;
        unsettled
    }

    /// Returns whether the record was among the unsettled ones.
    pub(super) fn settle(&mut self, place: usize) -> bool {
        if self.phase.is_over() || place < self.start || self.is_settled(place) {
            return false;
        }
        let place = place - self.start;
        if self.settled.len() <= place {
            self.settled.resize(place + 1, false);
        }
        self.settled[place] = true;
        self.attempts.remove(&(place + self.start));
        self.move_watermark();
        let counted = self.unsettled > 0;
        self.unsettled -= usize::from(counted);
        counted
    }

    fn move_watermark(&mut self) {
        while self.is_settled(self.watermark) {
            self.watermark += 1;
        }
    }

    /// Everything that is settled, from `start` on.
    pub(super) fn settled(&self) -> impl Iterator<Item = usize> {
        let places = self.settled.iter().enumerate().filter(|(_, settled)| **settled);
        places.map(|(place, _)| self.start + place)
    }

    /// Whether what is committed is what was last to be committed, as far as the group has answered.
    pub(super) fn commit_stands(&self) -> bool {
        self.commit == CommitState::Stands && !self.fenced
    }
}

impl Phase {
    pub(super) fn is_over(self) -> bool {
        matches!(self, Phase::Released | Phase::Lost)
    }
}

impl Attempts {
    /// Attempts that have failed, and are made again by whoever owns the record next.
    fn failed(&self) -> u32 {
        match self.ended {
            // The last was made in an earlier period.
            None | Some(Ended::Transient | Ended::Panicked) => self.made,
            Some(Ended::Cancelled | Ended::Permanent | Ended::Handled) => self.made - 1,
        }
    }

    /// Whether this is the dead letter of a record that was in flight at the last crashes.
    pub(super) fn justify_poison(&self, reason: DeadLetterReason, attempts: u32) -> bool {
        reason == DeadLetterReason::Exhausted && self.ended.is_none() && attempts == self.made + u32::from(CRASHES_MAX)
    }

    /// Whether these attempts end in such a dead letter.
    pub(super) fn justify(
        &self,
        reason: DeadLetterReason,
        attempts: u32,
        has_session: bool,
        attempts_max: u32,
    ) -> bool {
        let failed = matches!(self.ended, Some(Ended::Transient | Ended::Panicked | Ended::Cancelled));
        match reason {
            DeadLetterReason::Permanent => self.ended == Some(Ended::Permanent) && attempts == self.made,
            DeadLetterReason::Exhausted => failed && self.made >= attempts_max && attempts == self.made,
            DeadLetterReason::Undecodable => !has_session && self.made == 0 && attempts == 0,
        }
    }
}
