//! A partition whose next offset is not in its log.
//!
//! The client stops fetching it. Where its log begins and ends is asked, and then the policy decides: the partition stands
//! still; or it goes on behind what was deleted, in the same period of ownership, since what was delivered before is still
//! to be settled; or, when the log is not the one that was read, the period ends without a commit, since an offset of the
//! old log means nothing in the new one, and another begins.
//!
//! A topic that was deleted and created anew may have an offset again that is of the former one. Its id tells: it is asked at
//! each assignment, while it is read whenever the client itself has heard of topics (`native::news`), and now and then
//! (`TOPICS_INTERVAL_DEFAULT`). What is fetched of a topic that is gone is not delivered before it is known whose it is.

use std::time::Instant;

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::ports::{Granted, Source, SourceEvent, Start};

use super::KafkaSource;
use super::aide::Errand;
use super::questions::ASK_AGAIN_AFTER;
use crate::range::{Extent, Missing, Verdict};

/// Something that was missed in a period of ownership.
#[derive(Clone, Debug)]
pub(super) struct Search {
    pub(super) epoch: AssignmentEpoch,
    pub(super) missing: Missing,
}

impl KafkaSource {
    /// The client has said that a place is not in the log, and has stopped there, unless it spoke of an earlier period.
    pub(super) fn out_of_range(&mut self, partition: PartitionId, wanted: Option<Offset>, follows: Option<Offset>) {
        let Some(epoch) = self.deliveries.epoch(&partition) else {
            // It was given back: its next owner is told too.
            return self.deliveries.note_outlived(partition, wanted);
        };
        self.deliveries.fence(&partition, wanted);
        if !self.questions.is_searching(epoch) {
            let missing = self.missing(partition, wanted, follows);
            self.search(Search { epoch, missing }, Instant::now());
        }
    }

    /// Hears what was said of these partitions while they were nobody's here.
    pub(super) fn hear_outlived(&mut self, starts: &[Start]) {
        for Start { partition, .. } in starts {
            if let Some(place) = self.deliveries.take_outlived(partition) {
                self.out_of_range(partition.clone(), Some(place), None);
            }
        }
    }

    /// What is missing, and whether the partition is there once it has got as far as to what this `follows`. What the client says
    /// waits in its queue beyond the period that it is about, and is read in the next: it has no version that would be out of
    /// date (`rd_kafka_offset_reset`).
    fn missing(&self, partition: PartitionId, wanted: Option<Offset>, follows: Option<Offset>) -> Missing {
        let position = self.deliveries.position(&partition).max(follows.map(Offset::next));
        Missing {
            elsewhere: position.filter(|position| wanted.is_some_and(|wanted| wanted != *position)),
            ..Missing::new(partition, wanted)
        }
    }

    /// Asks where the log begins and ends.
    pub(super) fn search(&mut self, search: Search, now: Instant) {
        let Some(client) = &self.client else { return };
        self.questions.begin_search(search.epoch);
        if !client.aide.send(Errand::Extent(search.clone())) {
            self.questions.search_later(search, now + ASK_AGAIN_AFTER);
        }
    }

    /// Takes note that there is no topic of this name: the next may be another.
    pub(super) fn note_deleted(&mut self, topic: &str) {
        let Some(client) = &self.client else { return };
        if self.deliveries.doubt(topic, |partition| client.flow.hold(partition)) {
            self.questions.ask_topics_soon(Instant::now());
        }
    }

    /// Takes note of the topic that now has this name: partitions that are read as another's are begun anew.
    pub(super) fn note_incarnation(&mut self, topic: &str, incarnation: u64) {
        let is_other = |partition: &PartitionId| {
            let known = self.incarnations.get(partition);
            partition.topic() == topic && known.is_some_and(|known| *known != incarnation)
        };
        let owned = self.holdings.owned();
        let owned = owned.filter(|(epoch, partition)| is_other(partition) && !self.questions.is_searching(*epoch));
        let searches = owned.map(|(epoch, partition)| Search {
            epoch,
            missing: Missing {
                of_former_topic: true,
                ..Missing::new(partition.clone(), None)
            },
        });
        for search in searches.collect::<Vec<_>>() {
            // Nothing more of this period counts.
            self.deliveries.stop(&search.missing.partition, None);
            self.search(search, Instant::now());
        }
    }

