//! A member of a group as tests see it, and the topics that it reads.

// Each test binary uses its part of this.
#![allow(dead_code)]

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use seriatim_engine::assignment::{AssignmentEpoch, Assignments};
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_kafka::growth::Growth;
use seriatim_kafka::range::{OutOfRange, OutOfRangePolicy};
use seriatim_kafka::source::{KafkaMessage, KafkaSource, SourceSettings, StartAt};
use seriatim_runtime::message::Message;
use seriatim_runtime::ports::{Commit, CommitMode, Granted, Records, Source, SourceEvent, SourceTrouble, Start};
use seriatim_testkit::broker::{self, Cluster};
use tokio::runtime::Builder;

/// A join takes a heartbeat interval or two; the machine may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A commit that is waited for, as long as a dispatcher waits.
pub(crate) const WAIT: CommitMode = CommitMode::Wait(Duration::from_secs(5));

/// Rebalances in a second instead of three, and a session as short as a broker allows.
const QUICK: &[&str] = &["heartbeat.interval.ms=500", "session.timeout.ms=6000"];

/// A member of a group that starts what it is offered, and notes what it is told.
pub(crate) struct Member {
    pub(crate) source: KafkaSource,
    pub(crate) assignments: Assignments<PartitionId>,
    /// Whether what is offered is started at once.
    pub(crate) starts: bool,
    pub(crate) offered: Vec<Granted>,
    pub(crate) revoked: Vec<AssignmentEpoch>,
    pub(crate) lost: Vec<AssignmentEpoch>,
    pub(crate) committed: Vec<Commit>,
    /// Where delivery went on, by partition.
    pub(crate) skipped: Vec<(i32, i64)>,
    pub(crate) refused: Vec<String>,
    pub(crate) ends: HashMap<AssignmentEpoch, Offset>,
    pub(crate) troubles: Vec<SourceTrouble>,
    /// From how many partitions to how many its topic has grown, and whether the new ones wait.
    pub(crate) grown: Vec<(i32, i32, bool)>,
    /// Delivered offsets, by partition.
    pub(crate) seen: BTreeMap<i32, Vec<i64>>,
    pub(crate) messages: Vec<KafkaMessage>,
    records: Records<KafkaMessage>,
}

fn settings(brokers: &str, topic: &str, group: &str, properties: &[&str]) -> SourceSettings {
    SourceSettings {
        brokers: brokers.to_owned(),
        group: group.to_owned(),
        topics: vec![topic.to_owned()],
        start_at: StartAt::Earliest,
        out_of_range: OutOfRangePolicy::default(),
        growth: Growth::Warn,
        properties: [QUICK, properties].concat().join("\n").parse().unwrap(),
    }
}

impl Member {
    pub(crate) fn join(brokers: &str, topic: &str, group: &str, properties: &[&str]) -> Self {
        Self::join_with(brokers, topic, group, properties, OutOfRange::Stop)
    }

    pub(crate) fn join_with(brokers: &str, topic: &str, group: &str, properties: &[&str], policy: OutOfRange) -> Self {
        let mut out_of_range = OutOfRangePolicy::default();
        out_of_range.set(policy);
        Self::join_by(brokers, topic, group, properties, out_of_range, Growth::Warn)
    }

    pub(crate) fn join_growing(topic: &str, group: &str, properties: &[&str], growth: Growth) -> Self {
        let out_of_range = OutOfRangePolicy::default();
        Self::join_by(self::brokers(), topic, group, properties, out_of_range, growth)
    }

    pub(crate) fn join_at_end(topic: &str, group: &str, properties: &[&str], growth: Growth) -> Self {
        let settings = settings(self::brokers(), topic, group, properties);
        Self::of(SourceSettings {
            start_at: StartAt::Latest,
            growth,
            ..settings
        })
    }

