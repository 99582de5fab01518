//! What the instances have recorded so far.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use super::Arena;
use crate::command::until;

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
