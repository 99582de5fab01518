//! An in-memory log that behaves as Kafka does where order is concerned: partitions, consumer groups that rebalance,
//! commits that can be refused. Tests of a handler run against it with the production code and without a broker.
//!
//! ```
//! use seriatim_testkit::log::{Log, NewRecord};
//!
//! let log = Log::new();
//! log.topic("chat", 4);
//! log.append("chat", "alice", "book London");
//! log.append_record("chat", NewRecord::new("alice", "make it Paris").header("lang", "en"));
//!
//! let texts: Vec<_> = log.records("chat").iter().map(|record| record.text().unwrap().to_owned()).collect();
//! assert_eq!(texts, ["book London", "make it Paris"]); // one key, one partition, one order
//! ```
//!
//! A [`member`](Log::member) is a [`Source`](seriatim_runtime::ports::Source) for
//! [`drive::start`](seriatim_runtime::drive::start), and [`LogDeadLetters`] writes to `<topic>.dlq` of the same log.
//! Whatever a test does to the log is seen by its members at once: a member that joins takes partitions from others,
//! one that is [expired](Log::expire) loses its own.
//!
//! Time never passes here by itself: no session times out and no commit is late unless the test says so. On
//! [virtual time](Log::on_virtual_time) even [`poll`](seriatim_runtime::ports::Source::poll) does not wait.

mod group;
mod growth;
mod letters;
mod source;
mod topic;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use seriatim_engine::record::{Offset, PartitionId, RecordId};
use seriatim_runtime::record::Record;

use group::Group;
pub use group::{AppliedCommit, CommitFault, MemberId, Protocol};
pub use letters::{LetterFault, LogDeadLetters};
pub use source::LogSource;
use topic::Topic;
pub use topic::{NewRecord, partition_of};

/// The log. Clones are the same log.
#[derive(Clone, Default)]
pub struct Log {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified of whatever may give a waiting member something to report.
    changed: Condvar,
    /// Counts those changes, for a driver that looks instead of waiting.
    version: AtomicU64,
}

impl Shared {
    fn note_change(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_all();
    }
}

struct State {
    topics: BTreeMap<Arc<str>, Topic>,
    groups: BTreeMap<Arc<str>, Group>,
    next_member: u32,
    /// Whether a poll waits for news.
    waits: bool,
    batch_max: usize,
    dropped_member_expires: bool,
    sessions: Option<Sessions>,
}

/// How long a group waits for a word of its members.
struct Sessions {
    timeout: Duration,
    clock: Arc<dyn Fn() -> Instant + Send + Sync>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            topics: BTreeMap::new(),
            groups: BTreeMap::new(),
            next_member: 0,
            waits: true,
            // As many as Java's consumer returns at a time.
            batch_max: 500,
            dropped_member_expires: true,
            sessions: None,
        }
    }
}

impl Log {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty log for a driver that owns time: its members' polls never wait, and a member that is dropped stays in its
    /// group, silent, until it is [expired](Self::expire).
    pub fn on_virtual_time() -> Self {
        let log = Self::default();
        {
            let mut state = log.lock();
            state.waits = false;
            state.dropped_member_expires = false;
        }
        log
    }

    // --- topics ---------------------------------------------------------------------------------------------------

    /// Creates a topic, or adds partitions to it. Whoever reads it learns of that at once, and groups deal the new partitions
    /// out; whether these wait there, [`set_growth`](Self::set_growth) says.
    ///
    /// # Panics
    /// When the topic has more partitions already.
    pub fn topic(&self, topic: &str, partitions: i32) {
        let mut state = self.lock();
        state.topics.entry(topic.into()).or_default().grow(topic, partitions);
        state.rebalance_all();
        self.shared.note_change();
    }

    /// Deletes a topic and creates it anew, empty. What groups have committed for the former one is left, as by a member that
    /// commits once more after the deletion.
    ///
    /// # Panics
    /// When there is no such topic, or somebody reads it.
    pub fn recreate(&self, topic: &str, partitions: i32) {
        let mut state = self.lock();
        let mut members = state.groups.values().flat_map(|group| group.members.values());
        let is_read = members.any(|member| member.held.keys().any(|held| held.topic() == topic));
        assert!(!is_read, "topic {topic} is read: close its members first");
        let former = std::mem::take(state.existing(topic));
        let anew = state.existing(topic);
        anew.incarnation = former.incarnation + 1;
        anew.grow(topic, partitions);
        self.shared.note_change();
    }

