//! The table: each row's contenders run in turn, each run in a process of its own, as often as asked for.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, IsTerminal, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, ensure};
use clap::builder::PossibleValuesParser;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::contender::{Contender, Measured, READY, Spec, properties};
use super::offer::{beside, offer};
use super::report::{Medians, RowReport, text};
use super::rows::{self, Row};
use super::venue::Venue;
use super::workload::{PARTITIONS, Workload};
use super::{Connection, Format};
use crate::exit::Exit;

/// What the table is made of.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Runs the published workloads, against the brokers given or a broker of its own
    #[arg(long)]
    pub table: bool,

    /// How often each contender runs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "topic")]
    runs: u32,

    /// Records of the topics, where a row does not fix their number
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1_000..), conflicts_with = "topic")]
    records: u64,

    /// Only these rows
    #[arg(long, num_args = 1.., value_name = "NAME", value_parser = PossibleValuesParser::new(rows::NAMES), conflicts_with = "topic")]
    only: Vec<String>,

    /// Only these contenders
    #[arg(long, num_args = 1.., value_name = "NAME", value_enum, conflicts_with = "topic")]
    contenders: Vec<Contender>,

    /// Writes all figures to a file, as JSON
    #[arg(long, value_name = "FILE", conflicts_with = "topic")]
    output: Option<PathBuf>,
}

/// All figures.
#[derive(Serialize)]
struct Table {
    machine: Machine,
    version: &'static str,
    runs: u32,
    rows: Vec<RowReport>,
}

/// What the figures were taken on.
#[derive(Serialize)]
struct Machine {
    processors: usize,
    model: Option<String>,
    system: Option<String>,
    /// Whether the broker ran on the same machine, started by the benchmark.
    own_broker: bool,
}

/// Runs the table.
///
/// # Errors
/// When there is no broker, or a topic cannot be loaded. A run that fails is part of the table.
pub fn run(args: &Args, connection: &Connection, format: Format) -> anyhow::Result<Exit> {
    let rows: Vec<Row> = rows::all(args.records)
        .into_iter()
        .filter(|row| args.only.is_empty() || args.only.iter().any(|name| name == row.name))
        .collect();
    let mut bench = Bench::start(args, connection, &rows)?;
    let mut reports = Vec::new();
    for row in &rows {
        let report = bench.row(row)?;
        if format == Format::Text {
            bench.progress.suspend(|| print!("{}", text(&report)));
        }
        reports.push(report);
    }
    bench.progress.finish_and_clear();

    let violated = reports.iter().any(|row| row.violations() > 0);
    let table = Table {
        machine: Machine::this(bench.venue.is_own()),
        version: env!("CARGO_PKG_VERSION"),
        runs: args.runs,
        rows: reports,
    };
    let json = serde_json::to_string_pretty(&table)?;
    if let Some(path) = &args.output {
        fs::write(path, &json).with_context(|| format!("writing {}", path.display()))?;
    }
    if format == Format::Json {
        println!("{json}");
    }
    Ok(if violated { Exit::Violation } else { Exit::Fine })
}

struct Bench {
    venue: Venue,
    properties: Vec<String>,
    runs: u32,
    contenders: Vec<Contender>,
    /// By topic: where its partitions end.
    loaded: HashMap<String, Vec<i64>>,
    /// Tells groups and topics of this call from those of others.
    nonce: u64,
    groups: u32,
    progress: ProgressBar,
}

