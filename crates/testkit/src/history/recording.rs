//! A history in a file: what one process did, written as it happens, and read when it is to be judged.
//!
//! A recording is lines of text. The first is a [`Header`], as JSON; each further one is an entry, whose form `line.rs`
//! tells. It is made to be trusted after a crash:
//!
//! - An entry is one write at the end of the file. A process that is killed loses at most the entry that it was about to
//!   write, and tears none before it; a torn last line is passed over by [`read`].
//! - Time is that of the machine's monotonic clock, which all of its processes share.
//! - A process that is started again goes on in the same file, with a header of its own.
//!
//! It holds no session key and no payload. Records are named by their places; what a handler was given is a 64-bit
//! [`fingerprint`](super::fingerprint), by which somebody who guesses a payload can find the guess confirmed, and no more.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::line::{self, Lines};
use super::{EpochNumber, What};
use crate::judge::Rules;

/// The version of the form that is written.
const VERSION: u32 = 1;

/// Ends a line that was found torn when the file was written on.
const TORN: &str = "!torn";

/// What a recording says of the process that wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the form.
    #[serde(rename = "seriatim_recording")]
    version: u32,
    /// The process: its host and its number there.
    pub instance: String,
    /// The consumer group.
    pub group: String,
    /// The topics, sorted.
    pub topics: Vec<String>,
    /// Which part of a record names its session, as `--session-by` takes it.
    pub session_by: String,
    /// Whether the records of a partition that have no session key are a session.
    pub keyless_are_a_session: bool,
    /// Whether a partition for which nothing is committed begins at its log's end.
    pub begins_at_end: bool,
    /// The limits that were configured.
    pub limits: Limits,
    /// When it began.
    pub clock: Clock,
}

/// The limits of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Attempts of a record.
    pub attempts_max: u32,
    /// Handlers that run at a time.
    pub in_flight_max: usize,
    /// Unsettled records, with what one poll may bring beyond.
    pub unsettled_max: usize,
    /// Unsettled records of one partition, with what one poll may bring beyond.
    pub partition_unsettled_max: usize,
    /// How long a drain may take, in milliseconds.
    pub drain_max_ms: u64,
    /// Records that all workers together start without a look at the clock. Nothing in recordings of older versions.
    #[serde(default)]
    pub starts_per_look: usize,
}

/// The moment at which a process began, on both of its clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// Which start of which machine the monotonic clock counts from; empty where the system does not tell.
    pub boot: String,
    /// Its time, in nanoseconds.
    pub monotonic_ns: u64,
    /// The time of the wall, in nanoseconds since the Unix epoch: for people, and for nothing else.
    pub unix_ns: u64,
}

/// What a process consumes, for its [`Header`].
#[derive(Clone, Debug)]
pub struct Consumes {
    /// The consumer group.
    pub group: String,
    /// The topics.
    pub topics: Vec<String>,
    /// Which part of a record names its session, as `--session-by` takes it.
    pub session_by: String,
    /// Whether the records of a partition that have no session key are a session.
    pub keyless_are_a_session: bool,
    /// Whether a partition for which nothing is committed begins at its log's end.
    pub begins_at_end: bool,
    /// The limits that are configured.
    pub limits: Limits,
}

impl Header {
    /// The header of this process, which begins now.
    pub fn now(consumes: Consumes) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let mut topics = consumes.topics;
        topics.sort();
        topics.dedup();
        Self {
            version: VERSION,
            instance: format!("{}:{}", host.trim(), std::process::id()),
            group: consumes.group,
            topics,
            session_by: consumes.session_by,
            keyless_are_a_session: consumes.keyless_are_a_session,
            begins_at_end: consumes.begins_at_end,
            limits: consumes.limits,
            clock: Clock::now(),
        }
    }
}

impl Limits {
    /// The rules to judge by, if these are the limits.
    pub fn rules(&self) -> Rules {
        Rules {
            attempts_max: self.attempts_max,
            in_flight_max: self.in_flight_max,
            unsettled_max: self.unsettled_max,
            partition_unsettled_max: self.partition_unsettled_max,
            drain_max: Duration::from_millis(self.drain_max_ms),
            starts_per_look: self.starts_per_look,
            ..Rules::default()
        }
    }

