//! A partition whose next offset is not in its log.
//!
//! The client stops fetching it. Where its log begins and ends is asked, and then the policy decides: the partition stands
//! still; or it goes on behind what was deleted, in the same period of ownership, since what was delivered before is still
//! to be settled; or, when the log is not the one that was read, the period ends without a commit, since an offset of the
//! old log means nothing in the new one, and another begins.
//!
//! A topic that was deleted and created anew may have an offset again that is of the former one. Its id tells: it is asked at
//! each assignment, and now and then while it is read (`TOPICS_INTERVAL_DEFAULT`).

use std::time::{Duration, Instant};

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::ports::{Granted, Source, SourceEvent, Start};

use super::KafkaSource;
use super::aide::Errand;
use super::group::ASK_AGAIN_AFTER;
use crate::native::client::Protocol;
use crate::native::event::ClientEvent;
use crate::range::{Extent, Missing, OutOfRange, Verdict};

/// Something that was missed in a period of ownership.
#[derive(Clone, Debug)]
pub(super) struct Search {
    pub(super) epoch: AssignmentEpoch,
    pub(super) missing: Missing,
}

impl KafkaSource {
    pub(super) fn out_of_range(&mut self, partition: PartitionId, wanted: Option<Offset>) {
        // Without a delivery it was given back: its next owner is told too.
        if let Some(epoch) = self.deliveries.epoch(&partition) {
            let missing = Missing {
                partition,
                wanted,
                of_former_topic: false,
            };
            self.search(Search { epoch, missing }, Instant::now());
        }
    }

    /// Asks where the log begins and ends.
    pub(super) fn search(&mut self, search: Search, now: Instant) {
        let Some(client) = &self.client else { return };
        if !client.aide.send(Errand::Extent(search.clone())) {
            self.questions.search_later(search, now + ASK_AGAIN_AFTER);
        }
    }

    /// Takes note of the topic that now has this name: partitions that are read as another's are begun anew.
    pub(super) fn note_incarnation(&mut self, topic: &str, incarnation: u64) {
        let is_other = |partition: &PartitionId| {
            let known = self.incarnations.get(partition);
            partition.topic() == topic && known.is_some_and(|known| *known != incarnation)
        };
        let owned = self.holdings.owned().filter(|(_, partition)| is_other(partition));
        let searches = owned.map(|(epoch, partition)| Search {
            epoch,
            missing: Missing {
                partition: partition.clone(),
                wanted: None,
                of_former_topic: true,
            },
        });
        for search in searches.collect::<Vec<_>>() {
            self.search(search, Instant::now());
        }
    }

    pub(super) fn searched(&mut self, search: Search, extent: Option<Extent>, incarnation: Option<u64>) {
        let Search { epoch, mut missing } = search.clone();
        let known = self.incarnations.get(&missing.partition).copied();
        missing.of_former_topic |= known.zip(incarnation).is_some_and(|(known, is)| known != is);
        if self.holdings.partition(epoch).is_none() {
            return;
        }
        let Some(extent) = extent else {
            self.report(missing.stopped(None));
            return self.questions.search_later(search, Instant::now() + ASK_AGAIN_AFTER);
        };
        let partition = missing.partition.clone();
        let verdict = match self.policy_for(&partition) {
            // To change what is consumed would answer the revocation that is under way, before all of it is drained.
            OutOfRange::Earliest | OutOfRange::Latest if self.holdings.owes_answer() => {
                return self.questions.search_later(search, Instant::now() + ASK_AGAIN_AFTER);
            }
            policy => missing.verdict(policy, extent),
        };
        match verdict {
            Verdict::Stop => {
                let is_cut_short = missing.is_cut_short(extent);
                self.report(missing.stopped(Some(extent)));
                if is_cut_short {
                    self.relinquish(&[epoch]);
                    self.events.push_back(SourceEvent::Lost(vec![epoch]));
                }
            }
            Verdict::Skip(to) => {
                self.interrupt(&partition);
                let start = Start {
                    partition: partition.clone(),
                    epoch,
                    from: Some(to),
                };
                if self.holdings.resume(start) {
                    self.report(missing.moved(extent, to));
                    self.deliveries.skip_to(&partition, to);
                    self.jumps.insert(partition, to);
                    self.consume_started();
                }
            }
            Verdict::Restart(at) => {
                self.interrupt(&partition);
                if self.holdings.offer_anew(epoch) {
                    self.report(missing.moved(extent, at));
                    self.deliveries.end(&partition);
                    self.jumps.insert(partition.clone(), at);
                    self.events.push_back(SourceEvent::Lost(vec![epoch]));
                    self.know_incarnation(&partition, incarnation);
                    self.events
                        .push_back(SourceEvent::Assigned(vec![anew(partition, incarnation)]));
                }
            }
        }
    }

