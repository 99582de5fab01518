//! What stands at the ports and writes down what passes.

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use seriatim_engine::ack_map;
use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::Flow;
use seriatim_engine::record::{Offset, PartitionId, RecordId};
use seriatim_engine::trail;
use seriatim_runtime::backend::Backend;
use seriatim_runtime::context::Context;
use seriatim_runtime::failure::{Failure, FailureClass};
use seriatim_runtime::message::Message;
use seriatim_runtime::ports::{
    Commit, CommitError, CommitMode, DeadLetter, DeadLetterError, DeadLetters, Event, Granted, Handler, LeaseTerm,
    Observer, Records, Source, SourceError, SourceEvent, Start,
};
use seriatim_runtime::record::Record;
use siphasher::sip::SipHasher13;

use super::{AckMap, Ended, EpochNumber, History, What};

/// A backend whose source and dead letters are watched.
pub struct TracedBackend<B> {
    backend: B,
    instance: u32,
    history: History,
}

impl<B: Backend> TracedBackend<B> {
    /// Watches `backend` as that of `instance`.
    pub fn new(backend: B, instance: u32, history: &History) -> Self {
        Self {
            backend,
            instance,
            history: history.clone(),
        }
    }
}

impl<B: Backend> Backend for TracedBackend<B> {
    type Source = Traced<B::Source>;
    type DeadLetters = TracedLetters<B::DeadLetters>;
    type Error = B::Error;

    fn dead_letters(&self, group: &str) -> Result<Self::DeadLetters, B::Error> {
        let letters = self.backend.dead_letters(group)?;
        Ok(TracedLetters::new(letters, self.instance, &self.history))
    }

    fn join(self, group: &str, topics: &[String]) -> Result<(Self::Source, Waker), B::Error> {
        let (source, waker) = self.backend.join(group, topics)?;
        Ok((Traced::new(source, self.instance, &self.history), waker))
    }
}

/// A source that is watched.
pub struct Traced<S> {
    source: S,
    instance: u32,
    history: History,
    granted: HashMap<PartitionId, Granted>,
    epochs: HashMap<AssignmentEpoch, EpochNumber>,
    /// What background commits are for that were not answered.
    unanswered: Vec<EpochNumber>,
}

impl<S: Source> Traced<S> {
    /// Watches `source` as that of `instance`.
    pub fn new(source: S, instance: u32, history: &History) -> Self {
        Self {
            source,
            instance,
            history: history.clone(),
            granted: HashMap::new(),
            epochs: HashMap::new(),
            unanswered: Vec::new(),
        }
    }

    fn note(&self, what: What) {
        self.history.note(self.instance, what);
    }

    fn note_event(&mut self, event: &SourceEvent) {
        match event {
            SourceEvent::Assigned(granted) => {
                let granted = granted
                    .iter()
                    .map(|granted| (granted.partition.clone(), granted.clone()));
                self.granted.extend(granted);
            }
            SourceEvent::Revoked(epochs) => epochs
                .iter()
                .for_each(|epoch| self.note(What::RevokeBegin(self.epochs[epoch]))),
            SourceEvent::Lost(epochs) => {
                for epoch in epochs {
                    let epoch = self.epochs[epoch];
                    self.unanswered.retain(|unanswered| *unanswered != epoch);
                    self.note(What::Lost(epoch));
                }
            }
            SourceEvent::Committed(Ok(commits)) => {
                let taken: Vec<EpochNumber> = commits.iter().map(|commit| self.epochs[&commit.epoch]).collect();
                self.unanswered.retain(|epoch| !taken.contains(epoch));
                self.note_answer(taken, true);
            }
            // Of several partitions' commits a broker may take some, which was told before.
            SourceEvent::Committed(Err(_)) => {
                let refused = std::mem::take(&mut self.unanswered);
                self.note_answer(refused, false);
            }
            SourceEvent::Records
            | SourceEvent::Skipped(..)
            | SourceEvent::Ends(_)
            | SourceEvent::Grown { .. }
            | SourceEvent::Trouble(_) => {}
        }
    }

    fn note_answer(&self, epochs: Vec<EpochNumber>, succeeded: bool) {
        for epoch in epochs {
            self.note(What::CommitAnswered(epoch, succeeded));
        }
    }
}

