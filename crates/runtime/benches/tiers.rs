//! Dispatcher and workers alone, without Kafka: a source that hands out ready-made batches, and a handler that is ready
//! at once. The whole path of a record is in it: admit, route, start, settle, commit.

mod ticks;

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use seriatim_runtime::context::Context;
use seriatim_runtime::drive;
use seriatim_runtime::failure::Failure;
use seriatim_runtime::record::Record;
use tokio::sync::oneshot;

use self::ticks::{NoLetters, Ticks, config, workers};

/// Enough that beginning, and waiting for the last commit, are little of it.
const RECORDS: usize = 5_000_000;

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
        move || {
            Ok::<_, ()>((
                Ticks::new(RECORDS, partitions, sessions, finished_tx),
                Waker::noop().clone(),
            ))
        },
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
