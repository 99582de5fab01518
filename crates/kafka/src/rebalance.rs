//! What the group has given to this member, and what it wants back.
//!
//! A partition is *asked* about when the group has given it (what was committed for it?), *offered* to the dispatcher
//! with the answer, *started* by the dispatcher under an epoch, and at last given back: drained after a revocation, or
//! at once when it was lost. librdkafka knows only the started ones. It waits for an answer to each rebalance, and how
//! it does so makes the rules:
//!
//! - An assignment is answered at once, with nothing in it; the partitions follow one by one when they are started.
//!   librdkafka stops *all* fetches until the answer comes, and a coordinator that is away may keep us from asking.
//! - A revocation is answered by one call that ends the consumption of all of it. librdkafka takes the first such call,
//!   for whatever partition, as the whole answer, and the group goes on: so the call is made when the last partition has
//!   been relinquished, and never without a revocation.
//! - Under the eager protocol an assignment replaces all there was: so it is made when every partition was started, and
//!   who changes one partition begins all of them again.

use std::collections::{HashMap, HashSet};

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::record::PartitionId;
use seriatim_runtime::ports::{Granted, Start};

use crate::native::client::Protocol;

/// One question about committed offsets. An answer to an earlier one says nothing about a partition that has left and
/// come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// The partitions of this member.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    grants: HashMap<PartitionId, Grant>,
    epochs: HashMap<AssignmentEpoch, PartitionId>,
    tickets: u64,
    /// Started by the dispatcher, not yet passed on to the client.
    starts: Vec<Start>,
    /// Passed on to the client, and not taken from it.
    consumed: HashSet<PartitionId>,
    revocation: Option<Revocation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grant {
    Asked(Ticket),
    Offered,
    Started(AssignmentEpoch),
}

/// What the group wants back, and which of it still drains.
#[derive(Debug, Default)]
struct Revocation {
    wanted: Vec<PartitionId>,
    draining: HashSet<PartitionId>,
}

