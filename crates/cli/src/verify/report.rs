//! The verdict, for people and for programs.

use std::fmt::{Display, Formatter, Result};
use std::time::Duration;

use serde_json::{Value, json};
use seriatim_testkit::history::merge::Merged;
use seriatim_testkit::judge::{Judgement, Truth, Violation};

use crate::units::{counted, grouped, took};

/// How the verdict is written.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(super) enum Format {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

/// What was judged, and what was found.
pub(super) struct Report<'a> {
    merged: &'a Merged,
    truth: &'a Truth,
    judgement: Judgement,
    sessions: u64,
}

impl<'a> Report<'a> {
    pub(super) fn new(merged: &'a Merged, truth: &'a Truth, judgement: Judgement) -> Self {
        Self {
            merged,
            truth,
            judgement,
            sessions: truth.session_count() as u64,
        }
    }

    pub(super) fn passed(&self) -> bool {
        self.judgement.violations.is_empty()
    }

    pub(super) fn print(&self, format: Format) {
        match format {
            Format::Text => print!("{self}"),
            Format::Json => println!("{}", self.json()),
        }
    }

    fn json(&self) -> Value {
        let counts = &self.judgement.counts;
        let header = &self.merged.instances[0].header;
        let instances = (0..).zip(&self.merged.instances).map(|(number, instance): (u32, _)| {
            json!({
                "number": number,
                "instance": instance.header.instance,
                "file": instance.file.display().to_string(),
                "ended": instance.ended,
            })
        });
        let violations = self.judgement.violations.iter().map(|violation| {
            json!({
                "property": violation.property,
                "text": violation.text,
                "story": violation.story,
            })
        });
        json!({
            "passed": self.passed(),
            "group": header.group,
            "topics": header.topics,
            "instances": instances.collect::<Vec<_>>(),
            "entries": self.merged.entries.len(),
            "seconds": self.lasted().as_secs_f64(),
            "partitions": self.truth.partitions.len(),
            "records": self.records(),
            "sessions": self.sessions,
            "starts": counts.starts,
            "retries": counts.retries,
            "cancelled": counts.cancelled,
            "dead_letters": counts.dead_letters,
            "poisoned": counts.poisoned,
            "resumed": counts.resumed,
            "repeats": counts.repeats,
            "skipped": counts.skipped,
            "assignments": counts.assignments,
            "releases": counts.releases,
            "losses": counts.losses,
            "expiries": counts.expiries,
            "crashes": counts.crashes,
            "failed_commits": counts.failed_commits,
            "overlaps_after_loss": counts.overlaps_after_loss,
            "starts_after_lease": counts.starts_after_lease,
            "starts_after_loss": counts.starts_after_loss,
            "violations": violations.collect::<Vec<_>>(),
        })
    }

    fn records(&self) -> u64 {
        let partitions = self.truth.partitions.values();
        partitions.map(|partition| partition.records.len() as u64).sum()
    }

    fn lasted(&self) -> Duration {
        self.merged.entries.last().map_or(Duration::ZERO, |last| last.at)
    }

    fn verdict(&self) -> String {
        match self.judgement.violations.as_slice() {
            [] => "PROVEN: every session was handled in order and one record at a time; nothing was lost, and nothing \
                   repeated but what a crash may repeat."
                .to_owned(),
            broken => {
                let mut properties: Vec<_> = broken.iter().map(|violation| violation.property).collect();
                properties.dedup();
                let found = counted(broken.len() as u64, "violation");
                format!("NOT PROVEN: {found}, of {}.", properties.join(", "))
            }
        }
    }

    fn findings(&self) -> [(&'static str, String); 6] {
        let counts = &self.judgement.counts;
        let (records, sessions) = (counted(self.records(), "record"), counted(self.sessions, "session"));
        let partitions = counted(self.truth.partitions.len() as u64, "partition");
        let (starts, retries) = (counted(counts.starts, "start"), counted(counts.retries, "retry"));
        let [cancelled, letters, poisoned] = [counts.cancelled, counts.dead_letters, counts.poisoned].map(grouped);
        let begun = counted(counts.assignments, "period");
        let [released, lost, expired] = [counts.releases, counts.losses, counts.expiries].map(grouped);
        let without_end = self.merged.instances.iter().filter(|instance| !instance.ended).count() as u64;
        let repeats = counted(counts.repeats, "record");
        let skipped = counted(counts.skipped, "record");
        let refused = counted(counts.failed_commits, "commit");
        let overlaps = counted(counts.overlaps_after_loss, "start");
        let [after_lease, after_loss] = [counts.starts_after_lease, counts.starts_after_loss].map(grouped);
        [
            ("records", format!("{records} of {sessions} in {partitions}")),
            (
                "handlers",
                format!(
                    "{starts}, {retries}, {cancelled} cancelled, {letters} dead-lettered, {poisoned} of them for crashes"
                ),
            ),
            (
                "group",
                format!(
                    "{begun} of ownership: {released} given back, {lost} lost, {expired} taken from an instance that did not know"
                ),
            ),
            (
                "crashes",
                format!("{} without an end", counted(without_end, "recording")),
            ),
            (
                "repeats",
                format!("{repeats} started again, {skipped} skipped by an ack map; {refused} refused or not answered"),
            ),
            (
                "zombies",
                format!(
                    "{overlaps} beside a handler of an owner that had lost the partition; {after_lease} by one that was \
                     dropped, {after_loss} by a worker that had not heard yet"
                ),
            ),
        ]
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let header = &self.merged.instances[0].header;
        writeln!(
            f,
            "{} of group {} on {}: {} in {}",
            counted(self.merged.instances.len() as u64, "recording"),
            header.group,
            header.topics.join(", "),
            counted(self.merged.entries.len() as u64, "entry"),
            took(self.lasted()),
        )?;
        for (number, instance) in self.merged.instances.iter().enumerate() {
            let end = if instance.ended { "" } else { ", without an end" };
            writeln!(
                f,
                "  #{number}  {}  {}{end}",
                instance.header.instance,
                instance.file.display()
            )?;
        }
        writeln!(f, "\n{}", self.verdict())?;
        for (name, text) in self.findings() {
            writeln!(f, "  {name:8}  {text}")?;
        }
        self.judgement
            .violations
            .iter()
            .try_for_each(|violation: &Violation| write!(f, "\n{violation}"))
    }
}
