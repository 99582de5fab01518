//! What becomes of an attempt: a function of a seed, of the record's place and of the attempt, so that whoever is given the
//! record again, in whichever process, does the same.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde::Deserialize;

/// How slow and how faulty a handler is.
#[derive(Clone, Copy, Deserialize)]
pub struct Temper {
    pub seed: u64,
    pub latency_max_ms: u64,
    pub transient_percent: u64,
    pub permanent_per_mille: u64,
}

/// How an attempt ends.
pub enum Fate {
    Handled,
    Transient,
    Permanent,
}

impl Temper {
    /// What becomes of an attempt on the record at `place`, `topic/partition/offset`, and how long that takes.
    pub fn treat(&self, place: &str, attempt: u32) -> (Duration, Fate) {
        let of_record = self.draw(place, 0);
        let of_attempt = self.draw(place, attempt);
        let fate = if of_record % 1_000 < self.permanent_per_mille {
            Fate::Permanent
        } else if of_attempt / 1_000 % 100 < self.transient_percent {
            Fate::Transient
        } else {
            Fate::Handled
        };
        (Duration::from_millis(of_attempt % (self.latency_max_ms + 1)), fate)
    }

    fn draw(&self, place: &str, attempt: u32) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, place, attempt).hash(&mut hasher);
        hasher.finish()
    }
}
