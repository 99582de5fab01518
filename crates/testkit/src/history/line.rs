//! An entry as a line of text: the nanoseconds of its time, a word for what happened, and its particulars.
//!
//! ```text
//! 81234567890 assign 0 chat/3 42 44-47,50-50 42x1
//! 81234567901 delivered 0 250 42
//! 81234568800 start chat/3/42 1 9ae16a3b2f90404f
//! 81234569912 end chat/3/42 1 handled
//! 81234570000 commit 0 43 44-47,50-50
//! 81234571000 answer 0 yes
//! ```
//!
//! The first number after `assign`, `commit` and the like is the period of ownership, counted in this recording. What is
//! absent is `-`. A topic's name has neither a space nor a slash in it, so places need no quotes.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::time::Duration;

use seriatim_engine::budget::Flow;
use seriatim_engine::record::{Offset, PartitionId, RecordId};
use seriatim_runtime::ports::DeadLetterReason;

use super::{AckMap, Ended, EpochNumber, What};

/// Each way for a handler to end, and its word.
const ENDS: [(Ended, &str); 5] = [
    (Ended::Handled, "handled"),
    (Ended::Transient, "transient"),
    (Ended::Permanent, "permanent"),
    (Ended::Panicked, "panicked"),
    (Ended::Cancelled, "cancelled"),
];

const REASONS: [DeadLetterReason; 3] = [
    DeadLetterReason::Permanent,
    DeadLetterReason::Exhausted,
    DeadLetterReason::Undecodable,
];

/// Appends the line of `what`, its newline included.
pub(super) fn write(line: &mut String, at: Duration, what: &What) {
    // Writing to a string does not fail.
    let _ = write!(line, "{} ", at.as_nanos());
    let _ = write_what(line, what);
    line.push('\n');
}

fn write_what(line: &mut String, what: &What) -> fmt::Result {
    match what {
        What::Assign {
            epoch,
            partition,
            committed,
            settled,
            attempts,
        } => {
            let partition = Place(partition);
            match committed {
                Some(committed) => write!(line, "assign {} {partition} {committed} ", epoch.0)?,
                None => write!(line, "assign {} {partition} - ", epoch.0)?,
            }
            write_map(line, settled)?;
            line.write_char(' ')?;
            write_attempts(line, attempts)
        }
        What::Delivered(epoch, records, from) => write!(line, "delivered {} {records} {from}", epoch.0),
        What::FlowSet(epoch, Flow::Held) => write!(line, "hold {}", epoch.0),
        What::FlowSet(epoch, Flow::Flowing) => write!(line, "resume {}", epoch.0),
        What::RevokeBegin(epoch) => write!(line, "revoke {}", epoch.0),
        What::RevokeEnd(epoch) => write!(line, "release {}", epoch.0),
        What::Lost(epoch) => write!(line, "lost {}", epoch.0),
        What::Start {
            record,
            attempt,
            fingerprint,
        } => write!(line, "start {} {attempt} {fingerprint:016x}", At(record)),
        What::End(record, attempt, ended) => {
            let (_, word) = ENDS[*ended as usize];
            write!(line, "end {} {attempt} {word}", At(record))
        }
        What::Kept(record, attempt) => write!(line, "kept {} {attempt}", At(record)),
        What::Freed(record, attempt) => write!(line, "freed {} {attempt}", At(record)),
        What::Retry(record, attempt, at) => write!(line, "retry {} {attempt} {}", At(record), at.as_nanos()),
        What::LetterSent(record, reason, attempts) => {
            write!(line, "letter {} {} {attempts}", At(record), reason.as_str())
        }
        What::LetterAcked(record) => write!(line, "letter-acked {}", At(record)),
        What::LetterFailed(record) => write!(line, "letter-failed {}", At(record)),
        What::CommitSent(epoch, watermark, settled) => {
            write!(line, "commit {} {watermark} ", epoch.0)?;
            write_map(line, settled)
        }
        What::CommitAnswered(epoch, succeeded) => {
            write!(line, "answer {} {}", epoch.0, if *succeeded { "yes" } else { "no" })
        }
        What::MapCut(partition) => write!(line, "map-cut {}", Place(partition)),
        What::Expired => line.write_str("expired"),
        What::Paused => line.write_str("paused"),
        What::Resumed => line.write_str("resumed"),
        What::Crashed => line.write_str("crashed"),
        What::Left => line.write_str("left"),
        What::CheckerViolation(text) => write!(line, "checker {}", text.escape_default()),
    }
}

fn write_map(line: &mut String, settled: &AckMap) -> fmt::Result {
    write_list(line, settled.iter().map(|range| (*range.start(), '-', *range.end())))
}

