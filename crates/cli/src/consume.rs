//! `seriatim consume`: reads topics in kcat's habits. It joins no group and commits nothing.

mod format;

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use seriatim_kafka::reader::{Extent, LogReader, LogRecords, Read, ReadError, ReadFrom};
use seriatim_runtime::record::Record;
use seriatim_runtime::session_by::SessionBy;

use self::format::Template;
use crate::connection::Connection;
use crate::exit::Exit;
use crate::json::{JsonRecord, wire_id};
use crate::logging::Verbosity;
use crate::signals::Signals;

/// How long to wait for records before it is looked whether a signal came.
const POLL_WAIT: Duration = Duration::from_millis(100);

/// How long brokers may take to answer at all.
const REACH_TIMEOUT: Duration = Duration::from_secs(5);

/// Output is written in pieces of this size, and whenever no record is there.
const OUTPUT_BYTES: usize = 64 * 1024;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Topics to read
    #[arg(required = true, value_name = "TOPIC")]
    topics: Vec<String>,

    #[command(flatten)]
    connection: Connection,

    /// Begins where this consumer group has committed; the group is not joined, and nothing is committed
    #[arg(short, long, short_alias = 'G', value_name = "GROUP")]
    group: Option<String>,

    /// Reads this partition only; say it again for more
    #[arg(short, long = "partition", value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    partitions: Vec<i32>,

    /// Where to begin: `beginning`, `end`, `stored` (with `-g`), an offset, `-N` for the last N records of each
    /// partition, `@MILLIS` for a time [default: stored with `-g`, else beginning]
    #[arg(short, long, value_name = "OFFSET", allow_hyphen_values = true, value_parser = read_from)]
    offset: Option<ReadFrom>,

    /// Ends after so many records
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Ends at the end that the partitions have at the start
    #[arg(short, long)]
    exit: bool,

    /// How a record is printed: %s value, %S its length, %k key, %K its length, %t topic, %p partition, %o offset,
    /// %T timestamp, %h headers, %%, \n, \t, \\
    #[arg(short, long, value_name = "FORMAT", default_value = r"%s\n")]
    format: Template,

    /// Prints records as JSON objects, one a line
    #[arg(short = 'J', long, conflicts_with = "format")]
    json: bool,

    /// Reads only the records of this session; exit code 4 if there is none before the end
    #[arg(long, value_name = "ID")]
    session: Option<String>,

    /// Which part of a record names its session: `key`, `header:NAME` or `json:/pointer`
    #[arg(long, value_name = "PLACE", default_value = "key")]
    session_by: SessionBy,

    #[command(flatten, next_help_heading = "Output")]
    verbosity: Verbosity,
}

/// Reads what `-o` says.
pub(crate) fn read_from(text: &str) -> Result<ReadFrom, String> {
    let number = |digits: &str| digits.parse::<i64>().ok().filter(|number| *number >= 0);
    let from = match text {
        "beginning" | "start" | "earliest" => Some(ReadFrom::Beginning),
        "end" | "latest" => Some(ReadFrom::End),
        "stored" => Some(ReadFrom::Committed),
        _ => match (text.strip_prefix('-'), text.strip_prefix('@')) {
            (Some(count), _) => number(count).map(ReadFrom::Tail),
            (_, Some(millis)) => number(millis).map(ReadFrom::Time),
            _ => number(text).map(ReadFrom::Offset),
        },
    };
    from.ok_or_else(|| "write `beginning`, `end`, `stored`, an offset, `-N` or `@MILLIS`".to_owned())
}

pub(crate) fn run(args: Args) -> anyhow::Result<Exit> {
    args.verbosity.init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exit = runtime.block_on(args.consume());
    runtime.shutdown_background();
    exit
}

impl Args {
    async fn consume(self) -> anyhow::Result<Exit> {
        let mut signals = Signals::listen()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // The client blocks, and so may standard output.
        let mut reading = tokio::task::spawn_blocking(move || self.read(&stopped));
        tokio::select! {
            read = &mut reading => return read?,
            () = signals.next() => stop.store(true, Ordering::Release),
        }
        tokio::select! {
            read = reading => read?,
            () = signals.second() => Ok(Exit::Unexpected),
        }
    }

    fn read(&self, stopped: &AtomicBool) -> anyhow::Result<Exit> {
        let properties = self.connection.properties()?;
        let from = match (self.offset, &self.group) {
            (Some(ReadFrom::Committed), None) => {
                return Err(Exit::Usage.error("`-o stored` needs the group: say `-g GROUP`"));
            }
            (Some(from), _) => from,
            (None, Some(_)) => ReadFrom::Committed,
            (None, None) => ReadFrom::Beginning,
        };
        let reader = LogReader::connect(self.connection.brokers(), self.group.as_deref(), &properties);
        let reader = reader.map_err(read_error)?;
        reader.reach(&self.topics[0], REACH_TIMEOUT).map_err(read_error)?;
        let extents = self.extents(&reader)?;
        let offsets = reader.resolve(&extents, from).map_err(read_error)?;
        let ends = Ends::beyond(
            extents
                .iter()
                .zip(&offsets)
                .map(|(extent, offset)| (extent, offset.get())),
        );
        let starts: Vec<_> = extents
            .into_iter()
            .map(|extent| extent.partition)
            .zip(offsets)
            .collect();
        let mut reading = Reading {
            args: self,
            records: reader.read(&starts).map_err(read_error)?,
            ends,
            out: BufWriter::with_capacity(OUTPUT_BYTES, io::stdout()),
            line: Vec::new(),
            printed: 0,
        };
        match reading.run(stopped) {
            // Whoever read our output has what they wanted.
            Err(error) if is_broken_pipe(&error) => Ok(Exit::Fine),
            Err(error) => Err(error),
            Ok(()) if self.session.is_some() && self.exit && reading.printed == 0 => Ok(Exit::NothingMatched),
            Ok(()) => Ok(Exit::Fine),
        }
    }

