//! The source: one member of a Kafka consumer group.
//!
//! A poll first hears what the client says (`group`), and tells the dispatcher; only when there is nothing to tell it
//! reads records, and cuts them into runs of one partition each.

mod aide;
mod group;
mod growth;
mod questions;
mod range;
mod restart;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::topic_partition_list::Offset as Place;
use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::Flow;
use seriatim_engine::growth::Growth;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::clock;
use seriatim_runtime::message::Message;
use seriatim_runtime::ports::{
    Commit, CommitError, CommitMode, LeaseTerm, Records, Run, Source, SourceError, SourceEvent, Start,
};

use self::aide::{Aide, Rules};
use self::growth::Sizes;
use self::questions::{Questions, topics_interval};
use crate::commit::{self, Answer, Commits};
use crate::config::{ConfigError, Properties, brokers_of, client_refused, consumer_config};
use crate::delivery::Deliveries;
use crate::lease::Standing;
use crate::native::client::{Consumer, Protocol, list_of};
use crate::native::event::{ClientEvent, Notice};
pub use crate::native::message::KafkaMessage;
use crate::native::queue::FlowQueue;
use crate::range::OutOfRangePolicy;
use crate::rebalance::Holdings;
use crate::trouble::Reported;

/// Records of one read. Enough that what a read costs by itself is nothing a record; few enough that a rebalance, which
/// is noticed between two reads, waits a few milliseconds for the dispatcher's work on them.
const BATCH_MAX: usize = 2048;

/// A commit that met a rebalance is tried again after this.
const COMMIT_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// How long the coordinator may take to let us go. A broker answers the requests of a connection one after another, so while
/// the group waits for its other members, our farewell waits behind our own request to join. Who goes without it is missed
/// only after the session timeout, and holds up everybody's next rebalance, and the commits that wait behind it, until then.
const LEAVE_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long the client may take to stop its threads, which it does in milliseconds.
const RETIRE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Whom to join, and what for.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// The brokers to ask for the others, as `host:port` with commas between.
    pub brokers: String,
    /// The consumer group.
    pub group: String,
    /// The topics; one that starts with `^` is a regular expression.
    pub topics: Vec<String>,
    /// Where to begin a partition for which the group has committed nothing.
    pub start_at: StartAt,
    /// What becomes of a partition whose next offset is not in its log.
    pub out_of_range: OutOfRangePolicy,
    /// What becomes of partitions that are added while the topic is read.
    pub growth: Growth,
    /// The user's properties of the client.
    pub properties: Properties,
}

/// Where to begin a partition for which the group has committed nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartAt {
    /// At its first record: nothing is missed.
    #[default]
    Earliest,
    /// After its last record: what was there before is passed over. Of a partition that is added while its topic is read,
    /// nothing is.
    Latest,
}

/// Why there is no source.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The settings contradict each other, or librdkafka.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No topic is named, or a name is none.
    #[error("cannot subscribe to {topics:?}: {reason}")]
    Topics {
        /// The topics.
        topics: Vec<String>,
        /// What is wrong with them.
        reason: String,
    },
    /// The client could not be made.
    #[error("the Kafka client cannot start")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// One member of a consumer group.
pub struct KafkaSource {
    /// `None` when closed.
    client: Option<ClientParts>,
    topics: Vec<String>,
    topics_interval: Duration,
    start_at: StartAt,
    policy: OutOfRangePolicy,
    protocol: Protocol,
    holdings: Holdings,
    /// Where partitions begin instead of at what was committed, from the decision to their start.
    jumps: HashMap<PartitionId, Offset>,
    /// Of which incarnation of their topic the partitions are taken for that were offered last, where that is known.
    incarnations: HashMap<PartitionId, u64>,
    sizes: Sizes,
    deliveries: Deliveries<KafkaMessage>,
    commits: Commits,
    standing: Standing,
    questions: Questions,
    reported: Reported,
    /// What the dispatcher has not been told yet. As long as the group's changes are quick: an entry or two of each.
    events: VecDeque<SourceEvent>,
    failure: Option<String>,
    batch: Vec<KafkaMessage>,
    notices: Vec<Notice>,
}

/// What is left to the aide when the source closes. In this order: the queue goes before its client.
struct ClientParts {
    flow: FlowQueue,
    consumer: Arc<Consumer>,
    aide: Aide,
}