    fn join_by(
        brokers: &str,
        topic: &str,
        group: &str,
        properties: &[&str],
        out_of_range: OutOfRangePolicy,
        growth: Growth,
    ) -> Self {
        Self::of(SourceSettings {
            out_of_range,
            growth,
            ..settings(brokers, topic, group, properties)
        })
    }

    fn of(settings: SourceSettings) -> Self {
        let (source, _waker) = KafkaSource::connect(settings).unwrap();
        Self {
            source,
            assignments: Assignments::default(),
            starts: true,
            offered: Vec::new(),
            revoked: Vec::new(),
            lost: Vec::new(),
            committed: Vec::new(),
            skipped: Vec::new(),
            refused: Vec::new(),
            ends: HashMap::new(),
            troubles: Vec::new(),
            grown: Vec::new(),
            seen: BTreeMap::new(),
            messages: Vec::new(),
            records: Records::default(),
        }
    }

    pub(crate) fn poll(&mut self) {
        self.poll_for(Duration::from_millis(10), true);
    }

    pub(crate) fn poll_for(&mut self, wait: Duration, has_room: bool) {
        match self.source.poll(wait, has_room.then_some(&mut self.records)).unwrap() {
            None => {}
            Some(SourceEvent::Records) => self.take_records(),
            Some(SourceEvent::Assigned(granted)) => {
                if self.starts {
                    self.start(&granted);
                }
                self.offered.extend(granted);
            }
            Some(SourceEvent::Revoked(epochs)) => self.revoked.extend(epochs),
            Some(SourceEvent::Lost(epochs)) => {
                for epoch in &epochs {
                    self.assignments.close(*epoch);
                }
                self.lost.extend(epochs);
            }
            Some(SourceEvent::Committed(Ok(commits))) => self.committed.extend(commits),
            Some(SourceEvent::Committed(Err(error))) => self.refused.push(error.to_string()),
            Some(SourceEvent::Skipped(epoch, to)) => {
                let number = self.assignments.get(epoch).expect("it has begun").number();
                self.skipped.push((number, to.get()));
                // Another log, which begins anew.
                self.seen.entry(number).or_default().retain(|seen| *seen < to.get());
            }
            Some(SourceEvent::Ends(ends)) => self.ends.extend(ends),
            Some(SourceEvent::Grown {
                before, after, held, ..
            }) => self.grown.push((before, after, held)),
            Some(SourceEvent::Trouble(trouble)) => self.troubles.push(trouble),
        }
    }

    pub(crate) fn start(&mut self, granted: &[Granted]) {
        let starts: Vec<Start> = granted
            .iter()
            .map(|granted| Start {
                partition: granted.partition.clone(),
                epoch: self.assignments.open(granted.partition.clone()),
                from: granted.first_wanted(),
            })
            .collect();
        self.source.start(&starts);
    }

    fn take_records(&mut self) {
        assert!(!self.records.runs.is_empty());
        let mut messages = self.records.messages.drain(..);
        for run in self.records.runs.drain(..) {
            assert!(run.len > 0);
            let owned = self
                .assignments
                .get(run.epoch)
                .expect("nothing comes of an ended epoch")
                .clone();
            for message in messages.by_ref().take(run.len) {
                assert_eq!(message.partition(), (owned.topic(), owned.number()), "in another's run");
                let seen = self.seen.entry(owned.number()).or_default();
                let offset = message.offset().get();
                let last = seen.last().copied();
                assert!(last < Some(offset), "{owned}: {offset} after {last:?}");
                seen.push(offset);
                self.messages.push(message);
            }
        }
        assert_eq!(messages.len(), 0, "the runs cover all messages");
    }

    pub(crate) fn epoch(&self, number: i32) -> AssignmentEpoch {
        let mut owned = self.assignments.iter();
        owned
            .find(|(_, partition)| partition.number() == number)
            .expect("it is owned")
            .0
    }

