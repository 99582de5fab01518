//! A thread for what may block: questions to the brokers, and the destruction of the client.
//!
//! The source's own thread takes outcomes, commits and answers the group. It cannot wait for a coordinator that is away,
//! and least of all for a record that a handler keeps for an hour: the client is destroyed only after the last one.

use std::collections::{BTreeSet, HashMap};
use std::slice;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::topic_partition_list::Offset as Place;
use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::growth::{Gate, Gates, Growth};
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::ports::Granted;

use super::StartAt;
use super::range::Search;
use crate::commit::is_retriable;
use crate::native::client::Consumer;
use crate::native::event::Notice;
use crate::native::topics::{TopicFacts, TopicsFound};
use crate::range::{Extent, OutOfRange, OutOfRangePolicy};
use crate::rebalance::Ticket;

/// Errands that wait, and findings too: one about each of a few rebalances in quick succession, one about the log's
/// ends, one about each of a few partitions that stand still. What finds no room is asked again later.
const WAITING_MAX: usize = 16;

/// How long a coordinator or a leader is waited for. A question that fails is asked again by the source.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the logs' ends are asked for at an assignment. A partition whose leader died has another within ten seconds or so;
/// without an answer, what was settled above its watermark is repeated, and the others have waited for it.
const EXTENTS_WITHIN: Duration = Duration::from_secs(15);

/// How long it is asked where partitions begin. Without an answer the client finds that out by itself.
const BEGINS_WITHIN: Duration = Duration::from_secs(2);

/// How soon after a refusal.
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(200);

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
    /// Have old partitions got to where they ended when their topic had grown?
    Gates(Gates),
}

/// What the answers depend on.
pub(super) struct Rules {
    pub(super) policy: OutOfRangePolicy,
    pub(super) start_at: StartAt,
    pub(super) growth: Growth,
}

/// What was found out about partitions that the group has given.
pub(super) struct Found {
    /// With the extents of those logs that had to be asked for, and could.
    pub(super) granted: Vec<(Granted, Option<Extent>)>,
    /// Before those of them that are new, and have to wait.
    pub(super) gates: Gates,
}

/// What was found out.
pub(super) enum Finding {
    Committed(Ticket, Result<Found, Notice>),
    Ends(Vec<(AssignmentEpoch, Offset)>),
    /// With the topic's incarnation, as far as that is known.
    Extent(Search, Option<Extent>, Option<u64>),
    /// Nothing while nobody answers.
    Topics(Option<TopicsFound>),
    Gates(Gates),
}

/// The thread's end at the source.
pub(super) struct Aide {
    errands: SyncSender<Errand>,
    findings: Receiver<Finding>,
    thread: JoinHandle<()>,
}

