//! What ownership costs, in figures: a handover of busy lanes, and a process that is killed. Real processes on a real broker,
//! each of them recorded; the figures are read from the recordings, and `verify` judges these.

mod crash;
mod handover;
mod member;

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use serde::Serialize;
use seriatim::kafka::config::Properties;
use seriatim_testkit::history::merge::{Merged, merge};
use seriatim_testkit::history::recording;

pub use self::member::run as member;
use self::member::{Said, Spec};
use super::Format;
use super::venue::Venue;
use super::workload::Workload;
use crate::exit::Exit;

/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is measured.
#[derive(clap::Args)]
pub struct Args {
    /// Brokers to begin with, which need no login [default: a broker of its own]
    #[arg(short = 'b', long = "brokers", value_name = "HOST:PORT,…")]
    brokers: Option<String>,

    /// How the result is written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    /// Only this part
    #[arg(long, value_enum, value_name = "NAME")]
    only: Option<Part>,

    /// Records of each topic
    #[arg(long, default_value_t = 3_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    records: u64,

    /// Busy lanes of the partition that is handed over, about
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    lanes: u32,

    /// Sessions of the process that is killed
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(2..))]
    sessions: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// A second process joins, and is given a partition of busy lanes
    Handover,
    /// The process is killed while a record is stuck from the start
    Crash,
}

/// All figures.
#[derive(Serialize)]
struct Report {
    handover: Option<handover::Figures>,
    crash: Option<crash::Figures>,
    /// Whether `verify` found the recordings in order.
    passed: bool,
}

/// Measures.
///
/// # Errors
/// When there is no broker, a topic cannot be loaded, or a process does not get on.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    let arena = Arena::start(args)?;
    let wanted = |part| args.only.is_none_or(|only| only == part);
    let mut report = Report {
        handover: None,
        crash: None,
        passed: true,
    };
    if wanted(Part::Handover) {
        let (figures, passed) = handover::measure(&arena, args.records, args.lanes)?;
        report.passed &= passed;
        if args.format == Format::Text {
            print!("{}", figures.text());
        }
        report.handover = Some(figures);
    }
    if wanted(Part::Crash) {
        let (figures, passed) = crash::measure(&arena, args.records, args.sessions)?;
        report.passed &= passed;
        if args.format == Format::Text {
            print!("{}", figures.text());
        }
        report.crash = Some(figures);
    }
    if args.format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    }
    Ok(if report.passed { Exit::Fine } else { Exit::Violation })
}

/// Where processes run.
struct Arena {
    venue: Venue,
    /// For recordings, which are kept.
    directory: PathBuf,
    /// Tells the groups of this call from those of others.
    nonce: u128,
}

impl Arena {
    fn start(args: &Args) -> anyhow::Result<Self> {
        let venue = Venue::find(args.brokers.as_deref())?;
        let nonce = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
        let directory = std::env::temp_dir().join(format!("seriatim-ownership-{nonce:x}"));
        fs::create_dir(&directory).with_context(|| format!("making {}", directory.display()))?;
        eprintln!("recordings are kept in {}", directory.display());
        Ok(Self {
            venue,
            directory,
            nonce,
        })
    }

    /// Loads the topic, and describes a process of a new group that reads it.
    fn spec(&self, name: &str, workload: &Workload, work: Duration, in_flight: usize) -> anyhow::Result<Spec> {
        eprintln!("{name}: loading topic {}", workload.topic());
        let ends = workload.load(&self.venue.cluster, &Properties::default())?;
        let topic = workload.topic();
        // It is there after an earlier call.
        let _ = self.venue.cluster.create_topic(&format!("{topic}.dlq"), 1, &[]);
        Ok(Spec {
            brokers: self.venue.cluster.bootstrap().to_owned(),
            group: format!("seriatim-{name}-{:x}", self.nonce),
            topic,
            ends,
            work,
            in_flight,
            stuck: false,
            recording: self.directory.join(name),
        })
    }

    /// What these processes have recorded, in this order.
    fn read(&self, files: &[&Path]) -> anyhow::Result<Merged> {
        let mut recordings = Vec::new();
        for file in files {
            recordings.extend(recording::read(file)?);
        }
        Ok(merge(recordings)?)
    }

    /// What `verify` says to them.
    fn verify(&self, files: &[&Path], unfinished: bool) -> anyhow::Result<bool> {
        let mut verify = Command::new(std::env::current_exe()?);
        verify
            .args(["verify", "-b", self.venue.cluster.bootstrap()])
            .args(files);
        if unfinished {
            verify.arg("--unfinished");
        }
        let verdict = verify.stdin(Stdio::null()).output().context("starting verify")?;
        if !verdict.status.success() {
            eprint!("{}", String::from_utf8_lossy(&verdict.stdout));
            eprint!("{}", String::from_utf8_lossy(&verdict.stderr));
        }
        Ok(verdict.status.success())
    }
}

/// A process of the group. It ends with its standard input.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    said: Receiver<Said>,
}

impl Process {
    fn start(spec: &Spec) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "member"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a process")?;
        let mut input = child.stdin.take().context("its input is piped")?;
        writeln!(input, "{}", serde_json::to_string(spec)?)?;
        let output = BufReader::new(child.stdout.take().context("its output is piped")?);
        // It says something once a second.
        let (said_tx, said) = mpsc::sync_channel(16);
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Ok(said) = serde_json::from_str(&line) else {
                    continue;
                };
                if said_tx.send(said).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            input: Some(input),
            said,
        })
    }

    /// Waits until the process says so, as long as it gets on.
    fn until(&self, what: &str, reached: impl Fn(&Said) -> bool) -> anyhow::Result<()> {
        let (mut settled, mut moved) = (0, Instant::now());
        while moved.elapsed() < PATIENCE {
            let said = self.said.recv_timeout(PATIENCE).with_context(|| what.to_owned())?;
            if reached(&said) {
                return Ok(());
            }
            if said.settled > settled {
                (settled, moved) = (said.settled, Instant::now());
            }
        }
        bail!("{what}: nothing happened for {PATIENCE:?} after {settled} records");
    }

    /// Lets it drain and end.
    fn stop(mut self) -> anyhow::Result<()> {
        self.input = None;
        // It may have more to say.
        while self.said.recv().is_ok() {}
        let status = self.child.wait()?;
        if !status.success() {
            bail!("a process ended with {status}; standard error says why");
        }
        Ok(())
    }

    /// SIGKILL.
    fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
