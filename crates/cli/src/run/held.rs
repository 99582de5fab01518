//! Why nothing comes: partitions whose intake has been held for a while, told now and then.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::ports::Standing;

use crate::units::{age, counted};

/// For how long a partition is held before it is told: a limit that is passed now and then is nothing to tell.
const TOLD_AFTER: Duration = Duration::from_secs(10);

/// More of them than these are told together.
const TOLD_APART_MAX: usize = 3;

/// How partitions stand that have been held for a while.
#[derive(Debug, Default)]
pub(super) struct HeldPartitions(BTreeMap<PartitionId, Held>);

/// How one stands.
#[derive(Clone, Debug)]
struct Held {
    held_for: Duration,
    watermark: Offset,
    end: Offset,
    backlog: u64,
    unsettled: usize,
    oldest_age: Option<Duration>,
}

impl HeldPartitions {
    /// Takes note of how a partition stands.
    pub(super) fn note(&mut self, standing: &Standing<'_>, now: SystemTime) {
        if standing.held_for < TOLD_AFTER {
            self.0.remove(standing.partition);
            return;
        }
        let held = Held {
            held_for: standing.held_for,
            watermark: standing.watermark,
            end: standing.end,
            backlog: standing.backlog,
            unsettled: standing.unsettled,
            oldest_age: standing.oldest_age(now),
        };
        self.0.insert(standing.partition.clone(), held);
    }

    /// Forgets a partition that is ours no more.
    pub(super) fn forget(&mut self, partition: &PartitionId) {
        self.0.remove(partition);
    }

    /// What is to be told: a line for each, or one for all where they are many.
    pub(super) fn lines(&self) -> Vec<String> {
        if self.0.len() <= TOLD_APART_MAX {
            return self
                .0
                .iter()
                .map(|(partition, held)| format!("intake of {partition} {held}"))
                .collect();
        }
        let all = || self.0.values();
        let longest = all().map(|held| held.held_for).max().unwrap_or_default();
        let backlog = all().map(|held| held.backlog).sum();
        let unsettled = all().map(|held| held.unsettled as u64).sum();
        let oldest = self.0.iter().max_by_key(|(_, held)| held.oldest_age);
        let oldest = oldest.and_then(|(partition, held)| {
            let (waits_for, written) = (held.watermark, age(held.oldest_age?));
            Some(format!(
                "; the oldest is {partition} at {waits_for}, written {written} ago"
            ))
        });
        vec![format!(
            "intake of {} is held, for up to {}: {} read and not settled, a backlog of {}{}",
            counted(self.0.len() as u64, "partition"),
            age(longest),
            counted(unsettled, "record"),
            counted(backlog, "record"),
            oldest.unwrap_or_default(),
        )]
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            watermark,
            end,
            unsettled,
            ..
        } = self;
        let held_for = age(self.held_for);
        let (unsettled, backlog) = (counted(*unsettled as u64, "record"), counted(self.backlog, "record"));
        write!(
            f,
            "is held for {held_for}: {unsettled} read and not settled, the oldest at {watermark}"
        )?;
        if let Some(oldest) = self.oldest_age {
            write!(f, ", written {} ago", age(oldest))?;
        }
        write!(f, "; the log ends at {end}, a backlog of {backlog}")
    }
}

#[cfg(test)]
mod tests {
    use seriatim_engine::budget::Flow;
    use seriatim_runtime::message::Timestamp;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);

    fn note(held: &mut HeldPartitions, number: i32, held_for: Duration) {
        let standing = Standing {
            partition: &PartitionId::new("chat", number),
            watermark: Offset::new(1_042),
            end: Offset::new(5_000),
            backlog: 3_000,
            unsettled: 1_200,
            unsettled_bytes: 120_000,
            oldest: Timestamp::Created(NOW.as_millis() as i64 - 1_000 * (75 - i64::from(number))),
            flow: Flow::Held,
            held_for,
            stood: Duration::ZERO,
        };
        held.note(&standing, SystemTime::UNIX_EPOCH + NOW);
    }

    #[test]
    fn what_is_held_for_a_while_is_told_until_it_flows_or_leaves() {
        let mut held = HeldPartitions::default();
        note(&mut held, 0, Duration::from_secs(9));
        assert!(held.lines().is_empty(), "not before {TOLD_AFTER:?}");
        note(&mut held, 0, Duration::from_secs(12));
        note(&mut held, 1, Duration::from_secs(12));
        assert_eq!(
            held.lines()[0],
            "intake of chat[0] is held for 12s: 1,200 records read and not settled, the oldest at 1042, written 1m15s \
             ago; the log ends at 5000, a backlog of 3,000 records"
        );
        note(&mut held, 0, Duration::ZERO);
        held.forget(&PartitionId::new("chat", 1));
        assert!(held.lines().is_empty());
    }

    #[test]
    fn many_are_told_in_one_line() {
        let mut held = HeldPartitions::default();
        for number in 0..1_000 {
            note(&mut held, number % 50, Duration::from_secs(12 + number as u64 / 50));
        }
        assert_eq!(
            held.lines(),
            [
                "intake of 50 partitions is held, for up to 31s: 60,000 records read and not settled, a backlog of 150,000 \
              records; the oldest is chat[0] at 1042, written 1m15s ago"
            ]
        );
    }
}
