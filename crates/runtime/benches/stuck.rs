//! Ten million records settled above one that is stuck, with the library's limits: whether intake goes on, and what it
//! costs to know what is settled and to say it in a commit.
//!
//! `cargo bench -p seriatim-runtime --bench stuck`; `SERIATIM_RECORDS=100000` makes it less.

mod ticks;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use seriatim_engine::ack_map;
use seriatim_engine::budget::Limits;
use seriatim_engine::ledger::Ledger;
use seriatim_engine::record::Offset;
use seriatim_runtime::context::Context;
use seriatim_runtime::drive;
use seriatim_runtime::failure::Failure;
use seriatim_runtime::record::Record;
use tokio::sync::{Semaphore, oneshot};

use self::ticks::{NoLetters, Ticks, config, session_of, workers};

/// A session has a hundred records or so: those of the stuck one wait behind its first.
const SESSIONS: u64 = 100_000;

/// What a broker keeps beside a commit.
const METADATA_LEN_MAX: usize = 4_096;

/// Commits whose processor time is measured.
const COMMITS: u32 = 200;

fn main() {
    let records = std::env::var("SERIATIM_RECORDS").map_or(10_000_000, |text| text.parse().expect("a number"));
    let free = run(records, None);
    println!("nothing is stuck          {:>12.0} records/s", free.rate);
    let stuck = run(records, Some(0));
    println!(
        "the first record is stuck {:>12.0} records/s until {} of {records} were settled above it; metadata of {} bytes at \
         most",
        stuck.rate, stuck.settled, stuck.metadata_len
    );
    let unsettled = Limits::default().partition_records_max;
    for (shape, every) in [
        ("one record is unsettled", records),
        ("as many as a partition may have", records / unsettled),
    ] {
        let ledger = ledger(records, every.max(2));
        let (took, metadata_len) = commit(&ledger);
        println!(
            "{shape:<32} {:>8} unsettled: ledger {:>9} bytes, a commit takes {:>7.3} ms and {metadata_len} bytes",
            ledger.unsettled(),
            ledger.heap_bytes(),
            took.as_secs_f64() * 1e3,
        );
    }
}

struct Ran {
    rate: f64,
    settled: usize,
    metadata_len: usize,
}

/// Lets the tiers handle the records of one partition, of which one may be stuck until all others that can be are settled.
fn run(records: usize, stuck: Option<i64>) -> Ran {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let (finished_tx, finished) = oneshot::channel();
    let ticks = Ticks::new(records, 1, SESSIONS, finished_tx);
    let metadata_len = ticks.metadata_len();
    let gate = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&gate);
    let handler = move |record: Record, _cx: Context| {
        let waits = (Some(record.offset()) == stuck).then(|| Arc::clone(&waits));
        async move {
            if let Some(gate) = waits {
                gate.acquire().await.map_err(Failure::permanent)?.forget();
            }
            Ok::<(), Failure>(())
        }
    };
    let behind = (0..records).filter(|number| session_of(*number, SESSIONS) == 0).count();
    let wanted = records - if stuck.is_some() { behind } else { 0 };
    let began = Instant::now();
    let mut running = drive::start(
        move || Ok::<_, ()>((ticks, Waker::noop().clone())),
        Arc::new(handler),
        Arc::new(NoLetters),
        Arc::new(()),
        config(workers()),
    )
    .expect("it starts");
    let settled = |running: &drive::Running| {
        let counters = running.counters().iter();
        counters
            .map(|counters| counters.settled.load(Ordering::Relaxed))
            .sum::<u64>() as usize
    };
    while settled(&running) < wanted {
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = began.elapsed();
    let above = settled(&running);
    gate.add_permits(1);
    runtime.block_on(finished).expect("all is committed");
    running.stop();
    runtime.block_on(running.ended()).expect("it ends well");
    Ran {
        rate: above as f64 / took.as_secs_f64(),
        settled: above,
        metadata_len: metadata_len.load(Ordering::Relaxed),
    }
}

/// A ledger of which each so manieth record, from the first on, is not settled.
fn ledger(records: usize, every: usize) -> Ledger {
    let mut ledger = Ledger::new(Some(Offset::ZERO));
    for offset in 0..records {
        ledger.admit(Offset::new(offset as i64));
        if offset % every != 0 {
            ledger.settle(Offset::new(offset as i64));
        }
    }
    ledger
}

/// How long a commit takes to make, and how long its metadata is.
fn commit(ledger: &Ledger) -> (Duration, usize) {
    let mut len = 0;
    let began = Instant::now();
    for _ in 0..COMMITS {
        let watermark = ledger.watermark().expect("it has begun").offset();
        let map = ack_map::encode(watermark, ledger.settled_ranges(), METADATA_LEN_MAX);
        len = std::hint::black_box(map.text).len();
    }
    (began.elapsed() / COMMITS, len)
}
