//! `seriatim group seek`: commits another place for a group that is not running.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::bail;
use clap::builder::NonEmptyStringValueParser;
use serde::Serialize;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_kafka::groups::{Group, GroupState, Groups, Member};
use seriatim_kafka::reader::ReadFrom;

use super::columns::{Align, NONE, cell, table};
use super::plan::{Choice, Effect, Move, moves};
use super::{Common, Format, existing};
use crate::consume::{read_from, topic_error};
use crate::exit::Exit;
use crate::units::{counted, grouped};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The group
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    group: String,

    /// Where to: `start`, `end`, `@MILLIS` for a time, `-N` for the last N records of each partition, or, for one
    /// partition, an offset
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true, value_parser = place)]
    to: ReadFrom,

    /// Only this topic or partition, e.g. `chat` or `chat:3`; say it again for more [default: all topics for which the
    /// group has committed]
    #[arg(short, long = "topic", value_name = "TOPIC[:PARTITION]")]
    topics: Vec<Choice>,

    /// Shows what would be done, and does nothing
    #[arg(long)]
    dry_run: bool,

    /// Does it without asking
    #[arg(short, long, conflicts_with = "dry_run")]
    yes: bool,

    #[command(flatten)]
    common: Common,
}

/// Reads what `--to` says.
fn place(text: &str) -> Result<ReadFrom, String> {
    match read_from(text) {
        Ok(ReadFrom::Committed) | Err(_) => Err("write `start`, `end`, `@MILLIS`, `-N` or an offset".to_owned()),
        Ok(place) => Ok(place),
    }
}

/// What a seek does.
#[derive(Serialize)]
struct Report {
    group: String,
    /// Whether it was done, and read back.
    moved: bool,
    partitions: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    topic: String,
    partition: i32,
    /// The watermark; null when nothing is committed.
    from: Option<i64>,
    to: i64,
    repeated: Option<u64>,
    skipped: Option<u64>,
    /// What is committed beside the watermark, as `describe` names it; it is discarded.
    metadata: &'static str,
    settled_discarded: Option<u64>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    args.common.verbosity.init();
    let asks = args.asks()?;
    let groups = args.common.connect()?;
    let group = existing(&groups, &args.group)?;
    if let Some(members) = running(&group) {
        args.note_running(&members)?;
    }
    let commits = groups.commits(&args.group).map_err(topic_error)?;
    let moves = moves(&groups, &commits, &args.topics, args.to)?;
    if moves.is_empty() {
        let group = &args.group;
        return Err(Exit::NothingMatched.error(format!(
            "group {group} has committed nothing: say for which topic, `-t`"
        )));
    }
    let mut report = Report {
        group: args.group.clone(),
        moved: false,
        partitions: moves.iter().map(Row::of).collect(),
    };
    if args.dry_run || args.common.format == Format::Text {
        args.common.write(&report, text)?;
    }
    if args.dry_run {
        return Ok(Exit::Fine);
    }
    if asks && !is_wanted(&mut io::stdin().lock(), &mut io::stderr(), &report)? {
        eprintln!("nothing was moved");
        return Ok(Exit::Unexpected);
    }
    carry_out(&groups, &args.group, &moves)?;
    report.moved = true;
    match args.common.format {
        Format::Json => args.common.write(&report, text)?,
        Format::Text if args.common.verbosity.is_quiet() => {}
        Format::Text => eprintln!(
            "moved {}, and read back",
            counted(report.partitions.len() as u64, "partition")
        ),
    }
    Ok(Exit::Fine)
}

impl Args {
    /// Whether somebody is to be asked.
    ///
    /// # Errors
    /// When somebody is, and cannot be.
    fn asks(&self) -> anyhow::Result<bool> {
        if self.yes || self.dry_run {
            return Ok(false);
        }
        if self.common.format == Format::Json {
            return Err(Exit::Usage.error("with `--format json` nothing is asked: say `--yes`, or `--dry-run`"));
        }
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Err(Exit::Usage.error(
                "there is no terminal to ask on: say `--yes` to move the group, or `--dry-run` to see what that does",
            ));
        }
        Ok(true)
    }

    /// What to do about a group that has members: what would be done may be shown, and not more.
    fn note_running(&self, members: &str) -> anyhow::Result<()> {
        if self.dry_run {
            tracing::warn!("the group is running, with {members}: it can be moved only when it is stopped");
            return Ok(());
        }
        let group = &self.group;
        bail!(
            "group {group} is running, with {members}. Stop it first: its own commits would count. A member that crashed \
             is let go after its session timeout"
        )
    }
}

/// Who is in the group, in words; `None` when nobody is.
fn running(group: &Group) -> Option<String> {
    const NAMED_MAX: usize = 3;
    if group.state == GroupState::Empty && group.members.is_empty() {
        return None;
    }
    let name = |member: &Member| format!("{} at {}", member.client_id, member.host);
    let mut names: Vec<String> = group.members.iter().take(NAMED_MAX).map(name).collect();
    if group.members.len() > NAMED_MAX {
        names.push("…".to_owned());
    }
    let members = counted(group.members.len() as u64, "member");
    Some(format!("{members} ({})", names.join(", ")))
}

