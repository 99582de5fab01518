//! Topics that have grown, and their new partitions, which may have to wait.
//!
//! A partition that waits is started as any other, so that it is given back as any other; but it delivers nothing, and its
//! queue is led nowhere, until the gate before it opens.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use seriatim_engine::growth::{Gates, Growth};
use seriatim_engine::record::PartitionId;
use seriatim_runtime::ports::SourceEvent;

use super::KafkaSource;
use super::aide::Errand;
use crate::native::topics::TopicFacts;

/// How often it is looked whether new partitions may be started.
const GATES_INTERVAL: Duration = Duration::from_secs(1);

/// How large the topics are, and which of their partitions wait.
#[derive(Debug)]
pub(super) struct Sizes {
    rule: Growth,
    /// What the topics were when last asked about.
    known: HashMap<String, TopicFacts>,
    /// How many partitions they had when they were first asked about.
    first: HashMap<String, i32>,
    /// Up to how many partitions it was told that they have grown.
    told: HashMap<String, i32>,
    /// Before partitions that are started and wait.
    gates: Gates,
}

impl Sizes {
    /// Nothing is known yet.
    pub(super) fn under(rule: Growth) -> Self {
        Self {
            rule,
            known: HashMap::new(),
            first: HashMap::new(),
            told: HashMap::new(),
            gates: Gates::default(),
        }
    }

    /// Whether a partition that is started has to wait.
    pub(super) fn is_gated(&self, partition: &PartitionId) -> bool {
        self.gates.bars(partition.topic(), partition.number())
    }

    /// Whether a partition was added since the topic is read here: then nothing of it was there before.
    pub(super) fn is_added(&self, partition: &PartitionId) -> bool {
        let first = self.first.get(partition.topic());
        first.is_some_and(|first| partition.number() >= *first)
    }

    /// What to tell of a topic that has grown: once for each growth, whether it was seen by the number of partitions or by
    /// what is committed for them.
    fn growth(&mut self, topic: &str, before: i32, after: i32) -> Option<SourceEvent> {
        let told = self.told.get(topic);
        let is_news = after > before && told.is_none_or(|told| *told < after);
        is_news.then(|| {
            self.told.insert(topic.to_owned(), after);
            SourceEvent::Grown {
                topic: topic.to_owned(),
                before,
                after,
                held: self.rule == Growth::Hold,
            }
        })
    }
}

impl KafkaSource {
    /// Takes note of how many partitions a topic has. One of another incarnation has not grown.
    pub(super) fn note_partitions(&mut self, topic: TopicFacts) {
        let known = self.sizes.known.insert(topic.name.clone(), topic.clone());
        if let Some(known) = known
            && known.incarnation == topic.incarnation
        {
            let growth = self.sizes.growth(&topic.name, known.partitions, topic.partitions);
            self.events.extend(growth);
        } else {
            self.sizes.first.insert(topic.name, topic.partitions);
        }
    }

    /// Lets new partitions wait.
    pub(super) fn close_gates(&mut self, gates: Gates) {
        for (topic, gate) in gates {
            let growth = self.sizes.growth(&topic, gate.first_new, gate.partitions);
            self.events.extend(growth);
            self.sizes.gates.close(&topic, gate);
            self.questions.look_at_gates(Instant::now() + GATES_INTERVAL);
        }
        self.deliveries.open(&self.sizes.gates);
    }

    /// Looks behind the gates, and forgets those before partitions that are the group's again.
    pub(super) fn ask_gates(&mut self, now: Instant) {
        let holdings = &self.holdings;
        self.sizes.gates.forget_unused(|topic, gate| {
            holdings.has(|partition| partition.topic() == topic && gate.is_before(partition.number()))
        });
        let Some(client) = self.client.as_ref().filter(|_| !self.sizes.gates.is_empty()) else {
            return;
        };
        if !client.aide.send(Errand::Gates(self.sizes.gates.clone())) {
            self.questions.look_at_gates(now + GATES_INTERVAL);
        }
    }

    pub(super) fn gates_looked_at(&mut self, found: Gates) {
        self.sizes.gates.take_over(found);
        self.deliveries.open(&self.sizes.gates);
        if !self.sizes.gates.is_empty() {
            self.questions.look_at_gates(Instant::now() + GATES_INTERVAL);
        }
    }
}
