//! The work on each record, and what is noted of it: the same for all contenders.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use seriatim::engine::retry::Retry;
use seriatim::runtime::failure::Failure;

use super::proof::Proof;
use super::times::Times;
use super::workload::{Stamp, Workload, mix};

/// What a handler does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Nothing: it is ready at once.
    Nothing,
    /// Nothing but noting how long ago the record was sent.
    Receive,
    /// It waits so long.
    Wait(Duration),
    /// This share of all attempts fails at once, and is made again after the back-off.
    Fail { rate: f64, backoff: Duration },
}

impl Work {
    /// The policy of retries. Their number is such that none is exhausted.
    pub fn retry(self) -> Retry {
        let base = match self {
            Work::Fail { backoff, .. } => backoff,
            _ => Retry::default().base,
        };
        Retry {
            base,
            attempts_max: 1_000,
            ..Retry::default()
        }
    }
}

/// Where a contender's handlers do their work.
pub struct Stage {
    pub proof: Proof,
    /// From the start of a handler to its end.
    pub handle: Times,
    /// From the production of a record to the end of its handler.
    pub delivery: Times,
    work: Work,
    /// By session: the sum of the waits before its retries, in nanoseconds.
    waits: Vec<AtomicU64>,
}

impl Stage {
    pub fn new(sessions: u32, work: Work) -> Self {
        let waiting_sessions = if matches!(work, Work::Fail { .. }) { sessions } else { 0 };
        Self {
            proof: Proof::new(sessions),
            handle: Times::new(),
            delivery: Times::new(),
            work,
            waits: (0..waiting_sessions).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Whether the work is done at once, so that [`pass`](Self::pass) does it.
    pub fn passes(&self) -> bool {
        matches!(self.work, Work::Nothing | Work::Receive)
    }

    /// Handles a record at once.
    #[inline]
    pub fn pass(&self, value: &[u8]) {
        let stamp = Stamp::read(value);
        self.proof.start(stamp);
        if self.work == Work::Receive {
            let waited = now_nanos().saturating_sub(stamp.sent_nanos);
            self.delivery.note(Duration::from_nanos(waited));
        }
        self.proof.end(stamp, true);
    }

    /// Handles a record with all that the work asks for.
    pub async fn handle(&self, value: &[u8], attempt: u32) -> Result<(), Failure> {
        let (began, stamp) = (Instant::now(), Stamp::read(value));
        self.proof.start(stamp);
        let fails = match self.work {
            Work::Wait(time) => {
                tokio::time::sleep(time).await;
                false
            }
            Work::Fail { rate, .. } => fails(stamp, attempt, rate),
            Work::Nothing | Work::Receive => false,
        };
        self.proof.end(stamp, !fails);
        self.handle.note(began.elapsed());
        if fails {
            Err(Failure::transient("drawn to fail"))
        } else {
            Ok(())
        }
    }

    /// A retry of a record with this value comes after `delay`.
    pub fn note_wait(&self, value: &[u8], delay: Duration) {
        if let Some(waits) = self.waits.get(Stamp::read(value).session as usize) {
            waits.fetch_add(delay.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// The rate that the waits alone allow, in this very run.
    pub fn bound(&self, workload: &Workload, in_flight: usize) -> Option<f64> {
        match self.work {
            Work::Nothing | Work::Receive => None,
            Work::Wait(_) => {
                let mean = self.handle.distribution()?.mean_micros / 1e6;
                Some(in_flight.min(workload.sessions as usize) as f64 / mean)
            }
            Work::Fail { .. } => {
                // A session's records come one after another, and so do its waits: the session that waits longest decides.
                let longest = self.waits.iter().map(|waits| waits.load(Ordering::Relaxed)).max()?;
                Some(workload.records as f64 / Duration::from_nanos(longest).as_secs_f64())
            }
        }
    }
}

/// Whether an attempt is drawn to fail: the same in every run.
fn fails(stamp: Stamp, attempt: u32, rate: f64) -> bool {
    let record = u64::from(stamp.session) << 32 | u64::from(stamp.sequence);
    let draw = mix(mix(record) ^ u64::from(attempt));
    (draw as f64) < rate * u64::MAX as f64
}

/// Nanoseconds since the Unix epoch.
pub fn now_nanos() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_all_attempts_fails_and_always_the_same() {
        let stamps = (0..50_000).map(|index| Stamp {
            session: index % 10,
            sequence: index / 10,
            sent_nanos: 0,
        });
        let failed = |attempt| stamps.clone().filter(move |stamp| fails(*stamp, attempt, 0.1));
        assert!((4_700..5_300).contains(&failed(1).count()), "{}", failed(1).count());
        assert!(failed(1).eq(failed(1)));
        assert!(!failed(1).eq(failed(2)));
    }
}