    pub(crate) fn owned(&self) -> Vec<i32> {
        let mut owned: Vec<_> = self
            .assignments
            .iter()
            .map(|(_, partition)| partition.number())
            .collect();
        owned.sort_unstable();
        owned
    }

    pub(crate) fn seen(&self) -> usize {
        self.seen.values().map(Vec::len).sum()
    }

    /// The commit of all that was delivered of a partition.
    pub(crate) fn commit_of(&self, number: i32, metadata: &str) -> Commit {
        let last = self.seen.get(&number).and_then(|seen| seen.last());
        Commit {
            epoch: self.epoch(number),
            watermark: Offset::new(last.map_or(0, |last| last + 1)),
            metadata: metadata.to_owned(),
        }
    }

    /// Gives back what is revoked, committed.
    pub(crate) fn hand_over(&mut self) {
        let revoked = std::mem::take(&mut self.revoked);
        let numbers = revoked
            .iter()
            .map(|epoch| self.assignments.get(*epoch).unwrap().number());
        let commits: Vec<_> = numbers
            .collect::<Vec<_>>()
            .into_iter()
            .map(|number| self.commit_of(number, ""))
            .collect();
        self.source.commit(&commits, WAIT).unwrap();
        self.source.relinquish(&revoked);
        for epoch in revoked {
            self.assignments.close(epoch);
        }
    }
}

/// Polls all members in turn until `done`.
pub(crate) fn until<const N: usize>(
    mut members: [&mut Member; N],
    what: &str,
    mut done: impl FnMut(&[&mut Member; N]) -> bool,
) {
    let deadline = Instant::now() + SOON;
    while !done(&members) {
        assert!(
            Instant::now() < deadline,
            "not within {SOON:?}: {what}; troubles: {:?}",
            members[0].troubles
        );
        for member in &mut members {
            member.poll();
        }
    }
}

/// Polls the member for this long.
pub(crate) fn for_a_while(member: &mut Member, time: Duration) {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        member.poll();
    }
}

/// A topic and a group of the test's own.
pub(crate) fn named(test: &str, partitions: u32) -> (String, String) {
    named_at(broker::shared(), test, partitions)
}

pub(crate) fn named_at(cluster: &Cluster, test: &str, partitions: u32) -> (String, String) {
    let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let topic = format!("source-{test}-{nanos}");
    cluster.create_topic(&topic, partitions, &[]).unwrap();
    let group = format!("{topic}-group");
    (topic, group)
}

/// Adds partitions to a topic, so that it has so many.
pub(crate) fn grow(topic: &str, partitions: usize) {
    let client: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", brokers())
        .create()
        .unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (grown, options) = ([NewPartitions::new(topic, partitions)], AdminOptions::new());
    for topic in runtime.block_on(client.create_partitions(&grown, &options)).unwrap() {
        topic.unwrap();
    }
}

pub(crate) fn brokers() -> &'static str {
    broker::shared().bootstrap()
}

pub(crate) fn producer() -> BaseProducer {
    producer_at(brokers())
}

pub(crate) fn producer_at(brokers: &str) -> BaseProducer {
    ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("linger.ms", "5")
        .create()
        .unwrap()
}

/// Writes `count` records to each of the partitions.
pub(crate) fn produce(topic: &str, partitions: impl IntoIterator<Item = i32>, count: usize) {
    produce_to(brokers(), topic, partitions, count);
}

pub(crate) fn produce_to(brokers: &str, topic: &str, partitions: impl IntoIterator<Item = i32>, count: usize) {
    let producer = producer_at(brokers);
    for partition in partitions {
        for number in 0..count {
            let key = format!("session-{}", number % 10);
            let value = format!("{partition}:{number}");
            let mut record = BaseRecord::to(topic).partition(partition).key(&key).payload(&value);
            while let Err((_full, again)) = producer.send(record) {
                producer.poll(Duration::from_millis(10));
                record = again;
            }
        }
    }
    producer.flush(SOON).unwrap();
}