impl KafkaSource {
    /// Joins the group. Brokers that are out of reach are no error: they are reported as trouble, and tried until they
    /// answer. The waker ends the source's wait.
    ///
    /// # Errors
    /// When it could never work with these settings.
    pub fn connect(settings: SourceSettings) -> Result<(Self, Waker), ConnectError> {
        let SourceSettings {
            brokers,
            group,
            topics,
            start_at,
            out_of_range,
            growth,
            properties,
        } = settings;
        if topics.is_empty() {
            let reason = "name at least one".to_owned();
            return Err(ConnectError::Topics { topics, reason });
        }
        let config = consumer_config(&brokers, &group, &properties)?;
        let (consumer, flow) = Consumer::connect(&config, BATCH_MAX).map_err(client_refused)?;
        let waker = Waker::from(Arc::clone(consumer.bell()));
        let rules = Rules {
            policy: out_of_range.clone(),
            start_at,
            growth,
        };
        let aide = Aide::start(Arc::clone(&consumer), rules, waker.clone())
            .map_err(|error| ConnectError::Client(error.into()))?;
        if let Err(error) = consumer.subscribe(&topics) {
            let reason = error.to_string();
            return Err(ConnectError::Topics { topics, reason });
        }
        let source = Self {
            client: Some(ClientParts { flow, consumer, aide }),
            topics,
            topics_interval: topics_interval(&config),
            start_at,
            policy: out_of_range,
            protocol: Protocol::Cooperative,
            holdings: Holdings::default(),
            jumps: HashMap::new(),
            incarnations: HashMap::new(),
            sizes: Sizes::under(growth),
            deliveries: Deliveries::default(),
            commits: Commits::default(),
            standing: Standing::new(&config),
            questions: Questions::default(),
            reported: Reported::nothing(brokers_of(&config)),
            events: VecDeque::new(),
            failure: None,
            batch: Vec::new(),
            notices: Vec::new(),
        };
        Ok((source, waker))
    }

    /// Reads records, or only waits when none are wanted. Returns whether any were appended.
    fn deliver(&mut self, wait: Duration, records: Option<&mut Records<KafkaMessage>>) -> bool {
        let Some(client) = &mut self.client else { return false };
        let now = Instant::now();
        let wait = wait.min(self.questions.next_due(now));
        if let Some(awaited) = self.questions.topics_awaited(now) {
            client.flow.wait(wait.min(awaited));
            return false;
        }
        let Some(records) = records.filter(|_| !self.deliveries.all_held()) else {
            client.flow.wait(wait);
            return false;
        };
        if unstash(&mut self.deliveries, &client.flow, records) {
            return true;
        }
        client.flow.read(wait, &mut self.batch, &mut self.notices);
        // Before the records: one of these may say where they end.
        for notice in std::mem::take(&mut self.notices) {
            self.take_notice(notice);
        }
        let Some(client) = &self.client else { return false };
        sort(&mut self.batch, &mut self.deliveries, &client.flow, records)
    }

    /// Lets the client consume what was started. The partition's queue is led to ours before its first fetch: a record
    /// that was fetched earlier would come on another road.
    fn consume_started(&mut self) {
        let Some(client) = &self.client else { return };
        let starts = self.holdings.take_starts(self.protocol);
        if starts.is_empty() {
            return;
        }
        let list = list_of(starts.iter().map(|start| &start.partition));
        for (start, mut element) in starts.iter().zip(list.elements()) {
            if self.deliveries.is_diverted(&start.partition) {
                client.flow.hold(&start.partition);
            } else {
                client.flow.forward(&start.partition);
            }
            self.deliveries.unfence(&start.partition);
            let jump = self.jumps.remove(&start.partition);
            if let Some(to) = jump {
                self.deliveries.skip_to(&start.partition, to);
                self.events.push_back(SourceEvent::Skipped(start.epoch, to));
            }
            let from = jump
                .or(start.from)
                .map_or(self.place_of(&start.partition), |from| Place::Offset(from.get()));
            element.set_offset(from).expect("a place that librdkafka knows");
        }
        let assigned = match self.protocol {
            Protocol::Cooperative => client.consumer.assign_more(&list),
            Protocol::Eager => client.consumer.assign(Some(&list)),
        };
        self.note_answered(assigned);
    }

    /// Where a partition begins for which nothing is committed, as far as no offset is known. All that an added one has was
    /// written while its topic was read.
    fn place_of(&self, partition: &PartitionId) -> Place {
        match self.start_at {
            StartAt::Latest if !self.sizes.is_added(partition) => Place::End,
            StartAt::Latest | StartAt::Earliest => Place::Beginning,
        }
    }

