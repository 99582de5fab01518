//! A crash: a process is killed at full speed while one record has been stuck from the start. What had been settled above it is
//! not repeated, except for what no commit had said yet.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use seriatim::engine::record::{Offset, PartitionId, RecordId};
use seriatim_testkit::history::merge::Merged;
use seriatim_testkit::history::{AckMap, Ended, EpochNumber, What};

use super::super::workload::{PARTITIONS, Spread, Workload};
use super::{Arena, Process};
use crate::units::grouped;

/// Seconds for which it works at least. It commits once in each.
const COMMITS_MIN: u32 = 3;

/// What it came to.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    /// Records a second, settled by the first process.
    rate: f64,
    /// What it had settled when it was killed,
    settled: usize,
    /// what of that no commit had said yet that was answered; commits are made once a second,
    uncommitted: usize,
    /// and how many handlers ran.
    in_flight: usize,
    /// What the next process started that had been settled.
    repeats: usize,
    /// Commits that had no room for all that was settled.
    cut_short: usize,
}

pub(super) fn measure(arena: &Arena, records: u64, sessions: u32) -> anyhow::Result<(Figures, bool)> {
    let workload = Workload {
        records,
        sessions,
        spread: Spread::Random,
        partitions: PARTITIONS,
    };
    let next = arena.spec("crash-next", &workload, Duration::ZERO, 1_000)?;
    let spec = super::Spec {
        recording: arena.directory.join("crash"),
        stuck: true,
        ..next.clone()
    };
    eprintln!("crash: the first process works");
    let first = Process::start(&spec)?;
    let seconds = Cell::new(0);
    first.until("the first process works", |said| {
        seconds.set(seconds.get() + u32::from(said.settled > 0));
        said.settled >= records / 4 && seconds.get() > COMMITS_MIN
    })?;
    first.kill()?;
    eprintln!("crash: it was killed; the next goes on when the group has missed it");
    let second = Process::start(&next)?;
    second.until("the next process settles the rest", |said| said.done)?;
    second.stop()?;
    let files: [&Path; 2] = [&spec.recording, &next.recording];
    let figures = Figures::of(&arena.read(&files)?)?;
    Ok((figures, arena.verify(&files, false)?))
}

/// What a commit has said to be settled.
struct Said<'a> {
    watermark: Offset,
    above: &'a AckMap,
}

impl Said<'_> {
    fn has(&self, offset: Offset) -> bool {
        let before = self.above.partition_point(|range| *range.end() < offset);
        offset < self.watermark || self.above.get(before).is_some_and(|range| range.contains(&offset))
    }
}

impl Figures {
    fn of(merged: &Merged) -> anyhow::Result<Self> {
        let mut settled = HashMap::<&RecordId, Duration>::new();
        let mut said = HashMap::<&PartitionId, Said<'_>>::new();
        let mut running = HashSet::<&RecordId>::new();
        let mut partitions = HashMap::<EpochNumber, &PartitionId>::new();
        // By partition: the commit that is under way. In `said`: the last that was answered well.
        let mut sent = HashMap::<&PartitionId, Said<'_>>::new();
        let mut repeated = HashSet::<&RecordId>::new();
        let mut cut_short = 0;
        for entry in &merged.entries {
            match (entry.instance, &entry.what) {
                (0, What::Start { record, .. }) => drop(running.insert(record)),
                (0, What::End(record, _, ended)) => {
                    running.remove(record);
                    if *ended == Ended::Handled {
                        settled.insert(record, entry.at);
                    }
                }
                (0, What::Assign { epoch, partition, .. }) => drop(partitions.insert(*epoch, partition)),
                (0, What::CommitSent(epoch, watermark, above)) => {
                    if let Some(partition) = partitions.get(epoch) {
                        let watermark = *watermark;
                        sent.insert(partition, Said { watermark, above });
                    }
                }
                (0, What::CommitAnswered(epoch, true)) => {
                    if let Some(partition) = partitions.get(epoch) {
                        said.extend(sent.remove(partition).map(|commit| (*partition, commit)));
                    }
                }
                (0, What::MapCut(_)) => cut_short += 1,
                (1, What::Start { record, .. }) if settled.contains_key(record) => drop(repeated.insert(record)),
                _ => {}
            }
        }
        let first = settled.values().min().context("the first process settled nothing")?;
        let last = settled.values().max().context("the first process settled nothing")?;
        let uncommitted = settled.keys().filter(|record| {
            let said = said.get(&record.partition);
            said.is_none_or(|said| !said.has(record.offset))
        });
        Ok(Self {
            rate: settled.len() as f64 / (*last - *first).as_secs_f64().max(0.001),
            settled: settled.len(),
            uncommitted: uncommitted.count(),
            in_flight: running.len(),
            repeats: repeated.len(),
            cut_short,
        })
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let rate = grouped(self.rate.round() as u64);
        let _ = writeln!(text, "\nkilled at {rate} records/s, with a record stuck from the start");
        for (what, figure) in [
            ("records were settled", self.settled),
            ("of them no commit had said that was answered", self.uncommitted),
            ("handlers ran", self.in_flight),
            ("records were handled again", self.repeats),
            ("commits had no room for all that was settled", self.cut_short),
        ] {
            let _ = writeln!(text, "  {:>12} {what}", grouped(figure as u64));
        }
        let most = self.uncommitted + self.in_flight;
        let met = if self.repeats <= most { "met   " } else { "MISSED" };
        let _ = writeln!(
            text,
            "  {met} {} repeats, at most {}",
            grouped(self.repeats as u64),
            grouped(most as u64)
        );
        text
    }
}