impl<S: Source> Source for Traced<S> {
    type Message = S::Message;

    fn poll(
        &mut self,
        wait: Duration,
        mut records: Option<&mut Records<S::Message>>,
    ) -> Result<Option<SourceEvent>, SourceError> {
        let event = self.source.poll(wait, records.as_deref_mut())?;
        match (&event, records) {
            (Some(SourceEvent::Records), Some(records)) => {
                let mut begin = 0;
                for run in &records.runs {
                    let from = records.messages[begin].offset();
                    self.note(What::Delivered(self.epochs[&run.epoch], run.len, from));
                    begin += run.len;
                }
            }
            (Some(event), _) => self.note_event(event),
            (None, _) => {}
        }
        Ok(event)
    }

    fn start(&mut self, starts: &[Start]) {
        for start in starts {
            let epoch = self.history.next_epoch();
            self.epochs.insert(start.epoch, epoch);
            let granted = self
                .granted
                .remove(&start.partition)
                .expect("only what was granted is started");
            self.note(What::Assign {
                epoch,
                committed: granted.committed,
                settled: ack_map(&granted.metadata, granted.committed, granted.end),
                attempts: attempts(&granted),
                partition: granted.partition,
            });
        }
        self.source.start(starts);
    }

    fn set_flow(&mut self, epoch: AssignmentEpoch, flow: Flow) {
        self.note(What::FlowSet(self.epochs[&epoch], flow));
        self.source.set_flow(epoch, flow);
    }

    fn commit(&mut self, commits: &[Commit], mode: CommitMode) -> Result<(), CommitError> {
        let epochs: Vec<EpochNumber> = commits.iter().map(|commit| self.epochs[&commit.epoch]).collect();
        for (commit, epoch) in commits.iter().zip(&epochs) {
            let endless = Some(Offset::new(i64::MAX));
            let settled = ack_map(&commit.metadata, Some(commit.watermark), endless);
            self.note(What::CommitSent(*epoch, commit.watermark, settled));
        }
        let answer = self.source.commit(commits, mode);
        match (mode, &answer) {
            (CommitMode::Background, Ok(())) => self.unanswered.extend(epochs),
            _ => self.note_answer(epochs, answer.is_ok()),
        }
        answer
    }

    fn relinquish(&mut self, epochs: &[AssignmentEpoch]) {
        // Noted first: others may be granted these before the call returns.
        for epoch in epochs {
            self.note(What::RevokeEnd(self.epochs[epoch]));
        }
        self.source.relinquish(epochs);
    }

    fn lease(&self) -> Option<LeaseTerm> {
        self.source.lease()
    }

    fn close(&mut self) {
        self.source.close();
    }
}

/// A handler that is watched.
#[derive(Clone)]
pub struct TracedHandler<H> {
    handler: Arc<H>,
    instance: u32,
    history: History,
}

impl<H: Handler> TracedHandler<H> {
    /// Watches `handler` in `instance`.
    pub fn new(handler: H, instance: u32, history: &History) -> Self {
        Self {
            handler: Arc::new(handler),
            instance,
            history: history.clone(),
        }
    }
}

impl<H: Handler> Handler for TracedHandler<H> {
    async fn handle(&self, record: Record, cx: Context) -> Result<(), Failure> {
        let started = Started::note(&self.history, self.instance, &record, &cx);
        let handled = self.handler.handle(record, cx).await;
        started.end(match &handled {
            Ok(()) => Ended::Handled,
            Err(failure) if failure.class() == FailureClass::Permanent => Ended::Permanent,
            Err(_) => Ended::Transient,
        });
        handled
    }
}

/// A handler that has started. Dropped before it ended, it was cancelled or has panicked.
struct Started<'a> {
    history: &'a History,
    instance: u32,
    record: RecordId,
    attempt: u32,
    ended: Option<Ended>,
}

impl<'a> Started<'a> {
    fn note(history: &'a History, instance: u32, record: &Record, cx: &Context) -> Self {
        let (id, attempt) = (record.id(), cx.attempt());
        history.note(
            instance,
            What::Start {
                record: id.clone(),
                attempt,
                fingerprint: fingerprint(record),
            },
        );
        Self {
            history,
            instance,
            record: id,
            attempt,
            ended: None,
        }
    }