    /// The looser of two limits each.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            attempts_max: self.attempts_max.max(other.attempts_max),
            in_flight_max: self.in_flight_max.max(other.in_flight_max),
            unsettled_max: self.unsettled_max.max(other.unsettled_max),
            partition_unsettled_max: self.partition_unsettled_max.max(other.partition_unsettled_max),
            drain_max_ms: self.drain_max_ms.max(other.drain_max_ms),
            starts_per_look: self.starts_per_look.max(other.starts_per_look),
        }
    }
}

impl Clock {
    /// This moment, on this machine.
    pub fn now() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let unix = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self {
            boot: boot.trim().to_owned(),
            monotonic_ns: monotonic().as_nanos() as u64,
            unix_ns: unix.as_nanos() as u64,
        }
    }
}

/// The time of the clock that all processes of the machine share, and that nobody sets.
pub(super) fn monotonic() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Writes a recording.
pub struct Recorder {
    file: File,
    line: String,
    /// Whom to tell that no more is written; `None` when that is so.
    failed: Option<Failed>,
    watch: Option<Watch>,
}

/// Is told why a recording ends before its process does.
type Failed = Box<dyn FnOnce(io::Error) + Send>;

/// Is told of each entry that is written.
type Watch = Box<dyn FnMut(&What) + Send>;

impl Recorder {
    /// Begins a recording in `file`, behind what it holds. When a write fails, as on a full disk, `failed` is told, and
    /// nothing more is written: the process goes on.
    ///
    /// # Errors
    /// When the file cannot be opened or written, or when another process records into it.
    pub fn append(file: &Path, header: &Header, failed: impl FnOnce(io::Error) + Send + 'static) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(file)?;
        // Released by the system with the process, however it ends.
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| io::Error::other("another process records into it; give each a file of its own"))?;
        if is_torn(&mut file)? {
            file.write_all(format!("{TORN}\n").as_bytes())?;
        }
        let mut line = serde_json::to_string(header)?;
        line.push('\n');
        file.write_all(line.as_bytes())?;
        Ok(Self {
            file,
            line,
            failed: Some(Box::new(failed)),
            watch: None,
        })
    }

    /// Tells `watch` of each entry when it is in the file, and before another can be. A process that ends itself there dies
    /// between two steps of its work, and the entry is the last of its recording.
    pub fn watched(mut self, watch: impl FnMut(&What) + Send + 'static) -> Self {
        self.watch = Some(Box::new(watch));
        self
    }

    pub(super) fn write(&mut self, at: Duration, what: &What) {
        if self.failed.is_none() {
            return;
        }
        self.line.clear();
        line::write(&mut self.line, at, what);
        if let Err(error) = self.file.write_all(self.line.as_bytes()) {
            return self.failed.take().expect("looked at above")(error);
        }
        if *what == What::Left {
            self.failed = None;
        }
        if let Some(watch) = &mut self.watch {
            watch(what);
        }
    }
}

/// Whether the file ends within a line: its last writer was killed.
fn is_torn(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// What one process wrote.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The file.
    pub file: PathBuf,
    /// What it says of its process.
    pub header: Header,
    /// What happened, in order. Periods of ownership are numbered as in the recording.
    pub entries: Vec<(Duration, What)>,
}

impl Recording {
    /// The recording as it was at this moment, if it is of the same machine: what is still written to may else tell of the
    /// effects of what was not yet written when another recording was read.
    pub fn up_to(mut self, moment: &Clock) -> Self {
        if self.header.clock.boot == moment.boot {
            let moment = Duration::from_nanos(moment.monotonic_ns);
            let whole = self.entries.partition_point(|(at, _)| *at <= moment);
            self.entries.truncate(whole);
        }
        self
    }
}

/// Why a recording cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file cannot be read.
    #[error("{} cannot be read", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The operating system's word on it.
        source: io::Error,
    },
    /// The file is something else.
    #[error("{} is no recording: it does not begin with the header that `run --record` writes", .file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
    },
    /// A later version wrote it.
    #[error("{} is a recording of version {version}, and this program reads version {VERSION}", .file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// The version that it says.
        version: u32,
    },
    /// A line in its middle is not what was written there.
    #[error("{} is damaged in line {line}: {reason}", .file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// Reads the recordings of all processes that wrote into `file`, one after another. What a killed process has left of its
