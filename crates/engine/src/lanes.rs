//! All lanes of one worker.

mod slab;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hint::black_box;
use std::time::Instant;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use self::slab::Slab;
use crate::assignment::AssignmentEpoch;
use crate::lane::{Fate, Lane, LaneId, LaneState, NONE, Outcome, Queued, Verdict};
use crate::record::SessionHash;
use crate::retry::Retry;

/// The lanes of one worker: which session is busy, whose record may start next, whose waits for its retry.
///
/// A lane takes 64 bytes and its place in the table, and each of its records 32 beside itself; an idle session takes nothing.
#[derive(Debug)]
pub struct Lanes<R> {
    by_session: HashTable<(SessionHash, LaneId)>,
    lanes: Slab<Lane>,
    queue: Slab<Queued<R>>,
    /// Lanes that are ready since their record came, oldest record first. An entry is void when the lane's oldest record is
    /// no longer that one.
    fresh: VecDeque<(u64, LaneId)>,
    /// Lanes that became ready later, by an outcome or at the end of a wait: in the same order, and void likewise.
    ready: BinaryHeap<Reverse<(u64, LaneId)>>,
    /// Waiting lanes, first due first; void as above.
    waiting: BinaryHeap<Reverse<(Instant, u64, LaneId)>>,
    next_sequence: u64,
    retry: Retry,
}

/// Memory of this many lanes or records is kept when all are gone; what a burst took beyond it is given back.
const RETAINED_MAX: usize = 16 * 1024;

impl<R> Lanes<R> {
    /// No lanes yet; failed attempts will follow `retry`.
    pub fn new(retry: Retry) -> Self {
        Self {
            by_session: HashTable::new(),
            lanes: Slab::new(),
            queue: Slab::new(),
            fresh: VecDeque::new(),
            ready: BinaryHeap::new(),
            waiting: BinaryHeap::new(),
            next_sequence: 0,
            retry,
        }
    }

    /// Whether the session has an unsettled record here, so that a new one has to wait.
    #[inline]
    pub fn is_busy(&self, session: SessionHash) -> bool {
        self.find(session).is_some()
    }

    /// Whether some lane's record could start now but for want of a slot.
    #[inline]
    pub fn has_ready(&self) -> bool {
        !self.fresh.is_empty() || !self.ready.is_empty()
    }

    /// How many lanes could start now but for want of a slot, or a few more: those that were dropped since may be counted.
    #[inline]
    pub fn ready(&self) -> usize {
        self.fresh.len() + self.ready.len()
    }

    /// How many sessions are busy.
    pub fn len(&self) -> usize {
        self.by_session.len()
    }

    /// Whether no session is busy.
    pub fn is_empty(&self) -> bool {
        self.by_session.is_empty()
    }

    /// Puts a record behind all others of its session. Returns the slot in which an older record of the session runs,
    /// whose handler may want to know.
    pub fn enqueue(&mut self, session: SessionHash, queued: Queued<R>) -> Option<u32> {
        let (node, sequence) = self.push_node(queued);
        match self.entry(session) {
            Ok(lane) => {
                let lane = &mut self.lanes[lane.0];
                let tail = std::mem::replace(&mut lane.tail, node);
                self.queue[tail].next = node;
                match lane.state {
                    LaneState::Running { slot } => Some(slot),
                    LaneState::Ready | LaneState::Waiting { .. } => None,
                }
            }
            Err(new) => {
                self.lanes[new.0] = Lane::new(session, LaneState::Ready, node);
                self.fresh.push_back((sequence, new));
                None
            }
        }
    }

    /// Opens a lane for a record that `started` at once in `slot`, before it had a lane, and did not end at once.
    ///
    /// # Panics
    /// When the session is busy: two of its records would run at a time.
    pub fn open_running(&mut self, session: SessionHash, queued: Queued<R>, slot: u32, started: Instant) -> LaneId {
        let (node, _) = self.push_node(queued);
        match self.entry(session) {
            Ok(_) => panic!("{session:?} has a record running already"),
            Err(new) => {
                self.lanes[new.0] = Lane {
                    first_started: Some(started),
                    ..Lane::new(session, LaneState::Running { slot }, node)
                };
                new
            }
        }
    }

    /// The lane whose record should start next: the oldest record among lanes that are ready or whose wait is over. It
    /// counts as running in `slot` from here, with one more attempt.
    pub fn next(&mut self, slot: u32, now: Instant) -> Option<LaneId> {
        self.end_waits(now);
        while let Some((sequence, id)) = self.pop_ready() {
            if !self.is_current(id, sequence) || self.lanes[id.0].state != LaneState::Ready {
                continue;
            }
            let lane = &mut self.lanes[id.0];
            lane.state = LaneState::Running { slot };
            lane.first_started.get_or_insert(now);
            self.queue[lane.head].attempts += 1;
            return Some(id);
        }
        None
    }