    pub(super) fn searched(&mut self, search: Search, extent: Option<Extent>, incarnation: Option<u64>) {
        let Search { epoch, mut missing } = search.clone();
        let known = self.incarnations.get(&missing.partition).copied();
        missing.of_former_topic |= known.zip(incarnation).is_some_and(|(known, is)| known != is);
        self.questions.end_search(epoch);
        if self.holdings.partition(epoch).is_none() {
            return;
        }
        if missing.elsewhere.is_some() {
            let position = self.deliveries.position(&missing.partition);
            missing.elsewhere = position.filter(|_| !missing.of_former_topic);
        }
        let Some(extent) = extent else {
            if missing.elsewhere.is_none() {
                self.report(missing.stopped(None));
            }
            return self.questions.search_later(search, Instant::now() + ASK_AGAIN_AFTER);
        };
        let partition = missing.partition.clone();
        let is_cut_short = missing.is_cut_short(extent);
        if self.holdings.is_wanted_back(&partition) {
            // Its next owner is told, and places it anew. What was settled of another log is not to be committed for it.
            return if is_cut_short {
                self.forsake(epoch)
            };
        }
        match missing.verdict(self.policy.of(partition.topic()), extent) {
            Verdict::Stop => {
                self.report(missing.stopped(Some(extent)));
                if is_cut_short {
                    self.forsake(epoch);
                }
            }
            // To change what is consumed would answer the revocation that is under way, before all of it is drained.
            _ if self.holdings.owes_answer() => {
                self.questions.search_later(search, Instant::now() + ASK_AGAIN_AFTER);
            }
            Verdict::Elsewhere(place) => {
                if self.restart(epoch, &partition, place) {
                    self.consume_started();
                }
            }
            Verdict::Skip(to) => {
                if self.restart(epoch, &partition, to) {
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
            of_former_topic,
            ..Missing::new(partition.clone(), granted.committed)
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
            Verdict::Stop | Verdict::Elsewhere(_) => return Some(granted),
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

    /// Ends a period of ownership without a commit.
    fn forsake(&mut self, epoch: AssignmentEpoch) {
        self.relinquish(&[epoch]);
        self.events.push_back(SourceEvent::Lost(vec![epoch]));
    }
}

/// A partition for which nothing that was committed counts.
fn anew(partition: PartitionId, incarnation: Option<u64>) -> Granted {
    Granted {
        partition,
        committed: None,
        metadata: String::new(),
        begin: None,
        end: None,
        incarnation,
    }
}

#[cfg(test)]
mod tests {
    use seriatim_engine::assignment::Assignments;

    use super::*;
    use crate::growth::Growth;
    use crate::native::client::Protocol;
    use crate::native::event::ClientEvent;
    use crate::range::{OutOfRange, OutOfRangePolicy};
    use crate::source::{SourceSettings, StartAt};

    /// An eager member that no broker answers, with one partition that it has started.
    fn member() -> (KafkaSource, Search) {
        let mut out_of_range = OutOfRangePolicy::default();
        out_of_range.set(OutOfRange::Earliest);
        let (mut source, _) = KafkaSource::connect(SourceSettings {
            brokers: "127.0.0.1:1".to_owned(),
            group: "g".to_owned(),
            topics: vec!["orders".to_owned()],
            start_at: StartAt::Earliest,
            out_of_range,
            growth: Growth::Warn,
            properties: "".parse().unwrap(),
        })
        .unwrap();
        source.protocol = Protocol::Eager;
        let partition = PartitionId::new("orders", 3);
        let ticket = source.holdings.grant(std::slice::from_ref(&partition));
        source.holdings.offer(ticket, vec![anew(partition.clone(), None)]);
        let epoch = Assignments::default().open(());
        let from = Some(Offset::new(1042));
        source.start(&[Start {
            partition: partition.clone(),
            epoch,
            from,
        }]);
        let missing = Missing::new(partition, from);
        (source, Search { epoch, missing })
    }

    fn revoke(source: &mut KafkaSource, search: &Search) {
        source.take_event(ClientEvent::Revoked {
            partitions: vec![search.missing.partition.clone()],
            lost: false,
        });
        assert!(matches!(&source.events.pop_front(), Some(SourceEvent::Revoked(epochs)) if epochs == &[search.epoch]));
    }

    fn deleted_from_the_front() -> Option<Extent> {
        Some((Offset::new(2000), Offset::new(3000)))
    }

    fn cut_short() -> Option<Extent> {
        Some((Offset::ZERO, Offset::new(10)))
    }

    #[test]
    fn what_is_wanted_back_is_not_moved_and_drains() {
        let (mut source, search) = member();
        revoke(&mut source, &search);
        source.searched(search.clone(), deleted_from_the_front(), None);
        assert!(source.events.is_empty(), "{:?}", source.events);
        assert!(source.holdings.owes_answer(), "not before it is drained");
        assert!(source.holdings.partition(search.epoch).is_some());

        source.relinquish(&[search.epoch]);
        assert!(!source.holdings.owes_answer());
        assert_eq!(source.failure, None);
    }

    #[test]
    fn what_is_wanted_back_of_another_log_ends_at_once_and_commits_nothing() {
        let (mut source, search) = member();
        revoke(&mut source, &search);
        source.searched(search.clone(), cut_short(), None);
        assert!(matches!(&source.events.pop_front(), Some(SourceEvent::Lost(epochs)) if epochs == &[search.epoch]));
        assert!(source.events.is_empty() && !source.holdings.owes_answer());
        let late = seriatim_runtime::ports::Commit {
            epoch: search.epoch,
            watermark: Offset::new(1042),
            metadata: String::new(),
        };
        assert!(source.owned_of(&[late]).is_empty());
        assert_eq!(source.failure, None);
    }

    #[test]
    fn what_was_said_of_another_place_moves_nothing() {
        let (mut source, Search { epoch, missing }) = member();
        let (partition, place) = (missing.partition, Offset::new);
        let there = |follows| source.missing(partition.clone(), Some(place(1_050)), follows);
        assert_eq!(there(Some(place(1_049))).elsewhere, None, "the rest is read just now");
        assert_eq!(there(Some(place(1_048))).elsewhere, Some(place(1_049)));
        let missing = there(None);
        assert_eq!(missing.elsewhere, Some(place(1_042)));
        // And if it gets there meanwhile, it is as good as any other place.
        source.deliveries.skip_to(&partition, place(1_050));
        let search = Search { epoch, missing };
        source.searched(search.clone(), None, None);
        source.searched(search, cut_short(), None);
        assert!(source.events.is_empty(), "{:?}", source.events);
        assert_eq!(source.failure, None);
    }

    #[test]
    fn while_it_is_searched_for_nobody_searches_again() {
        let (mut source, search) = member();
        let partition = &search.missing.partition;
        source.out_of_range(partition.clone(), search.missing.wanted, None);
        assert!(source.questions.is_searching(search.epoch));
        // Another that is moved meanwhile begins all again, but not this one, which would only stop again.
        source.interrupt(&PartitionId::new("orders", 4));
        assert!(source.holdings.take_starts(Protocol::Eager).is_empty());

        source.searched(search.clone(), deleted_from_the_front(), None);
        assert!(!source.questions.is_searching(search.epoch));
        let told = source
            .events
            .iter()
            .map(|event| matches!(event, SourceEvent::Skipped(_, to) if to.get() == 2000));
        assert_eq!(told.filter(|is_skip| *is_skip).count(), 1);
        assert_eq!(source.deliveries.position(partition), Some(Offset::new(2000)));
    }
}