    /// The partitions to read.
    fn extents(&self, reader: &LogReader) -> anyhow::Result<Vec<Extent>> {
        let mut wanted = Vec::new();
        for topic in &self.topics {
            let all = reader.extents(topic).map_err(read_error)?;
            if self.partitions.is_empty() {
                wanted.extend(all);
                continue;
            }
            for number in &self.partitions {
                let found = all.iter().find(|extent| extent.partition.number() == *number);
                wanted.push(
                    found.cloned().ok_or_else(|| {
                        anyhow::anyhow!("topic {topic} has no partition {number}; it has {}", all.len())
                    })?,
                );
            }
        }
        Ok(wanted)
    }
}

/// An error of the reader, with its exit code.
pub(crate) fn read_error(error: ReadError) -> anyhow::Error {
    match error {
        ReadError::Config(error) => Exit::BadConfiguration.caused(error.into()),
        ReadError::Unreachable { .. } => Exit::Unreachable.error(error.to_string()),
        other => other.into(),
    }
}

/// As [`read_error`], where a topic that is not there is nothing to find.
pub(crate) fn topic_error(error: ReadError) -> anyhow::Error {
    match error {
        ReadError::UnknownTopic { .. } => Exit::NothingMatched.error(error.to_string()),
        other => read_error(other),
    }
}

/// Whether nobody reads our output any more.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::BrokenPipe)
}

/// The ends, as they were at the start, of partitions that are not read to there yet.
struct Ends(HashMap<String, HashMap<i32, i64>>);

impl Ends {
    fn beyond<'a>(starts: impl Iterator<Item = (&'a Extent, i64)>) -> Self {
        let mut ends: HashMap<String, HashMap<i32, i64>> = HashMap::new();
        for (extent, _) in starts.filter(|(extent, start)| *start < extent.offsets.end) {
            let topic = ends.entry(extent.partition.topic().to_owned()).or_default();
            topic.insert(extent.partition.number(), extent.offsets.end);
        }
        Self(ends)
    }

    fn are_reached(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes notice that everything before `next` was read. Returns whether the partition's end was still ahead.
    fn pass(&mut self, topic: &str, partition: i32, next: i64) -> bool {
        let Some(partitions) = self.0.get_mut(topic) else {
            return false;
        };
        let Some(end) = partitions.get(&partition).copied() else {
            return false;
        };
        if next >= end {
            partitions.remove(&partition);
            if partitions.is_empty() {
                self.0.remove(topic);
            }
        }
        true
    }
}

/// Records on their way to standard output.
struct Reading<'a> {
    args: &'a Args,
    records: LogRecords,
    ends: Ends,
    out: BufWriter<io::Stdout>,
    line: Vec<u8>,
    printed: u64,
}

impl Reading<'_> {
    fn run(&mut self, stopped: &AtomicBool) -> anyhow::Result<()> {
        while !self.is_done() && !stopped.load(Ordering::Acquire) {
            let mut read = self.records.poll(Duration::ZERO)?;
            if read.is_none() {
                // Nothing is there: whoever waits for what was printed gets it now.
                self.out.flush()?;
                read = self.records.poll(POLL_WAIT)?;
            }
            match read {
                None => {}
                Some(Read::Record(record)) => self.take(&record)?,
                Some(Read::End(partition, _)) => {
                    self.ends.pass(partition.topic(), partition.number(), i64::MAX);
                }
                Some(Read::Trouble(trouble)) => tracing::warn!("{trouble}"),
            }
        }
        self.out.flush()?;
        Ok(())
    }

    fn is_done(&self) -> bool {
        let counted = self.args.count.is_some_and(|count| self.printed >= count);
        counted || (self.args.exit && self.ends.are_reached())
    }

    fn take(&mut self, record: &Record) -> anyhow::Result<()> {
        if self.args.exit && !self.ends.pass(record.topic(), record.partition(), record.offset() + 1) {
            // Written since the start.
            return Ok(());
        }
        let session = match (&self.args.session, self.args.json) {
            (None, false) => None,
            _ => self.args.session_by.key_of_record(record).ok(),
        };
        if let Some(wanted) = &self.args.session
            && session.as_deref() != Some(wanted.as_bytes())
        {
            return Ok(());
        }
        if self.args.json {
            self.line.clear();
            JsonRecord::new(&wire_id(record), record, session.as_deref(), None).write_line(&mut self.line);
            self.out.write_all(&self.line)?;
        } else {
            self.args.format.write(record, &mut self.out)?;
        }
        self.printed += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_kcats() {
        assert_eq!(read_from("beginning"), Ok(ReadFrom::Beginning));
        assert_eq!(read_from("start"), Ok(ReadFrom::Beginning));
        assert_eq!(read_from("end"), Ok(ReadFrom::End));
        assert_eq!(read_from("stored"), Ok(ReadFrom::Committed));
        assert_eq!(read_from("42"), Ok(ReadFrom::Offset(42)));
        assert_eq!(read_from("-5"), Ok(ReadFrom::Tail(5)));
        assert_eq!(read_from("@1764417600000"), Ok(ReadFrom::Time(1_764_417_600_000)));
        for wrong in ["", "-", "@", "--5", "@-1", "now"] {
            assert!(read_from(wrong).is_err(), "{wrong}");
        }
    }
}