/// last line is passed over; a file that holds nothing holds no recording.
///
/// # Errors
/// When it cannot be read, is no recording, or is damaged in its middle.
pub fn read(file: &Path) -> Result<Vec<Recording>, RecordingError> {
    let unreadable = |source| RecordingError::Unreadable {
        file: file.to_owned(),
        source,
    };
    let mut input = BufReader::new(File::open(file).map_err(unreadable)?);
    let mut reading = Reading {
        file,
        number: 0,
        lines: Lines::default(),
        epochs: 0,
        over: true,
        recordings: Vec::new(),
    };
    let mut line = Vec::new();
    loop {
        line.clear();
        input.read_until(b'\n', &mut line).map_err(unreadable)?;
        // Without its newline it is torn, or there is nothing left.
        let Some(whole) = line.strip_suffix(b"\n") else {
            return Ok(reading.recordings);
        };
        reading.take(whole)?;
    }
}

struct Reading<'a> {
    file: &'a Path,
    number: usize,
    lines: Lines,
    /// Periods of ownership so far in this recording.
    epochs: usize,
    /// Whether only another header may follow.
    over: bool,
    recordings: Vec<Recording>,
}

impl Reading<'_> {
    fn take(&mut self, line: &[u8]) -> Result<(), RecordingError> {
        self.number += 1;
        let Ok(line) = std::str::from_utf8(line) else {
            return Err(self.wrong("it is no text"));
        };
        if line.starts_with('{') && !line.ends_with(TORN) {
            return self.begin(line);
        }
        if line.ends_with(TORN) {
            self.over = true;
            return Ok(());
        }
        if self.over {
            return Err(self.wrong("a header should stand there"));
        }
        let Some((at, what)) = self.lines.read(line) else {
            return Err(self.wrong("it is no entry"));
        };
        self.check(at, &what)?;
        self.over = what == What::Left;
        let recording = self.recordings.last_mut().expect("it is not over");
        recording.entries.push((at, what));
        Ok(())
    }

    fn begin(&mut self, line: &str) -> Result<(), RecordingError> {
        #[derive(Deserialize)]
        struct Version {
            seriatim_recording: u32,
        }
        match serde_json::from_str(line) {
            Ok(Version {
                seriatim_recording: VERSION,
            }) => {}
            Ok(Version {
                seriatim_recording: version,
            }) => {
                return Err(RecordingError::Version {
                    file: self.file.to_owned(),
                    version,
                });
            }
            Err(_) => return Err(self.wrong("it is no header")),
        }
        let header = serde_json::from_str(line).map_err(|_| self.wrong("it is no header"))?;
        self.recordings.push(Recording {
            file: self.file.to_owned(),
            header,
            entries: Vec::new(),
        });
        (self.epochs, self.over) = (0, false);
        Ok(())
    }

    /// That the entry fits those before it: the judge relies on it.
    fn check(&mut self, at: Duration, what: &What) -> Result<(), RecordingError> {
        let last = self.recordings.last().and_then(|recording| recording.entries.last());
        if last.is_some_and(|(before, _)| *before > at) {
            return Err(self.wrong("its time is before that of the line above"));
        }
        match what {
            What::Assign {
                epoch: EpochNumber(number),
                ..
            } => {
                if *number != self.epochs {
                    return Err(self.wrong("periods of ownership are missing before it"));
                }
                self.epochs += 1;
            }
            other if other.epoch().is_some_and(|epoch| epoch.0 >= self.epochs) => {
                return Err(self.wrong("it tells of a period of ownership that has not begun"));
            }
            _ => {}
        }
        Ok(())
    }

    fn wrong(&self, reason: &'static str) -> RecordingError {
        let file = self.file.to_owned();
        match self.number {
            1 => RecordingError::Foreign { file },
            line => RecordingError::Damaged { file, line, reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn when_nothing_can_be_written_any_more_it_is_told_once() {
        let (told, telling) = sync_channel(2);
        let mut recorder = Recorder {
            // Opened to be read.
            file: File::open("/dev/null").unwrap(),
            line: String::new(),
            failed: Some(Box::new(move |error| told.send(error).unwrap())),
            watch: None,
        };
        recorder.write(Duration::ZERO, &What::Paused);
        recorder.write(Duration::ZERO, &What::Left);
        assert_eq!(telling.iter().count(), 1);
    }
}
