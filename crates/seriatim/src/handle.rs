//! A consumer that runs.

use std::sync::atomic::{AtomicU64, Ordering};

use seriatim_runtime::drive::Running;
use seriatim_runtime::drive::WorkerCounters;
use tokio::signal;

use crate::error::{Error, Result};

/// A running consumer. Dropping it stops the consumer, without waiting for the drain.
#[derive(Debug)]
#[must_use = "dropping a handle stops its consumer"]
pub struct Handle {
    running: Running,
}

/// What a consumer has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records settled, dead letters among them.
    pub settled: u64,
    /// Attempts that failed and were to be made again.
    pub retries: u64,
    /// Records dead-lettered.
    pub dead_letters: u64,
    /// Handlers that wait now.
    pub in_flight: u64,
    /// Sessions with unsettled records now.
    pub sessions: u64,
    /// Starts that the order checker judged.
    pub checked: u64,
    /// Violations that it found.
    pub violations: u64,
}

impl Handle {
    pub(crate) fn new(running: Running) -> Self {
        Self { running }
    }

    /// What the consumer has done so far.
    pub fn stats(&self) -> Stats {
        let sum = |of: fn(&WorkerCounters) -> &AtomicU64| {
            let workers = self.running.counters().iter();
            workers.map(|worker| of(worker).load(Ordering::Relaxed)).sum()
        };
        Stats {
            settled: sum(|worker| &worker.settled),
            retries: sum(|worker| &worker.retries),
            dead_letters: sum(|worker| &worker.dead_letters),
            in_flight: sum(|worker| &worker.in_flight),
            sessions: sum(|worker| &worker.sessions),
            checked: sum(|worker| &worker.checked),
            violations: sum(|worker| &worker.violations),
        }
    }

    /// Begins the drain, without waiting for it.
    pub fn stop(&self) {
        self.running.stop();
    }

    /// Drains: intake stops, running handlers may finish until the drain timeout, progress is committed, the group is
    /// left. Returns when that is done.
    ///
    /// # Errors
    /// When the consumer could not go on.
    pub async fn shutdown(mut self) -> Result {
        self.running.stop();
        self.drained().await
    }

    /// Returns when the consumer has ended, whoever stopped it.
    ///
    /// # Errors
    /// When it ended because it could not go on.
    pub async fn drained(&mut self) -> Result {
        Ok(self.running.ended().await?)
    }

    /// Runs until Ctrl-C or SIGTERM, then drains; a second signal ends the wait for the drain.
    ///
    /// # Errors
    /// When the consumer could not go on, or the drain was cut short.
    pub async fn until_signalled(mut self) -> Result {
        tokio::select! {
            ended = self.drained() => return ended,
            () = signalled() => self.running.stop(),
        }
        tokio::select! {
            ended = self.drained() => ended,
            () = signalled() => Err(Error::CutShort),
        }
    }
}

/// Returns at Ctrl-C or SIGTERM.
async fn signalled() {
    #[cfg(unix)]
    {
        let mut terminate =
            signal::unix::signal(signal::unix::SignalKind::terminate()).expect("the process may handle SIGTERM");
        tokio::select! {
            _ = signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    }
    #[cfg(not(unix))]
    let _ = signal::ctrl_c().await;
}
