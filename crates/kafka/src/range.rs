//! What becomes of a partition whose next offset is not in its log: it was deleted before it was read, or the log was
//! truncated, or its topic deleted and created anew. The last is noticed also when the new log has grown beyond that offset:
//! the record there is another.

use std::collections::HashMap;

use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::ports::SourceTrouble;

/// What becomes of a partition whose next offset is not in its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutOfRange {
    /// It stands still until somebody has moved the group: nothing is passed over unseen.
    #[default]
    Stop,
    /// It goes on at the log's first record.
    Earliest,
    /// It goes on after the log's last record: what the log has is passed over.
    Latest,
}

/// What becomes of such partitions, topic by topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutOfRangePolicy {
    others: OutOfRange,
    topics: HashMap<String, OutOfRange>,
}

impl OutOfRangePolicy {
    /// Sets it for all topics that have none of their own.
    pub fn set(&mut self, policy: OutOfRange) {
        self.others = policy;
    }

    /// Sets it for one topic.
    pub fn set_topic(&mut self, topic: impl Into<String>, policy: OutOfRange) {
        self.topics.insert(topic.into(), policy);
    }

    /// What it is for a topic.
    pub fn of(&self, topic: &str) -> OutOfRange {
        self.topics.get(topic).copied().unwrap_or(self.others)
    }
}

/// The offsets of a log: its first, and the one after its last.
pub(crate) type Extent = (Offset, Offset);

/// A place that was not found in a log.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    pub(crate) partition: PartitionId,
    /// What was to be read next, as far as the client tells.
    pub(crate) wanted: Option<Offset>,
    /// Whether it is known to be of another log: that of a topic that had the name before.
    pub(crate) of_former_topic: bool,
    /// What is to be read next instead, if that is another place, of which the client has not said anything.
    pub(crate) elsewhere: Option<Offset>,
}

/// What a policy says of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing is known to be missing: it is read from here, and whether that can be, the client will say.
    Elsewhere(Offset),
    /// Nothing more is read.
    Stop,
    /// The records up to here are gone, or passed over. What was delivered before is of the same log.
    Skip(Offset),
    /// What was delivered is not in the log that is there now: it is begun anew, from here.
    Restart(Offset),
}

impl Missing {
    pub(crate) fn new(partition: PartitionId, wanted: Option<Offset>) -> Self {
        Self {
            partition,
            wanted,
            of_former_topic: false,
            elsewhere: None,
        }
    }

    /// Whether the log is not the one that was read: its records were not deleted from the front, but from the end.
    pub(crate) fn is_cut_short(&self, (begin, end): Extent) -> bool {
        if let Some(place) = self.elsewhere {
            return place > end;
        }
        self.of_former_topic || self.wanted.is_none_or(|wanted| wanted >= begin)
    }

    pub(crate) fn verdict(&self, policy: OutOfRange, extent: Extent) -> Verdict {
        if let Some(place) = self.elsewhere {
            return Verdict::Elsewhere(place);
        }
        let place = match policy {
            OutOfRange::Stop => return Verdict::Stop,
            OutOfRange::Earliest => extent.0,
            OutOfRange::Latest => extent.1,
        };
        if self.is_cut_short(extent) {
            Verdict::Restart(place)
        } else {
            Verdict::Skip(place)
        }
    }

    /// What to report when it stops the partition.
    pub(crate) fn stopped(self, extent: Option<Extent>) -> SourceTrouble {
        let what = self.what_is_missing();
        let text = match extent {
            Some((begin, end)) => format!(
                "{what}, which now begins at {begin} and ends at {end}{}; stop the group and move it with `seriatim group \
                 seek GROUP --topic {} --to start`, or `--to end`, knowing that what lies between is not processed, or say \
                 by the policy for offsets out of range where to go on",
                self.cause((begin, end)),
                topic_and_number(&self.partition),
            ),
            None => format!("{what}; where that begins and ends is not known yet"),
        };
        SourceTrouble::OutOfRange(self.partition, text)
    }

    /// What to report when the partition goes on at `place`.
    pub(crate) fn moved(self, extent: Extent, place: Offset) -> SourceTrouble {
        let (begin, end) = extent;
        let what = self.what_is_missing();
        let cause = self.cause(extent);
        let what_follows = match self.wanted {
            _ if self.is_cut_short(extent) && place > begin => {
                format!("what it has from {begin} to {} is passed over", before(place))
            }
            _ if self.is_cut_short(extent) => "all that it has is processed, perhaps again".to_owned(),
            Some(wanted) if place > begin => format!(
                "{wanted} to {} is lost, and {begin} to {} is passed over",
                before(begin),
                before(place)
            ),
            Some(wanted) => format!("{wanted} to {} is lost", before(begin)),
            None => unreachable!("it is cut short"),
        };
        let text = format!(
            "{what}, which now begins at {begin} and ends at {end}{cause}; it goes on at {place}: {what_follows}"
        );
        SourceTrouble::Moved(self.partition, text)
    }

    fn what_is_missing(&self) -> String {
        let wanted = self.wanted.map_or("the next offset".to_owned(), |wanted| {
            format!("the next offset, {wanted},")
        });
        match self.of_former_topic {
            true => format!(
                "topic {} was deleted and created anew, and {wanted} is of the former log, as is all that was settled: \
                 nothing of it counts for the new log",
                self.partition.topic()
            ),
            false => format!("{wanted} is not in the log"),
        }
    }

