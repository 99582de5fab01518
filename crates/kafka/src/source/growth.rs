//! Topics that have grown, and their new partitions, which may have to wait.
//!
//! A partition that waits is started as any other, so that it is given back as any other; but it delivers nothing, and its
//! queue is led nowhere, until the gate before it opens.

use std::time::{Duration, Instant};

use seriatim_engine::growth::{Gates, Growth};
use seriatim_runtime::ports::SourceEvent;

use super::KafkaSource;
use super::aide::Errand;
use crate::native::topics::TopicFacts;

/// How often it is looked whether new partitions may be started.
const GATES_INTERVAL: Duration = Duration::from_secs(1);

impl KafkaSource {
    /// Takes note of how many partitions a topic has. One of another incarnation has not grown.
    pub(super) fn note_partitions(&mut self, topic: TopicFacts) {
        let known = self.known_topics.insert(topic.name.clone(), topic.clone());
        if let Some(known) = known
            && known.incarnation == topic.incarnation
        {
            self.tell_growth(&topic.name, known.partitions, topic.partitions);
        }
    }

    /// Once for each growth, whether it was seen by the number of partitions or by what is committed for them.
    fn tell_growth(&mut self, topic: &str, before: i32, after: i32) {
        let told = self.told_growth.get(topic);
        if after > before && told.is_none_or(|told| *told < after) {
            self.told_growth.insert(topic.to_owned(), after);
            self.events.push_back(SourceEvent::Grown {
                topic: topic.to_owned(),
                before,
                after,
                held: self.growth == Growth::Hold,
            });
        }
    }

    /// Lets new partitions wait.
    pub(super) fn close_gates(&mut self, gates: Gates) {
        for (topic, gate) in gates {
            self.tell_growth(&topic, gate.first_new, gate.partitions);
            self.gates.close(&topic, gate);
            self.questions.look_at_gates(Instant::now() + GATES_INTERVAL);
        }
        self.deliveries.open(&self.gates);
    }

    /// Looks behind the gates, and forgets those before partitions that are the group's again.
    pub(super) fn ask_gates(&mut self, now: Instant) {
        let holdings = &self.holdings;
        self.gates.forget_unused(|topic, gate| {
            holdings.has(|partition| partition.topic() == topic && gate.is_before(partition.number()))
        });
        let Some(client) = self.client.as_ref().filter(|_| !self.gates.is_empty()) else {
            return;
        };
        if !client.aide.send(Errand::Gates(self.gates.clone())) {
            self.questions.look_at_gates(now + GATES_INTERVAL);
        }
    }

    pub(super) fn gates_looked_at(&mut self, found: Gates) {
        self.gates.take_over(found);
        self.deliveries.open(&self.gates);
        if !self.gates.is_empty() {
            self.questions.look_at_gates(Instant::now() + GATES_INTERVAL);
        }
    }
}
