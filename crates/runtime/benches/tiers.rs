//! Dispatcher and workers alone, without Kafka: a source that hands out ready-made batches, and a handler that is ready
//! at once. The whole path of a record is in it: admit, route, start, settle, commit.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::{Flow, Limits};
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_engine::retry::Retry;
use seriatim_runtime::context::Context;
use seriatim_runtime::dispatcher::DispatcherConfig;
use seriatim_runtime::drive::{self, RunConfig};
use seriatim_runtime::failure::Failure;
use seriatim_runtime::message::{Header, Message, Timestamp};
use seriatim_runtime::ports::{
    Commit, CommitError, CommitMode, DeadLetter, DeadLetterError, DeadLetters, Granted, LeaseTerm, Records, Run,
    Source, SourceError, SourceEvent, Start,
};
use seriatim_runtime::record::Record;
use seriatim_runtime::session_by::{MissingSession, SessionBy};
use seriatim_runtime::worker::WorkerConfig;
use tokio::sync::oneshot;

/// Enough that beginning, and waiting for the last commit, are little of it.
const RECORDS: usize = 5_000_000;
const BATCH: usize = 2_000;

/// A message without memory of its own.
struct Tick {
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

/// Hands out `RECORDS` records, round robin over its partitions a run at a time, and says when all are committed.
struct Ticks {
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
}

impl Ticks {
    fn new(partitions: usize, sessions: u64, finished: oneshot::Sender<()>) -> Self {
        Self {
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
        }
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
                end: None,
                incarnation: None,
            });
            return Ok(Some(SourceEvent::Assigned(granted.collect())));
        }
        if let Some(answer) = self.answer.take() {
            return Ok(Some(SourceEvent::Committed(Ok(answer))));
        }
        let Some(records) = records.filter(|_| self.delivered < RECORDS) else {
            std::thread::sleep(wait.min(Duration::from_micros(20)));
            return Ok(None);
        };
        let run = (BATCH / self.partitions).max(20);
        for _ in 0..BATCH / run {
            let partition = self.next_partition;
            self.next_partition = (partition + 1) % self.partitions;
            for _ in 0..run {
                let session = (self.delivered as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.sessions;
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
            self.committed[self.partition_of[&commit.epoch]] = commit.watermark.get();
        }
        if mode == CommitMode::Background {
            self.answer = Some(commits.to_vec());
        }
        if self.committed.iter().sum::<i64>() as usize >= RECORDS
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

struct NoLetters;

impl DeadLetters for NoLetters {
    async fn publish(&self, _letter: DeadLetter) -> Result<(), DeadLetterError> {
        unreachable!("nothing fails here")
    }
}

fn config(workers: usize) -> RunConfig {
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
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| (processors.get() - 1).max(1))
}

fn run(partitions: usize, sessions: u64) -> Duration {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let (finished_tx, finished) = oneshot::channel();
    let handler = |record: Record, _cx: Context| async move {
        std::hint::black_box(record.offset());
        Ok::<(), Failure>(())
    };
    let began = Instant::now();
    let mut running = drive::start(
        move || Ok::<_, ()>((Ticks::new(partitions, sessions, finished_tx), Waker::noop().clone())),
        Arc::new(handler),
        Arc::new(NoLetters),
        Arc::new(()),
        config(workers()),
    )
    .expect("it starts");
    runtime.block_on(finished).expect("all is committed");
    let took = began.elapsed();
    running.stop();
    runtime.block_on(running.ended()).expect("it ends well");
    took
}

fn tiers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tiers");
    group.throughput(Throughput::Elements(RECORDS as u64)).sample_size(10);
    for sessions in [1, 1_000, 1_000_000] {
        group.bench_function(BenchmarkId::new("sessions", sessions), |bencher| {
            bencher.iter_custom(|times| (0..times).map(|_| run(8, sessions)).sum());
        });
    }
    for partitions in [1, 1_000, 10_000] {
        group.bench_function(BenchmarkId::new("partitions", partitions), |bencher| {
            bencher.iter_custom(|times| (0..times).map(|_| run(partitions, 1_000)).sum());
        });
    }
    group.finish();
}

criterion_group!(benches, tiers);
criterion_main!(benches);
