//! What the client and its aide say, and what follows from it.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use seriatim_engine::record::PartitionId;
use seriatim_runtime::clock;
use seriatim_runtime::ports::{SourceEvent, SourceTrouble};

use super::aide::{Errand, Finding, Found};
use super::questions::{ASK_AGAIN_AFTER, ENDS_INTERVAL};
use super::{ClientParts, KafkaSource, StartAt};
use crate::commit::Answer;
use crate::native::client::{Protocol, list_of};
use crate::native::event::{ClientEvent, Notice};
use crate::native::topics::TopicsFound;
use crate::rebalance::Ticket;
use crate::trouble::{Meaning, meaning_of, undecodable};

impl KafkaSource {
    /// Hears what there is to hear, and asks what is due.
    pub(super) fn listen(&mut self) {
        let began = clock::now();
        while let Some(event) = self
            .client
            .as_ref()
            .and_then(|client| client.consumer.next_event(Duration::ZERO))
        {
            self.take_event(event);
        }
        self.standing.heard_all(began);
        while let Some(finding) = self.client.as_ref().and_then(|client| client.aide.finding()) {
            self.take_finding(finding);
        }
        let now = Instant::now();
        if let Some(client) = &self.client {
            self.questions.hear_of_topics(client.consumer.topic_news(), now);
        }
        self.ask(now);
    }

