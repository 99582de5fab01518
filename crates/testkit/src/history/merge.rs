//! The recordings of all instances of a group, made one history again.
//!
//! Entries are put in the order of their times: the clock is that of the machine, so an entry that another was the cause
//! of comes before it. Two things happened that no process wrote down, and are added:
//!
//! - *A crash*: the recording has no end. It is set behind the last entry.
//! - *An expiry*: the group gave a partition to another while its owner, which it had dropped, did not know. It is set
//!   before the new owner's first entry, when the old owner's recording bears it out: it learned of a loss later, or was
//!   refused a commit, or wrote no more about it. Without such a sign nobody had the right to take the partition, and the
//!   judge shall see two owners.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use seriatim_engine::record::{Offset, PartitionId};

use super::recording::{Header, Limits, Recording};
use super::{Entry, EpochNumber, What};

/// The history of a group.
#[derive(Clone, Debug)]
pub struct Merged {
    /// What happened, in order. Time is zero at the first entry.
    pub entries: Vec<Entry>,
    /// The instances, by their numbers in the entries.
    pub instances: Vec<Instance>,
    /// The loosest of their limits.
    pub limits: Limits,
}

/// One instance.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Where it was recorded.
    pub file: PathBuf,
    /// What it says of itself.
    pub header: Header,
    /// Whether it ended by itself; else it crashed, or runs still.
    pub ended: bool,
}

/// Why recordings are no history of one group.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// There is none.
    #[error("there is nothing in these recordings")]
    Empty,
    /// Two of them disagree about what belongs together.
    #[error("{} and {} are recordings of different {what}: {one} and {other}", .files[0].display(), .files[1].display())]
    Different {
        /// What they disagree about.
        what: &'static str,
        /// The files.
        files: Box<[PathBuf; 2]>,
        /// What the first says.
        one: String,
        /// What the second says.
        other: String,
    },
}

/// Makes one history of several recordings.
///
/// # Errors
/// When they are of different groups, topics, ways to find a session, or machines.
pub fn merge(recordings: Vec<Recording>) -> Result<Merged, MergeError> {
    let first = recordings.first().ok_or(MergeError::Empty)?;
    for other in &recordings {
        same(first, other)?;
    }
    let limits = recordings.iter().map(|recording| recording.header.limits);
    let limits = limits.reduce(Limits::or).expect("there is one");

    let mut instances = Vec::with_capacity(recordings.len());
    let mut entries = Vec::new();
    for (instance, recording) in (0..).zip(recordings) {
        let ended = matches!(recording.entries.last(), Some((_, What::Left)));
        let begins_at_end = recording.header.begins_at_end;
        entries.extend(entries_of(instance, recording.entries, ended, begins_at_end));
        instances.push(Instance {
            file: recording.file,
            header: recording.header,
            ended,
        });
    }
    // Stable: what one process wrote within a nanosecond stays as it was.
    entries.sort_by_key(|entry: &Entry| entry.at);
    count_from_zero(&mut entries);
    number_epochs(&mut entries);
    Ok(Merged {
        entries: with_expiries(entries),
        instances,
        limits,
    })
}

fn same(one: &Recording, other: &Recording) -> Result<(), MergeError> {
    let (left, right) = (&one.header, &other.header);
    let sessions = |header: &Header| match header.keyless_are_a_session {
        true => format!("{}, or else the partition", header.session_by),
        false => header.session_by.clone(),
    };
    let told = [
        ("groups", left.group.clone(), right.group.clone()),
        ("topics", left.topics.join(" "), right.topics.join(" ")),
        ("sessions", sessions(left), sessions(right)),
        (
            "machines, or of one that was started anew, so that their times cannot be compared",
            left.clock.boot.clone(),
            right.clock.boot.clone(),
        ),
    ];
    match told.into_iter().find(|(_, one, other)| one != other) {
        None => Ok(()),
        Some((what, told, contradicted)) => Err(MergeError::Different {
            what,
            files: Box::new([one.file.clone(), other.file.clone()]),
            one: told,
            other: contradicted,
        }),
    }
}

/// The entries of one recording, without the periods that had ended before they began, and with a crash where there is no
/// end.
fn entries_of(instance: u32, entries: Vec<(Duration, What)>, ended: bool, begins_at_end: bool) -> Vec<Entry> {
    let lives = Lives::of(&entries);
    let last = entries.last().map(|(at, _)| *at);
    let kept = entries
        .into_iter()
        .filter(|(_, what)| what.epoch().is_none_or(|epoch| !lives.is_stillborn(epoch)));
    let mut kept: Vec<Entry> = kept.map(|(at, what)| Entry { at, instance, what }).collect();
    if begins_at_end {
        for entry in &mut kept {
            if let What::Assign { epoch, committed, .. } = &mut entry.what {
                committed.get_or_insert(lives.first_offset(*epoch));
            }
        }
    }
    if let Some(at) = last.filter(|_| !ended) {
        let what = What::Crashed;
        kept.push(Entry { at, instance, what });
    }
    kept
}

