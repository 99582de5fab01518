//! Partitions that are added to a topic that is read: which of them are new, and when they may be started.
//!
//! Adding partitions changes where the records of a key go: from then on to another partition, while older records of the
//! same key still lie in the one from before. Nothing orders the two. [`Growth::Hold`] has the new partitions wait until what
//! the old ones had is settled.
//!
//! The rule needs no memory, so it holds across restarts and changes of owner: what a group has committed says it all.

use std::collections::BTreeMap;

use seriatim_engine::record::Offset;

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
    /// - An old partition counts as done when the group has committed its end. A log that ends in a transaction's marker is
    ///   done only with its next record; and one that [stands still](crate::range::OutOfRange::Stop) keeps the new ones
    ///   waiting until somebody has moved the group.
    Hold,
}

/// Before the new partitions of a topic that has grown: the old ones, and where each ended when that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    /// The partitions from this number on are new.
    pub(crate) first_new: i32,
    /// All there are.
    pub(crate) partitions: i32,
    /// Old partitions that the group has not committed to their end, with it, or with nothing while it is not known.
    waits_for: BTreeMap<i32, Option<Offset>>,
}

impl Gate {
    /// The gate before the new partitions; `None` when there are none. Of each partition of the topic, in order: what is
    /// committed.
    pub(crate) fn before_new(committed: &[Option<Offset>]) -> Option<Self> {
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
    pub(crate) fn waits_for(&self) -> impl Iterator<Item = (i32, Option<Offset>)> {
        self.waits_for.iter().map(|(number, end)| (*number, *end))
    }

    /// Takes note of how far an old partition has got: its first offset of which it is not known to be settled, and where
    /// its log ends now. What counts is the end that is noted first.
    pub(crate) fn note(&mut self, number: i32, settled_to: Offset, end_now: Offset) {
        if let Some(end) = self.waits_for.get_mut(&number)
            && settled_to >= *end.get_or_insert(end_now)
        {
            self.waits_for.remove(&number);
        }
    }

    /// Whether this partition is one of the new.
    pub(crate) fn is_before(&self, number: i32) -> bool {
        number >= self.first_new
    }

    /// Whether the new partitions may be started.
    pub(crate) fn is_open(&self) -> bool {
        self.waits_for.is_empty()
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
}
