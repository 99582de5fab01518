//! Seriatim itself, as a program would use it.

use std::sync::Mutex;

use anyhow::Context as _;
use seriatim::prelude::*;
use seriatim::runtime::ports::{Event, Observer};
use tokio::sync::oneshot;

use super::contender::{PATIENCE, READY, Spec, properties};
use super::meter::Reading;
use super::stage::Stage;

/// Handles all records of the topic; returns when the last of them is committed.
pub fn run(spec: &Spec, stage: &'static Stage) -> anyhow::Result<Reading> {
    let (watch, committed) = Watch::new(&spec.ends, stage);
    runtime()?.block_on(async {
        let consumer = builder(spec)?.observer(watch);
        let handle = if stage.passes() {
            consumer.start(passing(stage)).await?
        } else {
            let handling =
                move |record: Record, cx: Context| async move { stage.handle(record.payload(), cx.attempt()).await };
            consumer.start(handling).await?
        };
        let ended = until_committed(&handle, committed).await?;
        handle.shutdown().await?;
        Ok(ended)
    })
}

/// An async handler that has nothing to wait for. It is apart from the other, so that its future is as small as it can be.
pub fn passing(stage: &'static Stage) -> impl Handler {
    move |record: Record, _: Context| async move {
        stage.pass(record.payload());
        Ok(())
    }
}

/// A consumer with the defaults of the library but for what the run is about.
pub fn builder(spec: &Spec) -> anyhow::Result<Builder<Cluster>> {
    let cluster = Cluster::new(&spec.brokers).properties(properties(&spec.properties)?);
    let builder = Seriatim::group(&spec.group).on(cluster).topic(&spec.topic);
    Ok(builder.in_flight(spec.in_flight).retry(spec.work.retry()))
}

/// The benchmark's own runtime only waits: workers bring theirs.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().context("an event queue")
}

/// Waits for the last commit, as long as records are settled.
pub async fn until_committed(handle: &Handle, mut committed: oneshot::Receiver<Reading>) -> anyhow::Result<Reading> {
    let mut settled = 0;
    loop {
        match tokio::time::timeout(PATIENCE, &mut committed).await {
            Ok(ended) => return ended.context("the consumer ended early"),
            Err(_) => {
                let now = handle.stats().settled;
                anyhow::ensure!(now > settled, "nothing happened for {PATIENCE:?} after {now} records");
                settled = now;
            }
        }
    }
}

/// Watches commits until each partition's end is committed.
pub struct Watch {
    stage: &'static Stage,
    left: Mutex<Left>,
}

struct Left {
    unassigned: usize,
    /// By partition: its end, while that is not committed.
    ends: Vec<Option<i64>>,
    committed: Option<oneshot::Sender<Reading>>,
}

impl Watch {
    pub fn new(ends: &[i64], stage: &'static Stage) -> (Self, oneshot::Receiver<Reading>) {
        let (committed, receiver) = oneshot::channel();
        let left = Left {
            unassigned: ends.len(),
            ends: ends.iter().map(|end| (*end > 0).then_some(*end)).collect(),
            committed: Some(committed),
        };
        (
            Self {
                stage,
                left: Mutex::new(left),
            },
            receiver,
        )
    }
}

impl Observer for Watch {
    fn observe(&self, event: Event<'_>) {
        match event {
            Event::Retrying { record, delay, .. } => return self.stage.note_wait(record.payload(), delay),
            Event::Trouble(trouble) => return eprintln!("{trouble}"),
            Event::CommitFailed(error) => return eprintln!("{error}"),
            _ => {}
        }
        let mut left = self.left.lock().expect("no holder of it panics");
        match event {
            Event::Assigned(..) => {
                left.unassigned = left.unassigned.saturating_sub(1);
                if left.unassigned == 0 {
                    println!("{READY}");
                }
            }
            Event::Committed(partition, watermark) => {
                let end = &mut left.ends[partition.number() as usize];
                if end.is_some_and(|end| watermark.get() >= end) {
                    *end = None;
                }
                if left.ends.iter().all(Option::is_none)
                    && let Some(committed) = left.committed.take()
                {
                    let _ = committed.send(Reading::now());
                }
            }
            _ => {}
        }
    }
}
