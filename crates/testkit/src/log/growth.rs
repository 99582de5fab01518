//! Topics that grow: what members are told of it, and their new partitions, which may have to wait.
//!
//! The rule is the engine's, as it is for Kafka. What a group has committed and where logs end is known here at once, so
//! that a gate opens with the next poll of whoever stands before it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use seriatim_engine::growth::{Gate, Gates, Growth};
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::ports::{Granted, SourceEvent};

use super::group::{Committed, MemberId};
use super::topic::Topic;
use super::{Log, State};

impl Log {
    /// What becomes of partitions that are added to a topic while a group reads it, from now on; [`Growth::Warn`] unless told
    /// otherwise.
    pub fn set_growth(&self, group: &str, growth: Growth) {
        self.lock().group(group).growth = growth;
    }

    /// The partitions that have records which a member could read, if they did not wait for what others have.
    pub(crate) fn waiting(&self, group: &str) -> BTreeSet<PartitionId> {
        let state = self.lock();
        let Some(group) = state.groups.get(group) else {
            return BTreeSet::new();
        };
        let held = group.members.values().flat_map(|member| {
            let held = member.held.iter();
            held.filter(|(partition, held)| held.waits(partition, &member.growing.gates))
        });
        let end = |partition: &PartitionId| state.topics[partition.topic()].end(partition.number());
        let readable = held.filter(|(partition, held)| held.position < end(partition));
        readable.map(|(partition, _)| partition.clone()).collect()
    }
}

/// What a member knows of the growth of its topics.
#[derive(Default)]
pub(super) struct Growing {
    /// How many partitions they had when it last looked.
    known: BTreeMap<Arc<str>, i32>,
    /// Up to how many it was told that they have grown.
    told: BTreeMap<Arc<str>, i32>,
    untold: VecDeque<SourceEvent>,
    /// Before those of its partitions that wait.
    pub(super) gates: Gates,
}

impl Growing {
    /// Of a member that knows how many partitions its topics have.
    pub(super) fn knowing(known: BTreeMap<Arc<str>, i32>) -> Self {
        Self {
            known,
            ..Self::default()
        }
    }

    /// Once for each growth, whether it was seen by the number of partitions or by what is committed for them.
    fn tell(&mut self, topic: &str, before: i32, after: i32, held: bool) {
        if after > before && self.told.get(topic).is_none_or(|told| *told < after) {
            self.told.insert(topic.into(), after);
            self.untold.push_back(SourceEvent::Grown {
                topic: topic.to_owned(),
                before,
                after,
                held,
            });
        }
    }
}

impl State {
    /// What is to be told of a member's topics, which it looks at.
    pub(super) fn growth(&mut self, group: &str, id: MemberId) -> Option<SourceEvent> {
        let grown = self.grown(group, id);
        let its_group = self.group(group);
        let held = its_group.growth == Growth::Hold;
        let growing = &mut its_group.member(id).growing;
        for (topic, before, after) in grown {
            growing.tell(&topic, before, after, held);
            growing.known.insert(topic, after);
        }
        growing.untold.pop_front()
    }

    /// The topics that have more partitions than a member knows: how many it knows, and how many there are.
    fn grown(&self, group: &str, id: MemberId) -> Vec<(Arc<str>, i32, i32)> {
        let known = self.groups[group].members[&id].growing.known.iter();
        let counted = known.map(|(topic, known)| (Arc::clone(topic), *known, self.topics[topic].count()));
        counted.filter(|(_, known, count)| known < count).collect()
    }

    /// Whether a member would be told something.
    pub(super) fn growth_is_news(&self, group: &str, id: MemberId) -> bool {
        let untold = &self.groups[group].members[&id].growing.untold;
        !untold.is_empty() || !self.grown(group, id).is_empty()
    }

    /// Closes the gates before those of the granted partitions that are new.
    pub(super) fn close_gates(&mut self, group: &str, id: MemberId, granted: &[Granted]) {
        let its_group = &self.groups[group];
        if its_group.growth == Growth::Warn {
            return;
        }
        let uncommitted = granted.iter().filter(|granted| granted.committed.is_none());
        let mut last: BTreeMap<&str, i32> = BTreeMap::new();
        for granted in uncommitted {
            let last = last.entry(granted.partition.topic()).or_default();
            *last = granted.partition.number().max(*last);
        }
        let mut closed = Vec::new();
        for (topic, last) in last {
            let ids = self.topics[topic].ids(topic);
            let committed: Vec<_> = ids.map(|id| its_group.committed_offset(&id)).collect();
            let Some(mut gate) = Gate::before_new(&committed).filter(|gate| gate.is_before(last)) else {
                continue;
            };
            look_behind(&self.topics[topic], &its_group.committed, topic, &mut gate);
            if !gate.is_open() {
                closed.push((topic.to_owned(), gate));
            }
        }
        let growing = &mut self.group(group).member(id).growing;
        for (topic, gate) in closed {
            growing.tell(&topic, gate.first_new, gate.partitions, true);
            growing.gates.close(&topic, gate);
        }
    }

    /// Looks behind a member's gates, and forgets those before partitions that are the group's again.
    pub(super) fn open_gates(&mut self, group: &str, id: MemberId) {
        let mut found = self.behind_gates(group, id);
        let member = self.group(group).member(id);
        found.forget_unused(|topic, gate| {
            let mut held = member.held.keys();
            held.any(|partition| partition.topic() == topic && gate.is_before(partition.number()))
        });
        for (partition, held) in &mut member.held {
            held.barred = held.waits(partition, &found);
        }
        member.growing.gates = found;
    }

    /// A member's gates that are closed yet. Its coordinator tells it what is committed, if it is in reach.
    pub(super) fn behind_gates(&self, group: &str, id: MemberId) -> Gates {
        let group = &self.groups[group];
        let member = &group.members[&id];
        let mut gates = member.growing.gates.clone();
        if !member.cut_off {
            for (topic, gate) in gates.iter_mut() {
                look_behind(&self.topics[topic], &group.committed, topic, gate);
            }
        }
        gates.forget_unused(|_, gate| !gate.is_open());
        gates
    }
}

/// Notes how far the old partitions have got. What nothing is committed for is read from its beginning.
fn look_behind(topic: &Topic, committed: &BTreeMap<PartitionId, Committed>, name: &str, gate: &mut Gate) {
    let waits_for: Vec<i32> = gate.waits_for().map(|(number, _)| number).collect();
    for number in waits_for {
        let committed = committed.get(&PartitionId::new(name, number));
        let settled_to = committed.map_or(Offset::ZERO, |committed| committed.watermark);
        gate.note(number, settled_to, topic.end(number));
    }
}
