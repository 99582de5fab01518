//! A consumer group: who is a member, who owns what, and what is committed.
//!
//! Two views are kept apart, as they are in Kafka. The *broker's* view is [`Group::owners`]: it decides who is granted a
//! partition and whose commit counts. A *client's* view is [`Member::held`]: it lags behind, and a member that was
//! expired without noticing goes on in good faith.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::Flow;
use seriatim_engine::growth::{Gates, Growth};
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::ports::{Commit, CommitError};

use super::growth::Growing;

/// A member of a group. It keeps its name when it is expired and joins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub(super) u32);

/// How a group's rebalances go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// A member gives back only what another is to have.
    #[default]
    Cooperative,
    /// Everybody gives back everything, then all is dealt anew.
    Eager,
}

/// What becomes of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFault {
    /// It does not take effect; the member may try again.
    Refused,
    /// It does not take effect, and the member is told not to try again.
    Fenced,
    /// It takes effect, but its answer does not arrive.
    AnswerLost,
}

/// A commit that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedCommit {
    /// The partition.
    pub partition: PartitionId,
    /// The next offset to read.
    pub watermark: Offset,
    /// Who sent it; `None` for a commit from outside the group.
    pub member: Option<MemberId>,
    /// Whether the sender owned the partition then.
    pub by_owner: bool,
}

pub(super) struct Committed {
    pub(super) watermark: Offset,
    pub(super) metadata: String,
}

#[derive(Default)]
pub(super) struct Group {
    pub(super) protocol: Protocol,
    pub(super) growth: Growth,
    pub(super) members: BTreeMap<MemberId, Member>,
    pub(super) owners: BTreeMap<PartitionId, MemberId>,
    pub(super) committed: BTreeMap<PartitionId, Committed>,
    pub(super) applied: Vec<AppliedCommit>,
    pub(super) commit_faults: VecDeque<CommitFault>,
    pub(super) commits_held: bool,
    pub(super) answers_held: bool,
    /// Of whom the last rebalance knew, and of how many partitions: an eager group deals anew only when that changes.
    dealt: (Vec<MemberId>, usize),
}

/// One client.
pub(super) struct Member {
    topics: Vec<Arc<str>>,
    pub(super) standing: Standing,
    /// Counts its joins: a commit of an earlier one is refused.
    generation: u32,
    pub(super) held: BTreeMap<PartitionId, Held>,
    /// Background commits on their way.
    sent: VecDeque<Sent>,
    pub(super) answers: VecDeque<Answered>,
    /// The coordinator is out of its reach.
    pub(super) cut_off: bool,
    /// The last time that it has heard everything, and the last from which it knows that the group counts it.
    pub(super) heard_all_at: Option<Instant>,
    pub(super) confirmed_at: Option<Instant>,
    /// Asked to return from its poll.
    pub(super) woken: bool,
    /// Where the next poll begins to look for records, for fairness.
    pub(super) turn: usize,
    pub(super) growing: Growing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Joined,
    /// The broker has dropped it; whether it knows.
    Expired {
        noticed: bool,
    },
}

/// A partition as its holder sees it.
pub(super) struct Held {
    pub(super) stage: Stage,
    pub(super) leaving: Leaving,
    pub(super) position: Offset,
    pub(super) flow: Flow,
    /// It was started behind a closed gate, and waits until none is before it.
    pub(super) barred: bool,
    /// The end of the log that was last reported.
    pub(super) end_told: Option<Offset>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Granted, and not reported yet.
    Offered,
    /// Reported, and not started yet.
    Announced,
    Started(AssignmentEpoch),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    Asked,
    Reported,
}

/// The answer to a background commit.
pub(super) struct Answered {
    pub(super) sent_at: Option<Instant>,
    pub(super) result: Result<Vec<Commit>, CommitError>,
}

struct Sent {
    at: Option<Instant>,
    generation: u32,
    commits: Vec<Commit>,
    partitions: Vec<PartitionId>,
}

impl Held {
    fn offered() -> Self {
        Self {
            stage: Stage::Offered,
            leaving: Leaving::No,
            position: Offset::ZERO,
            flow: Flow::Flowing,
            barred: false,
            end_told: None,
        }
    }

