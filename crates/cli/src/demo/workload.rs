//! What is said in the demonstration, in which order, and which attempts fail: all of it drawn from one seed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How much is said, by how many, and how often handling it fails.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    pub(super) sessions: u32,
    pub(super) records: u64,
    /// The probability that an attempt fails.
    pub(super) faults: f64,
    pub(super) seed: u64,
}

/// The value of a record: one command of one session's conversation.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Said<'a> {
    /// From 0.
    pub(super) session: u32,
    /// From 1, without gap.
    pub(super) seq: u32,
    /// Microseconds from the start of the demonstration to the call of the producer.
    pub(super) sent_us: u64,
    /// Whether the group was not rebalancing then.
    pub(super) calm: bool,
    pub(super) text: &'a str,
}

/// What an attempt comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fate {
    pub(super) takes: Duration,
    pub(super) fails: bool,
}

/// Sessions that speak at the same time. Few, so that a session's commands come one soon after another, as from a
/// person who corrects themself.
const TALKING_AT_ONCE: usize = 32;

/// How many commands a session says before it falls silent for a while.
const BURST_MAX: u64 = 8;

impl Workload {
    /// How many records `session` says: all the same, give or take one.
    pub(super) fn records_of(&self, session: u32) -> u32 {
        let sessions = u64::from(self.sessions);
        let share = self.records / sessions + u64::from(u64::from(session) < self.records % sessions);
        u32::try_from(share).expect("the number of records was checked when the command line was read")
    }

    /// Who speaks when: the session of each record. A session's records are numbered in this order.
    pub(super) fn speakers(&self) -> impl Iterator<Item = u32> {
        Speakers {
            dice: Dice::new(self.seed, 0),
            silent: (0..self.sessions)
                .map(|session| (session, self.records_of(session)))
                .filter(|(_, left)| *left > 0)
                .collect(),
            talking: Vec::new(),
        }
    }

    /// What becomes of an attempt (from 1) to handle a record.
    pub(super) fn fate(&self, session: u32, seq: u32, attempt: u32) -> Fate {
        let record = u64::from(session) << 32 | u64::from(seq);
        let mut dice = Dice::new(self.seed ^ mix(record), u64::from(attempt));
        Fate {
            takes: Duration::from_millis(dice.below(3)),
            fails: dice.fraction() < self.faults,
        }
    }
}

/// What `session` says as its record number `seq`. Each command at an even place corrects the one before it.
pub(super) fn text(session: u32, seq: u32) -> String {
    const CITIES: [&str; 8] = [
        "London", "Paris", "Lisbon", "Vienna", "Oslo", "Athens", "Warsaw", "Dublin",
    ];
    let turn = seq - 1;
    let city = (session + turn / 6) as usize;
    match turn % 6 {
        0 => format!("book {}", CITIES[city % CITIES.len()]),
        1 => format!("make it {}", CITIES[(city + 1) % CITIES.len()]),
        2 => "two nights".to_owned(),
        3 => "no, three nights".to_owned(),
        4 => "pay now".to_owned(),
        _ => "cancel that".to_owned(),
    }
}

/// A session's key.
pub(super) fn key(session: u32) -> String {
    format!("s-{session:04}")
}

struct Speakers {
    dice: Dice,
    /// With the number of records that each has left.
    silent: Vec<(u32, u32)>,
    talking: Vec<Talk>,
}

struct Talk {
    session: u32,
    left: u32,
    until_silent: u64,
}

impl Iterator for Speakers {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        while self.talking.len() < TALKING_AT_ONCE && !self.silent.is_empty() {
            let chosen = self.dice.index(self.silent.len());
            let (session, left) = self.silent.swap_remove(chosen);
            self.talking.push(Talk {
                session,
                left,
                until_silent: 1 + self.dice.below(BURST_MAX),
            });
        }
        if self.talking.is_empty() {
            return None;
        }
        let chosen = self.dice.index(self.talking.len());
        let talk = &mut self.talking[chosen];
        let session = talk.session;
        talk.left -= 1;
        talk.until_silent -= 1;
        let left = talk.left;
        if left == 0 || talk.until_silent == 0 {
            self.talking.swap_remove(chosen);
            self.silent.extend((left > 0).then_some((session, left)));
        }
        Some(session)
    }
}

/// SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
struct Dice(u64);

impl Dice {
    fn new(seed: u64, stream: u64) -> Self {
        Dice(mix(seed) ^ mix(!stream))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `0..bound`, near enough for small bounds.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Uniform in `0.0..1.0`.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn mix(word: u64) -> u64 {
    let z = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKLOAD: Workload = Workload {
        sessions: 7,
        records: 1_000,
        faults: 0.1,
        seed: 42,
    };

    #[test]
    fn every_session_says_its_share_and_the_shares_are_all_the_records() {
        let mut said = [0; 7];
        for session in WORKLOAD.speakers() {
            said[session as usize] += 1;
        }
        let shares: Vec<u32> = (0..7).map(|session| WORKLOAD.records_of(session)).collect();
        assert_eq!(said[..], shares[..]);
        assert_eq!(shares.iter().sum::<u32>(), 1_000);
    }

    #[test]
    fn sessions_that_say_nothing_are_no_trouble() {
        let workload = Workload { records: 3, ..WORKLOAD };
        let mut speakers: Vec<u32> = workload.speakers().collect();
        speakers.sort_unstable();
        assert_eq!(speakers, [0, 1, 2]);
    }

    #[test]
    fn a_workload_replays_by_its_seed() {
        let again: Vec<u32> = WORKLOAD.speakers().collect();
        assert!(WORKLOAD.speakers().eq(again.iter().copied()));
        let other = Workload { seed: 43, ..WORKLOAD };
        assert!(!other.speakers().eq(again.iter().copied()));
    }

    #[test]
    fn as_many_attempts_fail_as_asked() {
        let fates = |faults| {
            let workload = Workload { faults, ..WORKLOAD };
            (1..=10_000).map(move |seq| workload.fate(3, seq, 1))
        };
        let failed = fates(0.1).filter(|fate| fate.fails).count();
        // The standard deviation is 30.
        assert!((850..1_150).contains(&failed), "{failed}");
        assert!(fates(0.0).all(|fate| !fate.fails));
        let again = (2..100).find(|attempt| !WORKLOAD.fate(3, 1, *attempt).fails);
        assert!(again.is_some(), "attempts are drawn apart");
    }

    #[test]
    fn a_correction_follows_what_it_corrects() {
        assert_eq!([text(0, 1), text(0, 2)], ["book London", "make it Paris"]);
        assert_eq!([text(0, 7), text(0, 8)], ["book Paris", "make it Lisbon"]);
    }
}
