//! The ports: what the two tiers need of the world, in the domain's own types.
//!
//! | Port | Gives or takes | Implemented by |
//! |---|---|---|
//! | [`Source`] | batches of records; takes commits | `seriatim-kafka`, the in-memory log of `seriatim-testkit` |
//! | [`Handler`] | the user's work on one record | users' closures and types |
//! | [`DeadLetters`] | records that ended in failure | `seriatim-kafka`, `seriatim-testkit` |
//! | [`Observer`] | what happened | metrics, logs, recorders, tests |

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant, SystemTime};

use seriatim_engine::ack_map::{self, AckMapError};
use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::Flow;
use seriatim_engine::order::Violation;
use seriatim_engine::record::{Offset, PartitionId, RecordId};
use seriatim_engine::trail;

use crate::context::Context;
use crate::failure::Failure;
use crate::message::{Message, Timestamp};
use crate::record::Record;

/// Where records come from and commits go to: one member of a consumer group.
///
/// One thread owns a source and calls it. Only [`poll`](Source::poll) waits; a [`Waker`](std::task::Waker) that comes
/// with the source ends that wait early.
pub trait Source {
    /// A record in the client's own memory.
    type Message: Message;

    /// Waits up to `wait` for the next event. Records are appended to `records`, and announced by
    /// [`SourceEvent::Records`]. Records of a partition come in offset order, and only after
    /// [`start`](Source::start), under the epoch given there. With `records` being `None` the caller has no room:
    /// everything but records is reported.
    ///
    /// # Errors
    /// Only when the source can never deliver again; passing trouble is a [`SourceEvent::Trouble`].
    fn poll(
        &mut self,
        wait: Duration,
        records: Option<&mut Records<Self::Message>>,
    ) -> Result<Option<SourceEvent>, SourceError>;

    /// Begins the delivery of partitions that [`SourceEvent::Assigned`] offered.
    fn start(&mut self, starts: &[Start]);

    /// Stops or resumes delivering a partition. Nothing is lost, fetched twice or reordered by it.
    fn set_flow(&mut self, epoch: AssignmentEpoch, flow: Flow);

    /// Commits. The result of a [`CommitMode::Background`] commit comes as [`SourceEvent::Committed`].
    ///
    /// # Errors
    /// When a [`CommitMode::Wait`] commit was refused or its answer did not come.
    fn commit(&mut self, commits: &[Commit], mode: CommitMode) -> Result<(), CommitError>;

    /// Gives drained partitions back, which lets the group's rebalance go on. Nothing more of these epochs is
    /// delivered.
    fn relinquish(&mut self, epochs: &[AssignmentEpoch]);

    /// Until when everything that it has assigned is certainly this member's, on the clock of [`crate::clock`]. Nothing is
    /// started later, whatever has not been heard yet. `None`: there is no such limit.
    fn lease(&self) -> Option<LeaseTerm>;

    /// Leaves the group, so that others take over at once. All partitions have been relinquished before.
    fn close(&mut self);
}

/// See [`Source::lease`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerm {
    /// From here on a commit is made, changed or not, since its answer renews the lease.
    pub renew_from: Instant,
    /// Nothing is started from here on.
    pub ends: Instant,
}

/// Records of one poll: messages in order, cut into runs of one partition each.
#[derive(Debug)]
pub struct Records<M> {
    /// The messages, run after run.
    pub messages: Vec<M>,
    /// To whom the messages belong.
    pub runs: Vec<Run>,
}

/// Consecutive messages of one partition and epoch.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The period of ownership in which they were delivered.
    pub epoch: AssignmentEpoch,
    /// How many messages.
    pub len: usize,
}

impl<M> Default for Records<M> {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            runs: Vec::new(),
        }
    }
}

