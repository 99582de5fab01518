//! Judges a [history](crate::history) by what Seriatim promises, and knows nothing of how the promise is kept.
//!
//! | | Must hold |
//! |---|---|
//! | P0 | What is started exists, with the payload it has in the log. |
//! | P1 | When a record starts, its predecessor in its session is settled. |
//! | P2 | One handler of a session at a time; in two instances only when the older owner had lost the partition. |
//! | P3 | Below a commit, and in its ack map, everything is settled; nothing is committed past the end; at the end nothing is unsettled. |
//! | P4 | Commits of a partition never fall, and only its owner commits: what the group tells is the last commit that was acknowledged, or one sent after it. |
//! | P6 | What is settled starts again only at or above the durable commit, outside the durable ack map, and not in the same epoch. A clean release repeats nothing. |
//! | P7 | Nothing starts outside a period of ownership, nor after the lease but what was about to start when a process was frozen. |
//! | P8 | Dead letters are exactly the permanent, exhausted and undecodable records, and those in flight at three crashes in a row, intact, and once an epoch. |
//! | P9 | Attempts count on from what the commit tells that an epoch began at, or 1, 2, …, no sooner than their back-off, at most the limit, none after a permanent failure. A clean release forgets none of the oldest. |
//! | P10 | Handlers and unsettled records stay within their limits; a held partition delivers nothing. |
//! | P12 | A drain ends by its deadline. |
//! | P14 | Where new partitions of a topic are to wait: a record starts in one only when all that its session had in the older ones, when the topic grew, is settled and committed. |
//!
//! It takes one pass and O(records) memory, and time for the records and the entries of the ack maps. It does not judge
//! effects (P5), metrics (P13), and how soon a stuck session is flagged (P11).

mod truth;
mod epoch;
mod bench;
mod ownership;
mod handlers;
mod growth;
mod letters;
mod commits;
mod durable;
mod conclusion;
mod story;

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use seriatim_engine::growth::Growth;

use crate::history::Entry;
use bench::Judge;
pub use truth::{GrowthTruth, PartitionTruth, RecordTruth, Truth};

/// The limits that were configured.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Attempts of a record.
    pub attempts_max: u32,
    /// Handlers that run in one instance.
    pub in_flight_max: usize,
    /// Unsettled records in one instance, and what one poll may bring beyond.
    pub unsettled_max: usize,
    /// Unsettled records of one partition, and what one poll may bring beyond.
    pub partition_unsettled_max: usize,
    /// How long a drain may take.
    pub drain_max: Duration,
    /// How much too early a retry may seem because clocks are read at different moments; nothing on virtual time.
    pub clock_slack: Duration,
    /// How long after a loss a worker may start records, because it has not heard of it yet; nothing on virtual time.
    pub loss_slack: Duration,
    /// Whether nothing may start after the group has dropped an instance, though it did not learn of it: the lease.
    pub lease: bool,
    /// Records that an instance may start without a look at the clock: which it may so start yet after it was frozen.
    pub starts_per_look: usize,
    /// What becomes of partitions that are added to a topic.
    pub growth: Growth,
    /// Whether at the end everything must be settled and committed.
    pub settled: bool,
}

impl Default for Rules {
    /// No limits at all, and everything is to be settled.
    fn default() -> Self {
        Self {
            attempts_max: u32::MAX,
            in_flight_max: usize::MAX,
            unsettled_max: usize::MAX,
            partition_unsettled_max: usize::MAX,
            drain_max: Duration::MAX,
            clock_slack: Duration::ZERO,
            loss_slack: Duration::ZERO,
            lease: false,
            starts_per_look: 0,
            growth: Growth::Warn,
            settled: true,
        }
    }
}

/// A promise that was broken, and the smallest story around it.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which one, e.g. `P3`.
    pub property: &'static str,
    /// What was seen.
    pub text: String,
    /// What led there: the entries that concern the same session or partition, oldest first.
    pub story: Vec<String>,
}

/// What a run was made of, so that nobody trusts one in which nothing happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is named for what it counts")]
pub struct Counts {
    pub starts: u64,
    pub settled: u64,
    pub retries: u64,
    pub panics: u64,
    pub cancelled: u64,
    pub kept_contexts: u64,
    pub dead_letters: u64,
    pub failed_letters: u64,
    pub poisoned: u64,
    pub resumed: u64,
    pub repeats: u64,
    pub skipped: u64,
    pub assignments: u64,
    pub releases: u64,
    pub losses: u64,
    pub crashes: u64,
    pub expiries: u64,
    pub holds: u64,
    pub failed_commits: u64,
    pub overlaps_after_loss: u64,
    pub starts_after_lease: u64,
    pub starts_after_loss: u64,
    pub growths: u64,
    pub moved: u64,
    pub waits: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.starts += other.starts;
        self.settled += other.settled;
        self.retries += other.retries;
        self.panics += other.panics;
        self.cancelled += other.cancelled;
        self.kept_contexts += other.kept_contexts;
        self.dead_letters += other.dead_letters;
        self.failed_letters += other.failed_letters;
        self.poisoned += other.poisoned;
        self.resumed += other.resumed;
        self.repeats += other.repeats;
        self.skipped += other.skipped;
        self.assignments += other.assignments;
        self.releases += other.releases;
        self.losses += other.losses;
        self.crashes += other.crashes;
        self.expiries += other.expiries;
        self.holds += other.holds;
        self.failed_commits += other.failed_commits;
        self.overlaps_after_loss += other.overlaps_after_loss;
        self.starts_after_lease += other.starts_after_lease;
        self.starts_after_loss += other.starts_after_loss;
        self.growths += other.growths;
        self.moved += other.moved;
        self.waits += other.waits;
    }
}

/// What the judge found.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    /// Broken promises; the first is the one to look at.
    pub violations: Vec<Violation>,
    /// What happened.
    pub counts: Counts,
}

/// Further violations than these are mostly echoes of the first.
const VIOLATIONS_MAX: usize = 10;

/// Judges a history whose run is over.
///
/// What lies below the first commit that it tells of, or in its ack map, was settled before, and is not judged.
pub fn judge(history: &[Entry], truth: &Truth, rules: &Rules) -> Judgement {
    let mut judge = Judge::new(history, truth, rules);
    for (index, entry) in history.iter().enumerate() {
        judge.now = index;
        if judge.judgement.violations.len() >= VIOLATIONS_MAX {
            break;
        }
        if !judge.instance(entry.instance).gone {
            judge.take(entry);
        }
    }
    judge.conclude();
    judge.judgement
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.property, self.text)?;
        self.story.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

impl Judgement {
    /// Adds that the run did not come to rest.
    pub(crate) fn note_unrest(&mut self, history: &[Entry], text: String) {
        let story = story::around(history, history.len(), |_| true);
        let unrest = Violation {
            property: "rest",
            text,
            story,
        };
        self.violations.insert(0, unrest);
    }

    /// # Panics
    /// With the first violation and its story, when there is one.
    pub fn assert_clean(&self) {
        if let Some(first) = self.violations.first() {
            panic!("{} violations, the first of them:\n{first}", self.violations.len());
        }
    }
}
