//! A topic of the user's, read by a fresh group, with handlers that wait and fail as asked for. Nothing is written to the
//! cluster but the group's offsets.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde::Serialize;
use seriatim::kafka::reader::LogReader;
use seriatim::prelude::*;
use seriatim::runtime::ports::{Event, Observer};

use super::contender::properties;
use super::meter::{Memory, Reading};
use super::ours::runtime;
use super::times::{Distribution, Times};
use super::workload::mix;
use super::{Connection, Format};
use crate::consume::topic_error;
use crate::exit::Exit;
use crate::units::{duration, grouped};

/// What is read, and how it is handled.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Reads this topic, from its beginning, with a fresh group
    #[arg(short, long, value_name = "TOPIC")]
    pub topic: Option<String>,

    /// Ends when so many records are settled; else at the topic's end
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "table", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// How long each handler waits: 0, 1ms, 10ms
    #[arg(long, default_value = "0", value_parser = work, conflicts_with = "table")]
    work: Duration,

    /// The share of attempts that fail, e.g. 10% or 0.1
    #[arg(long, default_value = "0", value_parser = share, value_name = "SHARE", conflicts_with = "table")]
    faults: f64,

    /// Handlers that may wait at a time
    #[arg(long, default_value_t = 1_000, value_name = "COUNT", conflicts_with = "table")]
    in_flight: usize,

    /// Where a record's session key is: key, header:NAME or json:/pointer
    #[arg(long, default_value = "key", value_name = "PLACE", conflicts_with = "table")]
    session_by: SessionBy,

    /// Judges the order of every record of every session
    #[arg(long, conflicts_with = "table")]
    check: bool,
}

