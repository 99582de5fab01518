//! P3, P4: commits.

use seriatim_engine::record::Offset;

use super::bench::Judge;
use super::epoch::CommitState;
use crate::history::{AckMap, EpochNumber};

impl Judge<'_> {
    pub(super) fn commit_sent(&mut self, number: EpochNumber, watermark: Offset, settled: &AckMap) {
        let epoch = &mut self.epochs[number.0];
        epoch.commit = CommitState::UnderWay;
        let (partition, ended, place) = (epoch.partition.clone(), epoch.phase.is_over(), epoch.watermark);
        let truth = &self.truth.partitions[&partition];
        let unsettled = truth.records.get(place).map(|record| record.offset);
        let mut mapped = settled.iter().flat_map(|range| truth.within(range));
        let untrue = mapped.find(|place| !self.epochs[number.0].is_settled(*place));
        let text = match unsettled {
            _ if ended => {
                return self.blame(
                    "P4",
                    &partition,
                    format!("{number} is over, and {watermark} is committed"),
                );
            }
            Some(unsettled) if unsettled < watermark => {
                format!("{watermark} of {partition} is committed, and offset {unsettled} is not settled in {number}")
            }
            _ if untrue.is_some() => {
                let offset = truth.records[untrue.expect("it is some")].offset;
                format!("the ack map of {partition} says that {offset} is settled, and it is not in {number}")
            }
            _ if watermark.get() > truth.end => {
                format!(
                    "{watermark} of {partition} is committed, and the log ends at {}",
                    truth.end
                )
            }
            _ => return,
        };
        self.blame("P3", &partition, text);
    }

    pub(super) fn commit_answered(&mut self, number: EpochNumber, succeeded: bool) {
        self.judgement.counts.failed_commits += u64::from(!succeeded);
        self.epochs[number.0].commit = match succeeded {
            true => CommitState::Stands,
            false => CommitState::Failed,
        };
    }
}