    fn cause(&self, extent: Extent) -> &'static str {
        if self.is_cut_short(extent) && !self.of_former_topic {
            " (it was truncated, or its topic deleted and created anew)"
        } else {
            ""
        }
    }
}

fn before(offset: Offset) -> i64 {
    offset.get() - 1
}

fn topic_and_number(partition: &PartitionId) -> String {
    format!("{}:{}", partition.topic(), partition.number())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(wanted: impl Into<Option<i64>>) -> Missing {
        Missing::new(PartitionId::new("orders", 3), wanted.into().map(Offset::new))
    }

    fn extent(begin: i64, end: i64) -> Extent {
        (Offset::new(begin), Offset::new(end))
    }

    #[test]
    fn a_topic_has_its_own_policy_or_that_of_all() {
        let mut policy = OutOfRangePolicy::default();
        assert_eq!(policy.of("orders"), OutOfRange::Stop);
        policy.set(OutOfRange::Latest);
        policy.set_topic("orders", OutOfRange::Earliest);
        assert_eq!(
            (policy.of("orders"), policy.of("clicks")),
            (OutOfRange::Earliest, OutOfRange::Latest)
        );
    }

    #[test]
    fn deleted_records_are_skipped_and_a_shorter_log_is_begun_anew() {
        let deleted = extent(500, 900);
        let verdict = |policy| missing(100).verdict(policy, deleted);
        assert_eq!(verdict(OutOfRange::Stop), Verdict::Stop);
        assert_eq!(verdict(OutOfRange::Earliest), Verdict::Skip(Offset::new(500)));
        assert_eq!(verdict(OutOfRange::Latest), Verdict::Skip(Offset::new(900)));

        // At 100 the log was shorter; by now it may have grown beyond.
        for (wanted, end) in [(Some(100), 50), (Some(100), 120), (None, 50)] {
            let verdict = |policy| missing(wanted).verdict(policy, extent(10, end));
            assert_eq!(verdict(OutOfRange::Earliest), Verdict::Restart(Offset::new(10)));
            assert_eq!(verdict(OutOfRange::Latest), Verdict::Restart(Offset::new(end)));
        }
    }

    #[test]
    fn what_is_missing_where_the_partition_is_no_more_decides_nothing() {
        let outlived = Missing {
            elsewhere: Some(Offset::new(600)),
            ..missing(100)
        };
        for policy in [OutOfRange::Stop, OutOfRange::Earliest, OutOfRange::Latest] {
            for extent in [extent(500, 900), extent(700, 900), extent(0, 50)] {
                assert_eq!(outlived.verdict(policy, extent), Verdict::Elsewhere(Offset::new(600)));
            }
        }
        assert!(!outlived.is_cut_short(extent(500, 600)) && outlived.is_cut_short(extent(0, 599)));
    }

    #[test]
    fn a_log_of_another_topic_is_begun_anew_however_long_it_is() {
        let former = Missing {
            of_former_topic: true,
            ..missing(100)
        };
        let grown = extent(200, 5_000);
        assert_eq!(
            former.verdict(OutOfRange::Earliest, grown),
            Verdict::Restart(Offset::new(200))
        );
        assert_eq!(
            former.verdict(OutOfRange::Latest, grown),
            Verdict::Restart(Offset::new(5_000))
        );
        let told = former.clone().stopped(Some(grown)).to_string();
        assert!(
            told.starts_with(
                "orders[3] stands still: topic orders was deleted and created anew, and the next offset, 100, is of the \
                 former log"
            ),
            "{told}"
        );
        assert!(
            told.contains("begins at 200 and ends at 5000; stop the group"),
            "{told}"
        );
        let told = former.clone().moved(grown, Offset::new(200)).to_string();
        assert!(
            told.ends_with("it goes on at 200: all that it has is processed, perhaps again"),
            "{told}"
        );
        let told = former.moved(grown, Offset::new(5_000)).to_string();
        assert!(told.ends_with("what it has from 200 to 4999 is passed over"), "{told}");
    }

    #[test]
    fn a_stopped_partition_is_told_with_what_is_there_and_what_to_do() {
        let told = missing(1042).stopped(Some(extent(2000, 5000))).to_string();
        assert!(
            told.starts_with(
                "orders[3] stands still: the next offset, 1042, is not in the log, which now begins at 2000"
            ),
            "{told}"
        );
        assert!(
            told.contains("`seriatim group seek GROUP --topic orders:3 --to start`"),
            "{told}"
        );
        assert!(!told.contains("truncated"), "{told}");
        let told = missing(1042).stopped(Some(extent(0, 50))).to_string();
        assert!(told.contains("ends at 50 (it was truncated"), "{told}");
    }

    #[test]
    fn a_jump_is_told_with_what_is_lost_and_what_is_passed_over() {
        let told = |wanted, (begin, end), place| {
            let told = missing(wanted)
                .moved(extent(begin, end), Offset::new(place))
                .to_string();
            assert!(told.starts_with("orders[3] goes on elsewhere: "), "{told}");
            told
        };
        assert!(told(100, (500, 900), 500).ends_with("it goes on at 500: 100 to 499 is lost"));
        assert!(told(100, (500, 900), 900).ends_with("100 to 499 is lost, and 500 to 899 is passed over"));
        assert!(told(100, (0, 50), 50).ends_with("what it has from 0 to 49 is passed over"));
        assert!(told(100, (0, 50), 0).ends_with("it goes on at 0: all that it has is processed, perhaps again"));
    }
}
