//! Periods of ownership. Whatever belongs to an ended period is fenced: its epoch no longer opens anything.

use std::fmt;

/// One period of ownership of one partition.
///
/// An epoch is never used twice in a process: when a partition is revoked and comes back, it comes back under another
/// epoch, so a late outcome or a stale batch of the earlier period can be told from the present one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AssignmentEpoch {
    slot: u32,
    generation: u32,
}

impl fmt::Debug for AssignmentEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}.{}", self.slot, self.generation)
    }
}

/// What is owned now, by epoch: a slab whose slots are reused under a new generation.
#[derive(Debug)]
pub struct Assignments<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    owned: Option<T>,
}

impl<T> Default for Assignments<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Assignments<T> {
    /// Begins a period of ownership.
    pub fn open(&mut self, owned: T) -> AssignmentEpoch {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                owned: None,
            });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 partitions")
        });
        let entry = &mut self.slots[slot as usize];
        debug_assert!(entry.owned.is_none(), "slot {slot} is taken");
        entry.owned = Some(owned);
        AssignmentEpoch {
            slot,
            generation: entry.generation,
        }
    }

    /// Ends a period of ownership and returns what was kept for it; `None` when it had ended before.
    pub fn close(&mut self, epoch: AssignmentEpoch) -> Option<T> {
        let entry = self.slots.get_mut(epoch.slot as usize)?;
        if entry.generation != epoch.generation {
            return None;
        }
        let owned = entry.owned.take()?;
        // A slot whose generations are used up retires rather than repeats an epoch.
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            self.free.push(epoch.slot);
        }
        Some(owned)
    }

    /// What is owned under `epoch`; `None` fences an ended one.
    #[inline]
    pub fn get(&self, epoch: AssignmentEpoch) -> Option<&T> {
        match self.slots.get(epoch.slot as usize) {
            Some(entry) if entry.generation == epoch.generation => entry.owned.as_ref(),
            _ => None,
        }
    }

    /// As [`get`](Self::get), to change.
    #[inline]
    pub fn get_mut(&mut self, epoch: AssignmentEpoch) -> Option<&mut T> {
        match self.slots.get_mut(epoch.slot as usize) {
            Some(entry) if entry.generation == epoch.generation => entry.owned.as_mut(),
            _ => None,
        }
    }

    /// All open periods, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (AssignmentEpoch, &T)> {
        self.slots.iter().enumerate().filter_map(|(slot, entry)| {
            let epoch = AssignmentEpoch {
                slot: slot as u32,
                generation: entry.generation,
            };
            entry.owned.as_ref().map(|owned| (epoch, owned))
        })
    }

    /// As [`iter`](Self::iter), to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (AssignmentEpoch, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(slot, entry)| {
            let epoch = AssignmentEpoch {
                slot: slot as u32,
                generation: entry.generation,
            };
            entry.owned.as_mut().map(|owned| (epoch, owned))
        })
    }

    /// How many periods are open.
    pub fn len(&self) -> usize {
        self.slots.iter().filter(|entry| entry.owned.is_some()).count()
    }

    /// Whether nothing is owned.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_epoch_opens_nothing_even_when_its_slot_is_reused() {
        let mut assignments = Assignments::default();
        let first = assignments.open("orders[3], first time");
        assert_eq!(assignments.close(first), Some("orders[3], first time"));

        let second = assignments.open("orders[3], second time");
        assert_ne!(first, second);
        assert_eq!(assignments.get(first), None);
        assert_eq!(
            assignments.close(first),
            None,
            "a late close must not end the new period"
        );
        assert_eq!(assignments.get(second), Some(&"orders[3], second time"));
    }
}
