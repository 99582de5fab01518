//! The work on one record: the same for Seriatim's consumers and for the plain pool, each with a judge of its own.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use seriatim::prelude::Failure;

use super::proof::{Proof, Verdict};
use super::workload::{Said, Workload};

/// A handler that takes 0 to 2 ms, and fails as often as the workload says.
pub(super) struct Work {
    pub(super) workload: Workload,
    began: Instant,
    pub(super) proof: Proof,
    times: Mutex<Times>,
}

/// In microseconds.
struct Times {
    /// From the call of the producer to the end of the handler,
    calm: Histogram<u64>,
    /// and of the records that were sent while the group rebalanced.
    restless: Histogram<u64>,
    first_sent: u64,
    last_settled: u64,
}

/// From the call of the producer to the end of the handler.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latencies {
    /// The time within which half of the records were handled that were sent while the group was at rest,
    pub(super) p50: Duration,
    /// and 99 of a hundred,
    pub(super) p99: Duration,
    /// and 99 of a hundred of those that were sent while it rebalanced.
    pub(super) rebalancing_p99: Duration,
}

/// Five minutes in microseconds: more than a whole run.
const LATENCY_MAX: u64 = 300_000_000;

impl Work {
    /// `began` is the time that the records' `sent_us` count from.
    pub(super) fn new(workload: Workload, began: Instant) -> Self {
        let histogram = || Histogram::new_with_max(LATENCY_MAX, 3).expect("three digits are possible");
        Self {
            workload,
            began,
            proof: Proof::new(workload.sessions),
            times: Mutex::new(Times {
                calm: histogram(),
                restless: histogram(),
                first_sent: u64::MAX,
                last_settled: 0,
            }),
        }
    }

    /// One attempt, from 1, to handle a record with this value.
    pub(super) async fn attempt(&self, value: &[u8], attempt: u32) -> Result<(), Failure> {
        let said: Said<'_> = serde_json::from_slice(value).map_err(Failure::permanent)?;
        let running = self.proof.start(said.session, said.seq);
        let fate = self.workload.fate(said.session, said.seq, attempt);
        if !fate.takes.is_zero() {
            tokio::time::sleep(fate.takes).await;
        }
        if fate.fails {
            return Err(Failure::transient("an injected fault"));
        }
        running.settled();
        self.times().note(&said, self.began.elapsed().as_micros() as u64);
        Ok(())
    }

    /// What the judge finds, now that all has been sent.
    pub(super) fn verdict(&self) -> Verdict {
        self.proof.verdict(|session| self.workload.records_of(session))
    }

    /// How long records took.
    pub(super) fn latencies(&self) -> Latencies {
        let times = self.times();
        let at =
            |histogram: &Histogram<u64>, percentile| Duration::from_micros(histogram.value_at_percentile(percentile));
        Latencies {
            p50: at(&times.calm, 50.0),
            p99: at(&times.calm, 99.0),
            rebalancing_p99: at(&times.restless, 99.0),
        }
    }

    /// From the first call of the producer to the end of the last handler.
    pub(super) fn elapsed(&self) -> Duration {
        let times = self.times();
        Duration::from_micros(times.last_settled.saturating_sub(times.first_sent))
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Times {
    fn note(&mut self, said: &Said<'_>, settled: u64) {
        let latencies = if said.calm { &mut self.calm } else { &mut self.restless };
        latencies.saturating_record(settled.saturating_sub(said.sent_us));
        self.first_sent = self.first_sent.min(said.sent_us);
        self.last_settled = self.last_settled.max(settled);
    }
}
