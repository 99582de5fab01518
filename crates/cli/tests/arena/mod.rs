//! Real processes of `seriatim run` in one group, what is done to them, and the judgement of `seriatim verify`.
//!
//! A run has two phases: faults, while records are produced; then all is healed, and everything must settle. What then
//! was recorded is judged, and a run in which too little happened fails too.

// Each test binary uses its part of this.
#![allow(dead_code)]

mod mortal;
mod recorded;

use std::fs;
use std::ops::RangeBounds;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use serde_json::Value;
use seriatim_kafka::config::Properties;
use seriatim_kafka::reader::LogReader;
use seriatim_testkit::broker::Cluster;

use crate::command::{Done, PATIENCE, Running, example, file, seriatim_alone, unique, until};

pub(crate) const SESSIONS: usize = 2_000;
pub(crate) const PARTITIONS: u32 = 12;

/// Of all attempts this many in a hundred fail, and of all records so many in a thousand can never be handled.
const TRANSIENT_PERCENT: u32 = 5;
const PERMANENT_PER_MILLE: u32 = 2;
/// Long enough that something is always in flight, so that commits have ack maps and crashes leave work unfinished.
const LATENCY_MAX_MS: u32 = 200;

const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);
const COMMIT_INTERVAL: Duration = Duration::from_millis(100);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_BASE: Duration = Duration::from_millis(20);
const RETRY_CAP: Duration = Duration::from_millis(200);

/// One group, its topic, and its instances.
pub(crate) struct Arena {
    /// Where the brokers are reached for sure.
    brokers: String,
    pub(crate) topic: String,
    pub(crate) group: String,
    seed: u64,
    rng: Rng,
    session_timeout: Duration,
    recordings: Vec<PathBuf>,
    producing: Option<JoinHandle<Done>>,
    enough: Arc<AtomicBool>,
    _turn: MutexGuard<'static, ()>,
}

impl Arena {
    /// A new topic on the cluster, and a group whose members are missed after `session_timeout`.
    pub(crate) fn new(stem: &str, cluster: &Cluster, session_timeout: Duration) -> Self {
        // One after the other: each is meant to have the machine's two cores.
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let seed = seed();
        println!("{stem}: replay what can be replayed with {SEED_VARIABLE}={seed}");
        let topic = unique(stem);
        for (name, partitions) in [(topic.clone(), PARTITIONS), (format!("{topic}.dlq"), 1)] {
            cluster
                .create_topic(&name, partitions, &[])
                .expect("the broker creates a topic");
        }
        Self {
            brokers: cluster.bootstrap().to_owned(),
            group: format!("{topic}-group"),
            topic,
            seed,
            rng: Rng(seed),
            session_timeout,
            recordings: Vec::new(),
            producing: None,
            enough: Arc::default(),
            _turn: turn,
        }
    }

    /// Starts an instance with a faulty handler.
    pub(crate) fn join(&mut self) -> Running {
        let brokers = self.brokers.clone();
        self.join_by(&brokers)
    }

    /// Starts an instance that reaches the brokers elsewhere.
    pub(crate) fn join_by(&mut self, brokers: &str) -> Running {
        let child = example("faulty-child").display().to_string();
        let (seed, latency) = (self.seed, LATENCY_MAX_MS);
        let command = format!("exec '{child}' {seed} {latency} {TRANSIENT_PERCENT} {PERMANENT_PER_MILLE}");
        self.start(brokers, &["--exec", &command])
    }

    /// Starts an instance that prints.
    pub(crate) fn join_printing(&mut self) -> Running {
        let brokers = self.brokers.clone();
        let mut printing = self.start(&brokers, &["--print"]);
        printing.read_on();
        printing
    }

    /// Starts `count` instances, and waits until each owns something.
    #[track_caller]
    pub(crate) fn assemble(&mut self, count: usize) -> Vec<Running> {
        let members = (0..count).map(|_| self.join()).collect();
        self.await_ownership();
        members
    }

    fn start(&mut self, brokers: &str, work: &[&str]) -> Running {
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        let property = |name: &str, time: Duration| format!("{name}={}", time.as_millis());
        let recording = self.recording().display().to_string();
        let session_timeout = property("session.timeout.ms", self.session_timeout);
        let heartbeat_interval = property("heartbeat.interval.ms", HEARTBEAT_INTERVAL);
        let (commit_interval, drain_timeout) = (millis(COMMIT_INTERVAL), millis(DRAIN_TIMEOUT));
        let (retry_base, retry_cap) = (millis(RETRY_BASE), millis(RETRY_CAP));
        let mut args = vec!["run", "-t", &self.topic, "-g", &self.group, "-b", brokers];
        args.extend(["-q", "--check", "--record", &recording]);
        args.extend(["-X", &session_timeout, "-X", &heartbeat_interval]);
        args.extend(["--commit-interval", &commit_interval, "--drain-timeout", &drain_timeout]);
        args.extend(["--retry-base", &retry_base, "--retry-cap", &retry_cap]);
        Running::start_alone(&[&args[..], work].concat())
    }

    /// A new recording, which will be judged.
    fn recording(&mut self) -> PathBuf {
        let recording = file(&format!("{}-{}", self.topic, self.recordings.len()));
        self.recordings.push(recording.clone());
        recording
    }

    /// Writes `rounds` records of each session, spread over `time`, beside what goes on.
    pub(crate) fn produce(&mut self, rounds: usize, time: Duration) {
        let chunks = (rounds * SESSIONS).div_ceil(CHUNK_LINES);
        self.feed(time / chunks as u32, move |chunk| chunk < chunks);
    }