/// What a source reports besides errors.
#[derive(Debug)]
pub enum SourceEvent {
    /// Records were appended to the caller's [`Records`].
    Records,
    /// The group gave us these partitions. Delivery begins with [`Source::start`].
    Assigned(Vec<Granted>),
    /// The group wants these back. They stay ours until [`Source::relinquish`].
    Revoked(Vec<AssignmentEpoch>),
    /// These are ours no more, and perhaps another's already: no commit.
    Lost(Vec<AssignmentEpoch>),
    /// A background commit was answered.
    Committed(Result<Vec<Commit>, CommitError>),
    /// Delivery goes on at this offset: nothing below it comes any more. What was delivered before stays to be settled.
    Skipped(AssignmentEpoch, Offset),
    /// The log's end, i.e. the offset after its last record, as far as the source knows it.
    Ends(Vec<(AssignmentEpoch, Offset)>),
    /// A topic has more partitions than before.
    Grown {
        /// The topic.
        topic: String,
        /// How many it had.
        before: i32,
        /// How many it has.
        after: i32,
        /// Whether the new ones wait until what the others had is settled.
        held: bool,
    },
    /// Something is wrong and may pass; the source keeps trying.
    Trouble(SourceTrouble),
}

/// A partition that the group gave us, with what was committed for it.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The partition.
    pub partition: PartitionId,
    /// The committed offset; `None` when the group has committed nothing for it.
    pub committed: Option<Offset>,
    /// Where it begins when nothing is committed, by the source's own policy; `None` when the source does not know yet, and
    /// lets its first record tell.
    pub begin: Option<Offset>,
    /// The metadata that was committed beside the offset; empty when there is none.
    pub metadata: String,
    /// The offset after the log's last record. Of the metadata, what speaks of offsets is not believed without it.
    pub end: Option<Offset>,
    /// Tells the topic from others that had its name before or will have it after; `None` when the source cannot tell. A
    /// source offers no commit that was made for another.
    pub incarnation: Option<u64>,
}

impl Granted {
    /// Whether the commit was made for a topic of this name that exists no more: then neither the offset nor anything beside
    /// it says anything about this one. Where either is not known, it is taken for the same.
    pub fn is_of_former_topic(&self) -> bool {
        let told = self
            .committed
            .and_then(|committed| trail::decode(&self.metadata, committed).ok())
            .and_then(|trail| trail.incarnation);
        told.zip(self.incarnation).is_some_and(|(told, is)| told != is)
    }

    /// The first offset wanted, if it is known.
    pub fn first_wanted(&self) -> Option<Offset> {
        self.committed.or(self.begin)
    }

    /// Whether what stands beside the commit speaks of offsets, for which it takes the log's [end](Self::end).
    pub fn needs_end(&self) -> bool {
        let Some(committed) = self.committed else { return false };
        let settles = ack_map::decode(&self.metadata, committed, None) != Ok(Vec::new());
        settles || trail::decode(&self.metadata, committed).is_ok_and(|trail| trail.open || trail.crashes > 0)
    }
}

/// The order to begin delivering a granted partition.
#[derive(Clone, Debug)]
pub struct Start {
    /// The partition.
    pub partition: PartitionId,
    /// The name of this period of ownership.
    pub epoch: AssignmentEpoch,
    /// The first offset wanted; `None` where nothing is committed and the source has not said where it begins, so that its
    /// own policy decides.
    pub from: Option<Offset>,
}

/// One partition's commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The period of ownership in which it is made.
    pub epoch: AssignmentEpoch,
    /// The next offset to read.
    pub watermark: Offset,
    /// ASCII text to keep beside the offset.
    pub metadata: String,
}

/// Whether a commit waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitMode {
    /// Send, and report the answer as an event.
    Background,
    /// Return when the broker has answered, or has not within this time.
    Wait(Duration),
}

/// A commit that failed. Nothing is lost by it: the watermark is committed again later.
#[derive(Clone, Debug, thiserror::Error)]
#[error("commit refused: {reason}")]
pub struct CommitError {
    /// What the broker or the client said.
    pub reason: String,
    /// Whether the same member may try again.
    pub retriable: bool,
    /// Whether the metadata was longer than the broker takes.
    pub metadata_too_long: bool,
}

