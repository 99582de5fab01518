//! Broken on purpose: each of these breaks one promise at a port, and the judge must see it. A judge that has not been
//! seen to say no is not to be trusted.

use std::collections::HashMap;
use std::time::Duration;

use seriatim_engine::ack_map;
use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::Flow;
use seriatim_engine::record::Offset;
use seriatim_engine::trail::{self, Trail};
use seriatim_runtime::message::{Message, OwnedMessage};
use seriatim_runtime::ports::{
    Commit, CommitError, CommitMode, Event, LeaseTerm, Observer, Records, Source, SourceError, SourceEvent, Start,
};

use crate::history::TracedObserver;

/// What is broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// Nothing.
    #[default]
    Nothing,
    /// The highest offset that was seen is committed, settled or not.
    CommitHighestSeen,
    /// The ack map is not committed.
    DropAckMap,
    /// What failing records have failed so far is not committed.
    DropAttempts,
    /// The ack map says that everything that was seen is settled.
    ClaimAllSettled,
    /// An older commit is sent again after a newer one.
    CommitAgainOlder,
    /// Commits reach past the end of the log.
    CommitPastEnd,
    /// The commit at the end of a drain is not sent.
    SwallowDrainCommit,
    /// Partitions are given back behind the dispatcher's back: no drain, no fence.
    HideRevoke,
    /// Lost partitions are not reported.
    HideLoss,
    /// Work goes on when the group has not answered for longer than it waits.
    IgnoreLease,
    /// The first record after a gap is not delivered.
    DropAtGap,
    /// Offset 0 is read as "nothing".
    SkipOffsetZero,
    /// Two records of one session change places.
    Reorder,
    /// What is committed is not told, so that reading begins below it.
    ForgetCommitted,
    /// A record is delivered with another's value.
    SwapValues,
    /// A held partition is read on.
    IgnoreHold,
    /// A dead letter is acknowledged before it is written, and is never written.
    AcknowledgeLetterFirst,
    /// Dead letters lose their headers.
    StripLetters,
    /// Every record is dead-lettered a second time.
    PublishTwice,
    /// A handler is called twice at a time.
    StartTwice,
    /// A handler returns while its work goes on.
    ReturnEarly,
    /// A record has one attempt more than is allowed.
    OneAttemptMore,
    /// Retries start sooner than was told.
    RetryEarly,
    /// More is taken in than the limits allow.
    NoLimits,
    /// More handlers run than the limit allows.
    CrowdedWorkers,
    /// A drain takes as long as it likes.
    EndlessDrain,
    /// New partitions that are to wait are started at once.
    OpenGates,
}

/// An observer that is told of longer back-offs than are kept.
pub(crate) struct ToldLonger(pub(crate) TracedObserver);

impl Observer for ToldLonger {
    fn observe(&self, event: Event<'_>) {
        match event {
            Event::Retrying {
                record,
                attempt,
                delay,
                failure,
            } => self.0.observe(Event::Retrying {
                record,
                attempt,
                delay: delay + Duration::from_millis(1),
                failure,
            }),
            other => self.0.observe(other),
        }
    }
}

/// A source that breaks what `sabotage` says, if that is a source's to break.
pub struct Sabotaged<S> {
    source: S,
    sabotage: Sabotage,
    seen: HashMap<AssignmentEpoch, Offset>,
    older: HashMap<AssignmentEpoch, Commit>,
    last: HashMap<AssignmentEpoch, Commit>,
}

impl<S: Source> Sabotaged<S> {
    /// Stands before `source`.
    pub fn new(source: S, sabotage: Sabotage) -> Self {
        Self {
            source,
            sabotage,
            seen: HashMap::new(),
            older: HashMap::new(),
            last: HashMap::new(),
        }
    }

    fn spoil_commit(&mut self, commit: &Commit) -> Commit {
        let mut commit = commit.clone();
        match self.sabotage {
            Sabotage::CommitHighestSeen => {
                let seen = self.seen.get(&commit.epoch).copied();
                commit.watermark = seen.unwrap_or(commit.watermark).max(commit.watermark);
            }
            Sabotage::DropAckMap => commit.metadata = trail_of(&commit).encode(commit.watermark, 4096),
            Sabotage::DropAttempts => retell(&mut commit, |trail| trail.attempts.clear()),
            Sabotage::ClaimAllSettled => {
                if let Some(seen) = self.seen.get(&commit.epoch).filter(|seen| commit.watermark < **seen) {
                    let all = [(commit.watermark, Offset::new(seen.get() - 1))];
                    commit.metadata = ack_map::encode(commit.watermark, all, 4096).text;
                }
            }
            // The partition is given back, and that is all.
            Sabotage::SwallowDrainCommit if !trail_of(&commit).open => {
                commit = self.last.get(&commit.epoch).cloned().unwrap_or(commit);
                retell(&mut commit, |trail| trail.open = false);
            }
            Sabotage::CommitPastEnd => commit.watermark = Offset::new(commit.watermark.get() + 1_000_000),
            _ => {}
        }
        commit
    }

