//! The oldest unsettled record of each partition, read from the log.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use seriatim_engine::record::{Offset, PartitionId};
use seriatim_kafka::config::Properties;
use seriatim_kafka::reader::{LogReader, Read, ReadError};
use seriatim_runtime::record::Record;
use seriatim_runtime::session_by::{SessionBy, SessionKeyError};

use super::standing::Standing;

/// How long nothing new may come before the rest is given up.
const PATIENCE: Duration = Duration::from_secs(10);

const POLL_WAIT: Duration = Duration::from_millis(100);

/// One record a partition is wanted, not the megabytes that a consumer fetches ahead. A record that is larger comes all
/// the same.
const FRUGAL: &[(&str, &str)] = &[("queued.min.messages", "1"), ("max.partition.fetch.bytes", "16384")];

/// What is told of a record.
pub(super) struct Oldest {
    pub(super) offset: i64,
    /// Milliseconds since the Unix epoch.
    pub(super) timestamp: Option<i64>,
    pub(super) session: Result<Vec<u8>, SessionKeyError>,
}

/// What was read.
#[derive(Default)]
pub(super) struct Found {
    pub(super) oldest: HashMap<PartitionId, Oldest>,
    /// Those of which nothing was read in time.
    pub(super) unread: HashSet<PartitionId>,
}

/// Reads the oldest unsettled record of each partition that has one; `progress` is called once for each.
///
/// # Errors
/// When a log cannot be read.
pub(super) fn read(
    brokers: &str,
    properties: &Properties,
    standings: &[Standing],
    session_by: &SessionBy,
    progress: impl Fn(),
) -> Result<Found, ReadError> {
    let mut found = Found::default();
    let starting = standings
        .iter()
        .filter_map(|standing| Some((standing, standing.first_unsettled()?)));
    let mut awaited: HashMap<PartitionId, &Standing> = HashMap::new();
    let mut starts = Vec::new();
    for (standing, start) in starting {
        starts.push((standing.partition.clone(), Offset::new(start)));
        awaited.insert(standing.partition.clone(), standing);
    }
    if starts.is_empty() {
        return Ok(found);
    }
    let mut properties = properties.clone();
    FRUGAL.iter().for_each(|(name, value)| properties.insert(name, *value));
    let mut records = LogReader::connect(brokers, None, &properties)?.read(&starts)?;
    let mut deadline = Instant::now() + PATIENCE;
    while !awaited.is_empty() && Instant::now() < deadline {
        let read = records.poll(POLL_WAIT)?;
        let partition = match &read {
            Some(Read::Record(record)) => PartitionId::new(record.topic(), record.partition()),
            Some(Read::End(partition, _)) => partition.clone(),
            Some(Read::Trouble(trouble)) => {
                tracing::warn!("{trouble}");
                continue;
            }
            None => continue,
        };
        let Some(standing) = awaited.get(&partition) else {
            continue;
        };
        deadline = Instant::now() + PATIENCE;
        match read {
            // The log has a gap where it was to be, and goes on with what is settled.
            Some(Read::Record(record)) if standing.is_settled(record.offset()) => continue,
            Some(Read::Record(record)) => {
                found.oldest.insert(partition.clone(), Oldest::of(&record, session_by));
            }
            // The rest of the log is a gap.
            _ => {}
        }
        awaited.remove(&partition);
        progress();
    }
    found.unread = awaited.into_keys().collect();
    Ok(found)
}

impl Oldest {
    fn of(record: &Record, session_by: &SessionBy) -> Self {
        Self {
            offset: record.offset(),
            timestamp: record.timestamp().millis(),
            session: session_by.key_of_record(record),
        }
    }
}
