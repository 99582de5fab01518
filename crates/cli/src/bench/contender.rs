//! One run of one contender, in a process of its own: so its processor time and its memory are its own.

use std::io;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use seriatim::kafka::config::Properties;

use super::meter::{Memory, Reading};
use super::stage::{Stage, Work};
use super::times::Distribution;
use super::workload::Workload;
use super::{bare, ours, sleepers, stream, tasks, weight};
use crate::exit::Exit;

/// Who runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// Seriatim
    Ours,
    /// Seriatim, and a topic of 8 partitions that holds the same
    OnEight,
    /// A bare loop over the same source's batches
    Bare,
    /// rdkafka's StreamConsumer, one record at a time
    Stream,
    /// A tokio task and a channel per session
    Tasks,
    /// Loops of tokio's sleep, without Kafka
    Sleepers,
    /// The weight of Seriatim when all is settled
    Settled,
    /// Its weight with a record waiting in each session
    RecordsWaiting,
    /// Its weight with a handler waiting in each session
    HandlersWaiting,
    /// The weight of the records alone
    Records,
}

impl Contender {
    pub fn title(self) -> &'static str {
        match self {
            Contender::Ours => "Seriatim",
            Contender::OnEight => "Seriatim, 8 partitions",
            Contender::Bare => "bare batch loop",
            Contender::Stream => "StreamConsumer",
            Contender::Tasks => "task per session",
            Contender::Sleepers => "loops of tokio's sleep",
            Contender::Settled => "all settled",
            Contender::RecordsWaiting => "records waiting",
            Contender::HandlersWaiting => "handlers waiting",
            Contender::Records => "records alone",
        }
    }
}

/// What is to be run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    pub contender: Contender,
    pub brokers: String,
    /// `name=value`, for every client.
    pub properties: Vec<String>,
    pub group: String,
    pub topic: String,
    pub workload: Workload,
    /// By partition: where it ends.
    pub ends: Vec<i64>,
    pub work: Work,
    /// Handlers that may wait at a time.
    pub in_flight: usize,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Settled in order, and committed.
    pub records: u64,
    pub violations: u64,
    /// From the first handler's start to the last commit.
    pub seconds: Option<f64>,
    /// Records a second in that time.
    pub rate: Option<f64>,
    pub cpu_micros_per_record: Option<f64>,
    pub peak_bytes: Option<u64>,
    /// What is resident at the end; of the records alone, what they add.
    pub resident_bytes: Option<u64>,
    /// From a handler's start to its end.
    pub handle: Option<Distribution>,
    /// From a record's production to the end of its handler.
    pub delivery: Option<Distribution>,
    /// The rate that the handlers' waits alone allow.
    pub bound: Option<f64>,
    /// The rate at which records were offered.
    pub offered: Option<f64>,
}

/// What a child says on standard output once records may come.
pub const READY: &str = "ready";

/// How long a run may go on without anything happening.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Runs what is described on standard input, and prints what came of it as a line of JSON.
pub fn run() -> anyhow::Result<Exit> {
    let spec: Spec = serde_json::from_reader(io::stdin()).context("the run's description")?;
    let measured = match spec.contender {
        Contender::Ours | Contender::OnEight => judged(&spec, ours::run)?,
        Contender::Bare => judged(&spec, bare::run)?,
        Contender::Stream => judged(&spec, stream::run)?,
        Contender::Tasks => judged(&spec, tasks::run)?,
        Contender::Sleepers => sleepers::run(&spec)?,
        Contender::Settled => weight::settled(&spec)?,
        Contender::RecordsWaiting | Contender::HandlersWaiting => weight::waiting(&spec)?,
        Contender::Records => weight::records(&spec)?,
    };
    println!("{}", serde_json::to_string(&measured)?);
    let fine = measured.violations == 0;
    Ok(if fine { Exit::Fine } else { Exit::Violation })
}

/// Lets a contender handle all records, each of them judged.
fn judged(spec: &Spec, contender: fn(&Spec, &'static Stage) -> anyhow::Result<Reading>) -> anyhow::Result<Measured> {
    // It lives as long as the process, and is reached without counting references.
    let stage: &'static Stage = Box::leak(Box::new(Stage::new(spec.workload.sessions, spec.work)));
    let ended = contender(spec, stage)?;
    let (wall, cpu) = ended.since(stage.proof.began().context("no record came")?);
    let (records, memory) = (stage.proof.settled(), Memory::now());
    Ok(Measured {
        records,
        // Each record that is missing, or was settled and should not exist, is one more.
        violations: stage.proof.violations() + records.abs_diff(spec.workload.records),
        seconds: Some(wall.as_secs_f64()),
        rate: Some(records as f64 / wall.as_secs_f64()),
        cpu_micros_per_record: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / records as f64),
        peak_bytes: memory.map(|memory| memory.peak),
        resident_bytes: memory.map(|memory| memory.resident),
        handle: stage.handle.distribution(),
        delivery: stage.delivery.distribution(),
        bound: stage.bound(&spec.workload, spec.in_flight),
        offered: None,
    })
}

/// Properties of the client from `name=value` pairs.
pub fn properties(pairs: &[String]) -> anyhow::Result<Properties> {
    let mut properties = Properties::default();
    for pair in pairs {
        let inserted = properties.insert_pair(pair);
        inserted.map_err(|error| Exit::BadConfiguration.error(error.to_string()))?;
    }
    Ok(properties)
}