    pub(super) fn epoch(&self) -> Option<AssignmentEpoch> {
        match self.stage {
            Stage::Started(epoch) => Some(epoch),
            Stage::Offered | Stage::Announced => None,
        }
    }

    /// Whether it waits for what other partitions have.
    pub(super) fn waits(&self, partition: &PartitionId, gates: &Gates) -> bool {
        self.barred && gates.bars(partition.topic(), partition.number())
    }
}

impl Member {
    fn wants(&self, partition: &PartitionId) -> bool {
        self.topics.iter().any(|topic| **topic == *partition.topic())
    }

    /// The group counted it then.
    pub(super) fn confirm(&mut self, at: Option<Instant>) {
        self.confirmed_at = self.confirmed_at.max(at);
    }
}

impl Group {
    /// Of each topic: how many partitions it has.
    pub(super) fn join(&mut self, id: MemberId, topics: BTreeMap<Arc<str>, i32>, now: Option<Instant>) {
        let member = Member {
            topics: topics.keys().cloned().collect(),
            standing: Standing::Joined,
            generation: 0,
            held: BTreeMap::new(),
            sent: VecDeque::new(),
            answers: VecDeque::new(),
            cut_off: false,
            heard_all_at: now,
            confirmed_at: now,
            woken: false,
            turn: 0,
            growing: Growing::knowing(topics),
        };
        self.members.insert(id, member);
    }

    pub(super) fn leave(&mut self, id: MemberId) {
        self.members.remove(&id);
        self.owners.retain(|_, owner| *owner != id);
    }

    pub(super) fn expire(&mut self, id: MemberId) {
        self.owners.retain(|_, owner| *owner != id);
        if let Some(member) = self.members.get_mut(&id) {
            member.standing = Standing::Expired { noticed: false };
            // What it was not told of yet it will never be told of.
            member.held.retain(|_, held| held.stage != Stage::Offered);
        }
    }

    pub(super) fn notice_expiry(&mut self, id: MemberId) {
        match self.members.get_mut(&id) {
            Some(member) if member.standing != Standing::Joined => {
                member.standing = Standing::Expired { noticed: true };
                member.cut_off = false;
            }
            _ => {}
        }
    }

    pub(super) fn set_cut_off(&mut self, id: MemberId, cut_off: bool) {
        if let Some(member) = self.members.get_mut(&id) {
            member.cut_off = cut_off;
        }
    }

    /// Takes the lost partitions from an expired member, which is in the group again from here.
    pub(super) fn rejoin(&mut self, id: MemberId) -> Vec<AssignmentEpoch> {
        let member = self.member(id);
        member.standing = Standing::Joined;
        member.generation += 1;
        let lost = std::mem::take(&mut member.held);
        lost.into_values().filter_map(|held| held.epoch()).collect()
    }

    pub(super) fn member(&mut self, id: MemberId) -> &mut Member {
        self.members
            .get_mut(&id)
            .expect("a source is a member until it is closed")
    }

    /// Gives partitions back. What a member no longer owns it gives back for itself only.
    pub(super) fn relinquish(&mut self, id: MemberId, epochs: &[AssignmentEpoch]) {
        let member = self
            .members
            .get_mut(&id)
            .expect("a source is a member until it is closed");
        let joined = member.standing == Standing::Joined;
        // The member rejoins with what it keeps, so a commit that is still on its way comes too late.
        member.generation += 1;
        let owners = &mut self.owners;
        member.held.retain(|partition, held| {
            let keep = !held.epoch().is_some_and(|epoch| epochs.contains(&epoch));
            if !keep && joined {
                owners.remove(partition);
            }
            keep
        });
    }

    // --- rebalances -----------------------------------------------------------------------------------------------

