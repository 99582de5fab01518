//! The `seriatim` command.

mod bench;
mod connection;
mod consume;
mod demo;
mod exit;
mod group;
mod json;
mod logging;
mod produce;
mod reach;
mod run;
mod show;
mod signals;
mod units;
mod verify;

use clap::{Parser, Subcommand};

use crate::exit::Exit;

// librdkafka allocates each message on one thread and we free it on another, where glibc is slow. mimalloc's `override`
// feature replaces malloc for C code too, which halves what the client costs.
#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Kafka records in strict order per session, in parallel across sessions.
#[derive(Parser)]
#[command(version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// An embedded broker, a generated workload with faults, and the proof of order
    Demo(demo::Args),
    /// Process a topic: print its records, or hand them to a program of yours
    Run(run::Args),
    /// Judge what recorded runs did: order, loss, repeats, ownership, commits
    Verify(verify::Args),
    /// Write lines or JSON to a topic, in order per session
    Produce(produce::Args),
    /// Read a topic, in kcat's habits
    Consume(consume::Args),
    /// Where consumer groups stand, and moving them
    Group(group::Args),
    /// The published workloads, or an existing topic, measured
    Bench(bench::Args),
}

fn main() -> std::process::ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(args) => demo::run(args),
        Command::Run(args) => run::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Produce(args) => produce::run(args),
        Command::Consume(args) => consume::run(args),
        Command::Group(args) => group::run(args),
        Command::Bench(args) => bench::run(args),
    };
    result.unwrap_or_else(Exit::of_error).into()
}
