//! Partitions that are added to a topic that is read: which of them are new, and when they may be started.
//!
//! Adding partitions changes where the records of a key go: from then on to another partition, while older records of the
//! same key still lie in the one from before. Nothing orders the two. [`Growth::Hold`] has the new partitions wait until what
//! the old ones had is settled.
//!
//! The rule needs no memory, so it holds across restarts and changes of owner: what a group has committed says it all.

use std::collections::BTreeMap;

use crate::record::Offset;

/// What becomes of partitions that are added to a topic while it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Growth {
    /// They are started at once, and that the topic has grown is told: a key's records that were written before may be
    /// handled after those that were written since, or at the same time.
    #[default]
    Warn,
    /// They are started when the group has committed all that the older partitions had when the growth was seen.
    ///
    /// A partition counts as new when the group has committed nothing for it and nothing for those with higher numbers, but
    /// something for one with a lower number. So the last partitions of a topic that has not grown wait too, if nothing was
    /// ever read of them.
    ///
    /// What it cannot do:
    ///
    /// - Keys also move between two *old* partitions, unless the new count is a multiple of the old one. Nothing orders
    ///   those. Doubling the count avoids it: then each key stays, or moves to a new partition.
    /// - Producers learn of the growth at different times (`metadata.max.age.ms`, minutes by default). What one of them still
    ///   writes to an old partition after the growth was seen here is not waited for.
    /// - What the group has committed nothing for is taken for new, whatever its age: the last partitions of a topic that a
    ///   group has only just begun to read, and new ones that still wait when the topic grows again. What these have is not
    ///   waited for, and they are started together with the others.
    /// - An old partition counts as done when the group has committed its end. A log that ends in a transaction's marker is
    ///   done only with its next record; and one that stands still, because its place is gone from the log, keeps the new
    ///   ones waiting until somebody has moved the group.
    Hold,
}

/// Before the new partitions of a topic that has grown: the old ones, and where each ended when that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The partitions from this number on are new.
    pub first_new: i32,
    /// All there are.
    pub partitions: i32,
    /// Old partitions that the group has not committed to their end, with it, or with nothing while it is not known.
    waits_for: BTreeMap<i32, Option<Offset>>,
}

impl Gate {
    /// The gate before the new partitions; `None` when there are none. Of each partition of the topic, in order: what is
    /// committed.
    pub fn before_new(committed: &[Option<Offset>]) -> Option<Self> {
        let first_new = committed.iter().rposition(Option::is_some)? + 1;
        (first_new < committed.len()).then(|| {
            // Kafka counts partitions so.
            let (first_new, partitions) = (first_new as i32, committed.len() as i32);
            Self {
                first_new,
                partitions,
                waits_for: (0..first_new).map(|number| (number, None)).collect(),
            }
        })
    }

    /// The old partitions that are waited for, and where each ended if that is known.
    pub fn waits_for(&self) -> impl Iterator<Item = (i32, Option<Offset>)> {
        self.waits_for.iter().map(|(number, end)| (*number, *end))
    }

    /// Takes note of how far an old partition has got: its first offset of which it is not known to be settled, and where
    /// its log ends now. What counts is the end that is noted first.
    pub fn note(&mut self, number: i32, settled_to: Offset, end_now: Offset) {
        if let Some(end) = self.waits_for.get_mut(&number)
            && settled_to >= *end.get_or_insert(end_now)
        {
            self.waits_for.remove(&number);
        }
    }

    /// Whether this partition is one of the new.
    pub fn is_before(&self, number: i32) -> bool {
        number >= self.first_new
    }

    /// Whether the new partitions may be started.
    pub fn is_open(&self) -> bool {
        self.waits_for.is_empty()
    }
}

/// The closed gates of one member, by topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates(BTreeMap<String, Gate>);

impl Gates {
    /// Whether none is closed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Closes a gate. One that is closed already stays, since it knows earlier ends; but not when the topic has grown again
    /// since: keys that had stayed have moved now, and all their records lie below the later ends. What was new then and is
    /// old now waits no more: somebody has committed, and so was let in.
    pub fn close(&mut self, topic: &str, gate: Gate) {
        match self.0.get_mut(topic) {
            None => drop(self.0.insert(topic.to_owned(), gate)),
            Some(closed) if closed.partitions < gate.partitions => *closed = gate,
            Some(_) => {}
        }
    }

    /// Whether a partition is behind a closed gate.
    pub fn bars(&self, topic: &str, number: i32) -> bool {
        self.0.get(topic).is_some_and(|gate| gate.is_before(number))
    }

    /// The closed gates, to be looked behind.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Gate)> {
        self.0.iter_mut().map(|(topic, gate)| (topic.as_str(), gate))
    }

    /// Takes over what was found behind a copy of the gates, and forgets those that have opened. A copy from before a topic
    /// has grown again says nothing about the gate that was closed since.
    pub fn take_over(&mut self, copy: Gates) {
        for (topic, found) in copy.0 {
            if let Some(closed) = self.0.get_mut(&topic)
                && closed.partitions == found.partitions
            {
                *closed = found;
            }
        }
        self.0.retain(|_, gate| !gate.is_open());
    }

    /// Forgets the gates before none of the partitions that are held, of which `holds` is asked.
    pub fn forget_unused(&mut self, holds: impl Fn(&str, &Gate) -> bool) {
        self.0.retain(|topic, gate| holds(topic, gate));
    }
}