    pub(super) fn take_event(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Assigned(partitions) => self.assigned(&partitions),
            ClientEvent::Revoked {
                partitions,
                lost: false,
            } => self.revoked(partitions),
            ClientEvent::Revoked { partitions, lost: true } => self.lost(partitions),
            ClientEvent::Committed { token, answers } => {
                if let Some(answer) = self.commits.answer(token, answers) {
                    self.committed(answer);
                }
            }
            ClientEvent::Noticed(notice) => self.take_notice(notice),
            // To drop it would lose it: what follows would be settled and committed without it.
            ClientEvent::Stray(partition, offset) => {
                self.fail(format!("{partition}@{offset} came by a way on which order is not kept"));
            }
        }
    }

    /// The group is answered at once, with nothing: what was given is consumed when it is started.
    fn assigned(&mut self, partitions: &[PartitionId]) {
        self.standing.assigned();
        let Some(ClientParts { consumer, .. }) = &self.client else {
            return;
        };
        self.protocol = consumer.protocol();
        let nothing = list_of([]);
        let answered = match self.protocol {
            Protocol::Cooperative => consumer.assign_more(&nothing),
            Protocol::Eager => consumer.assign(Some(&nothing)),
        };
        self.note_answered(answered);
        // Perhaps because there are more partitions now, or another topic of the same name.
        self.questions.topics_due = Some(Instant::now());
        for partition in partitions {
            self.jumps.remove(partition);
        }
        if !partitions.is_empty() {
            let ticket = self.holdings.grant(partitions);
            self.questions.committed.push((ticket, Instant::now()));
        }
    }

    fn revoked(&mut self, partitions: Vec<PartitionId>) {
        let epochs = self.holdings.revoke(partitions);
        if !epochs.is_empty() {
            self.events.push_back(SourceEvent::Revoked(epochs));
        }
        self.answer_revocation();
    }

    pub(super) fn lost(&mut self, partitions: Vec<PartitionId>) {
        for partition in &partitions {
            self.deliveries.end(partition);
        }
        let epochs = self.holdings.lose(partitions);
        if !epochs.is_empty() {
            self.events.push_back(SourceEvent::Lost(epochs));
        }
        self.answer_revocation();
    }

    /// Gives back what the group wants back, when all of it has been drained.
    pub(super) fn answer_revocation(&mut self) {
        let Some(ClientParts { consumer, .. }) = &self.client else {
            return;
        };
        let Some(wanted) = self.holdings.take_answer() else {
            return;
        };
        let answered = match self.protocol {
            Protocol::Cooperative => consumer.unassign(&list_of(&wanted)),
            Protocol::Eager => consumer.assign(None),
        };
        self.note_answered(answered);
    }

    /// Without its answer the group would wait for ever, and a partition that is not consumed would look idle.
    pub(super) fn note_answered(&mut self, answered: Result<(), String>) {
        if let Err(reason) = answered {
            self.fail(format!("the client refuses to change what it consumes: {reason}"));
        }
    }

    fn committed(&mut self, answer: Answer) {
        let error = answer.error();
        if error.is_none() {
            self.standing.committed(answer.sent_at);
        }
        // Each commit is answered once. Where a part of it was refused, what was accepted is committed again with the rest.
        let answer = match error {
            Some(error) => Err(error),
            None => {
                let mut accepted = answer.accepted;
                accepted.retain(|commit| self.holdings.partition(commit.epoch).is_some());
                Ok(accepted)
            }
        };
        self.events.push_back(SourceEvent::Committed(answer));
    }

    pub(super) fn take_notice(&mut self, notice: Notice) {
        match meaning_of(notice, self.reported.connection()) {
            Meaning::Final(text) => self.fail(text),
            Meaning::Trouble(trouble) => self.report(trouble),
            Meaning::Connection(text) => self.reported.note_connection(text),
            Meaning::Unauthenticated(text) => {
                self.reported.note_connection(text.clone());
                self.report(SourceTrouble::Unauthenticated(text));
            }
            Meaning::OutOfRange(partition, wanted, follows) => self.out_of_range(partition, wanted, follows),
            Meaning::Undecodable(partition, at, text) => {
                self.deliveries.stop(&partition, at);
                self.report(undecodable(partition, at, &text));
            }
        }
    }

    pub(super) fn report(&mut self, trouble: SourceTrouble) {
        if self.reported.is_news(&trouble, Instant::now()) {
            self.events.push_back(SourceEvent::Trouble(trouble));
        }
    }

    fn fail(&mut self, text: String) {
        self.failure.get_or_insert(text);
    }

    fn take_finding(&mut self, finding: Finding) {
        match finding {
            Finding::Committed(ticket, Ok(Found { granted, gates })) => {
                self.close_gates(gates);
                let extents: HashMap<_, _> = granted
                    .iter()
                    .filter_map(|(granted, extent)| Some((granted.partition.clone(), (*extent)?)))
                    .collect();
                let mut granted: Vec<_> = granted.into_iter().map(|(granted, _)| granted).collect();
                // The aide does not know which were added: those begin at their first record.
                for granted in &mut granted {
                    if self.start_at == StartAt::Latest && self.sizes.is_added(&granted.partition) {
                        granted.begin = None;
                    }
                }
                let mut offered = Vec::new();
                for granted in self.holdings.offer(ticket, granted) {
                    let extent = extents.get(&granted.partition).copied();
                    offered.extend(self.place(granted, extent));
                }
                if !offered.is_empty() {
                    self.events.push_back(SourceEvent::Assigned(offered));
                }
            }
            Finding::Committed(ticket, Err(notice)) => {
                self.questions.ask_committed_later(ticket, Instant::now());
                let text = format!("what the group has committed cannot be learnt yet: {}", notice.text);
                self.take_notice(Notice { text, ..notice });
            }
            Finding::Ends(mut ends) => {
                self.questions.ends_asked = false;
                ends.retain(|(epoch, _)| self.holdings.partition(*epoch).is_some());
                if !ends.is_empty() {
                    self.events.push_back(SourceEvent::Ends(ends));
                }
            }
            Finding::Extent(search, extent, incarnation) => self.searched(search, extent, incarnation),
            Finding::Topics(topics) => self.topics_found(topics),
            Finding::Gates(gates) => self.gates_looked_at(gates),
        }
    }

    fn topics_found(&mut self, found: Option<TopicsFound>) {
        self.questions.topics_asked = false;
        let Some(TopicsFound { known, unknown }) = found else {
            return self.questions.ask_topics_soon(Instant::now());
        };
        for topic in &unknown {
            self.note_deleted(topic);
        }
        for topic in known {
            if let Some(incarnation) = topic.incarnation {
                self.note_incarnation(&topic.name, incarnation);
            }
            self.deliveries.trust(&topic.name);
            self.note_partitions(topic);
        }
    }

    fn ask(&mut self, now: Instant) {
        for ticket in self.questions.take_due(now) {
            self.ask_committed(ticket, now);
        }
        for search in self.questions.take_due_searches(now) {
            self.search(search, now);
        }
        if self.questions.ends_due.is_some_and(|due| due <= now) {
            self.questions.ends_due = Some(now + ENDS_INTERVAL);
            self.ask_ends();
        }
        if self.questions.topics_due.is_some_and(|due| due <= now) {
            let is_asked = self.ask_topics();
            let next = if is_asked {
                self.topics_interval
            } else {
                ASK_AGAIN_AFTER
            };
            self.questions.topics_due = Some(now + next);
        }
        if self.questions.gates_due.is_some_and(|due| due <= now) {
            self.questions.gates_due = None;
            self.ask_gates(now);
        }
    }

    /// Asks about the topics that are read, and those that are to be: another member may own all of one. Returns whether it
    /// did: not while an earlier answer is awaited, which may be from before the reason to ask.
    fn ask_topics(&mut self) -> bool {
        let Some(client) = self.client.as_ref().filter(|_| !self.questions.topics_asked) else {
            return false;
        };
        let owned = self.holdings.owned().map(|(_, partition)| partition.topic());
        let named = self.topics.iter().map(String::as_str);
        let names: BTreeSet<&str> = owned.chain(named.filter(|topic| !topic.starts_with('^'))).collect();
        let names = names.into_iter().map(str::to_owned).collect();
        let is_asked = client.aide.send(Errand::Topics(names));
        if is_asked {
            self.questions.topics_asked_at = Some(Instant::now());
        }
        self.questions.topics_asked = is_asked;
        is_asked
    }

    fn ask_committed(&mut self, ticket: Ticket, now: Instant) {
        let Some(ClientParts { aide, .. }) = &self.client else {
            return;
        };
        let partitions = self.holdings.asked(ticket);
        if !partitions.is_empty() && !aide.send(Errand::Committed(ticket, partitions)) {
            self.questions.ask_committed_later(ticket, now);
        }
    }

    /// Of a partition that is fetched, the last fetch has told the log's end. Of the others the broker is asked: what the
    /// client knows of them is as old as their last fetch.
    fn ask_ends(&mut self) {
        let Some(ClientParts { consumer, aide, .. }) = &self.client else {
            return;
        };
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        for (epoch, partition) in self.holdings.owned() {
            let fetched = self.deliveries.is_fetched(partition) && !self.holdings.is_wanted_back(partition);
            match consumer.known_end(partition).filter(|_| fetched) {
                Some(end) => known.push((epoch, end)),
                None => unknown.push((epoch, partition.clone())),
            }
        }
        if !known.is_empty() {
            self.events.push_back(SourceEvent::Ends(known));
        }
        if !unknown.is_empty() && !self.questions.ends_asked {
            self.questions.ends_asked = aide.send(Errand::Ends(unknown));
        }
    }
}