impl Holdings {
    /// The group gives `partitions`. Returns the ticket of the question about them.
    pub(crate) fn grant(&mut self, partitions: &[PartitionId]) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        for partition in partitions {
            self.grants.insert(partition.clone(), Grant::Asked(ticket));
        }
        ticket
    }

    /// Which partitions still want an answer to this question.
    pub(crate) fn asked(&self, ticket: Ticket) -> Vec<PartitionId> {
        let asked = self.grants.iter().filter(|(_, grant)| **grant == Grant::Asked(ticket));
        asked.map(|(partition, _)| partition.clone()).collect()
    }

    /// The answer has come. Returns what to offer: what has left meanwhile is not among it.
    pub(crate) fn offer(&mut self, ticket: Ticket, mut answers: Vec<Granted>) -> Vec<Granted> {
        answers.retain(|answer| match self.grants.get_mut(&answer.partition) {
            Some(grant) if *grant == Grant::Asked(ticket) => {
                *grant = Grant::Offered;
                true
            }
            _ => false,
        });
        answers
    }

    /// The dispatcher begins a period of ownership; `false` when the offer no longer stands.
    pub(crate) fn start(&mut self, start: &Start) -> bool {
        match self.grants.get_mut(&start.partition) {
            Some(grant) if *grant == Grant::Offered => {
                *grant = Grant::Started(start.epoch);
                self.epochs.insert(start.epoch, start.partition.clone());
                self.starts.push(start.clone());
                true
            }
            _ => false,
        }
    }

    /// What the client is to consume now, under `protocol`.
    pub(crate) fn take_starts(&mut self, protocol: Protocol) -> Vec<Start> {
        let is_started = |grant: &Grant| matches!(grant, Grant::Started(_));
        if protocol == Protocol::Eager && !self.grants.values().all(is_started) {
            return Vec::new();
        }
        let starts = std::mem::take(&mut self.starts);
        self.consumed.extend(starts.iter().map(|start| start.partition.clone()));
        starts
    }

    /// The group wants `partitions` back. Returns the epochs to drain; what was not started goes at once.
    pub(crate) fn revoke(&mut self, partitions: Vec<PartitionId>) -> Vec<AssignmentEpoch> {
        let mut epochs = Vec::new();
        let mut revocation = self.revocation.take().unwrap_or_default();
        for partition in &partitions {
            match self.grants.get(partition) {
                Some(Grant::Started(epoch)) => {
                    epochs.push(*epoch);
                    revocation.draining.insert(partition.clone());
                }
                Some(Grant::Asked(_) | Grant::Offered) => {
                    self.grants.remove(partition);
                }
                None => {}
            }
        }
        revocation.wanted.extend(partitions);
        self.revocation = Some(revocation);
        epochs
    }

    /// The group has taken `partitions`. Returns the epochs that this ended.
    pub(crate) fn lose(&mut self, partitions: Vec<PartitionId>) -> Vec<AssignmentEpoch> {
        let epochs = self.revoke(partitions);
        for epoch in &epochs {
            self.relinquish(*epoch);
        }
        epochs
    }

    /// The dispatcher has drained a partition, and returns it.
    pub(crate) fn relinquish(&mut self, epoch: AssignmentEpoch) -> Option<PartitionId> {
        let partition = self.epochs.remove(&epoch)?;
        self.grants.remove(&partition);
        self.starts.retain(|start| start.epoch != epoch);
        if let Some(revocation) = &mut self.revocation {
            revocation.draining.remove(&partition);
        }
        Some(partition)
    }

    /// Nothing of an offered partition is to be read: it stands still until the group takes it back.
    pub(crate) fn withhold(&mut self, partition: &PartitionId) {
        self.grants.remove(partition);
    }

    /// The client consumes `partition` no more, though the group has not asked for it: until [`resume`](Self::resume), or
    /// until it is [offered anew](Self::offer_anew) and started.
    pub(crate) fn interrupt(&mut self, partition: &PartitionId) {
        self.consumed.remove(partition);
    }

    /// The client is to consume an interrupted partition again, in the same period of ownership. Returns whether that
    /// goes on. Of two places to go on at, the later call's counts.
    pub(crate) fn resume(&mut self, start: Start) -> bool {
        let goes_on = self.epochs.contains_key(&start.epoch);
        if goes_on {
            self.starts.retain(|former| former.epoch != start.epoch);
            self.starts.push(start);
        }
        goes_on
    }

    /// Ends a period of ownership so that another may begin. Returns whether there was any.
    pub(crate) fn offer_anew(&mut self, epoch: AssignmentEpoch) -> bool {
        let Some(partition) = self.relinquish(epoch) else {
            return false;
        };
        self.grants.insert(partition, Grant::Offered);
        true
    }

    /// The answer to the group's revocation, once all of it has been relinquished: what the client consumes of it.
    pub(crate) fn take_answer(&mut self) -> Option<Vec<PartitionId>> {
        let revocation = self.revocation.take_if(|revocation| revocation.draining.is_empty())?;
        let mut wanted = revocation.wanted;
        wanted.retain(|partition| self.consumed.remove(partition));
        Some(wanted)
    }

    /// Whether the group waits for the answer to a revocation.
    pub(crate) fn owes_answer(&self) -> bool {
        self.revocation.is_some()
    }

    /// The partition that is owned under `epoch`; `None` fences an ended one.
    pub(crate) fn partition(&self, epoch: AssignmentEpoch) -> Option<&PartitionId> {
        self.epochs.get(&epoch)
    }

    /// Whether the group has given any such partition, started or not.
    pub(crate) fn has(&self, is_such: impl Fn(&PartitionId) -> bool) -> bool {
        self.grants.keys().any(is_such)
    }

    /// Those of them that the client consumes.
    pub(crate) fn consumed(&self) -> impl Iterator<Item = (AssignmentEpoch, &PartitionId)> {
        self.owned().filter(|(_, partition)| self.consumed.contains(*partition))
    }

    /// All periods of ownership.
    pub(crate) fn owned(&self) -> impl Iterator<Item = (AssignmentEpoch, &PartitionId)> {
        self.epochs.iter().map(|(epoch, partition)| (*epoch, partition))
    }

    /// Whether `partition` is to be given back.
    pub(crate) fn is_wanted_back(&self, partition: &PartitionId) -> bool {
        self.revocation
            .as_ref()
            .is_some_and(|revocation| revocation.draining.contains(partition))
    }
}

#[cfg(test)]
mod tests {
    use seriatim_engine::assignment::Assignments;
    use seriatim_engine::record::Offset;

    use super::*;