    /// Decides at once about a partition that the group gives us, if its log is known. Returns what to offer of it; nothing
    /// when it stands still, or is asked about again.
    pub(super) fn place(&mut self, granted: Granted, extent: Option<Extent>) -> Option<Granted> {
        let partition = granted.partition.clone();
        let of_former_topic = granted.is_of_former_topic();
        let Some(extent) = extent.filter(|_| granted.committed.is_some()) else {
            if of_former_topic {
                let ticket = self.holdings.grant(&[partition]);
                self.questions.ask_committed_later(ticket, Instant::now());
                return None;
            }
            self.know_incarnation(&partition, granted.incarnation);
            return Some(granted);
        };
        self.know_incarnation(&partition, granted.incarnation);
        let is_there = granted
            .committed
            .is_some_and(|next| (extent.0..=extent.1).contains(&next));
        if is_there && !of_former_topic {
            return Some(granted);
        }
        let missing = Missing {
            partition: partition.clone(),
            wanted: granted.committed,
            of_former_topic,
        };
        let (granted, place) = match missing.verdict(self.policy.of(partition.topic()), extent) {
            Verdict::Stop if of_former_topic => {
                self.report(missing.stopped(Some(extent)));
                self.holdings.withhold(&partition);
                // The others waited for it, in an eager group.
                self.consume_started();
                return None;
            }
            // The client will say that it is not there.
            Verdict::Stop => return Some(granted),
            Verdict::Skip(to) => (granted, to),
            Verdict::Restart(at) => (anew(partition.clone(), granted.incarnation), at),
        };
        self.report(missing.moved(extent, place));
        self.jumps.insert(partition, place);
        Some(granted)
    }

    fn know_incarnation(&mut self, partition: &PartitionId, incarnation: Option<u64>) {
        match incarnation {
            Some(incarnation) => self.incarnations.insert(partition.clone(), incarnation),
            None => self.incarnations.remove(partition),
        };
    }

    /// The policy for a partition that is consumed. Eager members change what they consume only as a whole, and by order of
    /// the group: theirs stands still until the next assignment, where it is placed anew.
    fn policy_for(&self, partition: &PartitionId) -> OutOfRange {
        match self.protocol {
            Protocol::Cooperative => self.policy.of(partition.topic()),
            Protocol::Eager => OutOfRange::Stop,
        }
    }

    /// Ends the client's consumption of a partition that the group has not asked for.
    fn interrupt(&mut self, partition: &PartitionId) {
        self.holdings.interrupt(partition);
        let Some(client) = &self.client else { return };
        let interrupted = client.consumer.interrupt(partition);
        self.note_answered(interrupted);
        // A revocation that was on its way has taken this for its answer, and the group goes on: what it takes may be
        // another's before it could be drained.
        while let Some(event) = self
            .client
            .as_ref()
            .and_then(|client| client.consumer.next_event(Duration::ZERO))
        {
            match event {
                ClientEvent::Revoked { partitions, .. } => self.lost(partitions),
                event => self.take_event(event),
            }
        }
    }
}

/// A partition for which nothing that was committed counts.
fn anew(partition: PartitionId, incarnation: Option<u64>) -> Granted {
    Granted {
        partition,
        committed: None,
        metadata: String::new(),
        end: None,
        incarnation,
    }
}
