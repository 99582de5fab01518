//! The same proof for every contender: each record of each session starts in order, none twice, none while another of
//! its session runs, and none is missing at the end.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::meter::Reading;
use super::workload::Stamp;

/// Judges starts and ends. It takes two loads and two stores a record, in one word a session.
pub struct Proof {
    /// By session: twice the number of the record that is next, and 1 more while it runs.
    sessions: Vec<AtomicU64>,
    violations: AtomicU64,
    began: OnceLock<Reading>,
}

impl Proof {
    pub fn new(sessions: u32) -> Self {
        Self {
            sessions: (0..sessions).map(|_| AtomicU64::new(0)).collect(),
            violations: AtomicU64::new(0),
            began: OnceLock::new(),
        }
    }

    /// A handler starts.
    #[inline]
    pub fn start(&self, stamp: Stamp) {
        if self.began.get().is_none() {
            self.begin();
        }
        self.step(stamp, next(stamp.sequence), next(stamp.sequence) | RUNS);
    }

    /// A handler ends: the record is settled, or tried again.
    #[inline]
    pub fn end(&self, stamp: Stamp, settled: bool) {
        let after = next(if settled { stamp.sequence + 1 } else { stamp.sequence });
        self.step(stamp, next(stamp.sequence) | RUNS, after);
    }

    /// Load and store rather than exchange: who runs beside another and slips between the two is found by the other's
    /// next step.
    #[inline]
    fn step(&self, stamp: Stamp, from: u64, to: u64) {
        match self.sessions.get(stamp.session as usize) {
            Some(session) if session.load(Ordering::Acquire) == from => session.store(to, Ordering::Release),
            Some(session) => {
                self.violations.fetch_add(1, Ordering::Relaxed);
                session.store(to, Ordering::Release);
            }
            None => {
                self.violations.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[cold]
    fn begin(&self) {
        self.began.get_or_init(Reading::now);
    }

    /// When the first handler started.
    pub fn began(&self) -> Option<Reading> {
        self.began.get().copied()
    }

    /// How many records were settled, in order and without a gap.
    pub fn settled(&self) -> u64 {
        self.sessions
            .iter()
            .map(|session| session.load(Ordering::Acquire) / 2)
            .sum()
    }

    pub fn violations(&self) -> u64 {
        self.violations.load(Ordering::Relaxed)
    }
}

const RUNS: u64 = 1;

fn next(sequence: u32) -> u64 {
    u64::from(sequence) * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(session: u32, sequence: u32) -> Stamp {
        Stamp {
            session,
            sequence,
            sent_nanos: 0,
        }
    }

    fn judged(steps: impl Fn(&Proof)) -> (u64, u64) {
        let proof = Proof::new(2);
        steps(&proof);
        (proof.settled(), proof.violations())
    }

    #[test]
    fn order_with_a_retry_passes() {
        let passed = judged(|proof| {
            proof.start(stamp(0, 0));
            proof.end(stamp(0, 0), false);
            proof.start(stamp(1, 0));
            proof.start(stamp(0, 0));
            proof.end(stamp(0, 0), true);
            proof.end(stamp(1, 0), true);
        });
        assert_eq!(passed, (2, 0));
    }

    #[test]
    fn a_gap_a_repeat_an_overlap_and_a_stranger_are_found() {
        let pass = |proof: &Proof, stamp| {
            proof.start(stamp);
            proof.end(stamp, true);
        };
        assert_eq!(judged(|proof| pass(proof, stamp(0, 1))).1, 1, "the first is missing");
        let repeated = judged(|proof| {
            pass(proof, stamp(0, 0));
            pass(proof, stamp(0, 0));
        });
        assert_eq!(repeated.1, 1);
        let overlapping = judged(|proof| {
            proof.start(stamp(0, 0));
            proof.start(stamp(0, 1));
        });
        assert_eq!(overlapping.1, 1);
        assert_eq!(judged(|proof| proof.start(stamp(2, 0))).1, 1, "there are two sessions");
    }
}
