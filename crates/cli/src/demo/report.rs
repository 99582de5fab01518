//! What the demonstration found. [`text`](super::text) tells it to people, [`Report::json`] to programs.

use std::time::Duration;

use serde_json::{Value, json};

use super::members::Changes;
use super::proof::{Story, Verdict};
use super::work::{Latencies, Work};
use super::workload::{self, Workload};

/// All that it found.
pub(super) struct Report {
    pub(super) workload: Workload,
    pub(super) partitions: i32,
    pub(super) seriatim: Side,
    pub(super) plain: Side,
    pub(super) changes: Changes,
    pub(super) episode: Option<Episode>,
}

/// What one of the two approaches came to.
pub(super) struct Side {
    pub(super) verdict: Verdict,
    pub(super) elapsed: Duration,
    pub(super) latencies: Latencies,
}

/// What happened to one session in the plain pool, and in Seriatim at the same place.
pub(super) struct Episode {
    pub(super) told: String,
    /// Records in the order in which they were settled.
    pub(super) seriatim: Vec<u32>,
    pub(super) plain: Vec<u32>,
}

impl Report {
    pub(super) fn passed(&self) -> bool {
        self.seriatim.verdict.passed()
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "passed": self.passed(),
            "records": self.workload.records,
            "sessions": self.workload.sessions,
            "partitions": self.partitions,
            "faults": self.workload.faults,
            "seed": self.workload.seed,
            "rebalances": self.changes.rebalances,
            "partitions_handed_over": self.changes.handovers,
            "partitions_lost": self.changes.lost,
            "seriatim": self.seriatim.json(),
            "plain_pool": self.plain.json(),
        })
    }
}

impl Side {
    pub(super) fn of(work: &Work) -> Self {
        Self {
            verdict: work.verdict(),
            elapsed: work.elapsed(),
            latencies: work.latencies(),
        }
    }

    /// Records settled in a second.
    pub(super) fn rate(&self) -> u64 {
        (self.verdict.settled as f64 / self.elapsed.as_secs_f64().max(1e-6)) as u64
    }

    fn json(&self) -> Value {
        let verdict = &self.verdict;
        let micros = |latency: Duration| latency.as_micros() as u64;
        json!({
            "passed": verdict.passed(),
            "settled": verdict.settled,
            "attempts": verdict.starts,
            "retries": verdict.retries(),
            "sessions_hurt": verdict.hurt(),
            "violations": {
                "overtaken": verdict.violations.overtaken,
                "overlapping": verdict.violations.overlapping,
                "repeated": verdict.violations.repeated,
                "lost": verdict.violations.lost,
            },
            "example": self.example(),
            "records_per_second": self.rate(),
            "latency_us": {
                "p50": micros(self.latencies.p50),
                "p99": micros(self.latencies.p99),
                "rebalancing_p99": micros(self.latencies.rebalancing_p99),
            },
        })
    }

    /// The most telling violation, if there is one.
    pub(super) fn example(&self) -> Option<String> {
        self.verdict.story.map(|(story, session)| told(story, session))
    }
}

impl Episode {
    /// As many records as fit a line.
    const LEN: usize = 14;

    /// The most telling one of what the plain pool did, beside what Seriatim did.
    pub(super) fn find(seriatim: &Work, plain: &Work) -> Option<Self> {
        let (story, session) = plain.verdict().story?;
        let order = plain.proof.settled_order(session);
        let place = order.iter().position(|seq| *seq == story.first()).unwrap_or(0);
        let from = place.saturating_sub(Self::LEN / 3);
        let cut = |order: Vec<u32>| order.into_iter().skip(from).take(Self::LEN).collect();
        Some(Self {
            told: told(story, session),
            seriatim: cut(seriatim.proof.settled_order(session)),
            plain: cut(order),
        })
    }
}

/// A violation in words.
fn told(story: Story, session: u32) -> String {
    let said = |seq| format!("“{}” ({seq})", workload::text(session, seq));
    let what = match story {
        Story::Before { earlier, later, .. } => format!("{} was handled before {}", said(later), said(earlier)),
        Story::Together(one, other) => format!("{} and {} were handled at the same time", said(one), said(other)),
        Story::Again(seq) => format!("{} was handled again", said(seq)),
        Story::Lost(seq) => format!("{} was never handled", said(seq)),
    };
    format!("session {}: {what}", workload::key(session))
}