    fn pop_ready(&mut self) -> Option<(u64, LaneId)> {
        match (self.fresh.front(), self.ready.peek()) {
            (Some(fresh), Some(Reverse(ready))) if ready < fresh => self.ready.pop().map(|Reverse(ready)| ready),
            (Some(_), _) => self.fresh.pop_front(),
            (None, _) => self.ready.pop().map(|Reverse(ready)| ready),
        }
    }

    /// Reads what [`finish`](Self::finish) will want of a lane, which lies apart from that of other lanes: called for several
    /// before the first of them is finished, so that the processor waits for their memory once and not for each.
    #[inline]
    pub fn touch(&self, lane: LaneId) {
        if let Some(lane) = self.lanes.get(lane.0) {
            black_box(self.queue[lane.head].next);
        }
    }

    /// As [`touch`](Self::touch), of the record behind the oldest, which is next.
    #[inline]
    pub fn touch_next(&self, lane: LaneId) {
        if let Some(next) = self.behind(lane) {
            black_box(next.sequence);
        }
    }

    /// The record behind the oldest of a lane, if the lane is there and has one.
    #[inline]
    pub fn behind(&self, lane: LaneId) -> Option<&Queued<R>> {
        let lane = self.lanes.get(lane.0)?;
        self.queue.get(self.queue[lane.head].next)
    }

    /// As [`touch`](Self::touch), for what [`is_busy`](Self::is_busy) will want.
    #[inline]
    pub fn touch_session(&self, session: SessionHash) {
        black_box(self.find(session));
    }

    /// The oldest record of a lane.
    pub fn head(&self, lane: LaneId) -> &Queued<R> {
        &self.queue[self.lanes[lane.0].head]
    }

    /// As [`head`](Self::head), to change.
    pub fn head_mut(&mut self, lane: LaneId) -> &mut Queued<R> {
        &mut self.queue[self.lanes[lane.0].head]
    }

    /// The session of a lane.
    pub fn session(&self, lane: LaneId) -> SessionHash {
        self.lanes[lane.0].session
    }

    /// When an attempt of the oldest record first failed here, if one has.
    pub fn first_failed(&self, lane: LaneId) -> Option<Instant> {
        self.lanes[lane.0].first_failed
    }

    /// Whether a newer record waits behind the oldest.
    pub fn newer_waits(&self, lane: LaneId) -> bool {
        let lane = &self.lanes[lane.0];
        lane.head != lane.tail
    }

    /// Takes the outcome of what ran in `lane` and decides. Whatever the verdict, no other record of the session starts
    /// before this one is settled or dropped.
    ///
    /// # Panics
    /// When nothing runs in the lane.
    pub fn finish(&mut self, lane: LaneId, outcome: Outcome, now: Instant) -> Verdict {
        let entry = &mut self.lanes[lane.0];
        assert!(
            matches!(entry.state, LaneState::Running { .. }),
            "{:?} reports an outcome, but nothing of it runs",
            entry.session
        );
        if let Outcome::Transient(_) | Outcome::Permanent = outcome {
            entry.first_failed.get_or_insert(now);
        }
        match outcome {
            Outcome::Handled | Outcome::DeadLettered => {
                self.advance(lane);
                Verdict::Settled
            }
            Outcome::Cancelled => {
                self.advance(lane);
                Verdict::Dropped
            }
            Outcome::Permanent => Verdict::DeadLetter(Fate::Permanent),
            Outcome::Transient(delay) => match self.next_attempt(lane, delay, now) {
                Some(until) => self.wait(lane, until),
                None => Verdict::DeadLetter(Fate::Exhausted),
            },
            // A dead letter that cannot be written is neither dropped nor forgotten: the lane waits, and only that lane.
            Outcome::DeadLetterFailed(times) => {
                let (session, offset) = (self.session(lane), self.head(lane).offset);
                let endless = Retry {
                    attempts_max: u32::MAX,
                    elapsed_max: None,
                    ..self.retry
                };
                let until = endless
                    .next(times, now, now, session, offset)
                    .unwrap_or(now + endless.cap);
                self.wait(lane, until)
            }
        }
    }

    /// When the next wait ends, if any lane waits. It may name a time that nothing is due at any more.
    pub fn next_due(&self) -> Option<Instant> {
        self.waiting.peek().map(|Reverse((until, ..))| *until)
    }

    /// Drops all records of these epochs that do not run, and reports the lanes that lost their oldest record by it. What
    /// runs goes on, and its outcome is still to be reported.
    ///
    /// It looks at every record that is queued: partitions that leave together are better dropped together.
    pub fn drop_queued(&mut self, leaves: impl Fn(AssignmentEpoch) -> bool, mut lost_head: impl FnMut(LaneId)) {
        let ids: Vec<LaneId> = self.by_session.iter().map(|(_, id)| *id).collect();
        for id in ids {
            if self.drop_queued_in(id, &leaves) {
                lost_head(id);
            }
        }
    }