    /// Holdings, and the dispatcher's names for them.
    #[derive(Default)]
    struct Member {
        holdings: Holdings,
        assignments: Assignments<PartitionId>,
    }

    fn orders(numbers: &[i32]) -> Vec<PartitionId> {
        numbers
            .iter()
            .map(|number| PartitionId::new("orders", *number))
            .collect()
    }

    fn sorted(mut partitions: Vec<PartitionId>) -> Vec<PartitionId> {
        partitions.sort();
        partitions
    }

    fn committed_nothing(partitions: Vec<PartitionId>) -> Vec<Granted> {
        let granted = |partition| Granted {
            partition,
            committed: None,
            metadata: String::new(),
            begin: None,
            end: None,
            incarnation: None,
        };
        partitions.into_iter().map(granted).collect()
    }

    impl Member {
        fn granted(numbers: &[i32]) -> Self {
            let mut member = Self::default();
            member.grant(numbers);
            member
        }

        fn grant(&mut self, numbers: &[i32]) {
            let ticket = self.holdings.grant(&orders(numbers));
            let offered = self.holdings.offer(ticket, committed_nothing(orders(numbers)));
            assert_eq!(offered.len(), numbers.len());
        }

        fn start(&mut self, number: i32) -> Result<AssignmentEpoch, AssignmentEpoch> {
            let partition = PartitionId::new("orders", number);
            let start = Start {
                epoch: self.assignments.open(partition.clone()),
                partition,
                from: Some(Offset::ZERO),
            };
            let started = self.holdings.start(&start);
            started.then_some(start.epoch).ok_or(start.epoch)
        }

        fn started(&mut self, protocol: Protocol) -> Vec<PartitionId> {
            let starts = self.holdings.take_starts(protocol);
            sorted(starts.into_iter().map(|start| start.partition).collect())
        }
    }

    #[test]
    fn a_revocation_is_answered_once_and_only_when_all_of_it_is_drained() {
        let mut member = Member::granted(&[0, 1, 2]);
        let epochs = [0, 1, 2].map(|number| member.start(number).unwrap());
        assert_eq!(member.started(Protocol::Cooperative), orders(&[0, 1, 2]));

        assert_eq!(member.holdings.revoke(orders(&[1, 2])), epochs[1..]);
        assert_eq!(member.holdings.take_answer(), None, "the group must wait for the drain");
        member.holdings.relinquish(epochs[1]);
        assert_eq!(
            member.holdings.take_answer(),
            None,
            "one call answers all: not before the last"
        );
        member.holdings.relinquish(epochs[2]);
        assert_eq!(member.holdings.take_answer(), Some(orders(&[1, 2])));
        assert_eq!(member.holdings.take_answer(), None);
        assert_eq!(member.holdings.partition(epochs[0]), Some(&orders(&[0])[0]));
        assert_eq!(member.holdings.partition(epochs[1]), None);
    }

    #[test]
    fn what_is_relinquished_without_a_revocation_waits_for_one() {
        let mut member = Member::granted(&[0, 1]);
        let epochs = [0, 1].map(|number| member.start(number).unwrap());
        member.started(Protocol::Cooperative);

        member.holdings.relinquish(epochs[0]);
        assert_eq!(
            member.holdings.take_answer(),
            None,
            "it would answer a revocation that is under way"
        );
        assert_eq!(member.holdings.revoke(orders(&[0, 1])), [epochs[1]]);
        member.holdings.relinquish(epochs[1]);
        assert_eq!(member.holdings.take_answer(), Some(orders(&[0, 1])));
    }

    #[test]
    fn what_was_never_started_is_given_back_at_once() {
        let mut member = Member::granted(&[0]);
        let asked = member.holdings.grant(&orders(&[1]));
        assert_eq!(member.holdings.revoke(orders(&[0, 1])), []);
        assert_eq!(
            member.holdings.take_answer(),
            Some(Vec::new()),
            "answered, with nothing in it"
        );

        assert!(member.start(0).is_err(), "the offer no longer stands");
        assert!(member.holdings.offer(asked, committed_nothing(orders(&[1]))).is_empty());
    }