    /// Sends the first commit of these epochs once more.
    fn commit_older(&mut self, commits: &[Commit]) {
        for commit in commits {
            let older = self.older.entry(commit.epoch).or_insert_with(|| commit.clone());
            if older.watermark < commit.watermark {
                let _ = self
                    .source
                    .commit(std::slice::from_ref(older), CommitMode::Wait(Duration::ZERO));
            }
        }
    }
}

impl<S: Source<Message = OwnedMessage>> Source for Sabotaged<S> {
    type Message = OwnedMessage;

    fn poll(
        &mut self,
        wait: Duration,
        mut records: Option<&mut Records<OwnedMessage>>,
    ) -> Result<Option<SourceEvent>, SourceError> {
        let mut event = self.source.poll(wait, records.as_deref_mut())?;
        match (self.sabotage, &mut event) {
            (Sabotage::HideRevoke, Some(SourceEvent::Revoked(epochs))) => {
                self.source.relinquish(epochs);
                return Ok(None);
            }
            (Sabotage::HideLoss, Some(SourceEvent::Lost(_))) => return Ok(None),
            (Sabotage::ForgetCommitted, Some(SourceEvent::Assigned(granted))) => {
                granted.iter_mut().for_each(|granted| granted.committed = None);
            }
            (_, Some(SourceEvent::Records)) => {
                let records = records.expect("records come only with room for them");
                spoil_records(self.sabotage, records);
                note_seen(&mut self.seen, records);
            }
            _ => {}
        }
        Ok(event)
    }

    fn start(&mut self, starts: &[Start]) {
        self.source.start(starts);
    }

    fn set_flow(&mut self, epoch: AssignmentEpoch, flow: Flow) {
        if self.sabotage != Sabotage::IgnoreHold {
            self.source.set_flow(epoch, flow);
        }
    }

    fn commit(&mut self, commits: &[Commit], mode: CommitMode) -> Result<(), CommitError> {
        let commits: Vec<Commit> = commits.iter().map(|commit| self.spoil_commit(commit)).collect();
        let answer = self.source.commit(&commits, mode);
        self.last
            .extend(commits.iter().map(|commit| (commit.epoch, commit.clone())));
        if self.sabotage == Sabotage::CommitAgainOlder {
            self.commit_older(&commits);
        }
        answer
    }

    fn relinquish(&mut self, epochs: &[AssignmentEpoch]) {
        self.source.relinquish(epochs);
    }

    fn lease(&self) -> Option<LeaseTerm> {
        match self.sabotage {
            Sabotage::IgnoreLease => None,
            _ => self.source.lease(),
        }
    }

    fn close(&mut self) {
        self.source.close();
    }
}

fn trail_of(commit: &Commit) -> Trail {
    trail::decode(&commit.metadata, commit.watermark).expect("it was encoded")
}

/// Changes what a commit tells beside its ack map.
fn retell(commit: &mut Commit, change: impl FnOnce(&mut Trail)) {
    let mut trail = trail_of(commit);
    change(&mut trail);
    let ack_map = commit.metadata.split(';').next().unwrap_or_default().to_owned();
    commit.metadata = ack_map + &trail.encode(commit.watermark, 4096);
}

fn note_seen(seen: &mut HashMap<AssignmentEpoch, Offset>, records: &Records<OwnedMessage>) {
    let mut messages = records.messages.iter();
    for run in &records.runs {
        if let Some(last) = messages.by_ref().take(run.len).last() {
            seen.insert(run.epoch, last.offset().next());
        }
    }
}

fn spoil_records(sabotage: Sabotage, records: &mut Records<OwnedMessage>) {
    let mut from = 0;
    for run in &mut records.runs {
        let messages = &mut records.messages;
        let until = from + run.len;
        match sabotage {
            Sabotage::DropAtGap => {
                let after_gap = |at: &usize| messages[*at].offset().get() > messages[*at - 1].offset().get() + 1;
                if let Some(at) = (from + 1..until).find(after_gap) {
                    messages.remove(at);
                    run.len -= 1;
                }
            }
            Sabotage::SkipOffsetZero if messages[from].offset() == Offset::ZERO => {
                messages.remove(from);
                run.len -= 1;
            }
            Sabotage::Reorder => {
                let same_key =
                    |at: &usize| messages[*at].key().is_some() && messages[*at].key() == messages[*at - 1].key();
                if let Some(at) = (from + 1..until).find(same_key) {
                    messages.swap(at - 1, at);
                }
            }
            Sabotage::SwapValues if run.len > 1 => {
                messages[from + 1] = with_value_of(&messages[from + 1], &messages[from])
            }
            _ => {}
        }
        from += run.len;
    }
}

fn with_value_of(message: &OwnedMessage, other: &OwnedMessage) -> OwnedMessage {
    let (topic, partition) = message.partition();
    let headers = (0..).map_while(|index| message.header(index));
    OwnedMessage::build(
        topic,
        partition,
        message.offset(),
        message.timestamp(),
        message.key(),
        other.value(),
        headers,
    )
}
