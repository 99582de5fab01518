//! What the judge knows while it walks through a history, and whom it asks about each entry.

use std::collections::HashMap;
use std::time::Duration;

use seriatim_engine::record::{PartitionId, RecordId};

use super::durable::Durable;
use super::epoch::{Attempts, Epoch, Phase};
use super::growth::Grown;
use super::{Judgement, PartitionTruth, Rules, Truth, Violation, story};
use crate::history::{Entry, EpochNumber, What};

pub(super) struct Judge<'a> {
    pub(super) history: &'a [Entry],
    pub(super) truth: &'a Truth,
    pub(super) rules: &'a Rules,
    pub(super) partitions: HashMap<PartitionId, Index>,
    pub(super) sessions: HashMap<&'a [u8], Session>,
    pub(super) epochs: Vec<Epoch>,
    pub(super) owned: HashMap<(u32, PartitionId), EpochNumber>,
    /// The last period of each partition that was lost, and when.
    pub(super) lost: HashMap<(u32, PartitionId), (EpochNumber, Duration)>,
    pub(super) instances: HashMap<u32, Instance>,
    pub(super) open: HashMap<Session, Vec<Open>>,
    pub(super) letters: HashMap<RecordId, Letter>,
    /// In which epoch an instance sent a record's letter.
    pub(super) letters_from: HashMap<(u32, RecordId), Option<EpochNumber>>,
    pub(super) grown: Vec<Grown>,
    pub(super) now: usize,
    pub(super) judgement: Judgement,
}

pub(super) type Session = u32;

/// What is known of a partition's records, by their index.
#[derive(Default)]
pub(super) struct Index {
    /// The session, and the record before it in that session.
    pub(super) records: Vec<(Option<Session>, Option<usize>)>,
    pub(super) settled_ever: Vec<bool>,
    /// What was settled when the partition was last released in good order, and so is not to be repeated.
    pub(super) released: Vec<usize>,
    /// What the group may have on record.
    pub(super) durable: Durable,
    /// How often the oldest failing records had failed then, at least.
    pub(super) failing: Vec<(usize, u32)>,
    /// Periods that ended without being given back in good order.
    pub(super) crashes: u64,
    /// How many of them a record was delivered in.
    pub(super) crashes_with: HashMap<usize, u32>,
}

#[derive(Default)]
pub(super) struct Instance {
    pub(super) gone: bool,
    pub(super) open: usize,
    pub(super) unsettled: usize,
    pub(super) paused_at: Option<Duration>,
    /// When it was last heard of.
    pub(super) heard_at: Duration,
    pub(super) woken: Woken,
}

/// When an instance was last heard of again after a silence, and what it has started since after its lease.
#[derive(Clone, Copy, Default)]
pub(super) struct Woken {
    pub(super) at: Duration,
    pub(super) late_starts: usize,
}

/// An instance that has records to work on is heard of more often, unless it is frozen.
const SILENCE: Duration = Duration::from_secs(1);

/// A handler that runs, or one that was cancelled and has left work behind.
pub(super) struct Open {
    pub(super) instance: u32,
    pub(super) epoch: EpochNumber,
    pub(super) record: RecordId,
    pub(super) attempt: u32,
    pub(super) kept: usize,
    pub(super) cancelled: bool,
}

#[derive(Default)]
pub(super) struct Letter {
    pub(super) sent: usize,
    pub(super) acked: usize,
}

impl<'a> Judge<'a> {
    pub(super) fn new(history: &'a [Entry], truth: &'a Truth, rules: &'a Rules) -> Self {
        let mut judge = Self {
            history,
            truth,
            rules,
            partitions: HashMap::new(),
            sessions: HashMap::new(),
            epochs: Vec::new(),
            owned: HashMap::new(),
            lost: HashMap::new(),
            instances: HashMap::new(),
            open: HashMap::new(),
            letters: HashMap::new(),
            letters_from: HashMap::new(),
            grown: Vec::new(),
            now: 0,
            judgement: Judgement::default(),
        };
        for (id, partition) in &truth.partitions {
            let index = judge.index(partition);
            judge.partitions.insert(id.clone(), index);
        }
        judge.prepare_growths();
        judge
    }

    fn index(&mut self, partition: &'a PartitionTruth) -> Index {
        let mut last: HashMap<Session, usize> = HashMap::new();
        let mut index = Index::default();
        for (place, record) in partition.records.iter().enumerate() {
            let next = self.sessions.len() as Session;
            let session = record
                .session
                .as_deref()
                .map(|key| *self.sessions.entry(key).or_insert(next));
            let before = session.and_then(|session| last.insert(session, place));
            index.records.push((session, before));
            index.settled_ever.push(false);
        }
        index
    }

