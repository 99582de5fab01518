//! P3, P4, P8: what must be true when all is over.

use std::collections::HashMap;

use seriatim_engine::record::{Offset, PartitionId, RecordId};

use super::PartitionTruth;
use super::bench::{Judge, Letter};
use crate::history::above;

impl Judge<'_> {
    pub(super) fn conclude(&mut self) {
        self.now = self.history.len();
        let mut highest: HashMap<&PartitionId, Offset> = HashMap::new();
        for (partition, watermark, by_owner) in &self.truth.commits {
            let before = highest.insert(partition, *watermark);
            if before.is_some_and(|before| before > *watermark) {
                self.blame(
                    "P4",
                    partition,
                    format!("the commit of {partition} fell from {before:?} to {watermark}"),
                );
            }
            if !by_owner {
                let text = format!("{watermark} of {partition} was committed by a member that did not own it");
                self.blame("P4", partition, text);
            }
        }
        for (id, partition) in &self.truth.partitions {
            self.conclude_partition(id, partition);
        }
        self.conclude_letters();
    }

    pub(super) fn conclude_partition(&mut self, id: &PartitionId, partition: &PartitionTruth) {
        // Of a partition that nobody owned, the history tells nothing.
        let was_owned = self.epochs.iter().any(|epoch| epoch.partition == *id);
        if was_owned && self.is_untrue_at_the_end(id, partition) || !self.rules.settled {
            return;
        }
        if let Some(known) = self.partitions[id].durable.contradicts(partition.committed) {
            let told = partition
                .committed
                .map_or("nothing".to_owned(), |offset| offset.to_string());
            let text = format!(
                "the group has {told} on record for {id}, and {known} was acknowledged last; is a recording missing, or was \
                 the group moved by hand?"
            );
            self.blame("P4", id, text);
        }
        let unsettled = self.partitions[id].settled_ever.iter().position(|settled| !settled);
        if let Some(place) = unsettled.filter(|_| was_owned) {
            let record = record_at(id, partition, place);
            self.blame("P3", &record, format!("{record} was never settled"));
        }
        let committed = partition.first_at(partition.committed.unwrap_or(Offset::ZERO));
        if committed < partition.records.len() {
            let left = partition.records.len() - committed;
            let text = format!(
                "{id} is committed up to {:?}, and {left} records lie above",
                partition.committed
            );
            self.blame("P3", id, text);
        }
    }

    /// P3: whether what the group has on record in the end says of something that it is settled which never was.
    fn is_untrue_at_the_end(&mut self, id: &PartitionId, partition: &PartitionTruth) -> bool {
        let Some(committed) = partition.committed else {
            return false;
        };
        let settled = &self.partitions[id].settled_ever;
        let below = 0..partition.first_at(committed);
        let mut said = below.chain(partition.settled.iter().flat_map(|range| partition.within(range)));
        let Some(place) = said.find(|place| !settled[*place]) else {
            return false;
        };
        let record = record_at(id, partition, place);
        let map = above(&partition.settled);
        let text = format!(
            "the group has {committed}{map} on record for {id}, and {record} was never settled; is a recording missing?"
        );
        self.blame("P3", &record, text);
        true
    }

    pub(super) fn conclude_letters(&mut self) {
        let truth = self.truth;
        for (record, copies) in &truth.letters {
            let sent = self.letters.get(record).map_or(0, |letter| letter.sent);
            let place = self.place(record);
            let origin = place.map(|place| truth.partitions[&record.partition].records[place].fingerprint);
            if copies.len() > sent {
                self.blame(
                    "P8",
                    record,
                    format!("{} dead letters of {record}, {sent} sent", copies.len()),
                );
            }
            if copies.iter().any(|copy| Some(*copy) != origin) {
                self.blame(
                    "P8",
                    record,
                    format!("the dead letter of {record} is not what the record was"),
                );
            }
        }
        let missing =
            |(record, letter): &(&RecordId, &Letter)| letter.acked > truth.letters.get(record).map_or(0, Vec::len);
        let missing = self
            .letters
            .iter()
            .filter(missing)
            .map(|(record, _)| record.clone())
            .min();
        if let Some(record) = missing {
            let text = format!("a dead letter of {record} was acknowledged, and is not there");
            self.blame("P8", &record, text);
        }
    }
}

fn record_at(id: &PartitionId, partition: &PartitionTruth, place: usize) -> RecordId {
    RecordId {
        partition: id.clone(),
        offset: partition.records[place].offset,
    }
}
