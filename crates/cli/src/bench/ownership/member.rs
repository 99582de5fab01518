//! A process of the group, which is told on its standard input what to do, and ends with it.

use std::io::{self, BufRead, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use seriatim::prelude::*;
use seriatim::runtime::ports::{Event, Observer};
use seriatim::runtime::worker::STARTS_PER_LOOK;
use seriatim_testkit::history::recording::{Consumes, Header, Limits as RecordedLimits, Recorder};
use seriatim_testkit::history::{History, TracedBackend, TracedHandler, TracedObserver, What};
use tokio::sync::oneshot;

use super::super::workload::Stamp;
use crate::exit::Exit;

/// A process has one instance, and a recording counts none.
const INSTANCE: u32 = 0;

/// More than one read brings.
const READ_MAX: usize = 10_000;

/// What a drain may take beyond its timeout.
const LAST_COMMIT_MAX: Duration = Duration::from_secs(3);

/// Shorter than the session timeout, and longer than any handler here takes.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Members hear of a rebalance with their next heartbeat, in a second rather than in three; and one that is gone is missed
/// after ten seconds rather than after 45.
const QUICK: [(&str, &str); 2] = [("heartbeat.interval.ms", "1000"), ("session.timeout.ms", "10000")];

/// What it is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    pub brokers: String,
    pub group: String,
    pub topic: String,
    /// By partition: where it ends.
    pub ends: Vec<i64>,
    /// How long each handler waits.
    pub work: Duration,
    /// Handlers that may wait at a time.
    pub in_flight: usize,
    /// Whether the first record of the first session is stuck.
    pub stuck: bool,
    pub recording: PathBuf,
}

/// What it says, once a second.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Said {
    pub settled: u64,
    /// Whether all is committed.
    pub done: bool,
}

/// Handles records until the standard input ends.
pub fn run() -> anyhow::Result<Exit> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let spec: Spec = serde_json::from_str(&line).context("the process's description")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work(spec))?;
    Ok(Exit::Fine)
}

async fn work(spec: Spec) -> anyhow::Result<()> {
    let history = record(&spec)?;
    let observer = Watch {
        recorder: TracedObserver::new(INSTANCE, &history),
        left: Arc::new(Left::new(&spec.ends)),
    };
    let left = Arc::clone(&observer.left);
    let cluster = QUICK
        .into_iter()
        .fold(Cluster::new(&spec.brokers), |cluster, (name, value)| {
            cluster.property(name, value)
        });
    let backend = TracedBackend::new(cluster, INSTANCE, &history);
    let (work, stuck) = (spec.work, spec.stuck);
    let handler = move |record: Record, _: Context| async move {
        let stamp = Stamp::read(record.payload());
        if stuck && stamp.session == 0 && stamp.sequence == 0 {
            std::future::pending::<()>().await;
        }
        if !work.is_zero() {
            tokio::time::sleep(work).await;
        }
        Ok(())
    };
    let mut handle = Seriatim::group(&spec.group)
        .on(backend)
        .topic(&spec.topic)
        .in_flight(spec.in_flight)
        .attempt_timeout(None)
        .drain_timeout(DRAIN_TIMEOUT)
        .observer(observer)
        .start(TracedHandler::new(handler, INSTANCE, &history))
        .await?;

    let mut ended = input_ended();
    let mut second = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = &mut ended => break,
            stopped = handle.drained() => return Ok(stopped?),
            _ = second.tick() => {
                let said = Said { settled: handle.stats().settled, done: left.is_done() };
                println!("{}", serde_json::to_string(&said)?);
            }
        }
    }
    handle.stop();
    handle.drained().await?;
    history.note(INSTANCE, What::Left);
    Ok(())
}

/// Is ready when the standard input has ended.
fn input_ended() -> oneshot::Receiver<()> {
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        let _ = ended.send(());
    });
    end
}

fn record(spec: &Spec) -> anyhow::Result<History> {
    let (limits, retry) = (Limits::default(), Retry::default());
    let workers = seriatim::default_workers().get();
    let consumes = Consumes {
        group: spec.group.clone(),
        topics: vec![spec.topic.clone()],
        session_by: SessionBy::Key.to_string(),
        keyless_are_a_session: false,
        begins_at_end: false,
        limits: RecordedLimits {
            attempts_max: retry.attempts_max,
            in_flight_max: spec.in_flight.div_ceil(workers) * workers,
            unsettled_max: limits.unsettled_records_max + READ_MAX,
            partition_unsettled_max: limits.partition_records_max + READ_MAX,
            drain_max_ms: (DRAIN_TIMEOUT + LAST_COMMIT_MAX).as_millis() as u64,
            starts_per_look: workers * STARTS_PER_LOOK,
        },
    };
    let failed = |error| eprintln!("the recording ends here: {error}");
    let recorder = Recorder::append(&spec.recording, &Header::now(consumes), failed)
        .with_context(|| format!("recording to {}", spec.recording.display()))?;
    Ok(History::recorded(recorder))
}

/// What is not committed yet.
struct Left {
    /// By partition.
    ends: Vec<AtomicI64>,
    partitions: AtomicUsize,
}

impl Left {
    fn new(ends: &[i64]) -> Self {
        Self {
            partitions: AtomicUsize::new(ends.iter().filter(|end| **end > 0).count()),
            ends: ends.iter().map(|end| AtomicI64::new(*end)).collect(),
        }
    }

    fn note(&self, partition: usize, watermark: i64) {
        let end = self.ends[partition].load(Ordering::Relaxed);
        if end > 0 && watermark >= end && self.ends[partition].swap(0, Ordering::Relaxed) > 0 {
            self.partitions.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn is_done(&self) -> bool {
        self.partitions.load(Ordering::Relaxed) == 0
    }
}

struct Watch {
    recorder: TracedObserver,
    left: Arc<Left>,
}

impl Observer for Watch {
    fn observe(&self, event: Event<'_>) {
        self.recorder.note(&event);
        match event {
            Event::Assigned(partition, Some(committed)) => {
                self.left.note(partition.number() as usize, committed.get());
            }
            Event::Committed(partition, watermark) => self.left.note(partition.number() as usize, watermark.get()),
            Event::Trouble(trouble) => eprintln!("{trouble}"),
            Event::CommitFailed(error) => eprintln!("{error}"),
            _ => {}
        }
    }
}