    /// As [`drop_queued`](Self::drop_queued), of one lane. Returns whether it lost its oldest record.
    pub fn drop_queued_in(&mut self, id: LaneId, leaves: impl Fn(AssignmentEpoch) -> bool) -> bool {
        let running = matches!(self.lanes[id.0].state, LaneState::Running { .. });
        let first = self.lanes[id.0].head;
        let mut previous = NONE;
        let mut node = first;
        while node != NONE {
            let next = self.queue[node].next;
            let keep = !leaves(self.queue[node].epoch) || (running && node == first);
            if keep {
                previous = node;
            } else {
                match previous {
                    NONE => self.lanes[id.0].set_head(next),
                    previous => self.queue[previous].next = next,
                }
                self.queue.remove(node);
            }
            node = next;
        }
        let lane = &mut self.lanes[id.0];
        lane.tail = previous;
        let lost_head = lane.head != first;
        if previous == NONE {
            self.evict(id);
        } else if lost_head {
            self.make_ready(id);
        }
        lost_head
    }

    fn next_attempt(&self, lane: LaneId, delay: Option<std::time::Duration>, now: Instant) -> Option<Instant> {
        let (session, queued) = (self.session(lane), self.head(lane));
        let first = self.lanes[lane.0].first_started.unwrap_or(now);
        match delay {
            None => self.retry.next(queued.attempts, first, now, session, queued.offset),
            Some(delay) => self
                .retry
                .next_after(delay, queued.attempts, first, now, session, queued.offset),
        }
    }

    fn wait(&mut self, id: LaneId, until: Instant) -> Verdict {
        let lane = &mut self.lanes[id.0];
        lane.state = LaneState::Waiting { until };
        self.waiting.push(Reverse((until, self.queue[lane.head].sequence, id)));
        Verdict::RetryAt(until)
    }

    fn end_waits(&mut self, now: Instant) {
        while let Some(&Reverse((until, sequence, id))) = self.waiting.peek() {
            if until > now {
                break;
            }
            self.waiting.pop();
            if self.is_current(id, sequence) && self.lanes[id.0].state == (LaneState::Waiting { until }) {
                self.make_ready(id);
            }
        }
    }

    /// Whether the oldest record of `id` is still the one that came as number `sequence`.
    fn is_current(&self, id: LaneId, sequence: u64) -> bool {
        self.lanes
            .get(id.0)
            .is_some_and(|lane| self.queue[lane.head].sequence == sequence)
    }

    /// Removes the oldest record; the next one becomes ready, or the lane is evicted.
    fn advance(&mut self, id: LaneId) {
        let lane = &mut self.lanes[id.0];
        let next = self.queue.remove(lane.head).next;
        if next == NONE {
            self.evict(id);
        } else {
            lane.set_head(next);
            self.make_ready(id);
        }
    }

    fn make_ready(&mut self, id: LaneId) {
        let lane = &mut self.lanes[id.0];
        lane.state = LaneState::Ready;
        self.ready.push(Reverse((self.queue[lane.head].sequence, id)));
    }

    fn evict(&mut self, id: LaneId) {
        let session = self.lanes.remove(id.0).session;
        self.by_session
            .find_entry(session.0, |(other, _)| *other == session)
            .expect("a lane is found by its session")
            .remove();
        if self.by_session.is_empty() && self.by_session.capacity() > RETAINED_MAX {
            self.by_session = HashTable::new();
            self.lanes = Slab::new();
            self.queue = Slab::new();
            self.fresh = VecDeque::new();
            self.ready = BinaryHeap::new();
            self.waiting = BinaryHeap::new();
        }
    }

    #[inline]
    fn find(&self, session: SessionHash) -> Option<LaneId> {
        if self.by_session.is_empty() {
            return None;
        }
        self.by_session
            .find(session.0, |(other, _)| *other == session)
            .map(|(_, id)| *id)
    }

    /// The session's lane, or the id of a new one that is still to be filled.
    fn entry(&mut self, session: SessionHash) -> Result<LaneId, LaneId> {
        let entry = self
            .by_session
            .entry(session.0, |(other, _)| *other == session, |(other, _)| other.0);
        match entry {
            Entry::Occupied(entry) => Ok(entry.get().1),
            Entry::Vacant(entry) => {
                let id = LaneId(self.lanes.insert(Lane::new(session, LaneState::Ready, NONE)));
                entry.insert((session, id));
                Err(id)
            }
        }
    }

    fn push_node(&mut self, queued: Queued<R>) -> (u32, u64) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let node = Queued {
            sequence,
            next: NONE,
            ..queued
        };
        (self.queue.insert(node), sequence)
    }
}

#[cfg(test)]
mod tests;