impl Bench {
    fn start(args: &Args, connection: &Connection, rows: &[Row]) -> anyhow::Result<Self> {
        let mut bench = Self {
            venue: Venue::find(connection.brokers.as_deref())?,
            properties: connection.properties.clone(),
            runs: args.runs,
            contenders: args.contenders.clone(),
            loaded: HashMap::new(),
            nonce: SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64,
            groups: 0,
            progress: ProgressBar::hidden(),
        };
        let runs: usize = rows.iter().map(|row| bench.contenders_of(row).len()).sum();
        bench.progress = ProgressBar::new(runs as u64 * u64::from(args.runs))
            .with_style(ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {msg}")?);
        Ok(bench)
    }

    fn contenders_of(&self, row: &Row) -> Vec<Contender> {
        let wanted = |contender: &Contender| self.contenders.is_empty() || self.contenders.contains(contender);
        row.contenders.iter().copied().filter(wanted).collect()
    }

    /// Runs a row: its contenders in turn, so that what disturbs the machine for a while disturbs all of them.
    fn row(&mut self, row: &Row) -> anyhow::Result<RowReport> {
        let contenders = self.contenders_of(row);
        let mut runs: Vec<(Contender, Vec<Measured>, Vec<String>)> = contenders
            .into_iter()
            .map(|contender| (contender, Vec::new(), Vec::new()))
            .collect();
        for number in 1..=self.runs {
            for (contender, measured, failures) in &mut runs {
                self.say(format!(
                    "{}: {}, run {number} of {}",
                    row.name,
                    contender.title(),
                    self.runs
                ));
                let spec = self.spec(row, *contender)?;
                match self.one(row, &spec) {
                    Ok(run) => measured.push(run),
                    Err(error) => failures.push(format!("{error:#}")),
                }
                self.progress.inc(1);
            }
        }
        let medians = runs
            .into_iter()
            .map(|(contender, runs, failures)| Medians::of(contender, runs, failures));
        Ok(RowReport::new(row, medians.collect()))
    }

    fn say(&self, what: String) {
        if std::io::stderr().is_terminal() {
            self.progress.set_message(what);
        } else {
            eprintln!("{what}");
        }
    }

    /// A run with a group of its own, on a topic that is loaded, or one of its own where records are offered.
    fn spec(&mut self, row: &Row, contender: Contender) -> anyhow::Result<Spec> {
        self.groups += 1;
        let group = format!("seriatim-bench-{:x}-{}", self.nonce, self.groups);
        let workload = match contender {
            Contender::OnEight => Workload {
                partitions: PARTITIONS,
                ..row.workload
            },
            _ => row.workload,
        };
        let topic = match row.offered {
            Some(_) => format!("{group}-offered"),
            None => workload.topic(),
        };
        let ends = match self.loaded.get(&topic) {
            Some(ends) => ends.clone(),
            None if row.offered.is_some() => {
                // Nobody needs them when the run is over.
                let configs = [("retention.ms", "600000"), ("segment.bytes", "33554432")];
                for topic in [&topic, &beside(&topic)] {
                    self.venue.cluster.create_topic(topic, workload.partitions, &configs)?;
                }
                workload.ends()
            }
            None => {
                self.say(format!("{}: loading topic {topic}", row.name));
                let ends = workload.load(&self.venue.cluster, &properties(&self.properties)?)?;
                self.loaded.insert(topic.clone(), ends.clone());
                ends
            }
        };
        Ok(Spec {
            contender,
            brokers: self.venue.cluster.bootstrap().to_owned(),
            properties: self.properties.clone(),
            group,
            topic,
            workload,
            ends,
            work: row.work,
            in_flight: row.in_flight,
        })
    }

    /// One run, in a child process.
    fn one(&self, row: &Row, spec: &Spec) -> anyhow::Result<Measured> {
        let mut child = start(spec)?;
        let mut said = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
        let mut offered = None;
        if let Some(per_second) = row.offered {
            let ready = said.next().transpose()?;
            ensure!(ready.as_deref() == Some(READY), "the run ended before it was ready");
            let properties = properties(&spec.properties)?;
            offered = Some(offer(
                &spec.workload,
                per_second,
                &spec.brokers,
                &spec.topic,
                &properties,
            )?);
        }
        let last = said.map_while(Result::ok).last();
        let status = child.wait()?;
        // A run in which order was violated ends with an error too, and says what it measured.
        let measured = last.and_then(|line| serde_json::from_str::<Measured>(&line).ok());
        let measured = measured.ok_or_else(|| anyhow!("the run ended with {status}; standard error says why"))?;
        Ok(Measured { offered, ..measured })
    }
}

fn start(spec: &Spec) -> anyhow::Result<Child> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["bench", "contender"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a run")?;
    // By standard input: properties may hold secrets, and arguments are seen by everyone.
    let mut input = child.stdin.take().context("its input is piped")?;
    input.write_all(serde_json::to_string(spec)?.as_bytes())?;
    Ok(child)
}

impl Machine {
    fn this(own_broker: bool) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok();
        let model = cpuinfo.and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split(':').nth(1)?.trim().to_owned())
        });
        let system = fs::read_to_string("/proc/version").ok();
        Self {
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            model,
            system: system.map(|text| text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")),
            own_broker,
        }
    }
}