    /// Asks members to give back what others are to have, and grants what nobody has.
    pub(super) fn rebalance(&mut self, partitions: &[PartitionId]) {
        let joined: Vec<MemberId> = self.joined().map(|(id, _)| id).collect();
        let dealt = (joined, self.wanted(partitions).len());
        let before = std::mem::replace(&mut self.dealt, dealt);
        if self.protocol == Protocol::Eager && before != self.dealt {
            for partition in partitions {
                self.ask_back(partition);
            }
        }
        for (partition, target) in self.targets(partitions) {
            if self.owners.get(&partition).is_some_and(|owner| *owner != target) {
                self.ask_back(&partition);
            }
            if !self.owners.contains_key(&partition) && self.may_grant() {
                self.owners.insert(partition.clone(), target);
                self.member(target).held.insert(partition, Held::offered());
            }
        }
    }

    fn joined(&self) -> impl Iterator<Item = (MemberId, &Member)> {
        let joined = self
            .members
            .iter()
            .filter(|(_, member)| member.standing == Standing::Joined);
        joined.map(|(id, member)| (*id, member))
    }

    /// An eager group grants nothing before everything has been given back.
    fn may_grant(&self) -> bool {
        let leaving = |member: &Member| member.held.values().any(|held| held.leaving != Leaving::No);
        self.protocol == Protocol::Cooperative || !self.joined().any(|(_, member)| leaving(member))
    }

    /// Asks a partition's owner to give it back; what the owner was not told of yet is simply taken.
    fn ask_back(&mut self, partition: &PartitionId) {
        let Some(owner) = self.owners.get(partition).copied() else {
            return;
        };
        let member = self.member(owner);
        match member.held.get_mut(partition) {
            Some(held) if held.stage != Stage::Offered => {
                if held.leaving == Leaving::No {
                    held.leaving = Leaving::Asked;
                }
            }
            _ => {
                member.held.remove(partition);
                self.owners.remove(partition);
            }
        }
    }

    /// Who is to own what: each member keeps what it has, up to its fair share, and the rest goes to whoever has least.
    fn targets(&self, partitions: &[PartitionId]) -> BTreeMap<PartitionId, MemberId> {
        let mut loads: BTreeMap<MemberId, usize> = self.joined().map(|(id, _)| (id, 0)).collect();
        let wanted = self.wanted(partitions);
        if loads.is_empty() {
            return BTreeMap::new();
        }
        let (share, mut larger_shares) = (wanted.len() / loads.len(), wanted.len() % loads.len());

        let mut targets = BTreeMap::new();
        for partition in &wanted {
            let Some(owner) = self.stays_with(partition) else {
                continue;
            };
            let load = loads.get_mut(&owner).expect("an owner is a member");
            let keeps = *load < share || (*load == share && larger_shares > 0);
            if keeps {
                larger_shares -= usize::from(*load == share);
                *load += 1;
                targets.insert((*partition).clone(), owner);
            }
        }
        for partition in wanted {
            if !targets.contains_key(partition) {
                let takers = self.joined().filter(|(_, member)| member.wants(partition));
                let taker = takers
                    .map(|(id, _)| id)
                    .min_by_key(|id| loads[id])
                    .expect("somebody wants it");
                *loads.get_mut(&taker).expect("a taker is a member") += 1;
                targets.insert(partition.clone(), taker);
            }
        }
        targets
    }

