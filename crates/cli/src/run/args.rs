//! What a run is told on the command line, and the consumer that it makes of it.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use seriatim::prelude::*;
use seriatim_kafka::source::StartAt;
use seriatim_runtime::backend::Backend;
use seriatim_runtime::worker::STARTS_PER_LOOK;
use seriatim_testkit::history::recording::{self, Consumes};

use super::place::RangeRule;
use super::print::Format;
use super::record::Recording;
use crate::connection::Connection;
use crate::logging::Verbosity;
use crate::reach::Reach;
use crate::units::{bytes, duration, positive_duration};

/// Records that one read may bring when the limit of unsettled ones is all but reached: more than any does.
const READ_MAX: usize = 10_000;

/// What the commit at the end of a drain may take beyond the drain's timeout, when the coordinator is slow to answer.
const LAST_COMMIT_MAX: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,

    /// Topic to read; say it again for more
    #[arg(short, long = "topic", value_name = "TOPIC", required = true)]
    topics: Vec<String>,

    /// Consumer group to join
    #[arg(short, long, short_alias = 'G', value_name = "GROUP")]
    group: String,

    /// Where a partition begins for which the group has committed nothing
    #[arg(short = 'o', long, value_name = "PLACE", default_value = "start")]
    offset: Begin,

    /// What becomes of a partition whose next offset is not in its log (deleted before it was read, or the log was
    /// truncated, or its topic deleted and created anew): `stop`, or go on at the `earliest` record or after the `latest`;
    /// `TOPIC=POLICY` for one topic, and again for more [default: stop]
    #[arg(long, value_name = "[TOPIC=]POLICY")]
    out_of_range: Vec<RangeRule>,

    /// What becomes of partitions that are added to a topic while it is read
    #[arg(long, value_name = "POLICY", default_value = "warn")]
    growth: GrowthPolicy,

    /// Which part of a record names its session: `key`, `header:NAME` or `json:/pointer`
    #[arg(long, value_name = "PLACE", default_value = "key")]
    pub(super) session_by: SessionBy,

    /// What becomes of a record without a session
    #[arg(long, value_name = "POLICY", default_value = "dead-letter")]
    missing_session: Missing,

    /// Prints each record on standard output (the default)
    #[arg(long, conflicts_with_all = ["exec", "children"])]
    print: bool,

    /// How printed records look
    #[arg(long, value_name = "FORMAT", default_value = "text", conflicts_with = "exec")]
    pub(super) format: Format,

    /// Hands records to this program, run by `sh -c`, as JSON lines on its standard input
    #[arg(long, value_name = "COMMAND")]
    pub(super) exec: Option<String>,

    /// How many children run the program
    #[arg(long, value_name = "N", default_value = "1", requires = "exec")]
    pub(super) children: NonZeroUsize,

    /// Judges the order of all records as they are handled; exit code 100 if it was violated
    #[arg(long)]
    pub(super) check: bool,

    /// Writes what happens to this file, for `seriatim verify`; it holds no key and no value
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Stops when so many records are settled; those that a child then works on are finished too
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub(super) count: Option<NonZeroUsize>,

    /// Ends with exit code 69 when no broker could be reached for this long
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    give_up_after: Option<Duration>,

    #[command(flatten, next_help_heading = "Limits")]
    pub(super) limits: LimitArgs,

    #[command(flatten, next_help_heading = "Output")]
    pub(super) verbosity: Verbosity,
}

#[derive(Debug, clap::Args)]
pub(super) struct LimitArgs {
    /// Records being handled at a time
    #[arg(long, value_name = "N", default_value = "1000")]
    in_flight: NonZeroUsize,

