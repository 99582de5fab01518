//! A handover: a second process joins while all lanes of both partitions are busy, and is given one of them.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use seriatim_testkit::history::merge::Merged;
use seriatim_testkit::history::{Ended, EpochNumber, What};

use super::super::workload::{Spread, Workload};
use super::{Arena, Process, millis};

/// How long a handler waits.
const WORK: Duration = Duration::from_millis(5);

/// What it came to, in milliseconds and records a second.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    /// Handlers of the partition that ran when the group asked for it.
    handlers: usize,
    /// From then until the last of them had ended,
    last_handler_millis: f64,
    /// and until the partition was given back, its progress committed.
    drain_millis: f64,
    /// From there until the next owner was given it: the group's part.
    group_millis: f64,
    /// From there until it started the first record.
    first_start_millis: f64,
    /// From the group's asking until then.
    whole_millis: f64,
    /// What was settled of the other partition in that time,
    retained_rate: f64,
    /// and in as long a time before.
    retained_rate_before: f64,
}

pub(super) fn measure(arena: &Arena, records: u64, lanes: u32) -> anyhow::Result<(Figures, bool)> {
    let workload = Workload {
        records,
        sessions: 2 * lanes,
        spread: Spread::InTurn,
        partitions: 2,
    };
    let spec = arena.spec("handover", &workload, WORK, 4 * lanes as usize)?;
    let next = super::Spec {
        recording: arena.directory.join("handover-next"),
        ..spec.clone()
    };
    eprintln!("handover: the first process works");
    let first = Process::start(&spec)?;
    first.until("the first process works", |said| said.settled >= records / 20)?;
    eprintln!("handover: the second joins");
    let second = Process::start(&next)?;
    second.until("the second is given something", |said| said.settled > 0)?;
    first.stop()?;
    second.stop()?;
    let files: [&Path; 2] = [&spec.recording, &next.recording];
    let figures = Figures::of(&arena.read(&files)?)?;
    Ok((figures, arena.verify(&files, true)?))
}

impl Figures {
    fn of(merged: &Merged) -> anyhow::Result<Self> {
        let entries = &merged.entries;
        let asked = entries.iter().find_map(|entry| match &entry.what {
            What::RevokeBegin(epoch) if entry.instance == 0 => Some((entry.at, *epoch)),
            _ => None,
        });
        let (asked_at, epoch) = asked.context("the group never asked the first process for a partition")?;
        let partition =
            partition_of(merged, epoch).context("the recording does not say which partition was asked for")?;
        let at = |wanted: &dyn Fn(u32, &What) -> bool| {
            let mut later = entries.iter().filter(|entry| entry.at >= asked_at);
            later
                .find(|entry| wanted(entry.instance, &entry.what))
                .map(|entry| entry.at)
        };
        let given_at = at(&|_, what| *what == What::RevokeEnd(epoch)).context("the partition was not given back")?;
        let assigned_at = at(&|instance, what| {
            instance == 1 && matches!(what, What::Assign { partition: assigned, .. } if *assigned == partition)
        });
        let assigned_at = assigned_at.context("the second process was not given the partition")?;
        let started_at = at(&|instance, what| {
            instance == 1 && matches!(what, What::Start { record, .. } if record.partition == partition)
        });
        let started_at = started_at.context("the second process started nothing of the partition")?;

        let of_it = |what: &What| what.record().is_some_and(|record| record.partition == partition);
        let (mut handlers, mut last_ended_at) = (0usize, asked_at);
        for entry in entries.iter().filter(|entry| entry.instance == 0 && of_it(&entry.what)) {
            match entry.what {
                What::Start { .. } if entry.at < asked_at => handlers += 1,
                What::End(..) if entry.at < asked_at => handlers -= 1,
                What::End(..) => last_ended_at = last_ended_at.max(entry.at),
                _ => {}
            }
        }
        let whole = started_at - asked_at;
        let settled = |from: Duration, to: Duration| {
            let ends = entries
                .iter()
                .filter(|entry| entry.instance == 0 && (from..to).contains(&entry.at));
            let ends =
                ends.filter(|entry| matches!(entry.what, What::End(_, _, Ended::Handled)) && !of_it(&entry.what));
            ends.count() as f64 / whole.as_secs_f64()
        };
        Ok(Self {
            handlers,
            last_handler_millis: millis(last_ended_at - asked_at),
            drain_millis: millis(given_at - asked_at),
            group_millis: millis(assigned_at.saturating_sub(given_at)),
            first_start_millis: millis(started_at - assigned_at),
            whole_millis: millis(whole),
            retained_rate: settled(asked_at, started_at),
            retained_rate_before: settled(asked_at.saturating_sub(whole), asked_at),
        })
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "\nhandover of a partition with {} handlers of {WORK:?} running",
            self.handlers
        );
        for (what, figure) in [
            ("ms until the last of them had ended", self.last_handler_millis),
            ("ms until it was committed and given back", self.drain_millis),
            ("ms from there until the next owner was given it", self.group_millis),
            (
                "ms from there until it started the first record",
                self.first_start_millis,
            ),
            ("ms in all", self.whole_millis),
            ("records/s of the other partition meanwhile", self.retained_rate),
            ("records/s of it before", self.retained_rate_before),
        ] {
            let _ = writeln!(text, "  {figure:>12.1} {what}");
        }
        text
    }
}

fn partition_of(merged: &Merged, epoch: EpochNumber) -> Option<seriatim::engine::record::PartitionId> {
    merged.entries.iter().find_map(|entry| match &entry.what {
        What::Assign {
            epoch: begun,
            partition,
            ..
        } if *begun == epoch => Some(partition.clone()),
        _ => None,
    })
}
