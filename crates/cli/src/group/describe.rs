//! `seriatim group describe`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::builder::NonEmptyStringValueParser;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use seriatim_engine::record::PartitionId;
use seriatim_kafka::groups::{Group, GroupCommit, Groups, Member};
use seriatim_runtime::session_by::SessionBy;

use super::columns::{Align, NONE, cell, table};
use super::oldest::{self, Found, Oldest};
use super::standing::Standing;
use super::{Common, existing};
use crate::consume::topic_error;
use crate::exit::Exit;
use crate::json::OwnedBytes;
use crate::show::show;
use crate::units::{age, counted, grouped};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The group
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    group: String,

    /// Only this topic; say it again for more
    #[arg(short, long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,

    /// Which part of a record names its session: `key`, `header:NAME` or `json:/pointer`
    #[arg(long, value_name = "PLACE", default_value = "key")]
    session_by: SessionBy,

    #[command(flatten)]
    common: Common,
}

/// Where a group stands.
#[derive(Serialize)]
struct Report {
    group: String,
    state: String,
    #[serde(rename = "type")]
    kind: String,
    /// How partitions are given to members.
    protocol: Option<String>,
    members: Vec<MemberRow>,
    partitions: Vec<PartitionRow>,
}

#[derive(Serialize)]
struct MemberRow {
    member_id: String,
    client_id: String,
    host: String,
    instance_id: Option<String>,
    partitions: Vec<Place>,
}

#[derive(Serialize)]
struct Place {
    topic: String,
    partition: i32,
}

#[derive(Serialize)]
struct PartitionRow {
    #[serde(flatten)]
    place: Place,
    watermark: i64,
    begin: Option<i64>,
    end: Option<i64>,
    backlog: Option<u64>,
    settled_above: Option<u64>,
    /// `none`, `ack_map`, or why it is ignored: `foreign`, `damaged`, `beyond_end`; `unknown` without the log's end.
    metadata: &'static str,
    oldest_unsettled: Option<OldestRow>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct OldestRow {
    offset: i64,
    /// Milliseconds since the Unix epoch.
    timestamp: Option<i64>,
    age_ms: Option<u64>,
    session: Option<OwnedBytes>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    args.common.verbosity.init();
    let groups = args.common.connect()?;
    let group = existing(&groups, &args.group)?;
    let mut commits = groups.commits(&args.group).map_err(topic_error)?;
    if !args.topics.is_empty() {
        commits.retain(|commit| args.topics.iter().any(|topic| topic == commit.partition.topic()));
        if commits.is_empty() {
            let (group, topics) = (&args.group, args.topics.join(" and "));
            return Err(Exit::NothingMatched.error(format!(
                "group {group} has committed nothing for {topics}; without `-t` all that it has committed is shown"
            )));
        }
    }
    let (standings, unknown): (Vec<_>, Vec<_>) = standings(&groups, &commits)?.into_iter().unzip();
    let found = args.oldest(&standings);
    let mut report = Report::of(group);
    report.partitions = standings
        .iter()
        .zip(unknown)
        .map(|(standing, unknown)| {
            let mut row = PartitionRow::of(standing, &args.group, &found);
            row.notes.extend(unknown);
            row
        })
        .collect();
    args.common.write(&report, text)?;
    Ok(Exit::Fine)
}

/// Where the group stands in each partition, and, if it is so, why the log's begin and end are not known.
fn standings(groups: &Groups, commits: &[GroupCommit]) -> anyhow::Result<Vec<(Standing, Option<String>)>> {
    let partitions: Vec<PartitionId> = commits.iter().map(|commit| commit.partition.clone()).collect();
    let extents = groups.extents(&partitions).map_err(topic_error)?;
    let standings = commits.iter().zip(extents).map(|(commit, extent)| match extent {
        Ok(extent) => (Standing::of(commit, Some(extent.offsets)), None),
        Err(error) => (Standing::of(commit, None), Some(error.to_string())),
    });
    Ok(standings.collect())
}

impl Args {
    /// The oldest unsettled record of each partition. What cannot be read is missing: the rest is known all the same.
    fn oldest(&self, standings: &[Standing]) -> Result<Found, String> {
        let behind = standings.iter().filter(|standing| standing.first_unsettled().is_some());
        let bar = self.progress(behind.count());
        let connection = &self.common.connection;
        let properties = connection.properties().map_err(|error| error.to_string())?;
        let found = oldest::read(connection.brokers(), &properties, standings, &self.session_by, || {
            bar.inc(1);
        });
        bar.finish_and_clear();
        found.map_err(|error| error.to_string())
    }

