//! What the instances have recorded so far.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use seriatim_engine::record::{Offset, PartitionId, RecordId};
use seriatim_testkit::history::recording;
use seriatim_testkit::history::{AckMap, What};

use super::Arena;
use crate::command::until;

/// What the group told an owner when it began.
pub(crate) struct Owner {
    pub(crate) at: Duration,
    pub(crate) committed: Option<Offset>,
    pub(crate) settled: AckMap,
}

impl Arena {
    /// Waits until each instance owns something.
    #[track_caller]
    pub(crate) fn await_ownership(&self) {
        let owns = |text: String| text.lines().filter_map(entry).any(|entry| entry.1 == "assign");
        until("each instance owns something", || self.recorded().all(owns));
    }

    /// How many commits were answered, and that later than this.
    pub(crate) fn answers_later_than(&self, late: Duration) -> usize {
        let late_of = |text: String| {
            let mut sent = HashMap::new();
            let mut count = 0;
            for (time, verb, rest) in text.lines().filter_map(entry) {
                let epoch = rest.split(' ').next().unwrap_or_default().to_owned();
                match verb {
                    "commit" => drop(sent.entry(epoch).or_insert(time)),
                    "answer" => {
                        let waited = sent.remove(&epoch).map(|sent| time - sent);
                        count += usize::from(waited >= Some(late));
                    }
                    _ => {}
                }
            }
            count
        };
        self.recorded().map(late_of).sum()
    }

    /// How many commits were taken so far.
    pub(crate) fn commits_taken(&self) -> usize {
        let taken = |text: String| text.lines().filter(|line| line.ends_with(" yes")).count();
        self.recorded().map(taken).sum()
    }

    /// The period of ownership of `partition` that was the first to begin after this time, as far as is written.
    pub(crate) fn next_owner(&self, partition: &PartitionId, after: Duration) -> Option<Owner> {
        let owners = self.entries().filter_map(|(at, what)| match what {
            What::Assign {
                partition: of,
                committed,
                settled,
                ..
            } if of == *partition && at > after => Some(Owner { at, committed, settled }),
            _ => None,
        });
        owners.min_by_key(|owner| owner.at)
    }

    /// Whether a dead letter of this record was acknowledged after this time.
    pub(crate) fn has_letter(&self, record: &RecordId, after: Duration) -> bool {
        let acknowledged = What::LetterAcked(record.clone());
        self.entries().any(|(at, what)| at > after && what == acknowledged)
    }

    /// All entries, recording after recording.
    fn entries(&self) -> impl Iterator<Item = (Duration, What)> {
        let read = |file: &PathBuf| recording::read(file).expect("what has no holes");
        let recordings = self.recordings.iter().flat_map(read);
        recordings.flat_map(|recording| recording.entries)
    }

    fn recorded(&self) -> impl Iterator<Item = String> {
        let files = self.recordings.iter();
        files.map(|file| fs::read_to_string(file).unwrap_or_default())
    }
}

/// Time, verb, and particulars of a recorded entry.
fn entry(line: &str) -> Option<(Duration, &str, &str)> {
    let (time, rest) = line.split_once(' ')?;
    let (verb, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((Duration::from_nanos(time.parse().ok()?), verb, rest))
}
