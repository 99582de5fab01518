//! What the group may have on record of a partition: the last commit that was acknowledged, and those sent after it.

use std::fmt;

use seriatim_engine::record::Offset;

use super::PartitionTruth;
use crate::history::{AckMap, EpochNumber, above};

/// The commits of a partition that may be the durable one, oldest first. Few: all but the last wait for their answers, or
/// were not answered.
#[derive(Default)]
pub(super) struct Durable {
    /// Whether the first of them is certain.
    known: bool,
    sent: Vec<Sent>,
}

struct Sent {
    epoch: EpochNumber,
    watermark: Option<Offset>,
    settled: AckMap,
    answered: bool,
    /// Whether it was told at the beginning of a period, and not sent in it.
    told: bool,
    /// Whether the partition was another's when it was sent.
    superseded: bool,
}

/// Whose commit it was that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    Owners,
    OfAnothers,
}

/// The places that a commit says are settled.
pub(super) struct Covered<'a> {
    truth: &'a PartitionTruth,
    sent: Option<&'a Sent>,
}

impl Durable {
    /// Whether the group is known to have something on record.
    pub(super) fn is_known(&self) -> bool {
        self.known
    }

    pub(super) fn sent(&mut self, epoch: EpochNumber, watermark: Offset, settled: &AckMap, superseded: bool) {
        self.sent.push(Sent {
            epoch,
            watermark: Some(watermark),
            settled: settled.clone(),
            answered: false,
            told: false,
            superseded,
        });
    }

    /// The answer to the oldest commit of the period that has none. An acknowledgement makes the older ones history; a
    /// failure leaves it open whether the commit took effect.
    pub(super) fn answered(&mut self, epoch: EpochNumber, succeeded: bool) -> Answered {
        let unanswered = |sent: &Sent| sent.epoch == epoch && !sent.answered;
        let Some(at) = self.sent.iter().position(unanswered) else {
            return Answered::Owners;
        };
        self.sent[at].answered = true;
        if !succeeded {
            return Answered::Owners;
        }
        self.sent.drain(..at);
        self.known = true;
        match self.sent[0].superseded {
            true => Answered::OfAnothers,
            false => Answered::Owners,
        }
    }

    /// A period begins with this on record. Returns what is known to be, if it is not that.
    pub(super) fn begins(&mut self, epoch: EpochNumber, committed: Option<Offset>, settled: &AckMap) -> Option<String> {
        let told = |sent: &&Sent| sent.watermark == committed && sent.settled == *settled;
        let found = self.sent.iter().find(told);
        let contradicted = (self.known && found.is_none()).then(|| self.sent[0].to_string());
        self.known |= found.is_some_and(|sent| !sent.told);
        self.sent.clear();
        self.sent.push(Sent {
            epoch,
            watermark: committed,
            settled: settled.clone(),
            answered: true,
            told: true,
            superseded: false,
        });
        contradicted
    }

    /// What is known to be on record, if this is not it, and nothing else that was sent is.
    pub(super) fn contradicts(&self, committed: Option<Offset>) -> Option<String> {
        let told = self.sent.iter().any(|sent| sent.watermark == committed);
        (self.known && !told).then(|| self.sent[0].to_string())
    }

    /// Whether an owner has sent a commit beyond an offset, which the group may have.
    pub(super) fn may_be_beyond(&self, offset: Offset) -> bool {
        let owners = self.sent.iter().filter(|sent| !sent.superseded);
        owners
            .filter_map(|sent| sent.watermark)
            .any(|watermark| watermark > offset)
    }

    /// What the last commit says.
    pub(super) fn last<'a>(&'a self, truth: &'a PartitionTruth) -> Covered<'a> {
        Covered {
            truth,
            sent: self.sent.last(),
        }
    }
}

impl Covered<'_> {
    pub(super) fn covers(&self, place: usize) -> bool {
        let Some(sent) = self.sent else { return false };
        let offset = self.truth.records[place].offset;
        sent.watermark.is_some_and(|watermark| offset < watermark)
            || sent.settled.iter().any(|range| range.contains(&offset))
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.watermark {
            Some(watermark) => write!(f, "{watermark}{}", above(&self.settled)),
            None => f.write_str("nothing"),
        }
    }
}