fn write_attempts(line: &mut String, attempts: &[(Offset, u32)]) -> fmt::Result {
    write_list(line, attempts.iter().map(|(offset, failed)| (*offset, 'x', *failed)))
}

/// Pairs, with a letter between the two of each.
fn write_list(
    line: &mut String,
    pairs: impl ExactSizeIterator<Item = (Offset, char, impl fmt::Display)>,
) -> fmt::Result {
    if pairs.len() == 0 {
        return line.write_char('-');
    }
    for (index, (first, between, second)) in pairs.enumerate() {
        let comma = if index > 0 { "," } else { "" };
        write!(line, "{comma}{first}{between}{second}")?;
    }
    Ok(())
}

struct Place<'a>(&'a PartitionId);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.topic(), self.0.number())
    }
}

struct At<'a>(&'a RecordId);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Place(&self.0.partition), self.0.offset)
    }
}

/// Reads lines. It keeps the partitions that it has met, so that all records of one share its name.
#[derive(Default)]
pub(super) struct Lines {
    partitions: HashMap<String, PartitionId>,
}

impl Lines {
    /// The entry of a line, without its newline; `None` when it is none.
    pub(super) fn read(&mut self, line: &str) -> Option<(Duration, What)> {
        let (at, rest) = line.split_once(' ')?;
        let at = nanos(at)?;
        let (verb, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        if verb == "checker" {
            return Some((at, What::CheckerViolation(rest.to_owned())));
        }
        let mut words = rest.split(' ').filter(|word| !word.is_empty());
        let what = self.read_what(verb, &mut words)?;
        words.next().is_none().then_some((at, what))
    }

    fn read_what<'a>(&mut self, verb: &str, words: &mut impl Iterator<Item = &'a str>) -> Option<What> {
        Some(match verb {
            "assign" => What::Assign {
                epoch: epoch(words)?,
                partition: self.partition(words.next()?)?,
                committed: match words.next()? {
                    "-" => None,
                    committed => Some(offset(committed)?),
                },
                settled: map(words.next()?)?,
                attempts: attempts(words.next()?)?,
            },
            "delivered" => What::Delivered(epoch(words)?, number(words)?, offset(words.next()?)?),
            "hold" => What::FlowSet(epoch(words)?, Flow::Held),
            "resume" => What::FlowSet(epoch(words)?, Flow::Flowing),
            "revoke" => What::RevokeBegin(epoch(words)?),
            "release" => What::RevokeEnd(epoch(words)?),
            "lost" => What::Lost(epoch(words)?),
            "start" => What::Start {
                record: self.record(words.next()?)?,
                attempt: number(words)?,
                fingerprint: fingerprint(words.next()?)?,
            },
            "end" => {
                let (record, attempt, word) = (self.record(words.next()?)?, number(words)?, words.next()?);
                let (ended, _) = ENDS.into_iter().find(|(_, known)| *known == word)?;
                What::End(record, attempt, ended)
            }
            "kept" => What::Kept(self.record(words.next()?)?, number(words)?),
            "freed" => What::Freed(self.record(words.next()?)?, number(words)?),
            "retry" => What::Retry(self.record(words.next()?)?, number(words)?, nanos(words.next()?)?),
            "letter" => {
                let (record, word) = (self.record(words.next()?)?, words.next()?);
                let reason = REASONS.into_iter().find(|reason| reason.as_str() == word)?;
                What::LetterSent(record, reason, number(words)?)
            }
            "letter-acked" => What::LetterAcked(self.record(words.next()?)?),
            "letter-failed" => What::LetterFailed(self.record(words.next()?)?),
            "commit" => What::CommitSent(epoch(words)?, offset(words.next()?)?, map(words.next()?)?),
            "answer" => What::CommitAnswered(epoch(words)?, matches(words.next()?)?),
            "map-cut" => What::MapCut(self.partition(words.next()?)?),
            "expired" => What::Expired,
            "paused" => What::Paused,
            "resumed" => What::Resumed,
            "crashed" => What::Crashed,
            "left" => What::Left,
            _ => return None,
        })
    }

    fn partition(&mut self, text: &str) -> Option<PartitionId> {
        if let Some(known) = self.partitions.get(text) {
            return Some(known.clone());
        }
        let (topic, number) = text.split_once('/')?;
        let partition = PartitionId::new(topic, number.parse().ok()?);
        self.partitions.insert(text.to_owned(), partition.clone());
        Some(partition)
    }

    fn record(&mut self, text: &str) -> Option<RecordId> {
        let (partition, at) = text.rsplit_once('/')?;
        Some(RecordId {
            partition: self.partition(partition)?,
            offset: offset(at)?,
        })
    }
}

