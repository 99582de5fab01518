//! A source that hands out ready-made batches, and what else a consumer needs without Kafka.

// Each benchmark uses its part of this.
#![allow(dead_code)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::{Flow, Limits};
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_engine::retry::Retry;
use seriatim_runtime::dispatcher::DispatcherConfig;
use seriatim_runtime::drive::RunConfig;
use seriatim_runtime::message::{Header, Message, Timestamp};
use seriatim_runtime::ports::{
    Commit, CommitError, CommitMode, DeadLetter, DeadLetterError, DeadLetters, Granted, LeaseTerm, Records, Run,
    Source, SourceError, SourceEvent, Start,
};
use seriatim_runtime::session_by::{MissingSession, SessionBy};
use seriatim_runtime::worker::WorkerConfig;
use tokio::sync::oneshot;

const BATCH: usize = 2_000;

/// A message without memory of its own.
pub(crate) struct Tick {
    offset: i64,
    key: [u8; 8],
}

impl Message for Tick {
    fn partition(&self) -> (&str, i32) {
        ("ticks", 0)
    }

    fn offset(&self) -> Offset {
        Offset::new(self.offset)
    }

    fn timestamp(&self) -> Timestamp {
        Timestamp::None
    }

    fn key(&self) -> Option<&[u8]> {
        Some(&self.key)
    }

    fn value(&self) -> Option<&[u8]> {
        None
    }

    fn header(&self, _index: usize) -> Option<Header<'_>> {
        None
    }
}

/// The session of the record that is the so manieth to be delivered.
pub(crate) fn session_of(number: usize, sessions: u64) -> u64 {
    (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % sessions
}

/// Hands out records, round robin over its partitions a run at a time, and says when all are committed.
pub(crate) struct Ticks {
    records: usize,
    partitions: usize,
    sessions: u64,
    epochs: Vec<AssignmentEpoch>,
    partition_of: HashMap<AssignmentEpoch, usize>,
    offsets: Vec<i64>,
    next_partition: usize,
    delivered: usize,
    committed: Vec<i64>,
    answer: Option<Vec<Commit>>,
    finished: Option<oneshot::Sender<()>>,
    /// The longest metadata of a commit.
    metadata_len: Arc<AtomicUsize>,
}

impl Ticks {
    pub(crate) fn new(records: usize, partitions: usize, sessions: u64, finished: oneshot::Sender<()>) -> Self {
        Self {
            records,
            partitions,
            sessions,
            epochs: Vec::new(),
            partition_of: HashMap::new(),
            offsets: vec![0; partitions],
            next_partition: 0,
            delivered: 0,
            committed: vec![0; partitions],
            answer: None,
            finished: Some(finished),
            metadata_len: Arc::default(),
        }
    }

    /// The longest metadata of a commit so far, in bytes.
    pub(crate) fn metadata_len(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.metadata_len)
    }
}

impl Source for Ticks {
    type Message = Tick;

    fn poll(
        &mut self,
        wait: Duration,
        records: Option<&mut Records<Tick>>,
    ) -> Result<Option<SourceEvent>, SourceError> {
        if self.epochs.is_empty() {
            let granted = (0..self.partitions).map(|number| Granted {
                partition: PartitionId::new("ticks", number as i32),
                committed: Some(Offset::ZERO),
                metadata: String::new(),
                begin: None,
                end: None,
                incarnation: None,
            });
            return Ok(Some(SourceEvent::Assigned(granted.collect())));
        }
        if let Some(answer) = self.answer.take() {
            return Ok(Some(SourceEvent::Committed(Ok(answer))));
        }
        let Some(records) = records.filter(|_| self.delivered < self.records) else {
            std::thread::sleep(wait.min(Duration::from_micros(20)));
            return Ok(None);
        };
        let run = (BATCH / self.partitions).max(20);
        for _ in 0..BATCH / run {
            let partition = self.next_partition;
            self.next_partition = (partition + 1) % self.partitions;
            for _ in 0..run {
                let session = session_of(self.delivered, self.sessions);
                let key = session.to_le_bytes();
                records.messages.push(Tick {
                    offset: self.offsets[partition],
                    key,
                });
                self.offsets[partition] += 1;
                self.delivered += 1;
            }
            records.runs.push(Run {
                epoch: self.epochs[partition],
                len: run,
            });
        }
        Ok(Some(SourceEvent::Records))
    }

    fn start(&mut self, starts: &[Start]) {
        for start in starts {
            self.partition_of.insert(start.epoch, self.epochs.len());
            self.epochs.push(start.epoch);
        }
    }

    fn set_flow(&mut self, _epoch: AssignmentEpoch, _flow: Flow) {}

    fn commit(&mut self, commits: &[Commit], mode: CommitMode) -> Result<(), CommitError> {
        for commit in commits {
            self.metadata_len.fetch_max(commit.metadata.len(), Ordering::Relaxed);
            self.committed[self.partition_of[&commit.epoch]] = commit.watermark.get();
        }
        if mode == CommitMode::Background {
            self.answer = Some(commits.to_vec());
        }
        if self.committed.iter().sum::<i64>() as usize >= self.records
            && let Some(finished) = self.finished.take()
        {
            let _ = finished.send(());
        }
        Ok(())
    }

    fn relinquish(&mut self, _epochs: &[AssignmentEpoch]) {}

    fn lease(&self) -> Option<LeaseTerm> {
        None
    }

    fn close(&mut self) {}
}

/// Nothing becomes a dead letter here.
pub(crate) struct NoLetters;

impl DeadLetters for NoLetters {
    async fn publish(&self, _letter: DeadLetter) -> Result<(), DeadLetterError> {
        unreachable!("nothing fails here")
    }
}

/// A consumer with the library's limits.
pub(crate) fn config(workers: usize) -> RunConfig {
    RunConfig {
        dispatcher: DispatcherConfig {
            session_by: SessionBy::Key,
            missing_session: MissingSession::Fail,
            limits: Limits::default(),
            commit_interval: Duration::from_millis(200),
            drain_timeout: Duration::from_secs(1),
            stuck_after: None,
            process: 0,
            hash_key: (1, 2),
        },
        worker: WorkerConfig {
            retry: Retry::default(),
            in_flight_max: 1_000,
            attempt_timeout: Some(Duration::from_secs(60)),
            check: false,
        },
        workers,
    }
}

/// As the library does by default: one processor is left to the dispatcher.
pub(crate) fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| (processors.get() - 1).max(1))
}