    fn end(mut self, ended: Ended) {
        self.ended = Some(ended);
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        let ended = self.ended.unwrap_or(match std::thread::panicking() {
            true => Ended::Panicked,
            false => Ended::Cancelled,
        });
        self.history
            .note(self.instance, What::End(self.record.clone(), self.attempt, ended));
    }
}

/// Dead letters that are watched.
pub struct TracedLetters<D> {
    letters: D,
    instance: u32,
    history: History,
}

impl<D: DeadLetters> TracedLetters<D> {
    /// Watches what `instance` hands to `letters`.
    pub fn new(letters: D, instance: u32, history: &History) -> Self {
        Self {
            letters,
            instance,
            history: history.clone(),
        }
    }
}

impl<D: DeadLetters> DeadLetters for TracedLetters<D> {
    async fn publish(&self, letter: DeadLetter) -> Result<(), DeadLetterError> {
        let id = letter.record.id();
        let sent = What::LetterSent(id.clone(), letter.reason, letter.attempts);
        self.history.note(self.instance, sent);
        let kept = self.letters.publish(letter).await;
        self.history.note(
            self.instance,
            match kept {
                Ok(()) => What::LetterAcked(id),
                Err(_) => What::LetterFailed(id),
            },
        );
        kept
    }
}

/// Writes down what only an observer is told.
pub struct TracedObserver {
    instance: u32,
    history: History,
}

impl TracedObserver {
    /// Listens to `instance`.
    pub fn new(instance: u32, history: &History) -> Self {
        Self {
            instance,
            history: history.clone(),
        }
    }
}

impl TracedObserver {
    /// Writes `event` down, for an observer that passes on what it is told.
    pub fn note(&self, event: &Event<'_>) {
        let what = match event {
            Event::Retrying {
                record, attempt, delay, ..
            } => What::Retry(record.id(), *attempt, self.history.now() + *delay),
            Event::AckMapTruncated(partition) => What::MapCut((*partition).clone()),
            Event::Violation(violation) => What::CheckerViolation(violation.to_string()),
            _ => return,
        };
        self.history.note(self.instance, what);
    }
}

impl Observer for TracedObserver {
    fn observe(&self, event: Event<'_>) {
        self.note(&event);
    }
}

/// What a commit's metadata says; nothing, when it is not to be believed.
fn ack_map(metadata: &str, committed: Option<Offset>, end: Option<Offset>) -> AckMap {
    let decoded = committed.map(|committed| ack_map::decode(metadata, committed, end));
    decoded.and_then(Result::ok).unwrap_or_default()
}

/// The attempts that a commit's metadata tells of; none, when any of it is not to be believed.
fn attempts(granted: &Granted) -> Vec<(Offset, u32)> {
    let Some(committed) = granted.committed else {
        return Vec::new();
    };
    match ack_map::decode(&granted.metadata, committed, granted.end) {
        Ok(_) => trail::decode(&granted.metadata, committed).unwrap_or_default().attempts,
        Err(_) => Vec::new(),
    }
}

/// A hash of a record's key, value and headers, without the headers that a dead letter adds: what must never change. It
/// is the same in every process and build.
pub fn fingerprint(record: &Record) -> u64 {
    let mut hasher = SipHasher13::new();
    hash_part(&mut hasher, record.key());
    hash_part(&mut hasher, record.value());
    let added = |name: &[u8]| name.starts_with(b"kafka_dlt-") || name.starts_with(b"seriatim-");
    for header in record.headers().filter(|header| !added(header.name)) {
        hash_part(&mut hasher, Some(header.name));
        hash_part(&mut hasher, header.value);
    }
    hasher.finish()
}

/// With its length, so that no two records' parts run into each other alike.
fn hash_part(hasher: &mut SipHasher13, part: Option<&[u8]>) {
    match part {
        Some(bytes) => {
            hasher.write(&(bytes.len() as u64).to_le_bytes());
            hasher.write(bytes);
        }
        None => hasher.write(&u64::MAX.to_le_bytes()),
    }
}