fn number<'a, N: std::str::FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Option<N> {
    words.next()?.parse().ok()
}

fn epoch<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<EpochNumber> {
    number(words).map(EpochNumber)
}

fn nanos(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_nanos)
}

fn offset(text: &str) -> Option<Offset> {
    let offset: i64 = text.parse().ok()?;
    (offset >= 0).then(|| Offset::new(offset))
}

/// All of its digits, so that a shorter one is known to be torn.
fn fingerprint(text: &str) -> Option<u64> {
    (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

fn matches(text: &str) -> Option<bool> {
    match text {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

fn map(text: &str) -> Option<AckMap> {
    list(text, '-', |first, last| Some(offset(first)?..=offset(last)?))
}

fn attempts(text: &str) -> Option<Vec<(Offset, u32)>> {
    list(text, 'x', |at, failed| Some((offset(at)?, failed.parse().ok()?)))
}

fn list<T>(text: &str, between: char, pair: impl Fn(&str, &str) -> Option<T>) -> Option<Vec<T>> {
    if text == "-" {
        return Some(Vec::new());
    }
    let pairs = text.split(',').map(|text| {
        let (first, second) = text.split_once(between)?;
        pair(first, second)
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each.
    fn everything() -> Vec<What> {
        let partition = PartitionId::new("chat.v1", 3);
        let record = RecordId {
            partition: partition.clone(),
            offset: Offset::new(42),
        };
        let (epoch, at) = (EpochNumber(7), Duration::from_nanos(81_234_567_890));
        let settled = vec![Offset::new(44)..=Offset::new(47), Offset::new(50)..=Offset::new(50)];
        let assign = |committed, settled, attempts| What::Assign {
            epoch,
            partition: partition.clone(),
            committed,
            settled,
            attempts,
        };
        let failed = vec![(Offset::new(42), 1), (Offset::new(48), 3)];
        let mut all = vec![
            assign(None, Vec::new(), Vec::new()),
            assign(Some(Offset::new(42)), settled.clone(), failed),
            What::Delivered(epoch, 250, Offset::new(42)),
            What::FlowSet(epoch, Flow::Held),
            What::FlowSet(epoch, Flow::Flowing),
            What::RevokeBegin(epoch),
            What::RevokeEnd(epoch),
            What::Lost(epoch),
            What::Start {
                record: record.clone(),
                attempt: 2,
                fingerprint: 0xab,
            },
            What::Kept(record.clone(), 1),
            What::Freed(record.clone(), 1),
            What::Retry(record.clone(), 1, at),
            What::LetterAcked(record.clone()),
            What::LetterFailed(record.clone()),
            What::CommitSent(epoch, Offset::new(43), Vec::new()),
            What::CommitSent(epoch, Offset::new(43), settled),
            What::CommitAnswered(epoch, true),
            What::CommitAnswered(epoch, false),
            What::MapCut(partition.clone()),
            What::Expired,
            What::Paused,
            What::Resumed,
            What::Crashed,
            What::Left,
            What::CheckerViolation("a word, and another".to_owned()),
        ];
        all.extend(ENDS.map(|(ended, _)| What::End(record.clone(), 2, ended)));
        all.extend(REASONS.map(|reason| What::LetterSent(record.clone(), reason, 3)));
        all
    }

    #[test]
    fn what_is_written_is_read() {
        let mut lines = Lines::default();
        for what in everything() {
            let (at, mut line) = (Duration::from_nanos(9_876_543_210), String::new());
            write(&mut line, at, &what);
            let line = line.strip_suffix('\n').expect("one line");
            assert_eq!(lines.read(line), Some((at, what)), "{line}");
        }
    }

    #[test]
    fn a_line_without_its_last_word_is_none() {
        let mut lines = Lines::default();
        for what in everything() {
            let mut line = String::new();
            write(&mut line, Duration::ZERO, &what);
            let cut = line.trim_end().rsplit_once(' ').expect("a time, at least").0;
            let read = lines.read(cut);
            assert!(
                read.is_none() || matches!(what, What::CheckerViolation(_)),
                "{cut}: {read:?}"
            );
        }
        for wrong in [
            "",
            "x left",
            "1 left 2",
            "1 start chat/3/42 1 9ae1",
            "1 commit 0 -4 -",
            "1 answer 0 perhaps",
        ] {
            assert_eq!(lines.read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_violation_of_several_lines_is_one_line() {
        let mut line = String::new();
        write(
            &mut line,
            Duration::ZERO,
            &What::CheckerViolation("two\nlines".to_owned()),
        );
        assert_eq!(line, "0 checker two\\nlines\n");
    }
}
