//! P14: what lay in the partitions of a topic when it grew.

use std::collections::HashMap;

use seriatim_engine::growth::Growth;
use seriatim_engine::record::{PartitionId, RecordId};

use super::bench::{Judge, Session};
use super::truth::GrowthTruth;

/// The records that new partitions wait for, by session.
pub(super) struct Grown {
    topic: String,
    first_new: i32,
    /// By their places, until the session goes on in a new partition.
    awaited: HashMap<Session, Vec<(PartitionId, usize)>>,
}

impl Judge<'_> {
    /// What each growth has the new partitions wait for, if they are to wait.
    pub(super) fn prepare_growths(&mut self) {
        self.judgement.counts.growths = self.truth.growths.len() as u64;
        if self.rules.growth == Growth::Hold {
            self.grown = self.truth.growths.iter().map(|growth| self.grown(growth)).collect();
        }
    }

    fn grown(&self, growth: &GrowthTruth) -> Grown {
        let mut awaited: HashMap<Session, Vec<(PartitionId, usize)>> = HashMap::new();
        for (partition, end) in growth.known_old() {
            let upto = self.truth.partitions[&partition].first_at(end);
            let sessions = self.partitions[&partition].records[..upto]
                .iter()
                .map(|(session, _)| *session);
            for (place, session) in sessions.enumerate() {
                if let Some(session) = session {
                    awaited.entry(session).or_default().push((partition.clone(), place));
                }
            }
        }
        Grown {
            topic: growth.topic.clone(),
            first_new: growth.partitions.len() as i32,
            awaited,
        }
    }

    /// P14: whether what a record's session had in old partitions is settled, and committed: then nobody starts it again.
    pub(super) fn judge_growth(&mut self, record: &RecordId, place: usize) {
        let Some(session) = self.partitions[&record.partition].records[place].0 else {
            return;
        };
        let mut grown = std::mem::take(&mut self.grown);
        let before = grown
            .iter_mut()
            .filter(|grown| *grown.topic == *record.partition.topic() && grown.first_new <= record.partition.number());
        for grown in before {
            let Some(awaited) = grown.awaited.remove(&session) else {
                continue;
            };
            self.judgement.counts.moved += 1;
            let open = awaited
                .into_iter()
                .find(|(partition, place)| !self.is_done(partition, *place));
            if let Some((partition, place)) = open {
                let offset = self.truth.partitions[&partition].records[place].offset;
                let text = format!(
                    "{record} starts in a new partition, and {partition}@{offset} of its session, which was there before, is \
                     not settled and committed"
                );
                self.blame("P14", record, text);
            }
        }
        self.grown = grown;
    }

    fn is_done(&self, partition: &PartitionId, place: usize) -> bool {
        let index = &self.partitions[partition];
        let offset = self.truth.partitions[partition].records[place].offset;
        index.settled_ever[place] && index.durable.may_be_beyond(offset)
    }
}
