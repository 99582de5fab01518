//! `seriatim bench`: the published workloads against what they are measured by, or a topic of the user's.

mod bare;
mod bars;
mod by_hand;
mod contender;
mod meter;
mod offer;
mod ours;
mod ownership;
mod proof;
mod report;
mod rows;
mod sleepers;
mod stage;
mod stream;
mod table;
mod tasks;
mod times;
mod topic;
mod venue;
mod weight;
mod workload;

use clap::{ArgGroup, ValueEnum};

use crate::exit::Exit;

#[derive(clap::Args)]
#[command(
    group = ArgGroup::new("subject").args(["table", "topic"]).required(true),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,

    /// How the result is written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    #[command(flatten)]
    table: table::Args,

    #[command(flatten)]
    topic: topic::Args,

    #[command(subcommand)]
    part: Option<Part>,
}

/// Where the cluster is. Runs are child processes, which are told the same.
#[derive(Clone, clap::Args)]
#[group(skip)]
struct Connection {
    /// Brokers to begin with, e.g. localhost:9092; several with commas between them
    #[arg(
        short = 'b',
        long = "brokers",
        visible_alias = "bootstrap-server",
        value_name = "HOST:PORT,…"
    )]
    brokers: Option<String>,

    /// Sets a property of the Kafka client, in librdkafka's names; a value may be `file:PATH` or `env:NAME`
    #[arg(short = 'X', long = "property", value_name = "NAME=VALUE")]
    properties: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// To read
    Text,
    /// To work on
    Json,
}

// A doc comment would become the command's own description.
#[derive(clap::Subcommand)]
enum Part {
    /// One run of one contender, described on standard input
    #[command(hide = true)]
    Contender,
    /// What a handover and a crash cost, with real processes that are recorded
    Ownership(ownership::Args),
    /// One process of those, described on standard input
    #[command(hide = true)]
    Member,
}

pub fn run(args: Args) -> anyhow::Result<Exit> {
    match &args.part {
        Some(Part::Contender) => contender::run(),
        Some(Part::Ownership(args)) => ownership::run(args),
        Some(Part::Member) => ownership::member(),
        None if args.table.table => table::run(&args.table, &args.connection, args.format),
        None => topic::run(&args.topic, &args.connection, args.format),
    }
}