/// A source that can never deliver again.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// Trouble that may pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceTrouble {
    /// No broker can be reached.
    Unreachable(String),
    /// The topic does not exist, or its name is not allowed.
    UnknownTopic(String),
    /// A broker and the client do not accept who the other is: a wrong password, an unknown certificate.
    Unauthenticated(String),
    /// The client may not do what it needs to.
    Denied(String),
    /// The partition stands still: the place to read from is gone from the log.
    OutOfRange(PartitionId, String),
    /// The place to read from is gone from the log, and the partition goes on at another: records are passed over, or
    /// come again.
    Moved(PartitionId, String),
    /// Anything else, in the client's words.
    Other(String),
}

impl fmt::Display for SourceTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceTrouble::Unreachable(text) => write!(f, "no broker can be reached: {text}; still trying"),
            SourceTrouble::UnknownTopic(text) => write!(f, "unknown topic: {text}; create it, or correct the name"),
            SourceTrouble::Unauthenticated(text) => write!(f, "not authenticated: {text}"),
            SourceTrouble::Denied(text) => write!(f, "not permitted: {text}; check the principal's ACLs"),
            SourceTrouble::OutOfRange(partition, text) => write!(f, "{partition} stands still: {text}"),
            SourceTrouble::Moved(partition, text) => write!(f, "{partition} goes on elsewhere: {text}"),
            SourceTrouble::Other(text) => f.write_str(text),
        }
    }
}

/// The user's work on one record.
///
/// Implemented by every closure `Fn(Record, Context) -> impl Future<Output = Result<(), Failure>>`; a type that holds
/// its own state implements it with an `async fn`.
///
/// A handler's future may be dropped at any await: when its attempt runs out of time, and when a drain reaches its
/// deadline. What it did before that await may be done again by the next attempt, so effects should be idempotent;
/// [`Record::id`] is the same on every attempt.
pub trait Handler: Send + Sync + 'static {
    /// Handles `record`; `Ok` settles it.
    fn handle(&self, record: Record, cx: Context) -> impl Future<Output = Result<(), Failure>> + Send;
}

impl<F, Fut> Handler for F
where
    F: Fn(Record, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send,
{
    fn handle(&self, record: Record, cx: Context) -> impl Future<Output = Result<(), Failure>> + Send {
        self(record, cx)
    }
}

/// Where records that ended in failure are kept.
pub trait DeadLetters: Send + Sync + 'static {
    /// Keeps `letter`. Returning `Ok` settles the record, so return it only when the letter is durable.
    fn publish(&self, letter: DeadLetter) -> impl Future<Output = Result<(), DeadLetterError>> + Send;
}

/// A record that ended in failure, kept with its cause.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The record, unchanged.
    pub record: Record,
    /// Its session key; `None` when the record has none.
    pub session: Option<Vec<u8>>,
    /// Why it is dead.
    pub reason: DeadLetterReason,
    /// How many attempts were made.
    pub attempts: u32,
    /// The last error's class, e.g. the name of its type or `panic`.
    pub error_class: String,
    /// The last error's text: printable, at most [`DeadLetter::ERROR_TEXT_MAX`] bytes.
    pub error_text: String,
    /// When the first attempt failed.
    pub first_failure: SystemTime,
    /// When the last attempt failed.
    pub last_failure: SystemTime,
}

impl DeadLetter {
    /// The longest error text kept: enough for a message, too short for a payload.
    pub const ERROR_TEXT_MAX: usize = 1024;
}

/// Why a record is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeadLetterReason {
    /// The handler said that no attempt will succeed.
    Permanent,
    /// The limit of attempts or of time was reached.
    Exhausted,
    /// The record has no readable session key.
    Undecodable,
}

impl DeadLetterReason {
    /// The reason as it stands in headers and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            DeadLetterReason::Permanent => "permanent",
            DeadLetterReason::Exhausted => "exhausted",
            DeadLetterReason::Undecodable => "undecodable",
        }
    }
}

/// A dead letter that was not kept. The record stays unsettled, and the letter is published again.
#[derive(Debug, thiserror::Error)]
#[error("dead letter not written: {0}")]
pub struct DeadLetterError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// Is told what happened. Called from the dispatcher's and the workers' threads: return soon, and do not block.
pub trait Observer: Send + Sync + 'static {
    /// Takes notice of `event`.
    fn observe(&self, event: Event<'_>);
}