    /// Writes so many records a second, session after session, beside what goes on and until it is to be settled.
    pub(crate) fn produce_until_settled(&mut self, a_second: u32) {
        let enough = Arc::clone(&self.enough);
        let pause = Duration::from_secs(1) * CHUNK_LINES as u32 / a_second;
        self.feed(pause, move |_| !enough.load(Ordering::Relaxed));
    }

    /// Writes chunk after chunk while there is more.
    fn feed(&mut self, pause: Duration, more: impl Fn(usize) -> bool + Send + 'static) {
        let args = ["produce", &self.topic, "-K", ":", "-q", "-b", &self.brokers].map(str::to_owned);
        self.producing = Some(thread::spawn(move || {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let mut producing = Running::start_alone(&args);
            for chunk in (0..).take_while(|chunk| more(*chunk)) {
                let lines = (chunk * CHUNK_LINES..).take(CHUNK_LINES);
                let lines: String = lines.map(|n| format!("s{}:{}\n", n % SESSIONS, n / SESSIONS)).collect();
                producing.write_and_hold(lines.as_bytes());
                sleep(pause);
            }
            producing.finish()
        }));
    }

    /// Waits until all that was produced is settled and committed, however long that takes within reason.
    #[track_caller]
    pub(crate) fn settle(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        if let Some(producing) = self.producing.take() {
            producing.join().expect("no panic").fine();
        }
        let properties = Properties::default();
        let reader = LogReader::connect(&self.brokers, Some(&self.group), &properties).expect("a reader");
        until("all is settled", || {
            let Ok(extents) = reader.extents(&self.topic) else {
                return false;
            };
            let Ok(committed) = reader.committed(&extents) else {
                return false;
            };
            let mut both = extents.iter().zip(committed);
            both.all(|(extent, committed)| committed.is_some_and(|(offset, _)| offset.get() == extent.offsets.end))
        });
    }

    /// The verdict on all that was recorded, which must be good.
    #[track_caller]
    pub(crate) fn verdict(&self) -> Verdict {
        let files = self.recordings.iter().map(|file| file.display().to_string());
        let files: Vec<String> = files.collect();
        let mut args: Vec<&str> = vec!["verify", "-b", &self.brokers];
        args.extend(files.iter().map(String::as_str));
        let done = seriatim_alone(&[&args[..], &["--format", "json"]].concat());
        if done.code != 0 {
            let told = seriatim_alone(&args);
            panic!("exit code {}: {}{}", done.code, told.out, done.err);
        }
        let verdict = Verdict(serde_json::from_str(&done.out).expect("JSON"));
        println!("{}", verdict.0);
        verdict
    }

    /// A number below `bound`, by the seed.
    pub(crate) fn draw(&mut self, bound: usize) -> usize {
        self.rng.below(bound)
    }
}

/// Lines that are produced at a time: small beside what is unsettled.
const CHUNK_LINES: usize = 50;

impl Drop for Arena {
    fn drop(&mut self) {
        if thread::panicking() {
            return println!("the recordings are kept: {:?}", self.recordings);
        }
        for recording in &self.recordings {
            let _ = fs::remove_file(recording);
        }
    }
}

/// What `seriatim verify` counted.
pub(crate) struct Verdict(Value);

impl Verdict {
    pub(crate) fn count(&self, what: &str) -> u64 {
        self.0[what].as_u64().unwrap_or_else(|| panic!("no count of {what}"))
    }

    /// Fails unless enough of it happened, or little enough.
    #[track_caller]
    pub(crate) fn expect(&self, what: &str, allowed: impl RangeBounds<u64> + std::fmt::Debug) -> &Self {
        let count = self.count(what);
        assert!(
            allowed.contains(&count),
            "{what}: {count}, where {allowed:?} is expected"
        );
        self
    }

    /// Fails when something was repeated though every commit was acknowledged. A broker answers a member's requests one after
    /// another: in a storm, a commit may wait behind the member's own request to join for longer than a drain may last. What
    /// that leaves open the judge excuses, and nothing else.
    #[track_caller]
    pub(crate) fn expect_repeats_only_after_failed_commits(&self) -> &Self {
        match self.count("failed_commits") {
            0 => self.expect("repeats", ..=0),
            _ => self,
        }
    }

    /// Fails unless the handlers were as faulty as they were meant to be.
    #[track_caller]
    pub(crate) fn expect_faulty_handlers(&self) -> &Self {
        let starts = self.count("starts");
        self.expect("retries", starts / 100..).expect("dead_letters", 10..)
    }
}

/// Asks an instance to end, and sees that it does so well.
#[track_caller]
pub(crate) fn leave(instance: Running) {
    instance.signal("TERM");
    let done = instance.finish();
    assert_eq!(done.code, 0, "{}", done.err);
}

/// Kills it at once.
pub(crate) fn kill(instance: Running) {
    instance.signal("KILL");
    assert_eq!(instance.finish().code, -1);
}

/// Names a seed that was printed.
const SEED_VARIABLE: &str = "SERIATIM_OWNERSHIP_SEED";

fn seed() -> u64 {
    let given = std::env::var(SEED_VARIABLE).ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| u64::from(std::process::id()) << 16 | unix_seconds() & 0xffff)
}

fn unix_seconds() -> u64 {
    std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |time| time.as_secs())
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// Waits until this much time has passed since `began`: faults come at their times, not after one another.
pub(crate) fn at(began: Instant, time: Duration) {
    assert!(time < PATIENCE, "longer than any run");
    sleep(time.saturating_sub(began.elapsed()));
}