fn work(text: &str) -> Result<Duration, String> {
    if text == "0" {
        Ok(Duration::ZERO)
    } else {
        duration(text)
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    match share {
        // All of them would never end.
        Ok(share) if (0.0..0.99).contains(&share) => Ok(share),
        _ => Err("write a share below 0.99, e.g. 10% or 0.1".to_owned()),
    }
}

/// How long the topic may deliver nothing before it is taken to be at its end: transactions leave offsets behind that are
/// no records.
const IDLE: Duration = Duration::from_secs(10);

/// How often it is looked whether the end is reached.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// What was measured.
#[derive(Debug, Serialize)]
struct Report {
    topic: String,
    records: u64,
    /// From the first handler's start to the last commit.
    seconds: f64,
    rate: f64,
    cpu_micros_per_record: Option<f64>,
    peak_mib: Option<f64>,
    /// From a handler's start to its end, failed attempts among them; `None` where handlers do nothing.
    handle: Option<Distribution>,
    retries: u64,
    /// Starts that were judged; 0 without `--check`.
    checked: u64,
    violations: u64,
}

/// Measures the topic.
///
/// # Errors
/// When the cluster cannot be reached, or the topic is not there or holds nothing.
pub fn run(args: &Args, connection: &Connection, format: Format) -> anyhow::Result<Exit> {
    let topic = args.topic.clone().context("clap asks for it")?;
    let Some(brokers) = &connection.brokers else {
        return Err(Exit::Usage.error("no broker is named: say `-b HOST:PORT`, e.g. `-b localhost:9092`"));
    };
    let properties = properties(&connection.properties)?;
    // The client that asks is gone before anything is measured.
    let extents = LogReader::connect(brokers, None, &properties).and_then(|reader| reader.extents(&topic));
    let ends: Vec<Option<i64>> = extents
        .map_err(topic_error)?
        .iter()
        .map(|extent| (!extent.offsets.is_empty()).then_some(extent.offsets.end))
        .collect();
    if ends.iter().all(Option::is_none) {
        return Err(Exit::NothingMatched.error(format!("topic {topic} holds no record")));
    }
    let watch = Watch::new(ends);
    let cluster = Cluster::new(brokers).properties(properties);
    let report = runtime()?.block_on(measure(args, topic, cluster, watch))?;
    match format {
        Format::Text => print!("{}", report.text()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    Ok(if report.violations == 0 {
        Exit::Fine
    } else {
        Exit::Violation
    })
}

async fn measure(args: &Args, topic: String, cluster: Cluster, watch: Watch) -> anyhow::Result<Report> {
    let job: &'static Job = Box::leak(Box::new(Job::new(args)));
    let nonce = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    let mut handle = Seriatim::group(format!("seriatim-bench-{nonce:x}"))
        .on(cluster)
        .topic(&topic)
        .session_by(args.session_by.clone())
        // Dead letters would be written to the user's cluster.
        .missing_session(MissingSession::PartitionAsSession)
        .retry(Retry {
            attempts_max: u32::MAX,
            ..Retry::default()
        })
        .in_flight(args.in_flight)
        .check(args.check)
        .observer(watch.clone())
        .start(move |record: Record, cx: Context| job.handle(record, cx))
        .await?;
    tokio::select! {
        () = until_end(&handle, args.count.unwrap_or(u64::MAX), &watch) => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    handle.stop();
    handle.drained().await?;

    let stats = handle.stats();
    let began = job.began.get().context("no record came")?;
    let ended = watch.last_commit().context("nothing was committed")?;
    let (wall, cpu) = ended.since(*began);
    Ok(Report {
        topic,
        records: stats.settled,
        seconds: wall.as_secs_f64(),
        rate: stats.settled as f64 / wall.as_secs_f64(),
        cpu_micros_per_record: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / stats.settled as f64),
        peak_mib: Memory::now().map(|memory| memory.peak as f64 / f64::from(1 << 20)),
        handle: job.times.distribution(),
        retries: stats.retries,
        checked: stats.checked,
        violations: stats.violations,
    })
}

/// Returns when `count` records are settled, when all that the topic held at the start is committed, or when nothing has
/// come for a while.
async fn until_end(handle: &Handle, count: u64, watch: &Watch) {
    let (mut settled, mut heard) = (0, Instant::now());
    while settled < count && !watch.is_at_end() {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let stats = handle.stats();
        if stats.settled > settled || stats.sessions > 0 {
            (settled, heard) = (stats.settled, Instant::now());
        }
        if settled > 0 && heard.elapsed() > IDLE {
            return;
        }
    }
}

/// What handlers do.
struct Job {
    work: Duration,
    faults: f64,
    began: OnceLock<Reading>,
    times: Times,
}

impl Job {
    fn new(args: &Args) -> Self {
        Self {
            work: args.work,
            faults: args.faults,
            began: OnceLock::new(),
            times: Times::new(),
        }
    }

    async fn handle(&self, record: Record, cx: Context) -> Result<(), Failure> {
        self.began.get_or_init(Reading::now);
        if self.work.is_zero() && self.faults == 0.0 {
            return Ok(());
        }
        let began = Instant::now();
        if !self.work.is_zero() {
            tokio::time::sleep(self.work).await;
        }
        self.times.note(began.elapsed());
        let place = (record.partition() as u64) << 48 ^ record.offset() as u64;
        let draw = mix(mix(place) ^ u64::from(cx.attempt()));
        if (draw as f64) < self.faults * u64::MAX as f64 {
            return Err(Failure::transient("drawn to fail"));
        }
        Ok(())
    }
}

/// Watches how far commits have come.
#[derive(Clone)]
struct Watch(Arc<Mutex<Commits>>);

struct Commits {
    /// By partition: its end, while that is not committed.
    ends: Vec<Option<i64>>,
    last: Option<Reading>,
}

impl Watch {
    fn new(ends: Vec<Option<i64>>) -> Self {
        Self(Arc::new(Mutex::new(Commits { ends, last: None })))
    }

    fn is_at_end(&self) -> bool {
        self.commits().ends.iter().all(Option::is_none)
    }

    fn last_commit(&self) -> Option<Reading> {
        self.commits().last
    }

    fn commits(&self) -> std::sync::MutexGuard<'_, Commits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Watch {
    fn observe(&self, event: Event<'_>) {
        match event {
            Event::Committed(partition, watermark) => {
                let mut commits = self.commits();
                commits.last = Some(Reading::now());
                if let Some(end) = commits.ends.get_mut(partition.number() as usize) {
                    *end = end.filter(|end| watermark.get() < *end);
                }
            }
            Event::Trouble(trouble) => eprintln!("{trouble}"),
            Event::Violation(violation) => eprintln!("order violated: {violation}"),
            _ => {}
        }
    }
}

impl Report {
    fn text(&self) -> String {
        let figure =
            |figure: Option<f64>, unit: &str| figure.map_or("-".to_owned(), |figure| format!("{figure:.2} {unit}"));
        let times = |quantile: fn(&Distribution) -> f64| self.handle.as_ref().map(|handle| quantile(handle) / 1e3);
        let order = match self.checked {
            0 => "not checked".to_owned(),
            checked => format!(
                "{} starts judged, {} violations",
                grouped(checked),
                grouped(self.violations)
            ),
        };
        format!(
            "topic            {}\nrecords          {}\nrate             {}/s, from the first handled to the last committed\n\
             processor time   {} a record\npeak memory      {}\nhandler p50      {}\nhandler p99      {}\nretries          {}\n\
             order            {order}\n",
            self.topic,
            grouped(self.records),
            grouped(self.rate.round() as u64),
            figure(self.cpu_micros_per_record, "us"),
            figure(self.peak_mib, "MiB"),
            figure(times(|handle| handle.p50_micros), "ms"),
            figure(times(|handle| handle.p99_micros), "ms"),
            grouped(self.retries),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_written_in_percent_or_as_fractions() {
        assert_eq!(share("10%"), Ok(0.1));
        assert_eq!(share("0.25"), Ok(0.25));
        assert_eq!(share("0"), Ok(0.0));
        for wrong in ["100%", "1", "-1%", "ten", ""] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn work_is_nothing_or_a_duration() {
        assert_eq!(work("0"), Ok(Duration::ZERO));
        assert_eq!(work("10ms"), Ok(Duration::from_millis(10)));
        assert!(work("10").is_err());
    }
}
