//! A member of a group that kills itself at a step of its work, as `kill -9` would: a failpoint, which `seriatim run` itself
//! has none of. But for that it is what `seriatim run --record` is: the same consumer, watched at the same ports.
//!
//! ```text
//! mortal-member '{"step": "drained", "nth": 1, "brokers": …}'
//! ```
//!
//! A step lies between two entries of its recording. The process dies when the first of them is written and while no other
//! can be, so the recording tells where it died.

mod temper;

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use serde::Deserialize;
use seriatim::prelude::*;
use seriatim::runtime::worker::STARTS_PER_LOOK;
use seriatim_testkit::history::recording::{self, Consumes, Header, Recorder};
use seriatim_testkit::history::{EpochNumber, History, TracedBackend, TracedHandler, TracedObserver, What};
use temper::{Fate, Temper};

const IN_FLIGHT: usize = 1_000;

/// Records that one read may bring when the limit of unsettled ones is all but reached.
const READ_MAX: usize = 10_000;

/// What the last commit of a drain may take beyond the drain's timeout.
const LAST_COMMIT_MAX_MS: u64 = 3_000;

/// What it is told.
#[derive(Deserialize)]
struct Order {
    step: Step,
    /// It dies when it is there for the `nth` time, from 1.
    nth: usize,
    brokers: String,
    group: String,
    topic: String,
    recording: PathBuf,
    session_timeout_ms: u64,
    commit_interval_ms: u64,
    drain_timeout_ms: u64,
    retry_base_ms: u64,
    retry_cap_ms: u64,
    temper: Temper,
}

/// Where it dies.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Step {
    /// A partition was granted, and nothing of it has started.
    Granted,
    /// Records are settled, and the commit that says so is not sent.
    Settled,
    /// A dead letter is acknowledged, and its record is not settled.
    Lettered,
    /// A partition is to be given back, and its drain has not begun.
    Revoked,
    /// A drain is over, and its commit is not sent.
    Drained,
    /// The drain's commit is taken, and the partition is not given back.
    Committed,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let order = std::env::args().nth(1).ok_or("say what to do, as JSON")?;
    let order: Order = serde_json::from_str(&order)?;
    let retry = Retry {
        base: Duration::from_millis(order.retry_base_ms),
        cap: Duration::from_millis(order.retry_cap_ms),
        ..Retry::default()
    };
    let history = History::recorded(order.recorder(&retry)?);
    let cluster = Cluster::new(&order.brokers)
        .property("session.timeout.ms", order.session_timeout_ms.to_string())
        .property("heartbeat.interval.ms", "100");
    let temper = order.temper;
    Seriatim::group(&order.group)
        .on(TracedBackend::new(cluster, 0, &history))
        .topic(&order.topic)
        .retry(retry)
        .in_flight(IN_FLIGHT)
        .commit_interval(Duration::from_millis(order.commit_interval_ms))
        .drain_timeout(Duration::from_millis(order.drain_timeout_ms))
        .observer(TracedObserver::new(0, &history))
        .run(TracedHandler::new(
            move |record, cx| handle(temper, record, cx),
            0,
            &history,
        ))
        .await?;
    history.note(0, What::Left);
    Ok(())
}

async fn handle(temper: Temper, record: Record, cx: Context) -> Result<(), Failure> {
    let place = format!("{}/{}/{}", record.topic(), record.partition(), record.offset());
    let (latency, fate) = temper.treat(&place, cx.attempt());
    tokio::time::sleep(latency).await;
    match fate {
        Fate::Handled => Ok(()),
        Fate::Transient => Err("not yet".into()),
        Fate::Permanent => Err(Failure::permanent(std::io::Error::other("never"))),
    }
}

impl Order {
    fn recorder(&self, retry: &Retry) -> std::io::Result<Recorder> {
        let (workers, unsettled) = (seriatim::default_workers().get(), Limits::default());
        let consumes = Consumes {
            group: self.group.clone(),
            topics: vec![self.topic.clone()],
            session_by: SessionBy::Key.to_string(),
            keyless_are_a_session: false,
            begins_at_end: false,
            limits: recording::Limits {
                attempts_max: retry.attempts_max,
                in_flight_max: IN_FLIGHT.div_ceil(workers) * workers,
                unsettled_max: unsettled.unsettled_records_max + READ_MAX,
                partition_unsettled_max: unsettled.partition_records_max + READ_MAX,
                drain_max_ms: self.drain_timeout_ms + LAST_COMMIT_MAX_MS,
                starts_per_look: workers * STARTS_PER_LOOK,
            },
        };
        let (step, mut left, mut revoked) = (self.step, self.nth, HashSet::new());
        let failed = |error| panic!("the recording cannot be written: {error}");
        let recorder = Recorder::append(&self.recording, &Header::now(consumes), failed)?;
        Ok(recorder.watched(move |what| {
            if let What::RevokeBegin(epoch) = what {
                revoked.insert(*epoch);
            }
            if step.is_behind(what, &revoked) {
                left -= 1;
                if left == 0 {
                    die();
                }
            }
        }))
    }
}

impl Step {
    /// Whether a process is there when this is the last that it wrote.
    fn is_behind(self, what: &What, revoked: &HashSet<EpochNumber>) -> bool {
        match (self, what) {
            (Step::Granted, What::Assign { .. })
            | (Step::Lettered, What::LetterAcked(_))
            | (Step::Revoked, What::RevokeBegin(_))
            | (Step::Committed, What::RevokeEnd(_)) => true,
            (Step::Settled, What::CommitSent(epoch, ..)) => !revoked.contains(epoch),
            (Step::Drained, What::CommitSent(epoch, ..)) => revoked.contains(epoch),
            _ => false,
        }
    }
}

/// Nothing is flushed, closed or told to anybody, and whoever waits to write into the recording does so in vain.
fn die() -> ! {
    kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
    loop {
        std::thread::park();
    }
}