    /// Appends a record. Its key decides the partition, as Java's producer does it.
    ///
    /// # Panics
    /// When there is no such topic.
    pub fn append(&self, topic: &str, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> RecordId {
        self.append_record(topic, NewRecord::new(key, value))
    }

    /// As [`append`](Self::append), with headers, null parts or a partition of the test's choice.
    ///
    /// # Panics
    /// When there is no such topic or partition.
    pub fn append_record(&self, topic: &str, record: NewRecord) -> RecordId {
        let id = self.lock().existing(topic).append(topic, record);
        self.shared.note_change();
        id
    }

    /// Leaves the next `offsets` offsets of a partition without a record, as compaction and transaction markers do.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn gap(&self, partition: &PartitionId, offsets: i64) {
        let mut state = self.lock();
        state.existing(partition.topic()).partition(partition).end += offsets;
        self.shared.note_change();
    }

    /// All records of a topic, partition by partition; empty when there is no such topic.
    pub fn records(&self, topic: &str) -> Vec<Record> {
        let state = self.lock();
        let partitions = state.topics.get(topic).into_iter().flat_map(|topic| &topic.partitions);
        partitions
            .flat_map(|partition| &partition.records)
            .map(|(_, message)| Record::from(message.clone()))
            .collect()
    }

    /// The offset after a partition's last record; `None` when there is no such partition.
    pub fn end(&self, partition: &PartitionId) -> Option<Offset> {
        let state = self.lock();
        let found = state.topics.get(partition.topic())?;
        let found = found.partitions.get(partition.number() as usize)?;
        Some(Offset::new(found.end))
    }

    // --- groups ---------------------------------------------------------------------------------------------------

    /// Joins a consumer group, which rebalances over it. The waker ends a wait of the source's poll.
    ///
    /// # Panics
    /// When one of the topics does not exist.
    pub fn member(&self, group: &str, topics: &[&str]) -> (LogSource, Waker) {
        let id = {
            let mut state = self.lock();
            let count = |topic: &&str| (Arc::from(*topic), state.existing(topic).count());
            let topics = topics.iter().map(count).collect();
            let id = MemberId(state.next_member);
            state.next_member += 1;
            let now = state.now();
            state.group(group).join(id, topics, now);
            state.rebalance(group);
            id
        };
        self.shared.note_change();
        source::member(self.clone(), group.into(), id)
    }

    /// The offset that a group has committed for a partition.
    pub fn committed(&self, group: &str, partition: &PartitionId) -> Option<Offset> {
        let state = self.lock();
        state.groups.get(group)?.committed_offset(partition)
    }

    /// The metadata beside the committed offset.
    pub fn metadata(&self, group: &str, partition: &PartitionId) -> Option<String> {
        let state = self.lock();
        let committed = state.groups.get(group)?.committed.get(partition)?;
        Some(committed.metadata.clone())
    }

    /// Commits in a group's name from outside, as an operator or a foreign client does.
    pub fn commit(&self, group: &str, partition: &PartitionId, watermark: Offset, metadata: &str) {
        let mut state = self.lock();
        state.group(group).commit_from_outside(partition, watermark, metadata);
    }

    /// Every commit of a group that took effect, in order.
    pub fn commits(&self, group: &str) -> Vec<AppliedCommit> {
        let state = self.lock();
        state
            .groups
            .get(group)
            .map(|group| group.applied.clone())
            .unwrap_or_default()
    }

    /// How many records of a topic lie at or above what the group has committed.
    pub fn backlog(&self, group: &str, topic: &str) -> usize {
        self.lock().backlog(group, topic)
    }

