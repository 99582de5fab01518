//! What a seek would do, partition by partition.

use std::ops::Range;
use std::str::FromStr;

use anyhow::Context;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_kafka::groups::{GroupCommit, Groups};
use seriatim_kafka::reader::{Extent, LogReader, ReadFrom};

use super::standing::Standing;
use crate::consume::topic_error;
use crate::exit::Exit;

/// A topic, or one partition of it: `chat`, `chat:3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) topic: String,
    pub(super) partition: Option<i32>,
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A topic's name has no colon.
        let (topic, partition) = match text.split_once(':') {
            None => (text, None),
            Some((topic, number)) => match number.parse() {
                Ok(number @ 0..) => (topic, Some(number)),
                _ => return Err("write `TOPIC` or `TOPIC:PARTITION`, e.g. `chat:3`".to_owned()),
            },
        };
        match topic {
            "" => Err("write `TOPIC` or `TOPIC:PARTITION`, e.g. `chat:3`".to_owned()),
            topic => Ok(Self {
                topic: topic.to_owned(),
                partition,
            }),
        }
    }
}

/// What becomes of one partition.
pub(super) struct Move {
    pub(super) partition: PartitionId,
    pub(super) log: Range<i64>,
    /// Where the group stands; `None` when it has committed nothing.
    pub(super) from: Option<Standing>,
    pub(super) to: Offset,
}

/// What a move does to the records of a partition, counted in offsets.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Effect {
    /// Settled, and handled again.
    pub(super) repeated: u64,
    /// Not settled, and never handled.
    pub(super) skipped: u64,
    /// Known as settled above the watermark, which will be forgotten.
    pub(super) forgotten: u64,
}

impl Move {
    /// `None` when the group has committed nothing, so that nobody can say.
    pub(super) fn effect(&self) -> Option<Effect> {
        let from = self.from.as_ref()?;
        let (watermark, to) = (from.watermark_in(&self.log), self.to.get());
        let behind = to.max(watermark)..self.log.end;
        let passed = watermark..to.max(watermark);
        Some(Effect {
            repeated: (watermark - to.min(watermark)) as u64 + from.settled_in(behind),
            skipped: (passed.end - passed.start) as u64 - from.settled_in(passed),
            forgotten: from.settled_above().unwrap_or(0),
        })
    }
}

/// What is to be done for a group that has committed `commits`.
///
/// Without a choice it is all partitions of all topics with a commit: one without a commit, left where it is, would be
/// begun anew.
pub(super) fn moves(
    groups: &Groups,
    commits: &[GroupCommit],
    choices: &[Choice],
    to: ReadFrom,
) -> anyhow::Result<Vec<Move>> {
    let chosen = chosen(groups.logs(), commits, choices)?;
    let mut extents = Vec::with_capacity(chosen.len());
    for (partition, extent) in chosen.iter().zip(groups.extents(&chosen).map_err(topic_error)?) {
        let extent = extent.with_context(|| format!("{partition} cannot be moved now, and nothing was"))?;
        extents.push(extent);
    }
    if let ReadFrom::Offset(offset) = to {
        judge_offset(&extents, offset)?;
    }
    let offsets = groups.logs().resolve(&extents, to).map_err(topic_error)?;
    let moves = extents
        .into_iter()
        .zip(offsets)
        .map(|(Extent { partition, offsets }, to)| {
            let commit = commits.iter().find(|commit| commit.partition == partition);
            Move {
                from: commit.map(|commit| Standing::of(commit, Some(offsets.clone()))),
                partition,
                log: offsets,
                to,
            }
        });
    Ok(moves.collect())
}

fn chosen(logs: &LogReader, commits: &[GroupCommit], choices: &[Choice]) -> anyhow::Result<Vec<PartitionId>> {
    let mut topics: Vec<&str> = match choices {
        [] => commits.iter().map(|commit| commit.partition.topic()).collect(),
        choices => choices.iter().map(|choice| choice.topic.as_str()).collect(),
    };
    topics.sort_unstable();
    topics.dedup();
    let mut chosen = Vec::new();
    for topic in topics {
        let all = logs.partitions(topic).map_err(topic_error)?;
        let of_topic = choices.iter().filter(|choice| choice.topic == topic);
        let numbers: Option<Vec<i32>> = of_topic.map(|choice| choice.partition).collect();
        // A topic that is named without a partition, or not at all, is meant as a whole.
        let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty()) else {
            chosen.extend(all);
            continue;
        };
        let is_there = |number: &&i32| all.iter().any(|partition| partition.number() == **number);
        if let Some(missing) = numbers.iter().find(|number| !is_there(number)) {
            let len = all.len();
            return Err(Exit::NothingMatched.error(format!("topic {topic} has no partition {missing}; it has {len}")));
        }
        chosen.extend(
            all.into_iter()
                .filter(|partition| numbers.contains(&partition.number())),
        );
    }
    Ok(chosen)
}

