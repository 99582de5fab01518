//! Where a group stands in a partition: its watermark, what is settled above that, and the log around it.

use std::ops::{Range, RangeInclusive};

use seriatim_engine::ack_map::{self, AckMapError};
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_kafka::groups::GroupCommit;

/// Where a group stands in a partition for which it has committed.
pub(super) struct Standing {
    pub(super) partition: PartitionId,
    /// The committed offset: the next one to read.
    pub(super) watermark: i64,
    /// The offsets that the log has; `None` when they could not be learnt.
    pub(super) log: Option<Range<i64>>,
    beside: Beside,
}

/// What was committed beside the watermark.
enum Beside {
    Nothing,
    AckMap(Vec<RangeInclusive<Offset>>),
    /// Something that the next start will ignore.
    Ignored(AckMapError),
    /// An ack map is believed only by who knows the log's end.
    Unjudged,
}

impl Standing {
    pub(super) fn of(commit: &GroupCommit, log: Option<Range<i64>>) -> Self {
        let beside = match &log {
            _ if commit.metadata.is_empty() => Beside::Nothing,
            None => match ack_map::decode(&commit.metadata, commit.offset, None) {
                Ok(nothing) => Beside::AckMap(nothing),
                Err(_) => Beside::Unjudged,
            },
            Some(log) => match ack_map::decode(&commit.metadata, commit.offset, Some(Offset::new(log.end))) {
                Ok(settled) => Beside::AckMap(settled),
                Err(error) => Beside::Ignored(error),
            },
        };
        Self {
            partition: commit.partition.clone(),
            watermark: commit.offset.get(),
            log,
            beside,
        }
    }