/// What came of a recording's periods of ownership.
#[derive(Default)]
struct Lives(Vec<Life>);

#[derive(Default)]
struct Life {
    lost: bool,
    committed: bool,
    delivered_from: Option<Offset>,
}

impl Lives {
    fn of(entries: &[(Duration, What)]) -> Self {
        let mut lives = Self::default();
        for (_, what) in entries {
            match what {
                What::Assign { .. } => lives.0.push(Life::default()),
                What::Lost(epoch) => lives.0[epoch.0].lost = true,
                What::CommitSent(epoch, ..) => lives.0[epoch.0].committed = true,
                What::Delivered(epoch, _, from) => {
                    lives.0[epoch.0].delivered_from.get_or_insert(*from);
                }
                _ => {}
            }
        }
        lives
    }

    /// Whether the group had taken the partition back before its start: others may have owned it by then, and what is
    /// written of the commits was old.
    fn is_stillborn(&self, epoch: EpochNumber) -> bool {
        let life = &self.0[epoch.0];
        life.lost && !life.committed && life.delivered_from.is_none()
    }

    /// Where a period began that was to begin at the log's end; behind everything, when nothing came.
    fn first_offset(&self, epoch: EpochNumber) -> Offset {
        self.0[epoch.0].delivered_from.unwrap_or(Offset::new(i64::MAX))
    }
}

fn count_from_zero(entries: &mut [Entry]) {
    let began = entries.first().map_or(Duration::ZERO, |entry| entry.at);
    for entry in entries {
        entry.at -= began;
        if let What::Retry(_, _, not_before) = &mut entry.what {
            *not_before = not_before.saturating_sub(began);
        }
    }
}

/// Numbers the periods of all instances in the order in which they began.
fn number_epochs(entries: &mut [Entry]) {
    let mut numbers: HashMap<(u32, EpochNumber), EpochNumber> = HashMap::new();
    for Entry { instance, what, .. } in entries {
        let Some(epoch) = what.epoch_mut() else { continue };
        let next = EpochNumber(numbers.len());
        *epoch = *numbers.entry((*instance, *epoch)).or_insert(next);
    }
}

/// A period of ownership whose end was not written down yet.
struct Open {
    instance: u32,
    epoch: EpochNumber,
}

fn with_expiries(entries: Vec<Entry>) -> Vec<Entry> {
    let mut owned: HashMap<PartitionId, Vec<Open>> = HashMap::new();
    let mut expiries = Vec::new();
    for (index, Entry { instance, what, .. }) in entries.iter().enumerate() {
        match what {
            What::Assign { epoch, partition, .. } => {
                let owners = owned.entry(partition.clone()).or_default();
                for older in owners.iter().filter(|older| older.instance != *instance) {
                    if was_dropped(older, &entries[index..]) {
                        expiries.push((index, older.instance));
                    }
                }
                owners.push(Open {
                    instance: *instance,
                    epoch: *epoch,
                });
            }
            What::RevokeEnd(ended) | What::Lost(ended) => {
                owned
                    .values_mut()
                    .for_each(|owners| owners.retain(|open| open.epoch != *ended));
            }
            What::Crashed | What::Left => {
                owned
                    .values_mut()
                    .for_each(|owners| owners.retain(|open| open.instance != *instance));
            }
            _ => {}
        }
    }
    insert_expiries(entries, expiries)
}

/// Whether what follows bears out that the group had dropped the period's owner.
fn was_dropped(older: &Open, follows: &[Entry]) -> bool {
    let own = follows.iter().filter(|entry| entry.instance == older.instance);
    let mut sent = Vec::new();
    for Entry { what, .. } in own {
        match what {
            What::CommitSent(epoch, ..) => sent.push(*epoch),
            // The group hears its members only.
            What::CommitAnswered(epoch, true) if sent.contains(epoch) => return false,
            What::Lost(_) | What::CommitAnswered(_, false) | What::Crashed | What::Left => return true,
            What::RevokeEnd(epoch) if *epoch == older.epoch => return false,
            _ => {}
        }
    }
    true
}

fn insert_expiries(entries: Vec<Entry>, expiries: Vec<(usize, u32)>) -> Vec<Entry> {
    let mut expiries = expiries.into_iter().peekable();
    let mut whole = Vec::with_capacity(entries.len() + expiries.len());
    // An instance that was dropped is dropped once, until it is given something again.
    let mut dropped = Vec::new();
    for (index, entry) in entries.into_iter().enumerate() {
        while let Some((_, instance)) = expiries.next_if(|(at, _)| *at == index) {
            if !dropped.contains(&instance) {
                dropped.push(instance);
                whole.push(Entry {
                    at: entry.at,
                    instance,
                    what: What::Expired,
                });
            }
        }
        if matches!(entry.what, What::Assign { .. }) {
            dropped.retain(|instance| *instance != entry.instance);
        }
        whole.push(entry);
    }
    whole
}