    /// On a terminal only.
    fn progress(&self, len: usize) -> ProgressBar {
        if self.common.verbosity.is_quiet() {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("reading oldest records {bar:24} {pos}/{len}");
        ProgressBar::new(len as u64).with_style(style.expect("a template that is right"))
    }
}

impl Report {
    fn of(group: Group) -> Self {
        Self {
            group: group.name,
            state: group.state.to_string(),
            kind: group.kind.to_string(),
            protocol: (!group.assignor.is_empty()).then_some(group.assignor),
            members: group.members.into_iter().map(MemberRow::of).collect(),
            partitions: Vec::new(),
        }
    }
}

impl MemberRow {
    fn of(member: Member) -> Self {
        Self {
            member_id: member.id,
            client_id: member.client_id,
            host: member.host,
            instance_id: member.instance_id,
            partitions: member.partitions.iter().map(Place::of).collect(),
        }
    }
}

impl Place {
    fn of(partition: &PartitionId) -> Self {
        Self {
            topic: partition.topic().to_owned(),
            partition: partition.number(),
        }
    }
}

impl PartitionRow {
    fn of(standing: &Standing, group: &str, found: &Result<Found, String>) -> Self {
        let partition = &standing.partition;
        let mut notes = standing.notes(group);
        let oldest = found.as_ref().ok().and_then(|found| found.oldest.get(partition));
        let unread = match found {
            Ok(found) if found.unread.contains(partition) => Some("it did not come in time"),
            Err(reason) if standing.first_unsettled().is_some() => Some(reason.as_str()),
            _ => None,
        };
        notes.extend(unread.map(|reason| format!("the oldest unsettled record was not read: {reason}")));
        if let Some(Oldest {
            offset,
            session: Err(error),
            ..
        }) = oldest
        {
            notes.push(format!("the record at {offset} names no session: {error}"));
        }
        Self {
            place: Place::of(partition),
            watermark: standing.watermark,
            begin: standing.log.as_ref().map(|log| log.start),
            end: standing.log.as_ref().map(|log| log.end),
            backlog: standing.backlog(),
            settled_above: standing.settled_above(),
            metadata: standing.metadata(),
            oldest_unsettled: oldest.map(OldestRow::of),
            notes,
        }
    }
}

impl OldestRow {
    fn of(oldest: &Oldest) -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_millis() as i64;
        Self {
            offset: oldest.offset,
            timestamp: oldest.timestamp,
            // A producer's clock may be ahead of ours.
            age_ms: oldest
                .timestamp
                .map(|timestamp| now.saturating_sub(timestamp).max(0) as u64),
            session: oldest.session.as_ref().ok().map(|key| OwnedBytes(key.clone())),
        }
    }
}

fn text(report: &Report) -> String {
    let mut text = format!("group {}: {}, {}", report.group, report.state, report.kind);
    if let Some(protocol) = &report.protocol {
        text.push_str(&format!(", {protocol}"));
    }
    text.push_str(&format!(", {}\n", counted(report.members.len() as u64, "member")));
    if !report.members.is_empty() {
        text.push('\n');
        text.push_str(&members(&report.members));
    }
    text.push('\n');
    if report.partitions.is_empty() {
        text.push_str("nothing is committed yet\n");
        return text;
    }
    text.push_str(&partitions(&report.partitions));
    let backlog: u64 = report.partitions.iter().filter_map(|row| row.backlog).sum();
    text.push_str(&format!("\nbacklog: {}", counted(backlog, "record")));
    let unknown = report.partitions.iter().filter(|row| row.backlog.is_none()).count();
    if unknown > 0 {
        let unknown = counted(unknown as u64, "partition");
        text.push_str(&format!(", and that of {unknown} is not known"));
    }
    text.push('\n');
    for row in &report.partitions {
        for note in &row.notes {
            text.push_str(&format!("\n{}: {note}\n", row.place.name()));
        }
    }
    text
}

fn members(members: &[MemberRow]) -> String {
    let titles = [
        ("CLIENT", Align::Left),
        ("HOST", Align::Left),
        ("INSTANCE", Align::Left),
        ("PARTITIONS", Align::Left),
    ];
    let row = |member: &MemberRow| {
        [
            member.client_id.clone(),
            member.host.clone(),
            cell(member.instance_id.as_ref()),
            spans(&member.partitions),
        ]
    };
    table(titles, &members.iter().map(row).collect::<Vec<_>>())
}

fn partitions(rows: &[PartitionRow]) -> String {
    let titles = [
        ("PARTITION", Align::Left),
        ("WATERMARK", Align::Right),
        ("BEGIN", Align::Right),
        ("END", Align::Right),
        ("BACKLOG", Align::Right),
        ("SETTLED ABOVE", Align::Right),
        ("OLDEST UNSETTLED", Align::Right),
        ("AGE", Align::Right),
        ("SESSION", Align::Left),
    ];
    let row = |row: &PartitionRow| {
        let oldest = row.oldest_unsettled.as_ref();
        let age_of = |oldest: &OldestRow| oldest.age_ms.map(|millis| age(Duration::from_millis(millis)));
        [
            row.place.name(),
            row.watermark.to_string(),
            cell(row.begin),
            cell(row.end),
            cell(row.backlog.map(grouped)),
            cell(row.settled_above.map(grouped)),
            cell(oldest.map(|oldest| oldest.offset)),
            cell(oldest.and_then(age_of)),
            oldest.map_or(NONE.to_owned(), session),
        ]
    };
    table(titles, &rows.iter().map(row).collect::<Vec<_>>())
}

fn session(oldest: &OldestRow) -> String {
    let mut text = String::new();
    match &oldest.session {
        Some(OwnedBytes(key)) => show(Some(key), &mut text),
        None => text.push_str("(none)"),
    }
    text
}

impl Place {
    fn name(&self) -> String {
        format!("{}[{}]", self.topic, self.partition)
    }
}

/// Partitions in order, neighbours together: `chat[0-3,5] orders[1]`.
fn spans(places: &[Place]) -> String {
    let mut text = String::new();
    for topic in places.chunk_by(|one, other| one.topic == other.topic) {
        let span = |numbers: &[Place]| match (&numbers[0], &numbers[numbers.len() - 1]) {
            (first, last) if first.partition == last.partition => first.partition.to_string(),
            (first, last) => format!("{}-{}", first.partition, last.partition),
        };
        let spans = topic.chunk_by(|one, other| one.partition + 1 == other.partition);
        let spans: Vec<String> = spans.map(span).collect();
        text.push_str(&format!("{}[{}] ", topic[0].topic, spans.join(",")));
    }
    match text.trim_end() {
        "" => NONE.to_owned(),
        spans => spans.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_partitions_are_told_together() {
        let places = |partitions: &[(&str, i32)]| {
            let place = |(topic, partition): &(&str, i32)| Place {
                topic: (*topic).to_owned(),
                partition: *partition,
            };
            partitions.iter().map(place).collect::<Vec<_>>()
        };
        assert_eq!(spans(&[]), "-");
        assert_eq!(spans(&places(&[("chat", 7)])), "chat[7]");
        let several = places(&[("chat", 0), ("chat", 1), ("chat", 2), ("chat", 5), ("orders", 6)]);
        assert_eq!(spans(&several), "chat[0-2,5] orders[6]");
    }
}