    /// The partitions that somebody has come for.
    fn wanted<'a>(&self, partitions: &'a [PartitionId]) -> Vec<&'a PartitionId> {
        let is_wanted = |partition: &PartitionId| self.joined().any(|(_, member)| member.wants(partition));
        partitions.iter().filter(|partition| is_wanted(partition)).collect()
    }

    /// The partition's owner, unless it was asked to give it back: that cannot be unsaid.
    fn stays_with(&self, partition: &PartitionId) -> Option<MemberId> {
        let owner = self.owners.get(partition)?;
        let held = self.members.get(owner)?.held.get(partition)?;
        (held.leaving == Leaving::No).then_some(*owner)
    }

    // --- commits --------------------------------------------------------------------------------------------------

    /// Sends a background commit. It is applied now, unless commits are held.
    pub(super) fn send(&mut self, id: MemberId, commits: &[Commit], at: Option<Instant>) -> Result<(), CommitError> {
        let partitions = self.partitions_of(id, commits)?;
        let member = self.member(id);
        if member.cut_off {
            return Err(refused("the coordinator is out of reach", true));
        }
        let generation = member.generation;
        member.sent.push_back(Sent {
            at,
            generation,
            commits: commits.to_vec(),
            partitions,
        });
        if !self.commits_held {
            self.arrive(id);
        }
        Ok(())
    }

    /// Commits and returns the answer.
    pub(super) fn commit(&mut self, id: MemberId, commits: &[Commit], at: Option<Instant>) -> Result<(), CommitError> {
        let partitions = self.partitions_of(id, commits)?;
        if self.commits_held || self.member(id).cut_off {
            return Err(refused("the answer did not come in time", true));
        }
        let generation = self.member(id).generation;
        self.apply(id, generation, commits, &partitions)?;
        self.member(id).confirm(at);
        Ok(())
    }

    pub(super) fn release_commits(&mut self) {
        self.commits_held = false;
        self.answers_held = false;
        let ids: Vec<MemberId> = self.members.keys().copied().collect();
        for id in ids {
            self.arrive(id);
        }
    }

    /// Applies what a member has sent.
    fn arrive(&mut self, id: MemberId) {
        while let Some(sent) = self.member(id).sent.pop_front() {
            let applied = self.apply(id, sent.generation, &sent.commits, &sent.partitions);
            self.member(id).answers.push_back(Answered {
                sent_at: sent.at,
                result: applied.map(|()| sent.commits),
            });
        }
    }

    fn apply(
        &mut self,
        id: MemberId,
        generation: u32,
        commits: &[Commit],
        partitions: &[PartitionId],
    ) -> Result<(), CommitError> {
        let member = &self.members[&id];
        if member.standing != Standing::Joined || member.generation != generation {
            return Err(refused("the member is unknown to the group", false));
        }
        let fault = self.commit_faults.pop_front();
        match fault {
            Some(CommitFault::Refused) => return Err(refused("the coordinator is loading", true)),
            Some(CommitFault::Fenced) => return Err(refused("the generation is over", false)),
            Some(CommitFault::AnswerLost) | None => {}
        }
        // As Kafka, it checks who sends and in which generation, and not whether the sender owns the partition.
        for (commit, partition) in commits.iter().zip(partitions) {
            let by_owner = self.owners.get(partition) == Some(&id);
            self.put(partition, commit.watermark, &commit.metadata, Some(id), by_owner);
        }
        match fault {
            None => Ok(()),
            Some(_) => Err(refused("the answer did not come in time", true)),
        }
    }

    pub(super) fn committed_offset(&self, partition: &PartitionId) -> Option<Offset> {
        self.committed.get(partition).map(|committed| committed.watermark)
    }

    pub(super) fn commit_from_outside(&mut self, partition: &PartitionId, watermark: Offset, metadata: &str) {
        self.put(partition, watermark, metadata, None, false);
    }

    fn put(
        &mut self,
        partition: &PartitionId,
        watermark: Offset,
        metadata: &str,
        member: Option<MemberId>,
        by_owner: bool,
    ) {
        let committed = Committed {
            watermark,
            metadata: metadata.to_owned(),
        };
        self.committed.insert(partition.clone(), committed);
        self.applied.push(AppliedCommit {
            partition: partition.clone(),
            watermark,
            member,
            by_owner,
        });
    }

    /// The partitions that a member's commits are for.
    fn partitions_of(&self, id: MemberId, commits: &[Commit]) -> Result<Vec<PartitionId>, CommitError> {
        let held = &self.members[&id].held;
        let partition_of = |commit: &Commit| {
            let mut found = held.iter().filter(|(_, held)| held.epoch() == Some(commit.epoch));
            let partition = found.next().map(|(partition, _)| partition.clone());
            partition.ok_or_else(|| refused(&format!("nothing is held under {:?}", commit.epoch), false))
        };
        commits.iter().map(partition_of).collect()
    }
}

fn refused(reason: &str, retriable: bool) -> CommitError {
    CommitError {
        reason: reason.to_owned(),
        retriable,
        metadata_too_long: false,
    }
}
