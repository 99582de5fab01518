//! P3, P4: commits.

use seriatim_engine::record::{Offset, PartitionId};

use super::bench::Judge;
use super::durable::Answered;
use super::epoch::CommitState;
use crate::history::{AckMap, EpochNumber, above};

impl Judge<'_> {
    pub(super) fn commit_sent(&mut self, number: EpochNumber, watermark: Offset, settled: &AckMap) {
        let epoch = &mut self.epochs[number.0];
        epoch.commit = CommitState::UnderWay;
        epoch.map_cut = (false, epoch.map_cut.0);
        let superseded = epoch.superseded;
        let fell_from = (watermark < epoch.sent).then_some(epoch.sent);
        epoch.sent = epoch.sent.max(watermark);
        let (partition, ended, place) = (epoch.partition.clone(), epoch.phase.is_over(), epoch.watermark);
        let durable = &mut self.partitions.get_mut(&partition).expect("a known partition").durable;
        durable.sent(number, watermark, settled, superseded);
        if let Some(before) = fell_from {
            let text = format!("{watermark} of {partition} is committed after {before}");
            return self.blame("P4", &partition, text);
        }
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
        let partition = self.epochs[number.0].partition.clone();
        let durable = &mut self.partitions.get_mut(&partition).expect("a known partition").durable;
        if durable.answered(number, succeeded) == Answered::OfAnothers {
            let text = format!("a commit of {number} was acknowledged that was sent when {partition} was another's");
            self.blame("P4", &partition, text);
        }
    }

    /// P4: whether what the group tells at the beginning of a period is what was committed last.
    pub(super) fn judge_begin(
        &mut self,
        number: EpochNumber,
        partition: &PartitionId,
        committed: Option<Offset>,
        settled: &AckMap,
    ) {
        let durable = &mut self.partitions.get_mut(partition).expect("a known partition").durable;
        if let Some(known) = durable.begins(number, committed, settled) {
            let told = committed.map_or("nothing".to_owned(), |offset| format!("{offset}{}", above(settled)));
            let text = format!(
                "{number} of {partition} begins with {told} committed, and {known} was acknowledged last; is a recording \
                 missing, or was the group moved by hand?"
            );
            self.blame("P4", partition, text);
        }
    }

    pub(super) fn map_cut(&mut self, i: u32, partition: &PartitionId) {
        if let Some(number) = self.owned.get(&(i, partition.clone())) {
            self.epochs[number.0].map_cut.0 = true;
        }
    }
}