impl Aide {
    /// Starts the thread. It rings `waker` when something was found.
    pub(super) fn start(consumer: Arc<Consumer>, rules: Rules, waker: Waker) -> std::io::Result<Self> {
        let (errands, received) = sync_channel(WAITING_MAX);
        let (found, findings) = sync_channel(WAITING_MAX);
        let thread = thread::Builder::new()
            .name("seriatim-aide".to_owned())
            .spawn(move || run(&consumer, &rules, &received, &found, &waker))?;
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
    rules: &Rules,
    errands: &Receiver<Errand>,
    found: &SyncSender<Finding>,
    waker: &Waker,
) {
    while let Ok(errand) = errands.recv() {
        let finding = match errand {
            Errand::Committed(ticket, partitions) => {
                Finding::Committed(ticket, committed(consumer, rules, &partitions))
            }
            Errand::Ends(partitions) => Finding::Ends(ends_of(consumer, partitions)),
            Errand::Extent(search) => {
                let partition = &search.missing.partition;
                let topics = consumer.topics(&[partition.topic().to_owned()], ANSWER_TIMEOUT);
                let incarnation = topics.ok().and_then(|topics| topics.known.first()?.incarnation);
                let mut extent = consumer.extents(slice::from_ref(partition), ANSWER_TIMEOUT);
                Finding::Extent(search, extent.remove(0), incarnation)
            }
            Errand::Topics(names) => Finding::Topics(match consumer.topics(&names, ANSWER_TIMEOUT) {
                Err(notice) if is_retriable(notice.code) => None,
                // A cluster that cannot tell leaves it open.
                answer => Some(answer.unwrap_or_default()),
            }),
            Errand::Gates(mut gates) => {
                for (topic, gate) in gates.iter_mut() {
                    look_behind(consumer, rules, topic, gate);
                }
                Finding::Gates(gates)
            }
        };
        if found.send(finding).is_err() {
            return;
        }
        waker.wake_by_ref();
    }
}

/// What is committed for these partitions, of which topics they are, and which of them have to wait.
fn committed(consumer: &Consumer, rules: &Rules, partitions: &[PartitionId]) -> Result<Found, Notice> {
    let mut granted = consumer.committed(partitions, ANSWER_TIMEOUT)?;
    // After the commits: a topic that is created anew in between has a commit that is not believed.
    let topics = topics_of(consumer, &granted)?;
    for granted in &mut granted {
        let topic = topics.iter().find(|topic| topic.name == granted.partition.topic());
        granted.incarnation = topic.and_then(|topic| topic.incarnation);
    }
    let gates = match rules.growth {
        Growth::Warn => Gates::default(),
        Growth::Hold => gates_before(consumer, rules, &topics, &granted)?,
    };
    let mut granted = tell_extents(consumer, &rules.policy, granted);
    tell_begins(consumer, rules, &mut granted);
    Ok(Found { granted, gates })
}

/// What there is to know about the topics of these partitions. A cluster that cannot tell leaves it open.
fn topics_of(consumer: &Consumer, granted: &[Granted]) -> Result<Vec<TopicFacts>, Notice> {
    let names: BTreeSet<&str> = granted.iter().map(|granted| granted.partition.topic()).collect();
    let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
    match consumer.topics(&names, ANSWER_TIMEOUT) {
        Ok(topics) => Ok(topics.known),
        Err(notice) if is_retriable(notice.code) => Err(notice),
        Err(_) => Ok(Vec::new()),
    }
}

/// The closed gates before those of the granted partitions that are new.
fn gates_before(
    consumer: &Consumer,
    rules: &Rules,
    topics: &[TopicFacts],
    granted: &[Granted],
) -> Result<Gates, Notice> {
    let mut gates = Gates::default();
    for topic in topics {
        let uncommitted = |granted: &&Granted| granted.partition.topic() == topic.name && granted.committed.is_none();
        let Some(last) = granted
            .iter()
            .filter(uncommitted)
            .map(|granted| granted.partition.number())
            .max()
        else {
            continue;
        };
        let all: Vec<_> = (0..topic.partitions)
            .map(|number| PartitionId::new(topic.name.as_str(), number))
            .collect();
        let mut answers = consumer.committed(&all, ANSWER_TIMEOUT)?;
        answers.sort_by_key(|answer| answer.partition.number());
        let committed: Vec<_> = answers.iter().map(|answer| answer.committed).collect();
        let Some(mut gate) = Gate::before_new(&committed).filter(|gate| gate.is_before(last)) else {
            continue;
        };
        look_behind(consumer, rules, &topic.name, &mut gate);
        if !gate.is_open() {
            gates.close(&topic.name, gate);
        }
    }
    Ok(gates)
}

/// Asks how far the old partitions have got. What does not answer is waited for.
fn look_behind(consumer: &Consumer, rules: &Rules, topic: &str, gate: &mut Gate) {
    let ends: HashMap<i32, Option<Offset>> = gate.waits_for().collect();
    let waited: Vec<_> = ends.keys().map(|number| PartitionId::new(topic, *number)).collect();
    let Ok(answers) = consumer.committed(&waited, ANSWER_TIMEOUT) else {
        return;
    };
    let mut unknown = Vec::new();
    for granted in answers {
        let number = granted.partition.number();
        match (granted.committed, ends[&number]) {
            (Some(committed), Some(end)) => gate.note(number, committed, end),
            _ => unknown.push(granted),
        }
    }
    for (granted, extent) in with_extents(consumer, unknown) {
        let Some((begin, end)) = extent else { continue };
        // Nothing is committed yet: what is unsettled begins where it is begun.
        let first = match rules.start_at {
            StartAt::Earliest => begin,
            StartAt::Latest => end,
        };
        gate.note(granted.partition.number(), granted.committed.unwrap_or(first), end);
    }
}

/// Tells the extents of those logs that decide what is made of a commit: what is told of offsets beside it is believed only
/// by who knows where the log ends; and to go on elsewhere than at a commit that is not to be believed, or is out of the log,
/// takes both its ends.
fn tell_extents(
    consumer: &Consumer,
    policy: &OutOfRangePolicy,
    granted: Vec<Granted>,
) -> Vec<(Granted, Option<Extent>)> {
    let decides = |granted: &Granted| {
        let moves = policy.of(granted.partition.topic()) != OutOfRange::Stop && granted.committed.is_some();
        moves || granted.needs_end() || granted.is_of_former_topic()
    };
    let (mut unknown, others): (Vec<_>, Vec<_>) = granted.into_iter().partition(decides);
    let mut told: Vec<_> = others.into_iter().map(|granted| (granted, None)).collect();
    let deadline = Instant::now() + EXTENTS_WITHIN;
    while !unknown.is_empty() {
        let answers = with_extents(consumer, unknown);
        let is_over = Instant::now() >= deadline;
        let (known, left): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(_, extent)| extent.is_some() || is_over);
        told.extend(known);
        unknown = left.into_iter().map(|(granted, _)| granted).collect();
        if !unknown.is_empty() {
            thread::sleep(ASKED_AGAIN_AFTER);
        }
    }
    for (granted, extent) in &mut told {
        granted.end = extent.map(|(_, end)| end);
    }
    told
}