    /// What of `commits` is still ours. The broker would take a commit for another's partition: the fence is ours.
    fn owned_of(&self, commits: &[Commit]) -> Vec<(PartitionId, Commit)> {
        let owned = |commit: &Commit| Some((self.holdings.partition(commit.epoch)?.clone(), commit.clone()));
        commits.iter().filter_map(owned).collect()
    }

    fn send(&mut self, commits: Vec<(PartitionId, Commit)>) -> Result<usize, CommitError> {
        let Some(client) = &self.client else {
            return Err(not_ours());
        };
        let (token, list) = self.commits.open(commits)?;
        client.consumer.commit(&list, token).map_err(|code| {
            self.commits.forget(token);
            commit::unsent(code)
        })?;
        Ok(token)
    }

    /// Commits, and hears what the client says until the answer is among it. While the group counts its members anew,
    /// none of them may commit: that passes in milliseconds, or with the partitions.
    fn commit_and_wait(&mut self, commits: &[Commit], at_most: Duration) -> Result<(), CommitError> {
        let deadline = Instant::now() + at_most;
        loop {
            let owned = self.owned_of(commits);
            if owned.len() < commits.len() {
                return Err(not_ours());
            }
            let token = self.send(owned)?;
            let Some(answer) = self.hear_answer(token, deadline) else {
                self.commits.forget(token);
                return Err(CommitError {
                    reason: format!("the coordinator has not answered for {at_most:?}; it may be out of reach"),
                    retriable: true,
                    metadata_too_long: false,
                });
            };
            match answer.error() {
                None => {
                    self.standing.committed(answer.sent_at);
                    return Ok(());
                }
                Some(error) if !answer.awaits_rebalance() || deadline <= Instant::now() => return Err(error),
                Some(_) => self.hear_answer(token, Instant::now() + COMMIT_AGAIN_AFTER),
            };
        }
    }

    /// Hears what the client says until the answer to this commit, or until the deadline.
    fn hear_answer(&mut self, token: usize, deadline: Instant) -> Option<Answer> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.client.as_ref()?.consumer.next_event(left);
            match event {
                Some(ClientEvent::Committed {
                    token: answered,
                    answers,
                }) if answered == token => return self.commits.answer(token, answers),
                Some(event) => self.take_event(event),
                None if left.is_zero() => return None,
                None => {}
            }
        }
    }
}

/// Cuts what was read into runs, and keeps back what is held. Returns whether any is to be delivered.
fn sort(
    batch: &mut Vec<KafkaMessage>,
    deliveries: &mut Deliveries<KafkaMessage>,
    flow: &FlowQueue,
    records: &mut Records<KafkaMessage>,
) -> bool {
    let before = records.messages.len();
    let mut batch = batch.drain(..).peekable();
    while let Some(first) = batch.next() {
        let place = first.place();
        let (topic, number) = first.partition();
        let mut delivery = deliveries.get_mut(topic, number);
        let begin = records.messages.len();
        let mut next = Some(first);
        while let Some(message) = next {
            // A partition without a delivery was given back: its next owner is sent these records again.
            let delivered = delivery
                .as_mut()
                .and_then(|delivery| delivery.pass(message.raw_offset(), message));
            records.messages.extend(delivered);
            next = batch.next_if(|message| message.place() == place);
        }
        let Some(delivery) = delivery else { continue };
        push_run(records, delivery.epoch, begin);
        if delivery.divert() {
            flow.hold(&delivery.partition);
        }
    }
    records.messages.len() > before
}

/// Delivers what was kept back of a partition that flows again. Returns whether there was any.
fn unstash(deliveries: &mut Deliveries<KafkaMessage>, flow: &FlowQueue, records: &mut Records<KafkaMessage>) -> bool {
    let begin = records.messages.len();
    while let Some(delivery) = deliveries.released() {
        records.messages.extend(delivery.unstash(BATCH_MAX));
        if delivery.lead_back() {
            flow.forward(&delivery.partition);
        }
        if push_run(records, delivery.epoch, begin) {
            return true;
        }
    }
    false
}

/// Closes the run of the messages from `begin` on; `false` when there are none.
fn push_run(records: &mut Records<KafkaMessage>, epoch: AssignmentEpoch, begin: usize) -> bool {
    let len = records.messages.len() - begin;
    if len > 0 {
        records.runs.push(Run { epoch, len });
    }
    len > 0
}