    #[test]
    fn an_answer_from_before_a_partition_left_is_not_for_its_return() {
        let mut member = Member::default();
        let first = member.holdings.grant(&orders(&[0]));
        member.holdings.revoke(orders(&[0]));
        member.holdings.take_answer();

        let second = member.holdings.grant(&orders(&[0]));
        assert!(member.holdings.offer(first, committed_nothing(orders(&[0]))).is_empty());
        assert_eq!(member.holdings.asked(second), orders(&[0]));
        assert_eq!(member.holdings.offer(second, committed_nothing(orders(&[0]))).len(), 1);
        assert_eq!(member.holdings.asked(second), []);
    }

    #[test]
    fn a_partition_that_comes_back_is_not_taken_by_its_old_epoch() {
        let mut member = Member::granted(&[0]);
        let old = member.start(0).unwrap();
        member.started(Protocol::Cooperative);
        member.holdings.revoke(orders(&[0]));
        member.holdings.relinquish(old);
        member.holdings.take_answer();

        member.grant(&[0]);
        let new = member.start(0).unwrap();
        assert_eq!(member.started(Protocol::Cooperative), orders(&[0]));
        assert_eq!(member.holdings.relinquish(old), None);
        assert_eq!(member.holdings.partition(new), Some(&orders(&[0])[0]));
    }

    #[test]
    fn a_loss_ends_all_at_once_even_in_the_middle_of_a_drain() {
        let mut member = Member::granted(&[0, 1]);
        let epochs = [0, 1].map(|number| member.start(number).unwrap());
        member.started(Protocol::Cooperative);
        member.holdings.revoke(orders(&[0]));
        assert!(member.holdings.is_wanted_back(&orders(&[0])[0]));

        assert_eq!(member.holdings.lose(orders(&[0, 1])), epochs);
        assert_eq!(member.holdings.take_answer().map(sorted), Some(orders(&[0, 1])));
        assert_eq!(member.holdings.owned().count(), 0);
        assert_eq!(
            member.holdings.relinquish(epochs[0]),
            None,
            "the drain's end comes late"
        );
    }

    #[test]
    fn an_interrupted_partition_goes_on_in_its_period_or_in_a_new_one() {
        let mut member = Member::granted(&[0, 1]);
        let epochs = [0, 1].map(|number| member.start(number).unwrap());
        member.started(Protocol::Cooperative);
        for partition in &orders(&[0, 1]) {
            member.holdings.interrupt(partition);
        }
        let start = |epoch| Start {
            partition: orders(&[0]).remove(0),
            epoch,
            from: Some(Offset::new(500)),
        };
        assert!(member.holdings.resume(start(epochs[0])));
        assert_eq!(member.started(Protocol::Cooperative), orders(&[0]));

        assert!(member.holdings.offer_anew(epochs[1]));
        assert!(!member.holdings.offer_anew(epochs[1]), "it has ended");
        let anew = member.start(1).unwrap();
        assert_eq!(member.holdings.partition(epochs[1]), None);
        assert_eq!(member.holdings.partition(anew), Some(&orders(&[1])[0]));
        assert_eq!(member.started(Protocol::Cooperative), orders(&[1]));

        member.holdings.lose(orders(&[0]));
        assert!(!member.holdings.resume(start(epochs[0])), "lost meanwhile");
    }

    #[test]
    fn a_partition_that_is_withheld_keeps_nothing_waiting() {
        for protocol in [Protocol::Cooperative, Protocol::Eager] {
            let mut member = Member::granted(&[0, 1]);
            let started = member.start(0).unwrap();
            member.holdings.withhold(&orders(&[1])[0]);
            assert_eq!(member.started(protocol), orders(&[0]));
            assert!(member.start(1).is_err(), "nothing of it is to be read");
            assert_eq!(member.holdings.revoke(orders(&[0, 1])), [started]);
            member.holdings.relinquish(started);
            assert_eq!(member.holdings.take_answer(), Some(orders(&[0])));
        }
    }

    #[test]
    fn eager_partitions_are_consumed_when_all_are_started() {
        let mut member = Member::granted(&[0, 1]);
        let first = member.start(0).unwrap();
        assert_eq!(member.started(Protocol::Eager), []);
        let second = member.start(1).unwrap();
        assert_eq!(member.started(Protocol::Eager), orders(&[0, 1]));

        assert_eq!(member.holdings.revoke(orders(&[0, 1])), [first, second]);
        member.holdings.relinquish(first);
        member.holdings.relinquish(second);
        assert_eq!(member.holdings.take_answer(), Some(orders(&[0, 1])));
    }
}
