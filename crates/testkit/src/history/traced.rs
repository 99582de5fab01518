//! What stands at the ports and writes down what passes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use seriatim_engine::ack_map;
use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::Flow;
use seriatim_engine::record::{Offset, PartitionId, RecordId};
use seriatim_runtime::context::Context;
use seriatim_runtime::failure::{Failure, FailureClass};
use seriatim_runtime::ports::{
    Commit, CommitError, CommitMode, DeadLetter, DeadLetterError, DeadLetters, Event, Granted, Handler, LeaseTerm, Observer,
    Records, Source, SourceError, SourceEvent, Start,
};
use seriatim_runtime::record::Record;

use super::{AckMap, Ended, EpochNumber, History, What};

/// A source that is watched.
pub struct Traced<S> {
    source: S,
    instance: u32,
    history: History,
    granted: HashMap<PartitionId, Granted>,
    epochs: HashMap<AssignmentEpoch, EpochNumber>,
    /// What background commits are for, oldest first.
    sent: std::collections::VecDeque<Vec<EpochNumber>>,
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
            sent: std::collections::VecDeque::new(),
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
            SourceEvent::Lost(epochs) => epochs
                .iter()
                .for_each(|epoch| self.note(What::Lost(self.epochs[epoch]))),
            SourceEvent::Committed(answer) => {
                let epochs = self.sent.pop_front().expect("one answer for each background commit");
                self.note_answer(epochs, answer.is_ok());
            }
            SourceEvent::Records | SourceEvent::Ends(_) | SourceEvent::Trouble(_) => {}
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
                for run in &records.runs {
                    self.note(What::Delivered(self.epochs[&run.epoch], run.len));
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
            (CommitMode::Background, Ok(())) => self.sent.push_back(epochs),
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

impl Observer for TracedObserver {
    fn observe(&self, event: Event<'_>) {
        let what = match event {
            Event::Retrying {
                record, attempt, delay, ..
            } => What::Retry(record.id(), attempt, self.history.now() + delay),
            Event::Violation(violation) => What::CheckerViolation(violation.to_string()),
            _ => return,
        };
        self.history.note(self.instance, what);
    }
}

/// What a commit's metadata says; nothing, when it is not to be believed.
fn ack_map(metadata: &str, committed: Option<Offset>, end: Option<Offset>) -> AckMap {
    let decoded = committed.map(|committed| ack_map::decode(metadata, committed, end));
    decoded.and_then(Result::ok).unwrap_or_default()
}

/// A hash of a record's key, value and headers, without the headers that a dead letter adds: what must never change.
pub fn fingerprint(record: &Record) -> u64 {
    let mut hasher = DefaultHasher::new();
    record.key().hash(&mut hasher);
    record.value().hash(&mut hasher);
    let added = |name: &[u8]| name.starts_with(b"kafka_dlt-") || name.starts_with(b"seriatim-");
    for header in record.headers().filter(|header| !added(header.name)) {
        (header.name, header.value).hash(&mut hasher);
    }
    hasher.finish()
}