impl Source for KafkaSource {
    type Message = KafkaMessage;

    fn poll(
        &mut self,
        wait: Duration,
        records: Option<&mut Records<KafkaMessage>>,
    ) -> Result<Option<SourceEvent>, SourceError> {
        self.standing.polled(clock::now());
        self.listen();
        if self.failure.is_none() && self.events.is_empty() {
            if self.deliver(wait, records) {
                return Ok(Some(SourceEvent::Records));
            }
            // What has ended the wait is perhaps an event.
            self.listen();
        }
        match &self.failure {
            Some(failure) => Err(SourceError(failure.clone().into())),
            None => Ok(self.events.pop_front()),
        }
    }

    fn start(&mut self, starts: &[Start]) {
        let mut refused = Vec::new();
        for start in starts {
            if self.holdings.start(start) {
                self.deliveries.begin(start.partition.clone(), start.epoch, start.from);
                if self.sizes.is_gated(&start.partition) {
                    self.deliveries.bar(&start.partition);
                }
            } else {
                // The group has taken it back before it was started.
                refused.push(start.epoch);
            }
        }
        if !refused.is_empty() {
            self.events.push_back(SourceEvent::Lost(refused));
        }
        self.consume_started();
        self.hear_outlived(starts);
        self.questions.ask_ends_soon(Instant::now());
    }

    fn set_flow(&mut self, epoch: AssignmentEpoch, flow: Flow) {
        if let Some(partition) = self.holdings.partition(epoch) {
            self.deliveries.set_flow(partition, flow);
        }
    }

    fn commit(&mut self, commits: &[Commit], mode: CommitMode) -> Result<(), CommitError> {
        if let CommitMode::Wait(at_most) = mode {
            return self.commit_and_wait(commits, at_most);
        }
        match self.owned_of(commits) {
            // Each commit is answered.
            owned if owned.is_empty() => self.events.push_back(SourceEvent::Committed(Ok(Vec::new()))),
            owned => {
                self.send(owned)?;
            }
        }
        Ok(())
    }

    fn relinquish(&mut self, epochs: &[AssignmentEpoch]) {
        let Some(client) = &self.client else { return };
        for epoch in epochs {
            if let Some(partition) = self.holdings.relinquish(*epoch) {
                self.deliveries.end(&partition);
                client.flow.hold(&partition);
            }
        }
        self.answer_revocation();
    }

    fn lease(&self) -> Option<LeaseTerm> {
        Some(self.standing.term())
    }

    fn close(&mut self) {
        let Some(ClientParts { flow, consumer, aide }) = self.client.take() else {
            return;
        };
        self.deliveries.clear();
        self.events.clear();
        leave(&consumer, self.holdings.owes_answer());
        drop(flow);
        drop(consumer);
        aide.retire(RETIRE_WAIT_MAX);
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.close();
    }
}

/// Leaves the group, and waits for that as long as [`LEAVE_WAIT_MAX`].
///
/// On a thread of its own, which is left behind when it does not return: once its group's part has ended, librdkafka
/// serves no question about it any more, and one that was asked a moment too late is waited for without end.
fn leave(consumer: &Arc<Consumer>, owes_answer: bool) {
    let (left, leaving) = sync_channel(1);
    let consumer = Arc::clone(consumer);
    let leave = move || {
        consumer.begin_close();
        // A revocation was told and not answered. While it closes, the client takes any assignment as the end of all,
        // under each protocol.
        if owes_answer {
            let _ = consumer.assign(None);
        }
        let deadline = Instant::now() + LEAVE_WAIT_MAX;
        while !consumer.is_closed() && Instant::now() < deadline {
            let event = consumer.next_event(Duration::from_millis(20));
            if let Some(ClientEvent::Assigned(_) | ClientEvent::Revoked { .. }) = event {
                let _ = consumer.assign(None);
            }
        }
        drop(consumer);
        let _ = left.send(());
    };
    if thread::Builder::new()
        .name("seriatim-leave".to_owned())
        .spawn(leave)
        .is_ok()
    {
        let _ = leaving.recv_timeout(LEAVE_WAIT_MAX + Duration::from_millis(100));
    }
}

fn not_ours() -> CommitError {
    CommitError {
        reason: "the partitions are this member's no more".to_owned(),
        retriable: false,
        metadata_too_long: false,
    }
}