/// An offset is another record in each partition, and one outside the log is none.
fn judge_offset(extents: &[Extent], offset: i64) -> anyhow::Result<()> {
    match extents {
        [Extent { partition, offsets }] if offset < offsets.start || offset > offsets.end => {
            let (begin, end) = (offsets.start, offsets.end);
            Err(Exit::Usage.error(format!(
                "{partition} begins at {begin} and ends at {end}: {offset} is not in it"
            )))
        }
        [_] | [] => Ok(()),
        _ => Err(Exit::Usage.error(format!(
            "offset {offset} is another record in each of {} partitions: choose one with `-t TOPIC:PARTITION`",
            extents.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use seriatim_engine::ack_map;

    use super::*;

    fn effect(watermark: i64, settled: &[(i64, i64)], to: i64) -> (u64, u64, u64) {
        let partition = PartitionId::new("chat", 0);
        let ranges = settled
            .iter()
            .map(|(first, last)| (Offset::new(*first), Offset::new(*last)));
        let commit = GroupCommit {
            partition: partition.clone(),
            offset: Offset::new(watermark),
            metadata: ack_map::encode(Offset::new(watermark), ranges, 4096).text,
        };
        let log = 5..100;
        let movement = Move {
            partition,
            from: Some(Standing::of(&commit, Some(log.clone()))),
            log,
            to: Offset::new(to),
        };
        let effect = movement.effect().unwrap();
        (effect.repeated, effect.skipped, effect.forgotten)
    }

    #[test]
    fn going_back_repeats_what_was_settled() {
        assert_eq!(effect(20, &[], 5), (15, 0, 0));
        assert_eq!(effect(20, &[(30, 39)], 5), (25, 0, 10));
    }

    #[test]
    fn going_on_skips_what_was_not_settled() {
        assert_eq!(effect(20, &[], 100), (0, 80, 0));
        assert_eq!(effect(20, &[(30, 39)], 100), (0, 70, 10));
        assert_eq!(effect(20, &[(30, 39)], 35), (5, 10, 10));
    }

    #[test]
    fn staying_repeats_what_is_forgotten() {
        assert_eq!(effect(20, &[(30, 39)], 20), (10, 0, 10));
    }

    #[test]
    fn what_the_log_does_not_have_is_neither_repeated_nor_skipped() {
        assert_eq!(effect(2, &[], 5), (0, 0, 0));
        assert_eq!(effect(2, &[], 10), (0, 5, 0));
        assert_eq!(effect(500, &[], 5), (95, 0, 0));
    }

    #[test]
    fn a_partition_is_chosen_with_a_colon() {
        let choice = |topic: &str, partition| Choice {
            topic: topic.to_owned(),
            partition,
        };
        assert_eq!("chat".parse(), Ok(choice("chat", None)));
        assert_eq!("chat:3".parse(), Ok(choice("chat", Some(3))));
        for wrong in ["", ":3", "chat:", "chat:x", "chat:-1", "chat:1:2"] {
            assert!(
                wrong.parse::<Choice>().unwrap_err().contains("TOPIC:PARTITION"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn an_offset_is_for_one_partition_and_in_its_log() {
        let extent = |number| Extent {
            partition: PartitionId::new("chat", number),
            offsets: 5..100,
        };
        assert!(judge_offset(&[extent(0)], 5).is_ok());
        assert!(judge_offset(&[extent(0)], 100).is_ok());
        for (extents, offset) in [
            (vec![extent(0)], 4),
            (vec![extent(0)], 101),
            (vec![extent(0), extent(1)], 7),
        ] {
            assert!(judge_offset(&extents, offset).is_err(), "{offset}");
        }
    }
}
