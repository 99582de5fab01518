//! The ground truth: what lies in the log when all is over, read apart from the history.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Range, RangeInclusive};

use seriatim_engine::record::{Offset, PartitionId, RecordId};
use seriatim_runtime::record::Record;
use seriatim_runtime::session_by::SessionBy;

use crate::history::fingerprint;
use crate::log::Log;

/// What was to be processed, and what became of it.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    /// The records of each partition, by rising offset.
    pub partitions: BTreeMap<PartitionId, PartitionTruth>,
    /// The dead letters of each record, by their fingerprints.
    pub letters: HashMap<RecordId, Vec<u64>>,
    /// The commits that took effect, in order, and whether their sender owned the partition then.
    pub commits: Vec<(PartitionId, Offset, bool)>,
}

/// One partition.
#[derive(Clone, Debug, Default)]
pub struct PartitionTruth {
    /// Its records, by rising offset.
    pub records: Vec<RecordTruth>,
    /// The offset after the last.
    pub end: i64,
    /// What is committed at the end.
    pub committed: Option<Offset>,
}

/// One record.
#[derive(Clone, Debug)]
pub struct RecordTruth {
    /// Where it lies.
    pub offset: Offset,
    /// Its session key, if it has one.
    pub session: Option<Vec<u8>>,
    /// The hash of its parts.
    pub fingerprint: u64,
}

impl Truth {
    /// Reads the truth of a topic out of a log. Its dead letters are in `<topic>.dlq`.
    pub fn of(log: &Log, group: &str, topic: &str, session_by: &SessionBy) -> Self {
        let mut truth = Truth::default();
        for number in 0.. {
            let id = PartitionId::new(topic, number);
            let Some(end) = log.end(&id) else { break };
            let partition = PartitionTruth {
                records: Vec::new(),
                end: end.get(),
                committed: log.committed(group, &id),
            };
            truth.partitions.insert(id, partition);
        }
        for record in log.records(topic) {
            let partition = truth
                .partitions
                .get_mut(&record.id().partition)
                .expect("every partition was listed");
            partition.records.push(RecordTruth {
                offset: Offset::new(record.offset()),
                session: session_by.key_of_record(&record).ok(),
                fingerprint: fingerprint(&record),
            });
        }
        for letter in log.records(&format!("{topic}.dlq")) {
            truth
                .letters
                .entry(origin_of(&letter))
                .or_default()
                .push(fingerprint(&letter));
        }
        let applied = log.commits(group).into_iter();
        truth.commits = applied
            .map(|commit| (commit.partition, commit.watermark, commit.by_owner))
            .collect();
        truth
    }

    /// Lets the records without a session key of one partition be one session, as
    /// [`MissingSession::PartitionAsSession`](seriatim_runtime::session_by::MissingSession::PartitionAsSession) does.
    pub fn keyless_are_partition_sessions(&mut self) {
        for (id, partition) in &mut self.partitions {
            for record in &mut partition.records {
                record
                    .session
                    .get_or_insert_with(|| format!("all of {id}").into_bytes());
            }
        }
    }
}

impl PartitionTruth {
    /// The index of the first record at or above an offset.
    pub(super) fn first_at(&self, offset: Offset) -> usize {
        self.records.partition_point(|record| record.offset < offset)
    }

    /// The indices of the records in a range of offsets.
    pub(super) fn within(&self, offsets: &RangeInclusive<Offset>) -> Range<usize> {
        self.first_at(*offsets.start())..self.records.partition_point(|record| record.offset <= *offsets.end())
    }
}

/// Where a dead letter came from, by its headers.
fn origin_of(letter: &Record) -> RecordId {
    let text =
        |name| std::str::from_utf8(letter.header(name).expect("a dead letter names its origin")).unwrap_or_default();
    let number = |name| {
        letter
            .header(name)
            .and_then(|bytes| bytes.try_into().ok())
            .map(i64::from_be_bytes)
    };
    let partition = letter
        .header("kafka_dlt-original-partition")
        .and_then(|bytes| bytes.try_into().ok());
    RecordId {
        partition: PartitionId::new(
            text("kafka_dlt-original-topic"),
            partition.map_or(-1, i32::from_be_bytes),
        ),
        offset: Offset::new(number("kafka_dlt-original-offset").unwrap_or(0)),
    }
}
