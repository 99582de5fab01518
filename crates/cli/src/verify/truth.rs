//! What lies in Kafka: the records, what the group has committed, the dead letters.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use seriatim_engine::ack_map;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_kafka::config::Properties;
use seriatim_kafka::dead_letters::{TOPIC_PATTERN, header as letter_header};
use seriatim_kafka::reader::{Extent, LogReader, Read, ReadError};
use seriatim_runtime::record::Record;
use seriatim_runtime::session_by::SessionBy;
use seriatim_testkit::history::merge::Merged;
use seriatim_testkit::history::recording::Header;
use seriatim_testkit::history::{AckMap, What};
use seriatim_testkit::judge::Truth;

use super::read_error;
use crate::exit::Exit;

/// How long a log may deliver nothing while its end is not reached: more than a change of leaders takes.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How long to wait for a record before the silence is looked at.
const POLL_WAIT: Duration = Duration::from_millis(100);

/// How long the first answer may take.
const REACH_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a topic is not the one that was recorded.
#[derive(Debug, thiserror::Error)]
enum Changed {
    #[error("topic {} has no partition {} (any more), and a recording tells of it", .0.topic(), .0.number())]
    NoPartition(PartitionId),
    #[error("{partition} begins at {begin} now, and offset {handled} was handled: what was deleted cannot be judged")]
    Deleted {
        partition: PartitionId,
        begin: i64,
        handled: Offset,
    },
    #[error("{partition} ends at {end}, and offset {handled} was handled: the topic is another, or was truncated")]
    Truncated {
        partition: PartitionId,
        end: i64,
        handled: Offset,
    },
}

/// Where the topics and the group are.
pub(super) struct Cluster<'a> {
    brokers: &'a str,
    properties: &'a Properties,
    header: Header,
    session_by: SessionBy,
}

/// What the group has on record: the offsets, and the ack maps beside them.
pub(super) type Commits = HashMap<PartitionId, (Offset, AckMap)>;

impl<'a> Cluster<'a> {
    /// The cluster that was recorded.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub(super) fn new(brokers: &'a str, properties: &'a Properties, merged: &Merged) -> anyhow::Result<Self> {
        let header = merged.instances[0].header.clone();
        let cluster = Self {
            brokers,
            properties,
            session_by: header.session_by.parse()?,
            header,
        };
        let topic = &cluster.header.topics[0];
        cluster.reader()?.reach(topic, REACH_TIMEOUT).map_err(read_error)?;
        Ok(cluster)
    }

    fn reader(&self) -> anyhow::Result<LogReader> {
        LogReader::connect(self.brokers, Some(&self.header.group), self.properties).map_err(read_error)
    }

    /// What the group has committed.
    pub(super) fn commits(&self) -> anyhow::Result<Commits> {
        let reader = self.reader()?;
        let extents = self.extents(&reader)?;
        let committed = reader.committed(&extents).map_err(read_error)?;
        let on_record = extents.into_iter().zip(committed).filter_map(|(extent, committed)| {
            let (offset, text) = committed?;
            let end = Some(Offset::new(extent.offsets.end));
            // What nobody would believe is no ack map.
            let settled = ack_map::decode(&text, offset, end).unwrap_or_default();
            Some((extent.partition, (offset, settled)))
        });
        Ok(on_record.collect())
    }

    /// What the recordings are to be judged against.
    pub(super) fn truth(&self, merged: &Merged, commits: &Commits) -> anyhow::Result<Truth> {
        let reader = self.reader()?;
        let extents = self.extents(&reader)?;
        let handled = Handled::of(merged);
        handled.look_for_change(&extents)?;
        let mut truth = Truth::default();
        for Extent { partition, offsets } in &extents {
            let (committed, settled) = commits.get(partition).cloned().unzip();
            truth.add_partition(partition.clone(), offsets.end, committed, settled.unwrap_or_default());
        }
        let wanted = extents.into_iter().map(|extent| handled.wanted(extent));
        for_each(reader, wanted.collect(), |record| {
            truth.add_record(record, &self.session_by);
        })?;
        if self.header.keyless_are_a_session {
            truth.keyless_are_partition_sessions();
        }
        self.add_letters(&mut truth)?;
        Ok(truth)
    }

    fn extents(&self, reader: &LogReader) -> anyhow::Result<Vec<Extent>> {
        let mut extents = Vec::new();
        for topic in &self.header.topics {
            extents.extend(reader.extents(topic).map_err(read_error)?);
        }
        Ok(extents)
    }

    fn add_letters(&self, truth: &mut Truth) -> anyhow::Result<()> {
        let group = Some(self.header.group.as_bytes());
        for topic in &self.header.topics {
            let reader = self.reader()?;
            let extents = match reader.extents(&TOPIC_PATTERN.replace("{topic}", topic)) {
                // Nothing was dead-lettered, or all that was waits for its topic.
                Err(ReadError::UnknownTopic { .. }) => continue,
                extents => extents.map_err(read_error)?,
            };
            for_each(reader, extents, |letter| {
                if letter.header(letter_header::ORIGINAL_CONSUMER_GROUP) == group {
                    truth.add_letter(letter);
                }
            })?;
        }
        Ok(())
    }
}

