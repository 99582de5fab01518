//! What happened, as seen from outside: the history that the [judge](crate::judge) judges.
//!
//! A history is written at the ports. [`Traced`] stands before a source, [`TracedLetters`] before the dead letters,
//! [`TracedHandler`] before the handler, and [`TracedObserver`] listens; none of them looks into the engine. So the
//! same history can be taken in the simulator, on real threads, and on a real broker. It is kept in memory, or in a file
//! of each process: a [`recording`], several of which [`merge`] makes one history again.

mod line;
mod traced;

pub mod merge;
pub mod recording;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use seriatim_engine::budget::Flow;
use seriatim_engine::record::{Offset, PartitionId, RecordId};
use seriatim_runtime::ports::DeadLetterReason;

use recording::Recorder;
pub use traced::{Traced, TracedBackend, TracedHandler, TracedLetters, TracedObserver, fingerprint};

/// A period of ownership, numbered over all instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EpochNumber(pub usize);

/// The offsets above a commit's watermark that are said to be settled, gaps among them: ranges of first and last.
pub type AckMap = Vec<RangeInclusive<Offset>>;

/// One thing that happened.
#[derive(Clone, Debug)]
pub struct Entry {
    /// When, since the history began.
    pub at: Duration,
    /// In which instance.
    pub instance: u32,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Delivery of a partition begins, from what is committed.
    Assign {
        /// The period of ownership that begins.
        epoch: EpochNumber,
        /// The partition.
        partition: PartitionId,
        /// The committed offset that the group told.
        committed: Option<Offset>,
        /// The ack map beside it.
        settled: AckMap,
        /// How often the oldest failing records have failed, as told beside it.
        attempts: Vec<(Offset, u32)>,
    },
    /// So many records were delivered, from this offset on.
    Delivered(EpochNumber, usize, Offset),
    /// Delivery was held or resumed.
    FlowSet(EpochNumber, Flow),
    /// The group wants the partition back.
    RevokeBegin(EpochNumber),
    /// The partition was given back.
    RevokeEnd(EpochNumber),
    /// The instance learned that the partition is another's.
    Lost(EpochNumber),
    /// A handler was called.
    Start {
        /// The record.
        record: RecordId,
        /// The attempt, from 1.
        attempt: u32,
        /// The [`fingerprint`] of what the handler was given.
        fingerprint: u64,
    },
    /// A handler's future returned, or was dropped.
    End(RecordId, u32, Ended),
    /// The attempt has given its context to work that may outlive it.
    Kept(RecordId, u32),
    /// That work is over.
    Freed(RecordId, u32),
    /// The attempt failed, and the next one is not to start before this time.
    Retry(RecordId, u32, Duration),
    /// A dead letter was handed over.
    LetterSent(RecordId, DeadLetterReason, u32),
    /// Its write was acknowledged.
    LetterAcked(RecordId),
    /// Its write failed, as far as is known.
    LetterFailed(RecordId),
    /// A commit was sent, with an ack map.
    CommitSent(EpochNumber, Offset, AckMap),
    /// Its answer came, or its failure: whether the group is known to have it.
    CommitAnswered(EpochNumber, bool),
    /// The next commit of this partition had no room for all that is settled above its watermark.
    MapCut(PartitionId),
    /// The group has dropped the instance, which need not know.
    Expired,
    /// The instance stands still.
    Paused,
    /// It goes on.
    Resumed,
    /// The instance is gone at once.
    Crashed,
    /// The instance has ended by itself, and writes nothing more.
    Left,
    /// The instance's own order checker reported this.
    CheckerViolation(String),
}

/// How a handler's future ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With `Ok`.
    Handled,
    /// With a transient failure.
    Transient,
    /// With a permanent failure.
    Permanent,
    /// With a panic.
    Panicked,
    /// It was dropped.
    Cancelled,
}

/// Writes a history. Clones write the same one.
#[derive(Clone)]
pub struct History {
    written: Arc<Mutex<Written>>,
    clock: Arc<dyn Fn() -> Duration + Send + Sync>,
}

struct Written {
    sink: Sink,
    epochs: usize,
}

/// Where entries go.
enum Sink {
    Memory(Vec<Entry>),
    File(Recorder),
}

impl History {
    /// A history in memory and on real time, which begins now.
    pub fn new() -> Self {
        let began = Instant::now();
        Self::on_clock(move || began.elapsed())
    }

    /// A history in memory, on a clock of the caller's.
    pub fn on_clock(clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self::to(Sink::Memory(Vec::new()), clock)
    }

    /// A history that goes into a file, on the clock that all processes of a machine share. A file has one instance, so
    /// the numbers of instances are not written.
    pub fn recorded(recorder: Recorder) -> Self {
        Self::to(Sink::File(recorder), recording::monotonic)
    }

    fn to(sink: Sink, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self {
            written: Arc::new(Mutex::new(Written { sink, epochs: 0 })),
            clock: Arc::new(clock),
        }
    }

    /// Appends an entry. The order of appends is the order of what happened, and time never falls along it.
    pub fn note(&self, instance: u32, what: What) {
        let mut written = self.written();
        let at = (self.clock)();
        match &mut written.sink {
            Sink::Memory(entries) => entries.push(Entry { at, instance, what }),
            Sink::File(recorder) => recorder.write(at, &what),
        }
    }

