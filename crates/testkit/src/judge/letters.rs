//! P8: dead letters.

use seriatim_engine::record::{PartitionId, RecordId};
use seriatim_engine::trail::CRASHES_MAX;
use seriatim_runtime::ports::DeadLetterReason;

use super::bench::Judge;
use crate::history::EpochNumber;

impl Judge<'_> {
    pub(super) fn letter_sent(&mut self, i: u32, record: &RecordId, reason: DeadLetterReason, attempts: u32) {
        let partition = &record.partition;
        let Some(place) = self.place(record) else {
            return self.blame("P8", record, format!("a dead letter of {record}, which does not exist"));
        };
        let number = self.owned.get(&(i, partition.clone())).copied();
        self.letters.entry(record.clone()).or_default().sent += 1;
        self.letters_from.insert((i, record.clone()), number);
        let Some(number) = number else {
            return self.blame(
                "P7",
                record,
                format!("instance {i} sends a dead letter of {record}, not its own"),
            );
        };
        let epoch = &self.epochs[number.0];
        let made = epoch.attempts.get(&place).copied().unwrap_or_default();
        let has_session = self.partitions[partition].records[place].0.is_some();
        let index = &self.partitions[partition];
        // Not every record that was in flight at the first crash is known to have been.
        let crashed = index.crashes >= u64::from(CRASHES_MAX)
            && index.crashes_with.get(&place) >= Some(&u32::from(CRASHES_MAX - 1))
            && made.justify_poison(reason, attempts);
        self.judgement.counts.poisoned += u64::from(crashed);
        let text = if epoch.is_settled(place) {
            format!("a dead letter of {record}, which was settled in {number}")
        } else if crashed {
            return;
        } else if !made.justify(reason, attempts, has_session, self.rules.attempts_max) {
            format!("a dead letter of {record} as {}, after {made:?}", reason.as_str())
        } else {
            return;
        };
        self.blame("P8", record, text);
    }

    pub(super) fn letter_acked(&mut self, i: u32, record: &RecordId) {
        self.judgement.counts.dead_letters += 1;
        let (Some(place), Some(letter)) = (self.place(record), self.letters.get_mut(record)) else {
            return self.blame("P8", record, format!("{record}: an acknowledgement of nothing"));
        };
        letter.acked += 1;
        if let Some(number) = self.letters_from.remove(&(i, record.clone())).flatten() {
            self.settle(number, &record.partition, place);
        }
    }

    pub(super) fn settle(&mut self, number: EpochNumber, partition: &PartitionId, place: usize) {
        self.judgement.counts.settled += 1;
        self.partitions
            .get_mut(partition)
            .expect("a known partition")
            .settled_ever[place] = true;
        let epoch = &mut self.epochs[number.0];
        let i = epoch.instance;
        if epoch.settle(place) {
            self.instance(i).unsettled -= 1;
        }
    }
}