    /// Waits until the group has committed all of a topic. Returns whether it did in time.
    pub fn wait_until_committed(&self, group: &str, topic: &str, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let mut state = self.lock();
        while state.backlog(group, topic) > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let changed = self.shared.changed.wait_timeout(state, left);
            state = changed.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Who owns a partition, as the group sees it.
    pub fn owner(&self, group: &str, partition: &PartitionId) -> Option<MemberId> {
        let state = self.lock();
        state.groups.get(group)?.owners.get(partition).copied()
    }

    // --- what a test does to them ---------------------------------------------------------------------------------

    /// How a group's rebalances go from now on; cooperative unless told otherwise.
    pub fn set_protocol(&self, group: &str, protocol: Protocol) {
        self.lock().group(group).protocol = protocol;
    }

    /// Gives members a lease: they start nothing once the group may have waited `timeout` for a word of them, on this clock.
    /// Whoever [expires](Self::expire) a member keeps to that time.
    pub fn set_session_timeout(&self, timeout: Duration, clock: impl Fn() -> Instant + Send + Sync + 'static) {
        let clock = Arc::new(clock);
        self.lock().sessions = Some(Sessions { timeout, clock });
    }

    /// Puts the coordinator out of a member's reach, until it [notices](Self::notice_expiry) that it has expired, or
    /// [reaches](Self::reconnect) it again. Its commits fail.
    pub fn cut_off(&self, group: &str, member: MemberId) {
        self.lock().group(group).set_cut_off(member, true);
    }

    /// Lets a member reach its coordinator again.
    pub fn reconnect(&self, group: &str, member: MemberId) {
        self.lock().group(group).set_cut_off(member, false);
        self.shared.note_change();
    }

    /// How many records a poll returns at most.
    pub fn set_batch_max(&self, records: usize) {
        self.lock().batch_max = records.max(1);
    }

    /// Ends a member's session: its partitions go to others at once, and its next poll reports them lost. It then joins
    /// anew.
    pub fn expire(&self, group: &str, member: MemberId) {
        self.expire_unnoticed(group, member);
        self.notice_expiry(group, member);
    }

    /// As [`expire`](Self::expire), but the member does not learn of it before [`notice_expiry`](Self::notice_expiry): a
    /// zombie, or one that is cut off from its coordinator only. It reads on, and its commits are refused.
    pub fn expire_unnoticed(&self, group: &str, member: MemberId) {
        let mut state = self.lock();
        state.group(group).expire(member);
        state.rebalance(group);
        self.shared.note_change();
    }

    /// Lets an expired member learn that it is one.
    pub fn notice_expiry(&self, group: &str, member: MemberId) {
        self.lock().group(group).notice_expiry(member);
        self.shared.note_change();
    }

    /// What becomes of a group's next commits; after these, they succeed again.
    pub fn fail_commits(&self, group: &str, faults: impl IntoIterator<Item = CommitFault>) {
        self.lock().group(group).commit_faults.extend(faults);
    }

    /// Holds background commits on their way to the broker, until [`release_commits`](Self::release_commits). Commits
    /// that wait for their answer fail meanwhile.
    pub fn hold_commits(&self, group: &str) {
        self.lock().group(group).commits_held = true;
    }

    /// Holds the answers to background commits on their way back, until [`release_commits`](Self::release_commits). The
    /// commits take effect.
    pub fn hold_answers(&self, group: &str) {
        self.lock().group(group).answers_held = true;
    }

    /// Lets held commits and answers arrive, in order.
    pub fn release_commits(&self, group: &str) {
        self.lock().group(group).release_commits();
        self.shared.note_change();
    }

    /// Whether a poll of the member would report something now. A driver of virtual time asks, since polls do not wait.
    pub fn has_news(&self, group: &str, member: MemberId, room: bool) -> bool {
        self.lock().has_news(group, member, room)
    }

    /// Another number after every change that may be news to a member.
    pub(crate) fn version(&self) -> u64 {
        self.shared.version.load(Ordering::Relaxed)
    }

    /// Sees to it that a topic has at least so many partitions.
    fn grow(&self, topic: &str, partitions: i32) {
        let mut state = self.lock();
        let found = state.topics.entry(topic.into()).or_default();
        if found.partitions.len() < partitions as usize {
            found.grow(topic, partitions);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that panics under the lock fails by itself; the others may still look.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn existing(&mut self, topic: &str) -> &mut Topic {
        let known = self.topics.get_mut(topic);
        known.unwrap_or_else(|| panic!("there is no topic {topic}: create it with log.topic(\"{topic}\", partitions)"))
    }

    fn group(&mut self, group: &str) -> &mut Group {
        self.groups.entry(group.into()).or_default()
    }

    fn rebalance(&mut self, group: &str) {
        let partitions: Vec<PartitionId> = self.topics.iter().flat_map(|(name, topic)| topic.ids(name)).collect();
        self.group(group).rebalance(&partitions);
    }

    fn rebalance_all(&mut self) {
        let groups: VecDeque<Arc<str>> = self.groups.keys().cloned().collect();
        for group in groups {
            self.rebalance(&group);
        }
    }

    fn backlog(&self, group: &str, topic: &str) -> usize {
        let Some(found) = self.topics.get(topic) else { return 0 };
        let committed = |id: &PartitionId| self.groups.get(group).and_then(|group| group.committed.get(id));
        let partitions = found.ids(topic).zip(&found.partitions);
        partitions
            .map(|(id, partition)| {
                let from = committed(&id).map_or(Offset::ZERO, |committed| committed.watermark);
                partition.records.len() - partition.first_at(from)
            })
            .sum()
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Log")
            .field("topics", &state.topics.keys().collect::<Vec<_>>())
            .field("groups", &state.groups.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