fn with_extents(consumer: &Consumer, granted: Vec<Granted>) -> Vec<(Granted, Option<Extent>)> {
    let partitions: Vec<_> = granted.iter().map(|granted| granted.partition.clone()).collect();
    let extents = consumer.extents(&partitions, ANSWER_TIMEOUT);
    granted.into_iter().zip(extents).collect()
}

/// Says where those partitions begin for which nothing is committed: so their first commit, which says that they are open,
/// is one for all of them, and does not wait for the first record of each.
///
/// Not where new partitions wait for old ones: what a group has committed tells those apart, so it commits nothing there
/// before it has a record.
fn tell_begins(consumer: &Consumer, rules: &Rules, granted: &mut [(Granted, Option<Extent>)]) {
    let place = match (rules.growth, rules.start_at) {
        (Growth::Hold, _) => return,
        (Growth::Warn, StartAt::Earliest) => Place::Beginning,
        (Growth::Warn, StartAt::Latest) => Place::End,
    };
    let granted = granted.iter_mut().map(|(granted, _)| granted);
    let fresh: Vec<_> = granted.filter(|granted| granted.committed.is_none()).collect();
    let partitions: Vec<_> = fresh.iter().map(|granted| granted.partition.clone()).collect();
    let begins = consumer.offsets(&partitions, place, BEGINS_WITHIN);
    for (granted, begin) in fresh.into_iter().zip(begins) {
        granted.begin = begin;
    }
}

fn ends_of(consumer: &Consumer, partitions: Vec<(AssignmentEpoch, PartitionId)>) -> Vec<(AssignmentEpoch, Offset)> {
    let (epochs, partitions): (Vec<_>, Vec<_>) = partitions.into_iter().unzip();
    let ends = consumer.offsets(&partitions, Place::End, ANSWER_TIMEOUT);
    let ends = epochs.into_iter().zip(ends);
    ends.filter_map(|(epoch, end)| Some((epoch, end?))).collect()
}