    /// How long an attempt may take before it counts as failed
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = positive_duration)]
    attempt_timeout: Duration,

    /// Wait before the second attempt, at most; it doubles with each further one
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = duration)]
    retry_base: Duration,

    /// Bound of that wait
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    retry_cap: Duration,

    /// Attempts a record has before it becomes a dead letter
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..))]
    retry_attempts: u32,

    /// How often progress is committed
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = positive_duration)]
    commit_interval: Duration,

    /// How long what runs may go on when the run ends or partitions leave
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub(super) drain_timeout: Duration,

    /// Bytes read and not settled, at most; of one partition a quarter of it
    ///
    /// Keys and values count, and 64 bytes for each record; the last record that is read may pass the limit. The process
    /// holds more than that: what the Kafka client has fetched ahead, i.e. `queued.max.messages.kbytes` (64 MiB unless set
    /// with -X) for all partitions together and as much again for each that is held by its own quarter (five at most),
    /// and a fetch of up to `fetch.max.bytes` (50 MiB); 4 MiB, or the largest record, that are read and wait for room; and
    /// some 350 bytes of the client's for each record.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = bytes)]
    max_bytes: usize,

    /// Threads that handle records [default: one a core, less one for the client]
    #[arg(long, value_name = "N")]
    workers: Option<NonZeroUsize>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Begin {
    /// At the oldest record
    #[value(alias = "beginning", alias = "earliest")]
    Start,
    /// After the newest record; a partition that is added later begins at its oldest
    #[value(alias = "latest")]
    End,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum GrowthPolicy {
    /// They are started at once, and it is told
    Warn,
    /// They wait until all that the others had is settled: a key that moves to a new partition keeps its order. One that
    /// moves between two old ones does not, so multiply the number of partitions
    Hold,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Missing {
    /// It becomes a dead letter
    DeadLetter,
    /// The run ends with an error that names it
    Fail,
    /// It is handled in order with the others of its partition
    PartitionAsSession,
}

impl Args {
    /// What looks after the way to the cluster.
    ///
    /// # Errors
    /// When the properties are wrong.
    pub(super) fn reach(&self) -> anyhow::Result<Reach> {
        Ok(Reach {
            brokers: self.connection.brokers().to_owned(),
            properties: self.connection.properties()?,
            topic: self.topics[0].clone(),
            give_up_after: self.give_up_after,
        })
    }

    /// Where the consumer runs.
    pub(super) fn cluster(&self, reach: &Reach) -> Cluster {
        let cluster = Cluster::new(&reach.brokers)
            .properties(reach.properties.clone())
            .start_at(match self.offset {
                Begin::Start => StartAt::Earliest,
                Begin::End => StartAt::Latest,
            })
            .growth(match self.growth {
                GrowthPolicy::Warn => Growth::Warn,
                GrowthPolicy::Hold => Growth::Hold,
            });
        self.out_of_range
            .iter()
            .fold(cluster, |cluster, rule| rule.apply(cluster))
    }

    /// The consumer, without its observer.
    pub(super) fn builder<B: Backend>(&self, backend: B) -> Builder<B> {
        let limits = &self.limits;
        let builder = Seriatim::group(&self.group)
            .on(backend)
            .session_by(self.session_by.clone())
            .missing_session(match self.missing_session {
                Missing::DeadLetter => MissingSession::DeadLetter,
                Missing::Fail => MissingSession::Fail,
                Missing::PartitionAsSession => MissingSession::PartitionAsSession,
            })
            .retry(Retry {
                base: limits.retry_base,
                cap: limits.retry_cap,
                attempts_max: limits.retry_attempts,
                jitter_seed: RandomState::new().hash_one(0),
                ..Retry::default()
            })
            .in_flight(limits.in_flight.get())
            .workers(limits.workers().get())
            .attempt_timeout(limits.attempt_timeout)
            .commit_interval(limits.commit_interval)
            .drain_timeout(limits.drain_timeout)
            .limits(limits.unsettled())
            .check(self.check);
        self.topics.iter().fold(builder, |builder, topic| builder.topic(topic))
    }

    /// The recording that is begun, if one is wanted.
    ///
    /// # Errors
    /// When its file cannot be written.
    pub(super) fn recording(&self) -> anyhow::Result<Option<Recording>> {
        let Some(file) = &self.record else { return Ok(None) };
        let (limits, unsettled) = (&self.limits, self.limits.unsettled());
        let workers = limits.workers().get();
        let consumes = Consumes {
            group: self.group.clone(),
            topics: self.topics.clone(),
            session_by: self.session_by.to_string(),
            keyless_are_a_session: matches!(self.missing_session, Missing::PartitionAsSession),
            begins_at_end: matches!(self.offset, Begin::End),
            limits: recording::Limits {
                attempts_max: limits.retry_attempts,
                in_flight_max: limits.in_flight.get().div_ceil(workers) * workers,
                unsettled_max: unsettled.unsettled_records_max + READ_MAX,
                partition_unsettled_max: unsettled.partition_records_max + READ_MAX,
                drain_max_ms: (limits.drain_timeout + LAST_COMMIT_MAX).as_millis() as u64,
                starts_per_look: workers * STARTS_PER_LOOK,
            },
        };
        Recording::begin(file, consumes).map(Some)
    }
}

impl LimitArgs {
    fn workers(&self) -> NonZeroUsize {
        self.workers.unwrap_or_else(seriatim::default_workers)
    }

    fn unsettled(&self) -> Limits {
        Limits {
            unsettled_bytes_max: self.max_bytes,
            partition_bytes_max: self.max_bytes.div_ceil(4),
            ..Limits::default()
        }
    }
}
