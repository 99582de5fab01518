//! A member of a group, as a source.

use std::sync::{Arc, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::Flow;
use seriatim_engine::growth::Growth;
use seriatim_engine::record::Offset;
use seriatim_runtime::message::OwnedMessage;
use seriatim_runtime::ports::{
    Commit, CommitError, CommitMode, Granted, LeaseTerm, Records, Run, Source, SourceError, SourceEvent, Start,
};

use super::group::{Group, Leaving, MemberId, Stage, Standing};
use super::{Log, State};

/// One member of a consumer group of a [`Log`]. Dropped without [`close`](Source::close) it has crashed: its partitions
/// go to others at once, and on virtual time when it is expired.
pub struct LogSource {
    log: Log,
    group: Arc<str>,
    id: MemberId,
    closed: bool,
}

/// Ends the wait of one member's poll.
struct MemberWaker {
    log: Log,
    group: Arc<str>,
    id: MemberId,
}

pub(super) fn member(log: Log, group: Arc<str>, id: MemberId) -> (LogSource, Waker) {
    let waker = MemberWaker {
        log: log.clone(),
        group: Arc::clone(&group),
        id,
    };
    let source = LogSource {
        log,
        group,
        id,
        closed: false,
    };
    (source, Waker::from(Arc::new(waker)))
}

impl Wake for MemberWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(member) = self.log.lock().group(&self.group).members.get_mut(&self.id) {
            member.woken = true;
        }
        self.log.shared.note_change();
    }
}

impl LogSource {
    /// Its name in the group, for [`Log::expire`].
    pub fn id(&self) -> MemberId {
        self.id
    }

    fn in_group<T>(&mut self, act: impl FnOnce(&mut Group, MemberId) -> T) -> T {
        let done = act(self.log.lock().group(&self.group), self.id);
        self.log.shared.note_change();
        done
    }
}

impl Source for LogSource {
    type Message = OwnedMessage;

