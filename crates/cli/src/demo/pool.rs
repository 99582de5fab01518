//! The disease: what a consumer does that reads a topic and hands each record to a pool of workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use seriatim_engine::assignment::{AssignmentEpoch, Assignments};
use seriatim_engine::record::{Offset, SessionHash};
use seriatim_kafka::embedded::EmbeddedBroker;
use seriatim_kafka::source::{KafkaSource, SourceSettings, StartAt};
use seriatim_runtime::message::Message;
use seriatim_runtime::ports::{Granted, Records, Source, SourceEvent, Start};
use tokio::runtime::Handle as Runtime;
use tokio::sync::Semaphore;

use super::members::RETRY;
use super::work::Work;

/// Records in the hands of the pool at a time.
const WORKERS: usize = 64;

/// A consumer in a group of its own that starts records in the order of the log, each as a task of its own. Retries are
/// made in place, by the schedule that Seriatim has here. All that it lacks is lanes.
pub(super) struct PlainPool {
    stop: Arc<AtomicBool>,
    reader: JoinHandle<anyhow::Result<()>>,
}

impl PlainPool {
    /// Starts the pool on the runtime that this is called on.
    pub(super) fn start(brokers: String, group: &str, topic: &str, work: Arc<Work>) -> Self {
        let settings = SourceSettings {
            brokers,
            group: group.to_owned(),
            topics: vec![topic.to_owned()],
            start_at: StartAt::default(),
            out_of_range: Default::default(),
            growth: Default::default(),
            properties: EmbeddedBroker::properties(),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, runtime) = (Arc::clone(&stop), Runtime::current());
        let reader = thread::spawn(move || read(settings, &stopped, &runtime, &work));
        Self { stop, reader }
    }

    /// Stops reading. Blocks until the reader has left its group.
    ///
    /// # Errors
    /// Why it could not read on.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.reader.join().expect("the reader does not panic")
    }
}

/// The reader's loop. It commits nothing: it never hands its partitions over.
fn read(settings: SourceSettings, stop: &AtomicBool, runtime: &Runtime, work: &Arc<Work>) -> anyhow::Result<()> {
    const WAIT: Duration = Duration::from_millis(20);
    let (mut source, _waker) = KafkaSource::connect(settings)?;
    let workers = Arc::new(Semaphore::new(WORKERS));
    let mut epochs = Assignments::default();
    let mut records = Records::default();
    while !stop.load(Ordering::Relaxed) {
        match source.poll(WAIT, Some(&mut records))? {
            Some(SourceEvent::Assigned(granted)) => source.start(&starts(granted, &mut epochs)),
            Some(SourceEvent::Records) => {
                records.runs.clear();
                for message in records.messages.drain(..) {
                    let worker = runtime.block_on(Arc::clone(&workers).acquire_owned())?;
                    let value = message.value().unwrap_or_default().to_vec();
                    let (work, offset) = (Arc::clone(work), message.offset());
                    runtime.spawn(async move {
                        handle(&work, &value, offset).await;
                        drop(worker);
                    });
                }
            }
            _ => {}
        }
    }
    let epochs: Vec<AssignmentEpoch> = epochs.iter().map(|(epoch, ())| epoch).collect();
    source.relinquish(&epochs);
    source.close();
    Ok(())
}

fn starts(granted: Vec<Granted>, epochs: &mut Assignments<()>) -> Vec<Start> {
    let start = |granted: Granted| Start {
        from: granted.first_wanted(),
        partition: granted.partition,
        epoch: epochs.open(()),
    };
    granted.into_iter().map(start).collect()
}

/// One record, through its retries.
async fn handle(work: &Work, value: &[u8], offset: Offset) {
    let first_started = Instant::now();
    for attempt in 1.. {
        if work.attempt(value, attempt).await.is_ok() {
            return;
        }
        let now = Instant::now();
        // The schedule wants a session to spread its waits by. A plain pool knows of no sessions.
        let session = SessionHash(offset.get() as u64);
        let again = RETRY.next(attempt, first_started, now, session, offset);
        tokio::time::sleep_until(again.expect("attempts are not limited").into()).await;
    }
}