/// The offsets of each partition that the recordings tell of.
struct Handled(BTreeMap<PartitionId, Told>);

#[derive(Default)]
struct Told {
    /// From the first to the last that was started.
    started: Option<RangeInclusive<Offset>>,
    /// The lowest from which a period began.
    from: Option<Offset>,
}

impl Handled {
    fn of(merged: &Merged) -> Self {
        let mut handled = Self(BTreeMap::new());
        for entry in &merged.entries {
            match &entry.what {
                What::Assign {
                    partition, committed, ..
                } => {
                    let told = handled.0.entry(partition.clone()).or_default();
                    let from = committed.unwrap_or(Offset::ZERO);
                    told.from = Some(told.from.map_or(from, |lowest| lowest.min(from)));
                }
                What::Start { record, .. } => {
                    let started = &mut handled.0.entry(record.partition.clone()).or_default().started;
                    *started = Some(match started.take() {
                        None => record.offset..=record.offset,
                        Some(range) => record.offset.min(*range.start())..=record.offset.max(*range.end()),
                    });
                }
                _ => {}
            }
        }
        handled
    }

    /// Whether the logs are those that were recorded.
    fn look_for_change(&self, extents: &[Extent]) -> Result<(), anyhow::Error> {
        for (partition, told) in &self.0 {
            let extent = extents.iter().find(|extent| extent.partition == *partition);
            let Some(Extent { offsets, .. }) = extent else {
                return Err(Changed::NoPartition(partition.clone()).into());
            };
            let partition = || partition.clone();
            match &told.started {
                Some(started) if started.start().get() < offsets.start => {
                    return Err(Changed::Deleted {
                        partition: partition(),
                        begin: offsets.start,
                        handled: *started.start(),
                    }
                    .into());
                }
                Some(started) if started.end().get() >= offsets.end => {
                    return Err(Changed::Truncated {
                        partition: partition(),
                        end: offsets.end,
                        handled: *started.end(),
                    }
                    .into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What of a log is to be read: what the recordings tell of, and what lies behind it.
    fn wanted(&self, extent: Extent) -> Extent {
        let Extent { partition, offsets } = extent;
        let told = self.0.get(&partition);
        let started = told.and_then(|told| Some(*told.started.as_ref()?.start()));
        // A partition that nobody owned was not handled at all.
        let from = told.and_then(|told| told.from).into_iter().chain(started).min();
        let from = from.map_or(offsets.start, |from| from.get().clamp(offsets.start, offsets.end));
        Extent {
            partition,
            offsets: from..offsets.end,
        }
    }
}

/// Reads the records of these extents, each partition's in order.
fn for_each(reader: LogReader, extents: Vec<Extent>, mut take: impl FnMut(&Record)) -> anyhow::Result<()> {
    let full = extents.iter().filter(|extent| !extent.offsets.is_empty());
    let starts: Vec<_> = full
        .clone()
        .map(|extent| (extent.partition.clone(), Offset::new(extent.offsets.start)))
        .collect();
    let mut ends: HashMap<PartitionId, i64> = full
        .map(|extent| (extent.partition.clone(), extent.offsets.end))
        .collect();
    if starts.is_empty() {
        return Ok(());
    }
    let mut records = reader.read(&starts).map_err(read_error)?;
    let mut heard_at = Instant::now();
    while !ends.is_empty() {
        match records.poll(POLL_WAIT).map_err(read_error)? {
            Some(Read::Record(record)) => {
                heard_at = Instant::now();
                let partition = record.id().partition;
                // Behind the end lies what was written since.
                let Some(end) = ends.get(&partition).copied().filter(|end| record.offset() < *end) else {
                    ends.remove(&partition);
                    continue;
                };
                take(&record);
                if record.offset() + 1 == end {
                    ends.remove(&partition);
                }
            }
            Some(Read::End(partition, _)) => drop(ends.remove(&partition)),
            Some(Read::Trouble(trouble)) => tracing::warn!("{trouble}"),
            None if heard_at.elapsed() > SILENCE_MAX => {
                let silent = ends.keys().min().expect("one is left");
                return Err(Exit::Unreachable.error(format!("nothing was read of {silent} for {SILENCE_MAX:?}")));
            }
            None => {}
        }
    }
    Ok(())
}
