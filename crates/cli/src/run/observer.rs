//! What happens during a run, told on standard error, and what the run itself must know of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use seriatim::LogEvents;
use seriatim_runtime::ports::{Event, Observer, SourceTrouble};
use seriatim_testkit::history::TracedObserver;
use tokio::sync::{Notify, watch};

use super::held::HeldPartitions;

/// Writes events to the log, and keeps what decides about the run's end. Clones share what they keep.
#[derive(Clone)]
pub(crate) struct RunObserver(Arc<Seen>);

#[derive(Default)]
struct Seen {
    recorder: Option<TracedObserver>,
    stopping: AtomicBool,
    draining: watch::Sender<bool>,
    cut_short: AtomicBool,
    unreachable: Notify,
    /// Taken by the dispatcher's thread once a partition and second, and by who tells of it.
    held: Mutex<HeldPartitions>,
}

impl RunObserver {
    /// An observer that passes on what it is told to that of a recording, if there is one.
    pub(crate) fn new(recorder: Option<TracedObserver>) -> Self {
        Self(Arc::new(Seen {
            recorder,
            ..Seen::default()
        }))
    }

    /// Says that the run ends: the drains from here on are its last.
    pub(crate) fn stopping(&self) {
        self.0.stopping.store(true, Ordering::Release);
    }

    /// Becomes true when the last drain has begun: what fails from then on is not tried again by this run.
    pub(crate) fn draining(&self) -> watch::Receiver<bool> {
        self.0.draining.subscribe()
    }

    /// Whether the last drain had to cancel handlers.
    pub(crate) fn was_cut_short(&self) -> bool {
        self.0.cut_short.load(Ordering::Acquire)
    }

    /// What there is to tell of partitions whose intake has been held for a while.
    pub(crate) fn held_lines(&self) -> Vec<String> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner).lines()
    }

    /// Returns when the client has said that it reaches no broker.
    pub(crate) async fn unreachable(&self) {
        self.0.unreachable.notified().await;
    }
}

impl Observer for RunObserver {
    fn observe(&self, event: Event<'_>) {
        if let Some(recorder) = &self.0.recorder {
            recorder.note(&event);
        }
        let stopping = self.0.stopping.load(Ordering::Acquire);
        let held = || self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Standing(standing) => held().note(&standing, SystemTime::now()),
            Event::Released(partition) | Event::Lost(partition) => held().forget(partition),
            Event::DrainBegan(_) if stopping => drop(self.0.draining.send_replace(true)),
            Event::DrainEnded { cancelled: true, .. } if stopping => self.0.cut_short.store(true, Ordering::Release),
            // Told by whoever looks into it: once, and with how it goes on.
            Event::Trouble(SourceTrouble::Unreachable(_)) => return self.0.unreachable.notify_one(),
            _ => {}
        }
        LogEvents.observe(event);
    }
}