    fn poll(
        &mut self,
        wait: Duration,
        mut records: Option<&mut Records<OwnedMessage>>,
    ) -> Result<Option<SourceEvent>, SourceError> {
        let deadline = Instant::now() + wait;
        let mut state = self.log.lock();
        loop {
            if let Some(event) = state.next_event(&self.group, self.id, records.as_deref_mut()) {
                // Rejoining and taking news may be news to others.
                self.log.shared.note_change();
                return Ok(Some(event));
            }
            let woken = std::mem::take(&mut state.group(&self.group).member(self.id).woken);
            let left = deadline.saturating_duration_since(Instant::now());
            if woken || left.is_zero() || !state.waits {
                return Ok(None);
            }
            let changed = self.log.shared.changed.wait_timeout(state, left);
            state = changed.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn start(&mut self, starts: &[Start]) {
        self.in_group(|group, id| {
            let member = group.member(id);
            for start in starts {
                let held = member
                    .held
                    .get_mut(&start.partition)
                    .expect("only what was granted is started");
                assert_eq!(held.stage, Stage::Announced, "{} is started once", start.partition);
                held.stage = Stage::Started(start.epoch);
                held.position = start.from.unwrap_or(Offset::ZERO);
                let partition = &start.partition;
                held.barred = member.growing.gates.bars(partition.topic(), partition.number());
            }
        });
    }

    fn set_flow(&mut self, epoch: AssignmentEpoch, flow: Flow) {
        self.in_group(|group, id| {
            let mut held = group.member(id).held.values_mut();
            if let Some(held) = held.find(|held| held.epoch() == Some(epoch)) {
                held.flow = flow;
            }
        });
    }

    fn commit(&mut self, commits: &[Commit], mode: CommitMode) -> Result<(), CommitError> {
        let now = self.log.lock().now();
        self.in_group(|group, id| match mode {
            CommitMode::Background => group.send(id, commits, now),
            CommitMode::Wait(_) => group.commit(id, commits, now),
        })
    }

    fn relinquish(&mut self, epochs: &[AssignmentEpoch]) {
        let mut state = self.log.lock();
        state.group(&self.group).relinquish(self.id, epochs);
        state.rebalance(&self.group);
        self.log.shared.note_change();
    }

    fn lease(&self) -> Option<LeaseTerm> {
        let mut state = self.log.lock();
        let session = state.sessions.as_ref()?.timeout;
        let confirmed_at = state.group(&self.group).member(self.id).confirmed_at?;
        Some(LeaseTerm {
            renew_from: confirmed_at + session / 3,
            ends: confirmed_at + session,
        })
    }

    fn close(&mut self) {
        self.closed = true;
        let mut state = self.log.lock();
        state.group(&self.group).leave(self.id);
        state.rebalance(&self.group);
        self.log.shared.note_change();
    }
}

impl Drop for LogSource {
    fn drop(&mut self) {
        let crashed_now = !self.closed && self.log.lock().dropped_member_expires;
        if crashed_now {
            self.close();
        }
    }
}

// --- what a member is told ----------------------------------------------------------------------------------------

impl State {
    fn next_event(
        &mut self,
        group: &str,
        id: MemberId,
        records: Option<&mut Records<OwnedMessage>>,
    ) -> Option<SourceEvent> {
        if let Some(event) = self.change_of_ownership(group, id) {
            if matches!(event, SourceEvent::Assigned(_)) {
                let member = self.group(group).member(id);
                member.confirm(member.heard_all_at);
            }
            return Some(event);
        }
        if !self.group(group).member(id).cut_off
            && let Some(event) = self.growth(group, id)
        {
            return Some(event);
        }
        let now = self.now();
        self.group(group).member(id).heard_all_at = now;
        let its_group = self.group(group);
        if !its_group.answers_held
            && let Some(answer) = its_group.member(id).answers.pop_front()
        {
            if answer.result.is_ok() {
                its_group.member(id).confirm(answer.sent_at);
            }
            return Some(SourceEvent::Committed(answer.result));
        }
        self.open_gates(group, id);
        if records.is_some_and(|records| self.read(group, id, records)) {
            return Some(SourceEvent::Records);
        }
        self.ends(group, id).map(SourceEvent::Ends)
    }

    /// The time, where sessions end by time.
    pub(super) fn now(&self) -> Option<Instant> {
        self.sessions.as_ref().map(|sessions| (sessions.clock)())
    }

    fn change_of_ownership(&mut self, group_name: &str, id: MemberId) -> Option<SourceEvent> {
        let group = self.group(group_name);
        let member = group.member(id);
        if member.cut_off {
            return None;
        }
        if member.standing == (Standing::Expired { noticed: true }) {
            let lost = group.rejoin(id);
            self.rebalance(group_name);
            return Some(SourceEvent::Lost(lost));
        }
        let mut revoked = Vec::new();
        for held in member.held.values_mut() {
            if let (Leaving::Asked, Some(epoch)) = (held.leaving, held.epoch()) {
                held.leaving = Leaving::Reported;
                revoked.push(epoch);
            }
        }
        if !revoked.is_empty() {
            return Some(SourceEvent::Revoked(revoked));
        }
        let mut granted = Vec::new();
        // Where new partitions wait for old ones, what is committed tells them apart.
        let begin = (group.growth == Growth::Warn).then_some(Offset::ZERO);
        for (partition, held) in &mut group.members.get_mut(&id)?.held {
            if held.stage == Stage::Offered {
                held.stage = Stage::Announced;
                let committed = group.committed.get(partition);
                granted.push(Granted {
                    partition: partition.clone(),
                    committed: committed.map(|committed| committed.watermark),
                    metadata: committed
                        .map(|committed| committed.metadata.clone())
                        .unwrap_or_default(),
                    begin,
                    end: None,
                    incarnation: None,
                });
            }
        }
        for granted in &mut granted {
            let topic = &self.topics[granted.partition.topic()];
            granted.end = Some(topic.end(granted.partition.number()));
            granted.incarnation = Some(topic.incarnation);
            if granted.is_of_former_topic() {
                (granted.committed, granted.metadata) = (None, String::new());
            }
        }
        self.close_gates(group_name, id, &granted);
        (!granted.is_empty()).then_some(SourceEvent::Assigned(granted))
    }

    /// Reads from all partitions that flow, beginning with another one each time. What is being given back is read on,
    /// as records that were fetched before would be.
    fn read(&mut self, group: &str, id: MemberId, records: &mut Records<OwnedMessage>) -> bool {
        let topics = &self.topics;
        let mut room = self.batch_max;
        let member = self
            .groups
            .get_mut(group)
            .expect("the group has this member")
            .member(id);
        member.turn += 1;
        let (turn, partitions) = (member.turn, member.held.len().max(1));
        let behind = member
            .held
            .iter_mut()
            .skip(turn % partitions)
            .map(|(partition, _)| partition.clone());
        let order: Vec<_> = behind.collect();
        let rest: Vec<_> = member.held.keys().take(turn % partitions).cloned().collect();
        for partition in order.into_iter().chain(rest) {
            let held = member.held.get_mut(&partition).expect("held a moment ago");
            let (Some(epoch), Flow::Flowing) = (held.epoch(), held.flow) else {
                continue;
            };
            if held.waits(&partition, &member.growing.gates) {
                continue;
            }
            let log = &topics[partition.topic()].partitions[partition.number() as usize];
            let from = log.first_at(held.position);
            let read = &log.records[from..log.records.len().min(from + room)];
            let Some((last, _)) = read.last() else { continue };
            held.position = last.next();
            room -= read.len();
            records.messages.extend(read.iter().map(|(_, message)| message.clone()));
            records.runs.push(Run { epoch, len: read.len() });
        }
        room < self.batch_max
    }

    fn ends(&mut self, group: &str, id: MemberId) -> Option<Vec<(AssignmentEpoch, Offset)>> {
        let topics = &self.topics;
        let member = self.groups.get_mut(group)?.member(id);
        let mut ends = Vec::new();
        for (partition, held) in &mut member.held {
            let Some(epoch) = held.epoch() else { continue };
            let end = topics[partition.topic()].end(partition.number());
            if held.end_told.replace(end) != Some(end) {
                ends.push((epoch, end));
            }
        }
        (!ends.is_empty()).then_some(ends)
    }

    pub(super) fn has_news(&self, group: &str, id: MemberId, room: bool) -> bool {
        let Some(member) = self.groups.get(group).and_then(|group| group.members.get(&id)) else {
            return false;
        };
        let expired = member.standing == (Standing::Expired { noticed: true });
        let heard = !member.cut_off;
        let gates = self.behind_gates(group, id);
        let news = member.held.iter().any(|(partition, held)| {
            let topic = &self.topics[partition.topic()];
            let log = &topic.partitions[partition.number() as usize];
            let started = held.epoch().is_some();
            let flows = held.flow == Flow::Flowing && !held.waits(partition, &gates);
            let readable = room && flows && log.first_at(held.position) < log.records.len();
            let moved = held.end_told != Some(topic.end(partition.number()));
            let told = held.stage == Stage::Offered || started && held.leaving == Leaving::Asked;
            heard && told || started && (readable || moved)
        });
        let answered = !member.answers.is_empty() && !self.groups[group].answers_held;
        let grown = heard && self.growth_is_news(group, id);
        expired || news || answered || grown
    }
}