    /// The name of what was committed beside the watermark.
    pub(super) fn metadata(&self) -> &'static str {
        match &self.beside {
            Beside::Nothing => "none",
            Beside::AckMap(settled) if settled.is_empty() => "none",
            Beside::AckMap(_) => "ack_map",
            Beside::Ignored(AckMapError::Foreign) => "foreign",
            Beside::Ignored(AckMapError::Corrupt) => "damaged",
            Beside::Ignored(AckMapError::BeyondEnd) => "beyond_end",
            Beside::Unjudged => "unknown",
        }
    }

    /// How many offsets above the watermark are settled; `None` when that is not known.
    pub(super) fn settled_above(&self) -> Option<u64> {
        match self.beside {
            Beside::Unjudged => None,
            _ => Some(self.settled_in(0..i64::MAX)),
        }
    }

    /// How many offsets of `range` are settled, of those above the watermark.
    pub(super) fn settled_in(&self, range: Range<i64>) -> u64 {
        let within = |settled: &RangeInclusive<Offset>| {
            let (first, last) = (settled.start().get(), settled.end().get());
            (last + 1).min(range.end).saturating_sub(first.max(range.start)).max(0) as u64
        };
        self.settled().iter().map(within).sum()
    }

    /// Whether `offset`, at or above the watermark, is settled.
    pub(super) fn is_settled(&self, offset: i64) -> bool {
        self.settled_in(offset..offset + 1) > 0
    }

    fn settled(&self) -> &[RangeInclusive<Offset>] {
        match &self.beside {
            Beside::AckMap(settled) => settled,
            _ => &[],
        }
    }

    /// The watermark's place, or the end of the log that is nearer to it.
    pub(super) fn watermark_in(&self, log: &Range<i64>) -> i64 {
        self.watermark.clamp(log.start, log.end)
    }

    /// How many offsets of the log are not settled.
    pub(super) fn backlog(&self) -> Option<u64> {
        let log = self.log.as_ref()?;
        let ahead = self.watermark_in(log)..log.end;
        Some((ahead.end - ahead.start) as u64 - self.settled_in(ahead))
    }

    /// Where the oldest unsettled record is, or behind where it is, if the log has gaps there; `None` when nothing of
    /// the log is unsettled.
    pub(super) fn first_unsettled(&self) -> Option<i64> {
        let log = self.log.as_ref()?;
        let mut offset = self.watermark_in(log);
        for settled in self.settled() {
            if settled.contains(&Offset::new(offset)) {
                offset = settled.end().get() + 1;
            }
        }
        (offset < log.end).then_some(offset)
    }

    /// What is to be said of it, in words.
    pub(super) fn notes(&self, group: &str) -> Vec<String> {
        let mut notes = Vec::new();
        let Self {
            partition, watermark, ..
        } = self;
        let seek = |to: &str| {
            let (topic, number) = (partition.topic(), partition.number());
            format!("`seriatim group seek {group} -t {topic}:{number} --to {to}`")
        };
        match &self.log {
            Some(log) if *watermark < log.start => notes.push(format!(
                "the watermark {watermark} lies below the log's begin {}: what lay between is gone and was not handled. \
                 The next start will report that, and leave the partition alone until {} moves the group on",
                log.start,
                seek("start"),
            )),
            Some(log) if *watermark > log.end => notes.push(format!(
                "the watermark {watermark} lies beyond the log's end {}: the log was truncated, or its topic made anew. \
                 The next start will report that, and leave the partition alone until {} has it read, or {} passed over",
                log.end,
                seek("start"),
                seek("end"),
            )),
            _ => {}
        }
        if let Beside::Ignored(error) = &self.beside {
            notes.push(format!(
                "{error}. It will be ignored: what was settled above the watermark will be handled again"
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use seriatim_engine::trail::Trail;

    use super::*;

    /// Where a group stands that has committed `watermark`, with these ranges settled above it.
    fn standing(watermark: i64, settled: &[(i64, i64)], log: Range<i64>) -> Standing {
        let ranges = settled
            .iter()
            .map(|(first, last)| (Offset::new(*first), Offset::new(*last)));
        let metadata = ack_map::encode(Offset::new(watermark), ranges, 4096).text;
        Standing::of(&commit(watermark, &metadata), Some(log))
    }

    fn commit(watermark: i64, metadata: &str) -> GroupCommit {
        GroupCommit {
            partition: PartitionId::new("chat", 3),
            offset: Offset::new(watermark),
            metadata: metadata.to_owned(),
        }
    }

    #[test]
    fn what_is_settled_above_the_watermark_is_no_backlog() {
        let standing = standing(10, &[(12, 14), (20, 20)], 0..30);
        assert_eq!((standing.backlog(), standing.settled_above()), (Some(16), Some(4)));
        assert_eq!(standing.first_unsettled(), Some(10));
        assert!(standing.is_settled(14) && !standing.is_settled(15));
        assert_eq!(standing.settled_in(13..25), 3);
        assert!(standing.notes("g").is_empty());
    }

    #[test]
    fn a_commit_that_tells_only_of_its_topic_has_no_ack_map() {
        let trail = Trail {
            incarnation: Some(7),
            ..Trail::default()
        };
        let commit = commit(10, &trail.encode(Offset::new(10), 4096));
        for log in [Some(0..30), None] {
            let standing = Standing::of(&commit, log);
            assert_eq!((standing.metadata(), standing.settled_above()), ("none", Some(0)));
        }
    }

    #[test]
    fn a_log_that_begins_later_leaves_less_to_do() {
        let standing = standing(10, &[(12, 14)], 13..30);
        assert_eq!((standing.backlog(), standing.first_unsettled()), (Some(15), Some(15)));
        let notes = standing.notes("g");
        assert!(notes[0].contains("10 lies below the log's begin 13"), "{notes:?}");
        assert!(notes[0].contains("group seek g -t chat:3 --to start"), "{notes:?}");
    }

    #[test]
    fn a_log_that_ends_earlier_leaves_nothing_to_do() {
        let standing = standing(10, &[(12, 14)], 0..7);
        assert_eq!((standing.backlog(), standing.first_unsettled()), (Some(0), None));
        assert_eq!((standing.settled_above(), standing.metadata()), (Some(0), "beyond_end"));
        let notes = standing.notes("g");
        assert!(notes[0].contains("10 lies beyond the log's end 7"), "{notes:?}");
        assert_eq!(notes.len(), 2);
    }

    #[test]
    fn metadata_that_is_not_ours_is_named_and_ignored() {
        let of = |metadata: &str| Standing::of(&commit(10, metadata), Some(0..30));
        assert_eq!((of("").metadata(), of("").notes("g").len()), ("none", 0));
        for (metadata, name) in [("checkpoint=7", "foreign"), ("s1:AAAAAAAA", "damaged")] {
            let standing = of(metadata);
            assert_eq!((standing.metadata(), standing.settled_above()), (name, Some(0)));
            assert!(standing.notes("g")[0].contains("It will be ignored"));
        }
        let unknown = Standing::of(&commit(10, "s1:AAAAAAAA"), None);
        assert_eq!((unknown.metadata(), unknown.settled_above()), ("unknown", None));
        assert_eq!((unknown.backlog(), unknown.first_unsettled()), (None, None));
    }
}
