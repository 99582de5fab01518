//! `seriatim group`: where consumer groups stand, told from outside, and moving those that are not running.

mod columns;
mod describe;
mod ls;
mod oldest;
mod plan;
mod seek;
mod standing;

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;
use seriatim_kafka::groups::{Group, Groups};

use crate::connection::Connection;
use crate::consume::{is_broken_pipe, topic_error};
use crate::exit::Exit;
use crate::logging::Verbosity;

/// How long brokers may take to answer at all.
const REACH_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// The groups of the cluster, their state and how many members they have
    Ls(ls::Args),
    /// Where a group stands: its members, its watermarks and backlogs, and what each partition waits for
    Describe(describe::Args),
    /// Moves a group that is not running to another place in its topics
    Seek(seek::Args),
}

/// What all of them are told.
#[derive(Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    connection: Connection,

    /// How the result is written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    #[command(flatten, next_help_heading = "Output")]
    verbosity: Verbosity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A table, for people
    Text,
    /// One JSON document, for programs
    Json,
}

pub(crate) fn run(args: Args) -> anyhow::Result<Exit> {
    let told = match args.command {
        Command::Ls(args) => ls::run(&args),
        Command::Describe(args) => describe::run(&args),
        Command::Seek(args) => return seek::run(&args),
    };
    match told {
        // Whoever read our output has what they wanted.
        Err(error) if is_broken_pipe(&error) => Ok(Exit::Fine),
        told => told,
    }
}

impl Common {
    /// A client whose brokers have answered.
    fn connect(&self) -> anyhow::Result<Groups> {
        let properties = self.connection.properties()?;
        let groups = Groups::connect(self.connection.brokers(), &properties).map_err(topic_error)?;
        groups.reach(REACH_TIMEOUT).map_err(topic_error)?;
        Ok(groups)
    }

    /// Writes a result to standard output, in the form that was asked for.
    fn write<T: Serialize>(&self, result: &T, text: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
        let text = match self.format {
            Format::Text => text(result),
            Format::Json => serde_json::to_string_pretty(result)? + "\n",
        };
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }
}

/// The group, which must be there.
fn existing(groups: &Groups, name: &str) -> anyhow::Result<Group> {
    let group = groups.describe(name).map_err(topic_error)?;
    group.ok_or_else(|| {
        Exit::NothingMatched.error(format!(
            "group {name} does not exist; `seriatim group ls` shows those that do"
        ))
    })
}
