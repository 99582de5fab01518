//! A tokio task and a channel per session: how order per session is usually made in Rust. It reads the same batches as
//! Seriatim, and commits once, at the end, which spares it a ledger.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use seriatim::engine::record::{Offset, SessionHash};
use seriatim::engine::retry::Retry;
use seriatim::prelude::Record;
use seriatim::runtime::message::{Message, OwnedMessage};
use tokio::sync::{Semaphore, mpsc};

use super::by_hand::{Reader, source};
use super::contender::{PATIENCE, Spec};
use super::meter::Reading;
use super::stage::Stage;
use super::workload::Stamp;

/// Records that may lie before a session's task: as many as tokio's channel has in one of its blocks.
const CHANNEL: usize = 32;

pub fn run(spec: &Spec, stage: &'static Stage) -> anyhow::Result<Reading> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let session = Session {
        stage,
        retry: spec.work.retry(),
        in_flight: Arc::new(Semaphore::new(spec.in_flight)),
        handled: Arc::new(AtomicU64::new(0)),
    };
    let mut sessions: HashMap<Box<[u8]>, mpsc::Sender<Record>> = HashMap::new();
    let mut reader = Reader::new(source(spec)?, spec.ends.len());
    reader.read(spec.workload.records, |message| {
        let key = message.key().unwrap_or_default();
        let record = Record::from(OwnedMessage::copied(&message));
        let sender = match sessions.get(key) {
            Some(sender) => sender,
            None => {
                let (sender, records) = mpsc::channel(CHANNEL);
                runtime.spawn(session.clone().run(records));
                sessions.entry(key.into()).or_insert(sender)
            }
        };
        sender
            .blocking_send(record)
            .expect("its task runs as long as the sender is there");
    })?;
    session.until_handled(spec.workload.records)?;
    reader.commit()?;
    let ended = Reading::now();
    reader.close();
    Ok(ended)
}

#[derive(Clone)]
struct Session {
    stage: &'static Stage,
    retry: Retry,
    in_flight: Arc<Semaphore>,
    handled: Arc<AtomicU64>,
}

impl Session {
    async fn run(self, mut records: mpsc::Receiver<Record>) {
        while let Some(record) = records.recv().await {
            if self.stage.passes() {
                self.stage.pass(record.payload());
            } else {
                self.handle(&record).await;
            }
            self.handled.fetch_add(1, Ordering::Release);
        }
    }

    async fn handle(&self, record: &Record) {
        let (first, value) = (Instant::now(), record.payload());
        let session = SessionHash(u64::from(Stamp::read(value).session));
        for attempt in 1.. {
            let turn = self.in_flight.acquire().await.expect("it is never closed");
            if self.stage.handle(value, attempt).await.is_ok() {
                return;
            }
            drop(turn);
            let now = Instant::now();
            let again = self
                .retry
                .next(attempt, first, now, session, Offset::new(record.offset()));
            let again = again.expect("none is exhausted");
            self.stage.note_wait(value, again - now);
            tokio::time::sleep_until(again.into()).await;
        }
    }

    fn until_handled(&self, records: u64) -> anyhow::Result<()> {
        let (mut handled, mut heard) = (0, Instant::now());
        while handled < records {
            thread::sleep(Duration::from_millis(1));
            let now = self.handled.load(Ordering::Acquire);
            if now > handled {
                (handled, heard) = (now, Instant::now());
            }
            ensure!(
                heard.elapsed() < PATIENCE,
                "{handled} of {records} records are handled, and no more for {PATIENCE:?}"
            );
        }
        Ok(())
    }
}
