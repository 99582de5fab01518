//! P6, P7, P10, P12: periods of ownership, and what is delivered in them.

use std::time::Duration;

use seriatim_engine::budget::Flow;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_engine::trail::ATTEMPTS_TOLD_MAX;

use super::bench::{Instance, Judge};
use super::epoch::{Epoch, Phase};
use crate::history::{AckMap, EpochNumber};

impl Judge<'_> {
    pub(super) fn assigned(
        &mut self,
        i: u32,
        number: EpochNumber,
        partition: &PartitionId,
        (committed, settled, attempts): (Option<Offset>, &AckMap, &[(Offset, u32)]),
    ) {
        self.judgement.counts.assignments += 1;
        let truth = &self.truth.partitions[partition];
        let start = truth.first_at(committed.unwrap_or(Offset::ZERO));
        let mut skipped = vec![false; truth.records.len() - start];
        for place in settled
            .iter()
            .flat_map(|range| truth.within(range))
            .filter(|place| *place >= start)
        {
            skipped[place - start] = true;
        }
        self.judgement.counts.skipped += skipped.iter().filter(|skipped| **skipped).count() as u64;
        self.judge_begin(number, partition, committed, settled);
        if !self.partitions[partition].durable.is_known() {
            self.pass_over(partition, start, &skipped);
        }
        for epoch in self.epochs.iter_mut().filter(|epoch| epoch.partition == *partition) {
            epoch.superseded = true;
        }
        let mut epoch = Epoch::new(i, partition.clone(), start, skipped);
        // There is always an attempt left.
        let most = self.rules.attempts_max - 1;
        for (offset, told) in attempts {
            let place = truth.first_at(*offset);
            let there = truth.records.get(place).is_some_and(|record| record.offset == *offset);
            if there && !epoch.is_settled(place) {
                epoch.attempts.entry(place).or_default().made = most.min(*told);
            }
        }
        let index = self.partitions.get_mut(partition).expect("a known partition");
        let (released, failing) = (std::mem::take(&mut index.released), std::mem::take(&mut index.failing));
        let told = |place| epoch.attempts.get(&place).map_or(0, |attempts| attempts.made);
        let forgotten = failing.into_iter().find(|(place, failed)| told(*place) < *failed);
        if let Some((place, failed)) = forgotten {
            let (offset, told) = (truth.records[place].offset, told(place));
            let text =
                format!("offset {offset} of {partition} had failed {failed} times, and its next owner is told {told}");
            self.blame("P9", partition, text);
        }
        let repeated = released
            .into_iter()
            .find(|place| *place >= start && !epoch.is_settled(*place));
        if let Some(repeated) = repeated {
            let offset = truth.records[repeated].offset;
            let text = format!("{partition} was released in good order, and its next owner repeats offset {offset}");
            self.blame("P6", partition, text);
        }
        assert_eq!(
            number.0,
            self.epochs.len(),
            "epochs are numbered in the order of their assignment"
        );
        self.epochs.push(epoch);
        self.owned.insert((i, partition.clone()), number);
    }

    /// Nobody has committed yet, so what this period begins behind was settled before the history began, or is not wanted.
    fn pass_over(&mut self, partition: &PartitionId, start: usize, skipped: &[bool]) {
        let index = self.partitions.get_mut(partition).expect("a known partition");
        index.settled_ever[..start].fill(true);
        let above = index.settled_ever[start..].iter_mut().zip(skipped);
        above.for_each(|(settled, skipped)| *settled |= skipped);
    }

    pub(super) fn delivered(&mut self, number: EpochNumber, records: usize, from: Offset) {
        let partition = &self.epochs[number.0].partition;
        let from = self.truth.partitions[partition].first_at(from);
        let epoch = &mut self.epochs[number.0];
        if epoch.held {
            let partition = epoch.partition.clone();
            return self.blame(
                "P10",
                &partition,
                format!("{number} is held, and {records} records were delivered"),
            );
        }
        if epoch.phase != Phase::Active {
            return;
        }
        let records = epoch.deliver(from, records);
        let (i, unsettled, partition) = (epoch.instance, epoch.unsettled, epoch.partition.clone());
        self.instance(i).unsettled += records;
        let all = self.instance(i).unsettled;
        if all > self.rules.unsettled_max || unsettled > self.rules.partition_unsettled_max {
            let text = format!("{unsettled} records of {partition} are unsettled, {all} in the instance");
            self.blame("P10", &partition, text);
        }
    }

    pub(super) fn flow_set(&mut self, epoch: EpochNumber, flow: Flow) {
        let held = flow == Flow::Held;
        self.epochs[epoch.0].held = held;
        self.judgement.counts.holds += u64::from(held);
    }

    pub(super) fn released(&mut self, number: EpochNumber, at: Duration) {
        self.judgement.counts.releases += 1;
        let epoch = &self.epochs[number.0];
        let (partition, in_order) = (epoch.partition.clone(), epoch.commit_stands());
        let mut settled: Vec<usize> = epoch.settled().collect();
        if epoch.map_cut.1 {
            // What the last commit had no room for may be repeated.
            let durable = self.partitions[&partition]
                .durable
                .last(&self.truth.partitions[&partition]);
            settled.retain(|place| durable.covers(*place));
        }
        let began = match epoch.phase {
            Phase::Draining(began) => Some(began),
            _ => None,
        };
        if let Some(took) = began.map(|began| at - began)
            && took > self.rules.drain_max
        {
            let text = format!("{number} of {partition} took {took:?} to be given back");
            self.blame("P12", &partition, text);
        }
        let running = self
            .open
            .values()
            .flatten()
            .find(|open| open.epoch == number && !open.cancelled);
        if let Some(running) = running.map(|open| open.record.clone()) {
            self.blame(
                "P2",
                &partition,
                format!("{number} was given back while {running} was running"),
            );
        }
        if in_order {
            let failing = self.epochs[number.0].failing(ATTEMPTS_TOLD_MAX, self.rules.attempts_max);
            let index = self.partitions.get_mut(&partition).expect("a known partition");
            (index.released, index.failing) = (settled, failing);
        } else {
            self.count_crash(number);
        }
        self.end_epoch(number, Phase::Released);
    }

    pub(super) fn lost(&mut self, number: EpochNumber, at: Duration) {
        self.judgement.counts.losses += 1;
        self.count_crash(number);
        let epoch = &mut self.epochs[number.0];
        epoch.fenced = true;
        let key = (epoch.instance, epoch.partition.clone());
        self.lost.insert(key, (number, at));
        self.end_epoch(number, Phase::Lost);
    }

    pub(super) fn end_epoch(&mut self, number: EpochNumber, phase: Phase) {
        let epoch = &mut self.epochs[number.0];
        epoch.phase = phase;
        let unsettled = std::mem::take(&mut epoch.unsettled);
        let key = (epoch.instance, epoch.partition.clone());
        self.instance(key.0).unsettled -= unsettled;
        self.owned.remove(&key);
    }

    pub(super) fn expired(&mut self, i: u32) {
        self.judgement.counts.expiries += 1;
        for epoch in self.epochs.iter_mut().filter(|epoch| epoch.instance == i) {
            epoch.fenced = true;
        }
        self.count_crashes(i);
    }

    /// Whatever an instance owns was not given back.
    fn count_crashes(&mut self, i: u32) {
        let owned = self.owned.iter().filter(|((instance, _), _)| *instance == i);
        let numbers: Vec<EpochNumber> = owned.map(|(_, number)| *number).collect();
        numbers.into_iter().for_each(|number| self.count_crash(number));
    }

    /// A period was not given back, or nobody was told that it was.
    fn count_crash(&mut self, number: EpochNumber) {
        let epoch = &mut self.epochs[number.0];
        if std::mem::replace(&mut epoch.crashed, true) {
            return;
        }
        let index = self.partitions.get_mut(&epoch.partition).expect("a known partition");
        index.crashes += 1;
        for place in epoch.delivered() {
            *index.crashes_with.entry(place).or_default() += 1;
        }
    }

    /// A drain's time does not run while its instance stands still.
    pub(super) fn resumed(&mut self, i: u32, at: Duration) {
        let stood = self
            .instance(i)
            .paused_at
            .take()
            .map_or(Duration::ZERO, |paused| at - paused);
        for epoch in self.epochs.iter_mut().filter(|epoch| epoch.instance == i) {
            if let Phase::Draining(began) = &mut epoch.phase {
                *began += stood;
            }
        }
    }

    pub(super) fn crashed(&mut self, i: u32) {
        self.judgement.counts.crashes += 1;
        self.count_crashes(i);
        self.gone(i);
    }

    /// Nothing of the instance runs any more.
    pub(super) fn gone(&mut self, i: u32) {
        *self.instance(i) = Instance {
            gone: true,
            ..Instance::default()
        };
        self.open
            .values_mut()
            .for_each(|open| open.retain(|open| open.instance != i));
        self.owned.retain(|(instance, _), _| *instance != i);
    }
}
