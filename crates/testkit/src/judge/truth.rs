//! The ground truth: what lies in the log when all is over, read apart from the history.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Range, RangeInclusive};

use seriatim_engine::record::{Offset, PartitionId, RecordId};
use seriatim_runtime::record::Record;
use seriatim_runtime::session_by::SessionBy;

use crate::history::{AckMap, fingerprint};
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
    /// What topics were when they grew, in order.
    pub growths: Vec<GrowthTruth>,
}

/// A topic as it was right before it got more partitions.
#[derive(Clone, Debug)]
pub struct GrowthTruth {
    /// The topic.
    pub topic: String,
    /// Of each partition that it had: where its log ended, and what the group had committed.
    pub partitions: Vec<(Offset, Option<Offset>)>,
}

impl GrowthTruth {
    /// Reads it out of a log whose topic is to grow now.
    pub fn of(log: &Log, group: &str, topic: &str) -> Self {
        let ids = (0..).map(|number| PartitionId::new(topic, number));
        let partitions = ids.map_while(|id| Some((log.end(&id)?, log.committed(group, &id))));
        Self {
            topic: topic.to_owned(),
            partitions: partitions.collect(),
        }
    }

    /// Those that the group's commits say were there before: the last for which there is one, and all below it.
    pub(super) fn known_old(&self) -> impl Iterator<Item = (PartitionId, Offset)> {
        let known = self.partitions.iter().rposition(|(_, committed)| committed.is_some());
        let old = self.partitions.iter().take(known.map_or(0, |last| last + 1));
        let named = |(number, (end, _)): (usize, &(Offset, Option<Offset>))| {
            (PartitionId::new(self.topic.as_str(), number as i32), *end)
        };
        old.enumerate().map(named)
    }
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
    /// What the ack map beside it says.
    pub settled: AckMap,
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
            let committed = log.committed(group, &id);
            truth.add_partition(id, end.get(), committed, AckMap::new());
        }
        for record in log.records(topic) {
            truth.add_record(&record, session_by);
        }
        for letter in log.records(&format!("{topic}.dlq")) {
            truth.add_letter(&letter);
        }
        let applied = log.commits(group).into_iter();
        truth.commits = applied
            .map(|commit| (commit.partition, commit.watermark, commit.by_owner))
            .collect();
        truth
    }

    /// Adds a partition whose log ends before `end`, with nothing in it yet.
    pub fn add_partition(&mut self, id: PartitionId, end: i64, committed: Option<Offset>, settled: AckMap) {
        let partition = PartitionTruth {
            records: Vec::new(),
            end,
            committed,
            settled,
        };
        self.partitions.insert(id, partition);
    }

    /// Adds a record behind those of its partition.
    ///
    /// # Panics
    /// When its partition was not added.
    pub fn add_record(&mut self, record: &Record, session_by: &SessionBy) {
        let partition = self.partitions.get_mut(&record.id().partition);
        partition.expect("every partition was added").records.push(RecordTruth {
            offset: Offset::new(record.offset()),
            session: session_by.key_of_record(record).ok(),
            fingerprint: fingerprint(record),
        });
    }

    /// Adds what lies in a topic of dead letters, after all records; what is none of these records' letter is not added.
    pub fn add_letter(&mut self, letter: &Record) {
        let Some(origin) = origin_of(letter) else { return };
        let Some(place) = self.place(&origin) else { return };
        let copy = match letter.header("seriatim-reason") {
            // Its value is replaced by a hash of another kind, so what it was cannot be compared.
            Some(b"oversize") => self.partitions[&origin.partition].records[place].fingerprint,
            _ => fingerprint(letter),
        };
        self.letters.entry(origin).or_default().push(copy);
    }

    /// How many sessions the records belong to.
    pub fn session_count(&self) -> usize {
        let records = self.partitions.values().flat_map(|partition| &partition.records);
        let sessions = records.filter_map(|record| record.session.as_deref());
        sessions.collect::<HashSet<_>>().len()
    }

    /// The index of a record in its partition.
    pub(super) fn place(&self, record: &RecordId) -> Option<usize> {
        let partition = self.partitions.get(&record.partition)?;
        let found = partition
            .records
            .binary_search_by_key(&record.offset, |record| record.offset);
        found.ok()
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
fn origin_of(letter: &Record) -> Option<RecordId> {
    let topic = std::str::from_utf8(letter.header("kafka_dlt-original-topic")?).ok()?;
    let partition = letter.header("kafka_dlt-original-partition")?.try_into().ok()?;
    let offset = letter.header("kafka_dlt-original-offset")?.try_into().ok()?;
    let offset = i64::from_be_bytes(offset);
    (offset >= 0).then(|| RecordId {
        partition: PartitionId::new(topic, i32::from_be_bytes(partition)),
        offset: Offset::new(offset),
    })
}