    pub(super) fn take(&mut self, entry: &'a Entry) {
        let (i, at) = (entry.instance, entry.at);
        // That it has expired is not its own word.
        if !matches!(entry.what, What::Expired) {
            self.heard(i, at);
        }
        match &entry.what {
            What::Assign {
                epoch,
                partition,
                committed,
                settled,
                attempts,
            } => {
                let told = (*committed, settled, attempts.as_slice());
                self.assigned(i, *epoch, partition, told);
            }
            What::Delivered(epoch, records, from) => self.delivered(*epoch, *records, *from),
            What::FlowSet(epoch, flow) => self.flow_set(*epoch, *flow),
            What::RevokeBegin(epoch) => self.epochs[epoch.0].phase = Phase::Draining(at),
            What::RevokeEnd(epoch) => self.released(*epoch, at),
            What::Lost(epoch) => self.lost(*epoch, at),
            What::Start {
                record,
                attempt,
                fingerprint,
            } => self.started(i, record, *attempt, *fingerprint, at),
            What::End(record, attempt, ended) => self.ended(i, record, *attempt, *ended),
            What::Kept(record, attempt) => self.kept(i, record, *attempt),
            What::Freed(record, attempt) => self.freed(i, record, *attempt),
            What::Retry(record, _, not_before) => self.retry(i, record, *not_before),
            What::LetterSent(record, reason, attempts) => self.letter_sent(i, record, *reason, *attempts),
            What::LetterAcked(record) => self.letter_acked(i, record),
            What::LetterFailed(_) => self.judgement.counts.failed_letters += 1,
            What::CommitSent(epoch, watermark, settled) => self.commit_sent(*epoch, *watermark, settled),
            What::CommitAnswered(epoch, succeeded) => self.commit_answered(*epoch, *succeeded),
            What::MapCut(partition) => self.map_cut(i, partition),
            What::Expired => self.expired(i),
            What::Paused => self.instance(i).paused_at = Some(at),
            What::Resumed => self.resumed(i, at),
            What::Crashed => self.crashed(i),
            What::Left => self.gone(i),
            What::CheckerViolation(text) => {
                self.blame("P1", Focus::All, format!("the engine's own checker says: {text}"))
            }
        }
    }

    fn heard(&mut self, i: u32, at: Duration) {
        let instance = self.instance(i);
        let heard_at = std::mem::replace(&mut instance.heard_at, at);
        if at.saturating_sub(heard_at) >= SILENCE {
            instance.woken = Woken { at, late_starts: 0 };
            let epochs = self.epochs.iter_mut().filter(|epoch| epoch.instance == i);
            epochs.for_each(Epoch::note_silence);
        }
    }

    pub(super) fn instance(&mut self, i: u32) -> &mut Instance {
        self.instances.entry(i).or_default()
    }

    pub(super) fn place(&self, record: &RecordId) -> Option<usize> {
        self.truth.place(record)
    }

    /// The session of a record; one without a key is a session of its own kind, in which nothing starts.
    pub(super) fn session(&self, partition: &PartitionId, place: usize) -> Session {
        self.partitions[partition].records[place].0.unwrap_or(Session::MAX)
    }

    pub(super) fn open_mut(&mut self, i: u32, record: &RecordId, attempt: u32) -> Option<&mut Open> {
        let place = self.place(record)?;
        let session = self.session(&record.partition, place);
        let running = self.open.get_mut(&session)?;
        running.iter_mut().find(|open| open.is(i, record, attempt))
    }

    pub(super) fn attempts_mut(&mut self, i: u32, record: &RecordId, place: usize) -> Option<&mut Attempts> {
        let number = self.owned.get(&(i, record.partition.clone()))?;
        self.epochs[number.0].attempts.get_mut(&place)
    }

    pub(super) fn blame<'f>(&mut self, property: &'static str, focus: impl Into<Focus<'f>>, text: String) {
        let focus = focus.into();
        let story = story::around(self.history, self.now, |what| self.concerns(what, focus));
        self.judgement.violations.push(Violation { property, text, story });
    }

    /// Whether something belongs to the story of a record or a partition: what happened to the record's session, and to
    /// the partition as a whole.
    fn concerns(&self, what: &What, focus: Focus<'_>) -> bool {
        let (partition, session) = match focus {
            Focus::All => return true,
            Focus::Partition(partition) => (partition, None),
            Focus::Record(record) => {
                let place = self.place(record);
                (
                    &record.partition,
                    place.map(|place| self.session(&record.partition, place)),
                )
            }
        };
        match (what.record(), what.epoch()) {
            (Some(record), _) => {
                let of_session = |place| session.is_none_or(|session| self.session(partition, place) == session);
                record.partition == *partition && self.place(record).is_none_or(of_session)
            }
            // A delivery tells little beside the starts that follow it.
            (None, Some(epoch)) => {
                let here = self
                    .epochs
                    .get(epoch.0)
                    .is_some_and(|epoch| epoch.partition == *partition);
                here && !matches!(what, What::Delivered(..))
            }
            (None, None) => true,
        }
    }
}

/// What a violation is about.
#[derive(Clone, Copy)]
pub(super) enum Focus<'a> {
    All,
    Partition(&'a PartitionId),
    Record(&'a RecordId),
}

impl<'a> From<&'a PartitionId> for Focus<'a> {
    fn from(partition: &'a PartitionId) -> Self {
        Focus::Partition(partition)
    }
}

impl<'a> From<&'a RecordId> for Focus<'a> {
    fn from(record: &'a RecordId) -> Self {
        Focus::Record(record)
    }
}

impl Open {
    pub(super) fn is(&self, instance: u32, record: &RecordId, attempt: u32) -> bool {
        self.instance == instance && self.record == *record && self.attempt == attempt
    }
}