/// What happened. Nothing here is per record in the ordinary case.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A period of ownership began; the offset is the committed one.
    Assigned(&'a PartitionId, Option<Offset>),
    /// A drain of this many partitions began.
    DrainBegan(usize),
    /// The drain ended: how long it took, and whether handlers had to be cancelled.
    DrainEnded {
        /// How long it took.
        took: Duration,
        /// Whether the deadline came first, and handlers were cancelled.
        cancelled: bool,
    },
    /// Ownership ended after a drain.
    Released(&'a PartitionId),
    /// Ownership was lost without a drain.
    Lost(&'a PartitionId),
    /// The group has not answered for as long as it waits for its members: nothing is started any more, since the
    /// partitions may be another's.
    LeaseEnded,
    /// It has answered, and they are not: work goes on.
    LeaseRenewed,
    /// Intake of the partition was held or resumed.
    FlowChanged(&'a PartitionId, Flow),
    /// How far a partition has got, told once a second, also while its intake is held and while nothing comes.
    Standing(Standing<'a>),
    /// A commit was acknowledged.
    Committed(&'a PartitionId, Offset),
    /// What was committed beside the offset is ignored: records settled above it are handled again.
    AckMapIgnored(&'a PartitionId, AckMapError),
    /// An ack map had no room for all that is settled above the watermark: after a crash more is repeated.
    AckMapTruncated(&'a PartitionId),
    /// A commit failed; it is tried again.
    CommitFailed(&'a CommitError),
    /// An attempt failed and will be made again after the delay.
    Retrying {
        /// The record.
        record: &'a Record,
        /// The attempt that failed, from 1.
        attempt: u32,
        /// How long until the next.
        delay: Duration,
        /// What the handler said.
        failure: &'a Failure,
    },
    /// A record was dead-lettered and is settled by it.
    DeadLettered(&'a DeadLetter),
    /// A dead letter could not be written; it is tried again.
    DeadLetterFailed(&'a DeadLetter, &'a DeadLetterError),
    /// A partition's watermark has not moved for this long; the record blocks it.
    Stuck(RecordId, Duration),
    /// A topic has more partitions than before: a key's records may go to another partition from now on.
    TopicGrown {
        /// The topic.
        topic: &'a str,
        /// How many it had.
        before: i32,
        /// How many it has.
        after: i32,
        /// Whether the new ones wait until what the others had is settled.
        held: bool,
    },
    /// The source is in trouble.
    Trouble(&'a SourceTrouble),
    /// The order checker found this.
    Violation(&'a Violation),
}

/// How far a partition has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing<'a> {
    /// The partition.
    pub partition: &'a PartitionId,
    /// The next offset to read after a restart.
    pub watermark: Offset,
    /// The end of its log as last learnt, which may be some seconds ago.
    pub end: Offset,
    /// Records that are not settled, read or not: what lies from the watermark to the end, less what is settled above it.
    /// Offsets that the log has no record for count too, since nobody knows of them before they are read.
    pub backlog: u64,
    /// Records that were read and are not settled.
    pub unsettled: usize,
    /// Bytes of their keys and values, and some 64 for each record.
    pub unsettled_bytes: usize,
    /// When the oldest of them was written, as the log says: by the broker's clock or the producer's, as the topic is
    /// configured. It may be the time of a record before it: of the first that was read together with it, or, where much
    /// was unsettled when it was read, of one up to a 64th of that before it.
    pub oldest: Timestamp,
    /// Whether intake is held: of this partition, or of all.
    pub flow: Flow,
    /// For how long it has been held without a break.
    pub held_for: Duration,
    /// How long the watermark has stood still with unsettled records above it, give or take a second.
    pub stood: Duration,
}

impl Standing<'_> {
    /// How long before `now` the oldest record was written that was read and is not settled; `None` when there is none, or
    /// its time is not known. Clocks that disagree count as no time.
    pub fn oldest_age(&self, now: SystemTime) -> Option<Duration> {
        let millis = u64::try_from(self.oldest.millis()?).ok()?;
        let written = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        Some(now.duration_since(written).unwrap_or_default())
    }
}

/// An observer that takes no notice.
impl Observer for () {
    fn observe(&self, _event: Event<'_>) {}
}
