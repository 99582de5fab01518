//! A thread for what may block: questions to the brokers, and the destruction of the client.
//!
//! The source's own thread takes outcomes, commits and answers the group. It cannot wait for a coordinator that is away,
//! and least of all for a record that a handler keeps for an hour: the client is destroyed only after the last one.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::ports::Granted;

use super::range::Search;
use crate::commit::is_retriable;
use crate::native::client::Consumer;
use crate::native::event::Notice;
use crate::native::topics::TopicFacts;
use crate::range::{Extent, OutOfRange, OutOfRangePolicy};
use crate::rebalance::Ticket;

/// Errands that wait, and findings too: one about each of a few rebalances in quick succession, one about the log's
/// ends, one about each of a few partitions that stand still. What finds no room is asked again later.
const WAITING_MAX: usize = 16;

/// How long a coordinator or a leader is waited for. A question that fails is asked again by the source.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Something to find out.
pub(super) enum Errand {
    /// What is committed for these partitions?
    Committed(Ticket, Vec<PartitionId>),
    /// Where do these logs end?
    Ends(Vec<(AssignmentEpoch, PartitionId)>),
    /// Where does the log begin and end, in which an offset was not found, and whose is it?
    Extent(Search),
    /// Which topics are these by now?
    Topics(Vec<String>),
}

/// What was found out.
pub(super) enum Finding {
    /// With the extents of those logs that had to be asked for, and could.
    Committed(Ticket, Result<Vec<(Granted, Option<Extent>)>, Notice>),
    Ends(Vec<(AssignmentEpoch, Offset)>),
    /// With the topic's incarnation, as far as that is known.
    Extent(Search, Option<Extent>, Option<u64>),
    /// Nothing, when nobody has answered.
    Topics(Vec<TopicFacts>),
}

/// The thread's end at the source.
pub(super) struct Aide {
    errands: SyncSender<Errand>,
    findings: Receiver<Finding>,
    thread: JoinHandle<()>,
}

impl Aide {
    /// Starts the thread. It rings `waker` when something was found.
    pub(super) fn start(consumer: Arc<Consumer>, policy: OutOfRangePolicy, waker: Waker) -> std::io::Result<Self> {
        let (errands, received) = sync_channel(WAITING_MAX);
        let (found, findings) = sync_channel(WAITING_MAX);
        let thread = thread::Builder::new()
            .name("seriatim-aide".to_owned())
            .spawn(move || run(&consumer, &policy, &received, &found, &waker))?;
        Ok(Self {
            errands,
            findings,
            thread,
        })
    }

    /// Sends the thread on an errand; `false` when too many wait already.
    pub(super) fn send(&self, errand: Errand) -> bool {
        self.errands.try_send(errand).is_ok()
    }

    /// What was found since.
    pub(super) fn finding(&self) -> Option<Finding> {
        self.findings.try_recv().ok()
    }

    /// Leaves the client to the thread, and waits up to `patience` for its destruction: an orderly end of the process
    /// has no thread of librdkafka's left. With a message kept somewhere it takes longer, and goes on in the background.
    pub(super) fn retire(self, patience: Duration) {
        let Self {
            errands,
            findings,
            thread,
        } = self;
        drop((errands, findings));
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < patience {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Until the source has let go of the other end. This thread's reference to the client is then the last.
fn run(
    consumer: &Arc<Consumer>,
    policy: &OutOfRangePolicy,
    errands: &Receiver<Errand>,
    found: &SyncSender<Finding>,
    waker: &Waker,
) {
    while let Ok(errand) = errands.recv() {
        let finding = match errand {
            Errand::Committed(ticket, partitions) => {
                let granted = consumer.committed(&partitions, ANSWER_TIMEOUT);
                let granted = granted.and_then(|granted| with_incarnations(consumer, granted));
                Finding::Committed(ticket, granted.map(|granted| with_extents(consumer, policy, granted)))
            }
            Errand::Ends(partitions) => Finding::Ends(ends_of(consumer, partitions)),
            Errand::Extent(search) => {
                let partition = &search.missing.partition;
                let topics = consumer.topics(&[partition.topic().to_owned()], ANSWER_TIMEOUT);
                let incarnation = topics.ok().and_then(|topics| topics.first()?.incarnation);
                let extent = consumer.ask_extent(partition, ANSWER_TIMEOUT);
                Finding::Extent(search, extent, incarnation)
            }
            Errand::Topics(names) => Finding::Topics(consumer.topics(&names, ANSWER_TIMEOUT).unwrap_or_default()),
        };
        if found.send(finding).is_err() {
            return;
        }
        waker.wake_by_ref();
    }
}

/// After the commits were asked for: a topic that is created anew in between has a commit that is not believed. A cluster
/// that cannot tell leaves it open.
fn with_incarnations(consumer: &Consumer, mut granted: Vec<Granted>) -> Result<Vec<Granted>, Notice> {
    let mut names: Vec<String> = granted
        .iter()
        .map(|granted| granted.partition.topic().to_owned())
        .collect();
    names.sort_unstable();
    names.dedup();
    let topics = match consumer.topics(&names, ANSWER_TIMEOUT) {
        Ok(topics) => topics,
        Err(notice) if is_retriable(notice.code) => return Err(notice),
        Err(_) => Vec::new(),
    };
    for granted in &mut granted {
        let topic = topics.iter().find(|topic| topic.name == granted.partition.topic());
        granted.incarnation = topic.and_then(|topic| topic.incarnation);
    }
    Ok(granted)
}

/// What is told beside a commit of offsets is believed only by who knows where the log ends; and to go on elsewhere than at
/// a commit that is not to be believed, or is out of the log, takes both its ends.
fn with_extents(
    consumer: &Consumer,
    policy: &OutOfRangePolicy,
    granted: Vec<Granted>,
) -> Vec<(Granted, Option<Extent>)> {
    let with_extent = |mut granted: Granted| {
        let moves = policy.of(granted.partition.topic()) != OutOfRange::Stop && granted.committed.is_some();
        let extent = (moves || granted.needs_end() || granted.is_of_former_topic())
            .then(|| consumer.ask_extent(&granted.partition, ANSWER_TIMEOUT))
            .flatten();
        granted.end = extent.map(|(_, end)| end);
        (granted, extent)
    };
    granted.into_iter().map(with_extent).collect()
}

fn ends_of(consumer: &Consumer, partitions: Vec<(AssignmentEpoch, PartitionId)>) -> Vec<(AssignmentEpoch, Offset)> {
    let end_of = |(epoch, partition)| {
        let (_, end) = consumer.ask_extent(&partition, ANSWER_TIMEOUT)?;
        Some((epoch, end))
    };
    // A broker that does not answer for one partition would not for the next, at the same length.
    partitions.into_iter().map_while(end_of).collect()
}
