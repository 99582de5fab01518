//! The workload on its way into the topic: at a steady rate, never far ahead of who reads it, and no further than the
//! script allows.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use seriatim_kafka::producer::{Delivery, ProduceError, SessionProducer, SessionRecord};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::proof::Proof;
use super::workload::{Said, Workload, key, text};

/// How far the producer may be ahead of the slowest reader. The embedded broker keeps 5 MiB a partition, which is more
/// than so many of our records, even if all were in one.
const LEAD_MAX: u64 = 15_000;

/// Acknowledgements that are waited for at a time.
const DELIVERIES_MAX: usize = 4_096;

/// Shorter waits than tokio's timers can keep are saved up.
const TICK: Duration = Duration::from_millis(1);

/// Records are sent at least this fast, so that small workloads end soon, and in so many seconds at most, so that large
/// ones do: about as long as the consumers take to join and leave.
const RATE_MIN: f64 = 3_500.0;
const SPAN_MAX_S: f64 = 14.0;

/// What is sent, and how far that may go.
pub(super) struct Traffic {
    pub(super) topic: &'static str,
    pub(super) workload: Workload,
    sent: watch::Sender<u64>,
    allowed: watch::Sender<u64>,
    calm: AtomicBool,
}

impl Traffic {
    /// Traffic that nothing is allowed of yet.
    pub(super) fn new(topic: &'static str, workload: Workload) -> Self {
        Self {
            topic,
            workload,
            sent: watch::Sender::new(0),
            allowed: watch::Sender::new(0),
            calm: AtomicBool::new(true),
        }
    }

    /// Allows so many percent of the records to be sent.
    pub(super) fn allow(&self, percent: u64) {
        self.allowed.send_replace(self.part(percent));
    }

    /// Returns when so many percent of the records have been sent.
    pub(super) async fn reaches(&self, percent: u64) {
        let part = self.part(percent);
        let mut sent = self.sent.subscribe();
        let reached = sent.wait_for(|sent| *sent >= part).await;
        reached.expect("the sender is in self");
    }

    /// Says whether the group is at rest from now on, or rebalances.
    pub(super) fn set_calm(&self, calm: bool) {
        self.calm.store(calm, Ordering::Relaxed);
    }

    /// How many have been sent.
    pub(super) fn sent(&self) -> u64 {
        *self.sent.borrow()
    }

    fn part(&self, percent: u64) -> u64 {
        (self.workload.records * percent).div_ceil(100)
    }

    /// Sends all records, as they are allowed. Returns when all of them are acknowledged.
    ///
    /// # Errors
    /// When a record cannot be written.
    pub(super) async fn send(
        &self,
        producer: &SessionProducer,
        began: std::time::Instant,
        readers: [&Proof; 2],
    ) -> Result<(), ProduceError> {
        let mut last = vec![0; self.workload.sessions as usize];
        let mut deliveries: VecDeque<Delivery> = VecDeque::new();
        let mut pace = Pace::new(rate(&self.workload));
        for (number, session) in (0..).zip(self.workload.speakers()) {
            self.wait_for_turn(number, readers).await;
            pace.next().await;
            let seq: &mut u32 = &mut last[session as usize];
            *seq += 1;
            let said = Said {
                session,
                seq: *seq,
                sent_us: began.elapsed().as_micros() as u64,
                calm: self.calm.load(Ordering::Relaxed),
                text: &text(session, *seq),
            };
            let value = serde_json::to_vec(&said).expect("numbers and texts are JSON");
            let key = key(session);
            let record = SessionRecord {
                value: Some(&value),
                ..SessionRecord::new(self.topic, key.as_bytes())
            };
            deliveries.push_back(producer.send(record).await?);
            if deliveries.len() > DELIVERIES_MAX {
                let oldest = deliveries.pop_front().expect("there are many");
                oldest.await?;
            }
            self.sent.send_replace(number + 1);
        }
        for delivery in deliveries {
            delivery.await?;
        }
        Ok(())
    }

    async fn wait_for_turn(&self, number: u64, readers: [&Proof; 2]) {
        if *self.allowed.borrow() <= number {
            let mut allowed = self.allowed.subscribe();
            let turn = allowed.wait_for(|allowed| *allowed > number).await;
            turn.expect("the sender is in self");
        }
        while readers.iter().any(|reader| reader.settled() + LEAD_MAX <= number) {
            sleep(TICK).await;
        }
    }
}

/// How many records are sent in a second, unless something holds them back.
pub(super) fn rate(workload: &Workload) -> f64 {
    RATE_MIN.max(workload.records as f64 / SPAN_MAX_S)
}

/// A steady rate. What a wait made late is not caught up on.
struct Pace {
    interval: Duration,
    due: Instant,
}

impl Pace {
    fn new(per_second: f64) -> Self {
        Self {
            interval: Duration::from_secs_f64(1.0 / per_second),
            due: Instant::now(),
        }
    }

    async fn next(&mut self) {
        let now = Instant::now();
        self.due = (self.due + self.interval).max(now - 20 * TICK);
        if self.due > now + TICK {
            sleep_until(self.due).await;
        }
    }
}