/// Asks whether it is to be done. Anything but yes is no.
fn is_wanted(input: &mut impl BufRead, output: &mut impl Write, report: &Report) -> io::Result<bool> {
    let sum = |count: fn(&Row) -> Option<u64>| report.partitions.iter().filter_map(count).sum::<u64>();
    let (repeated, skipped) = (sum(|row| row.repeated), sum(|row| row.skipped));
    write!(
        output,
        "move group {}: {} handled again, {} skipped? [y/N] ",
        report.group,
        counted(repeated, "record"),
        counted(skipped, "record"),
    )?;
    output.flush()?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Commits, and asks what is committed then.
fn carry_out(groups: &Groups, group: &str, moves: &[Move]) -> anyhow::Result<()> {
    let places: Vec<(PartitionId, Offset)> = moves.iter().map(|one| (one.partition.clone(), one.to)).collect();
    let refused = groups.seek(group, &places).map_err(topic_error)?;
    if !refused.is_empty() {
        let reasons: Vec<String> = refused.iter().map(ToString::to_string).collect();
        let others = counted((places.len() - refused.len()) as u64, "other partition");
        bail!("{}; {others} moved", reasons.join("; "));
    }
    let commits = groups.commits(group).map_err(topic_error)?;
    let holds = |(partition, offset): &&(PartitionId, Offset)| {
        let mut commits = commits.iter();
        commits.any(|commit| commit.partition == *partition && commit.offset == *offset && commit.metadata.is_empty())
    };
    let lost: Vec<String> = places
        .iter()
        .filter(|place| !holds(place))
        .map(|(partition, _)| partition.to_string())
        .collect();
    if !lost.is_empty() {
        bail!(
            "the broker took the commit, but does not tell it for {}: somebody else commits for the group; stop them, \
             and seek again",
            lost.join(", ")
        );
    }
    Ok(())
}

impl Row {
    fn of(one: &Move) -> Self {
        let effect = one.effect();
        let count = |count: fn(&Effect) -> u64| effect.as_ref().map(count);
        Self {
            topic: one.partition.topic().to_owned(),
            partition: one.partition.number(),
            from: one.from.as_ref().map(|from| from.watermark),
            to: one.to.get(),
            repeated: count(|effect| effect.repeated),
            skipped: count(|effect| effect.skipped),
            metadata: one.from.as_ref().map_or("none", |from| from.metadata()),
            settled_discarded: count(|effect| effect.forgotten),
        }
    }

    /// What becomes of the metadata.
    fn discarded(&self) -> String {
        match (self.metadata, self.settled_discarded) {
            ("none", _) => NONE.to_owned(),
            ("ack_map", Some(settled)) => format!("ack map of {} settled", grouped(settled)),
            (name, _) => format!("metadata: {name}"),
        }
    }
}

fn text(report: &Report) -> String {
    let titles = [
        ("PARTITION", Align::Left),
        ("FROM", Align::Right),
        ("TO", Align::Right),
        ("REPEATED", Align::Right),
        ("SKIPPED", Align::Right),
        ("DISCARDED", Align::Left),
    ];
    let row = |row: &Row| {
        [
            format!("{}[{}]", row.topic, row.partition),
            cell(row.from),
            row.to.to_string(),
            cell(row.repeated.map(grouped)),
            cell(row.skipped.map(grouped)),
            row.discarded(),
        ]
    };
    table(titles, &report.partitions.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_consume_but_for_the_stored_one() {
        assert_eq!(place("start"), Ok(ReadFrom::Beginning));
        assert_eq!(place("end"), Ok(ReadFrom::End));
        assert_eq!(place("@7"), Ok(ReadFrom::Time(7)));
        assert_eq!(place("-7"), Ok(ReadFrom::Tail(7)));
        assert_eq!(place("7"), Ok(ReadFrom::Offset(7)));
        for wrong in ["stored", "", "now"] {
            assert!(place(wrong).unwrap_err().contains("@MILLIS"), "{wrong}");
        }
    }

    #[test]
    fn only_a_yes_is_one() {
        let row = |repeated, skipped| Row {
            topic: "chat".to_owned(),
            partition: 0,
            from: Some(5),
            to: 0,
            repeated,
            skipped,
            metadata: "none",
            settled_discarded: Some(0),
        };
        let report = Report {
            group: "bookings".to_owned(),
            moved: false,
            partitions: vec![row(Some(1200), Some(0)), row(None, None), row(Some(34), Some(1))],
        };
        let answer = |text: &str| {
            let mut asked = Vec::new();
            let wanted = is_wanted(&mut text.as_bytes(), &mut asked, &report).unwrap();
            (wanted, String::from_utf8(asked).unwrap())
        };
        let question = "move group bookings: 1,234 records handled again, 1 record skipped? [y/N] ";
        assert_eq!(answer("y\n"), (true, question.to_owned()));
        assert!(answer("Yes\n").0);
        for no in ["\n", "", "n\n", "yess\n"] {
            assert!(!answer(no).0, "{no:?}");
        }
    }
}
