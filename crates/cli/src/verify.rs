//! `seriatim verify`: judges what recorded runs did, against what lies in Kafka.
//!
//! The recordings of `run --record` say what each instance did; the logs, the group's commits and the dead letters are read
//! apart from them. What is judged, and how, stands in [`seriatim_testkit::judge`].

mod report;
mod truth;

use std::path::PathBuf;
use std::time::Duration;

use seriatim_kafka::reader::ReadError;
use seriatim_testkit::history::merge::{Merged, merge};
use seriatim_testkit::history::recording::{self, Clock};
use seriatim_testkit::judge::{Rules, judge};

use crate::connection::Connection;
use crate::exit::Exit;
use crate::logging::Verbosity;
use report::{Format, Report};
use truth::Cluster;

/// How much later than it was noted a worker may hear of a loss, on a machine that does something else just then.
const LOSS_SLACK: Duration = Duration::from_secs(1);

/// How much earlier than it was noted a retry may have been decided, at the beginning of its worker's turn.
const CLOCK_SLACK: Duration = Duration::from_millis(250);

/// Judges the recordings of `seriatim run --record`: whether every record was handled in the order of its session, one at
/// a time, by its owner, and none was lost or repeated without cause.
///
/// All instances of the group that ran meanwhile must have been recorded, on one machine. Exits with 100 when a promise
/// was broken.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Recordings, of all instances
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    connection: Connection,

    /// Does not demand that all records are settled and committed: the run goes on, or was cut short
    #[arg(long)]
    unfinished: bool,

    /// How the verdict is written to standard output
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    #[command(flatten, next_help_heading = "Output")]
    verbosity: Verbosity,
}

pub(crate) fn run(args: Args) -> anyhow::Result<Exit> {
    args.verbosity.init();
    let mut merged = args.recordings()?;
    let properties = args.connection.properties()?;
    let cluster = Cluster::new(args.connection.brokers(), &properties, &merged)?;
    let commits = cluster.commits()?;
    if args.unfinished {
        // What was committed by now was settled before, and so it was written down before. Of the logs that is read last
        // which may have been handled by then.
        merged = args.recordings()?;
    }
    let truth = cluster.truth(&merged, &commits)?;
    let rules = Rules {
        clock_slack: CLOCK_SLACK,
        loss_slack: LOSS_SLACK,
        settled: !args.unfinished,
        lease: true,
        ..merged.limits.rules()
    };
    let report = Report::new(&merged, &truth, judge(&merged.entries, &truth, &rules));
    report.print(args.format);
    Ok(if report.passed() { Exit::Fine } else { Exit::Violation })
}

impl Args {
    /// What all of them tell at this moment, in order.
    fn recordings(&self) -> anyhow::Result<Merged> {
        let (now, mut recordings) = (Clock::now(), Vec::new());
        for file in &self.files {
            recordings.extend(
                recording::read(file)?
                    .into_iter()
                    .map(|recording| recording.up_to(&now)),
            );
        }
        Ok(merge(recordings)?)
    }
}

fn read_error(error: ReadError) -> anyhow::Error {
    match error {
        ReadError::Config(error) => Exit::BadConfiguration.error(error.to_string()),
        ReadError::Unreachable { .. } => Exit::Unreachable.error(error.to_string()),
        other => other.into(),
    }
}