impl IntoIterator for Gates {
    type Item = (String, Gate);
    type IntoIter = std::collections::btree_map::IntoIter<String, Gate>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_new(committed: &[Option<i64>]) -> Option<i32> {
        let committed: Vec<_> = committed.iter().map(|offset| offset.map(Offset::new)).collect();
        Gate::before_new(&committed).map(|gate| gate.first_new)
    }

    #[test]
    fn new_is_what_lies_above_all_that_is_committed() {
        assert_eq!(first_new(&[Some(5), Some(0), None, None]), Some(2));
        assert_eq!(first_new(&[Some(5), None]), Some(1));
        assert_eq!(
            first_new(&[None, Some(5), None]),
            Some(2),
            "an old one may have had no record yet"
        );
    }

    #[test]
    fn nothing_is_new_to_a_group_that_has_committed_nothing_or_for_the_last() {
        assert_eq!(first_new(&[]), None);
        assert_eq!(first_new(&[None, None]), None);
        assert_eq!(first_new(&[Some(5), Some(5)]), None);
        assert_eq!(first_new(&[Some(5), None, Some(1)]), None);
    }

    #[test]
    fn it_opens_when_each_old_partition_is_settled_to_the_end_that_was_seen_first() {
        let mut gate = Gate::before_new(&[Some(Offset::new(3)), Some(Offset::new(7)), None]).unwrap();
        let note = |gate: &mut Gate, number, settled, end| gate.note(number, Offset::new(settled), Offset::new(end));
        assert!(!gate.is_open(), "no end is known yet");
        note(&mut gate, 1, 7, 7);
        assert_eq!(gate.waits_for().collect::<Vec<_>>(), [(0, None)]);
        note(&mut gate, 0, 3, 10);
        note(&mut gate, 0, 9, 50);
        assert_eq!(
            gate.waits_for().collect::<Vec<_>>(),
            [(0, Some(Offset::new(10)))],
            "what comes later is not waited for"
        );
        note(&mut gate, 1, 0, 90);
        note(&mut gate, 0, 10, 50);
        assert!(gate.is_open());
        assert!(gate.is_before(2) && !gate.is_before(1));
    }

    fn gate(old: usize, partitions: usize, ends: i64) -> Gate {
        let mut committed = vec![Some(Offset::ZERO); old];
        committed.resize(partitions, None);
        let mut gate = Gate::before_new(&committed).unwrap();
        (0..old as i32).for_each(|number| gate.note(number, Offset::ZERO, Offset::new(ends)));
        gate
    }

    fn settle(gates: &mut Gates, to: i64) {
        for (_, gate) in gates.iter_mut() {
            let waits_for: Vec<_> = gate.waits_for().map(|(number, _)| number).collect();
            let to = Offset::new(to);
            waits_for.into_iter().for_each(|number| gate.note(number, to, to));
        }
    }

    #[test]
    fn a_gate_that_is_closed_again_knows_the_earlier_ends() {
        let mut gates = Gates::default();
        gates.close("chat", gate(2, 4, 10));
        gates.close("chat", gate(2, 4, 20));
        assert!(gates.bars("chat", 2) && !gates.bars("chat", 1) && !gates.bars("orders", 2));
        let mut copy = gates.clone();
        settle(&mut copy, 10);
        gates.take_over(copy);
        assert!(gates.is_empty() && !gates.bars("chat", 2));
    }

    #[test]
    fn what_stayed_at_the_first_growth_and_moved_at_the_second_is_waited_for() {
        let mut gates = Gates::default();
        gates.close("chat", gate(2, 4, 10));
        let mut copy = gates.clone();
        settle(&mut copy, 10);
        gates.close("chat", gate(2, 8, 20));
        gates.take_over(copy);
        assert!(
            gates.bars("chat", 2) && gates.bars("chat", 7),
            "it was looked behind another"
        );
        let mut copy = gates.clone();
        settle(&mut copy, 20);
        gates.take_over(copy);
        assert!(gates.is_empty());
    }

    #[test]
    fn nothing_waits_for_itself() {
        let mut gates = Gates::default();
        gates.close("chat", gate(2, 4, 10));
        // Another has been let in, and has committed for partition 3.
        gates.close("chat", gate(4, 8, 20));
        assert!(!gates.bars("chat", 2) && gates.bars("chat", 4));
    }

    #[test]
    fn a_gate_before_nothing_that_is_held_is_forgotten() {
        let mut gates = Gates::default();
        gates.close("chat", gate(2, 4, 10));
        gates.close("orders", gate(1, 2, 10));
        gates.forget_unused(|topic, gate| topic == "chat" && gate.is_before(3));
        assert!(gates.bars("chat", 3) && !gates.bars("orders", 1));
    }
}