    /// All entries so far; none of a history that goes into a file.
    pub fn entries(&self) -> Vec<Entry> {
        match &self.written().sink {
            Sink::Memory(entries) => entries.clone(),
            Sink::File(_) => Vec::new(),
        }
    }

    fn now(&self) -> Duration {
        (self.clock)()
    }

    fn next_epoch(&self) -> EpochNumber {
        let mut written = self.written();
        written.epochs += 1;
        EpochNumber(written.epochs - 1)
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl What {
    /// The record that it is about, if it is about one.
    pub fn record(&self) -> Option<&RecordId> {
        match self {
            What::Start { record, .. }
            | What::End(record, ..)
            | What::Kept(record, _)
            | What::Freed(record, _)
            | What::Retry(record, ..)
            | What::LetterSent(record, ..)
            | What::LetterAcked(record)
            | What::LetterFailed(record) => Some(record),
            _ => None,
        }
    }

    /// The period of ownership that it is about, if it is about one.
    pub fn epoch(&self) -> Option<EpochNumber> {
        match self {
            What::Assign { epoch, .. }
            | What::Delivered(epoch, ..)
            | What::FlowSet(epoch, _)
            | What::RevokeBegin(epoch)
            | What::RevokeEnd(epoch)
            | What::Lost(epoch)
            | What::CommitSent(epoch, ..)
            | What::CommitAnswered(epoch, _) => Some(*epoch),
            _ => None,
        }
    }
}

impl What {
    fn epoch_mut(&mut self) -> Option<&mut EpochNumber> {
        match self {
            What::Assign { epoch, .. }
            | What::Delivered(epoch, ..)
            | What::FlowSet(epoch, _)
            | What::RevokeBegin(epoch)
            | What::RevokeEnd(epoch)
            | What::Lost(epoch)
            | What::CommitSent(epoch, ..)
            | What::CommitAnswered(epoch, _) => Some(epoch),
            _ => None,
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.at.as_secs_f64();
        write!(f, "{seconds:>10.6} s  #{}  {}", self.instance, self.what)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Assign {
                epoch,
                partition,
                committed,
                settled,
                attempts,
            } => match committed {
                Some(offset) => {
                    write!(f, "{epoch} of {partition} begins at {offset}{}", above(settled))?;
                    let mut failed = attempts.iter();
                    failed.try_for_each(|(offset, times)| write!(f, ", {offset} failed {times} times"))
                }
                None => write!(f, "{epoch} of {partition} begins, nothing committed"),
            },
            What::Delivered(epoch, records, from) => write!(f, "{epoch}: {records} records delivered from {from} on"),
            What::FlowSet(epoch, flow) => write!(f, "{epoch}: {flow:?}"),
            What::RevokeBegin(epoch) => write!(f, "{epoch}: revoked"),
            What::RevokeEnd(epoch) => write!(f, "{epoch}: given back"),
            What::Lost(epoch) => write!(f, "{epoch}: lost"),
            What::Start { record, attempt, .. } => write!(f, "{record} starts, attempt {attempt}"),
            What::End(record, attempt, ended) => write!(f, "{record} ends, attempt {attempt}: {ended:?}"),
            What::Kept(record, attempt) => write!(f, "{record} leaves work behind, attempt {attempt}"),
            What::Freed(record, attempt) => write!(f, "{record}: that work is over, attempt {attempt}"),
            What::Retry(record, attempt, at) => {
                write!(
                    f,
                    "{record} will retry after attempt {attempt}, not before {:.6} s",
                    at.as_secs_f64()
                )
            }
            What::LetterSent(record, reason, attempts) => {
                write!(
                    f,
                    "{record}: dead letter sent ({}, {attempts} attempts)",
                    reason.as_str()
                )
            }
            What::LetterAcked(record) => write!(f, "{record}: dead letter acknowledged"),
            What::LetterFailed(record) => write!(f, "{record}: dead letter failed"),
            What::CommitSent(epoch, watermark, settled) => {
                write!(f, "{epoch}: commit of {watermark}{} sent", above(settled))
            }
            What::CommitAnswered(epoch, true) => write!(f, "{epoch}: commit acknowledged"),
            What::CommitAnswered(epoch, false) => write!(f, "{epoch}: commit failed"),
            What::MapCut(partition) => write!(f, "the ack map of {partition} has no room for all"),
            What::Expired => f.write_str("its session has expired"),
            What::Paused => f.write_str("stands still"),
            What::Resumed => f.write_str("goes on"),
            What::Crashed => f.write_str("has crashed"),
            What::Left => f.write_str("has ended"),
            What::CheckerViolation(text) => write!(f, "its own checker says: {text}"),
        }
    }
}

/// An ack map in words.
pub(crate) fn above(settled: &AckMap) -> String {
    let ranges = settled.iter().map(|range| match range.start() == range.end() {
        true => range.start().to_string(),
        false => format!("{}-{}", range.start(), range.end()),
    });
    let ranges = ranges.collect::<Vec<_>>().join(" ");
    if ranges.is_empty() {
        ranges
    } else {
        format!(" (and {ranges})")
    }
}

impl fmt::Display for EpochNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}", self.0)
    }
}
