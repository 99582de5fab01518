//! Which offsets of a partition are unsettled, and so how far a commit may go.
//!
//! A ledger knows the *unsettled* offsets, as bits in chunks of 64, and the next offset that it expects. All else
//! follows: whatever lies below the next expected offset and is not unsettled is settled, or does not exist (the log
//! was compacted there, or holds a transaction marker). So gaps need no special case, and a chunk without an unsettled
//! bit need not be kept: memory follows what is unsettled, which the budget bounds, and not what was settled above a
//! record that is stuck.
//!
//! ```
//! # use seriatim_engine::{ledger::{Admission, Ledger}, record::Offset};
//! let mut ledger = Ledger::new(Some(Offset::ZERO));
//! for offset in [0, 1, 5] {
//!     assert_eq!(ledger.admit(Offset::new(offset)), Admission::Admitted); // 2 to 4 are a gap
//! }
//! ledger.settle(Offset::new(1));
//! assert_eq!(ledger.watermark().unwrap().offset(), Offset::new(0)); // offset 0 blocks
//! ledger.settle(Offset::new(0));
//! assert_eq!(ledger.watermark().unwrap().offset(), Offset::new(5));
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::RangeInclusive;

use crate::record::Offset;

/// How many chunks without an unsettled bit are tolerated between others before any are looked for.
const HOLLOW_MIN: usize = 64;

/// The next offset to read: every admitted offset below it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommitWatermark(pub Offset);

impl CommitWatermark {
    /// The offset to commit, from which the next owner reads.
    pub fn offset(self) -> Offset {
        self.0
    }
}

impl fmt::Display for CommitWatermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What becomes of an offset that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is unsettled from now on: process it, then settle it.
    Admitted,
    /// It was settled before the restart, says the ack map: skip it.
    AlreadySettled,
    /// It was received in this epoch before, or lies below where reading started: ignore it.
    Behind,
}

/// The received offsets of one partition in one epoch.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The chunks with an unsettled bit, by rising number. The first and the last always have one; between them some
    /// may be hollow, that is, without.
    chunks: VecDeque<Chunk>,
    hollow: usize,
    unsettled: usize,
    next_expected: Option<Offset>,
    /// What the ack map says of offsets that are not received yet: disjoint rising ranges from `next_expected` on.
    restored: VecDeque<(Offset, Offset)>,
    /// The number of offsets in `restored`.
    restored_offsets: u64,
}

/// 64 offsets, from `number * 64`.
#[derive(Debug)]
struct Chunk {
    number: u64,
    unsettled: u64,
}

/// The number of an offset's chunk, and its bit there.
#[inline]
fn place(offset: Offset) -> (u64, u64) {
    let offset = offset.get() as u64;
    (offset / 64, 1 << (offset % 64))
}

impl Ledger {
    /// The ledger of a partition that is read from `start`, its committed offset; `None` when nothing was committed,
    /// and reading starts wherever the first offset lies.
    pub fn new(start: Option<Offset>) -> Self {
        Self {
            next_expected: start,
            ..Self::default()
        }
    }

    /// Loads offsets that were settled before the restart, as ranges in any order: the ack map.
    ///
    /// Whatever of them was received already is left as it is.
    pub fn restore(&mut self, settled: impl IntoIterator<Item = RangeInclusive<Offset>>) {
        let mut ranges: Vec<_> = self.restored.drain(..).collect();
        ranges.extend(settled.into_iter().map(RangeInclusive::into_inner));
        ranges.sort_unstable();

        self.restored_offsets = 0;
        for (mut first, last) in ranges {
            // Only what lies beyond both the received offsets and the ranges before is new.
            let known_to = self.restored.back().map(|&(_, last)| last);
            first = first.max(self.next_expected.unwrap_or(Offset::ZERO));
            if let Some(known_to) = known_to {
                if last <= known_to {
                    continue;
                }
                first = first.max(known_to.next());
            }
            if first > last {
                continue;
            }
            self.restored_offsets += length(first, last);
            match self.restored.back_mut() {
                Some(before) if before.1.next() == first => before.1 = last,
                _ => self.restored.push_back((first, last)),
            }
        }
    }

    /// Takes note that `offset` was received. Offsets come in rising order; what does not rise is
    /// [`Behind`](Admission::Behind).
    #[inline]
    pub fn admit(&mut self, offset: Offset) -> Admission {
        if self.next_expected.is_some_and(|expected| offset < expected) {
            return Admission::Behind;
        }
        self.next_expected = Some(offset.next());
        if !self.restored.is_empty() && self.take_restored(offset) {
            return Admission::AlreadySettled;
        }
        let (number, bit) = place(offset);
        match self.chunks.back_mut() {
            Some(last) if last.number == number => last.unsettled |= bit,
            _ => self.chunks.push_back(Chunk { number, unsettled: bit }),
        }
        self.unsettled += 1;
        Admission::Admitted
    }

    /// Takes note that nothing below `offset` will be received any more: it is gone from the log, or not wanted. What was
    /// admitted of it stays unsettled until it is settled.
    pub fn skip_to(&mut self, offset: Offset) {
        if self.next_expected.is_some_and(|expected| offset <= expected) {
            return;
        }
        self.next_expected = Some(offset);
        if offset > Offset::ZERO {
            // As if what lies before had been received: what was restored of it is forgotten.
            self.take_restored(before(offset));
        }
    }

    /// Takes note that an admitted offset is handled, or safely dead-lettered.
    ///
    /// # Panics
    /// When the offset is not unsettled: it was settled twice, or never admitted, and no commit could be trusted.
    #[inline]
    pub fn settle(&mut self, offset: Offset) {
        self.settle_run(offset, offset);
    }

    /// As [`settle`](Self::settle), for every offset from `first` to `last`.
    ///
    /// # Panics
    /// When one of them is not unsettled.
    pub fn settle_run(&mut self, first: Offset, last: Offset) {
        let mut from = first;
        while from <= last {
            let number = from.get() as u64 / 64;
            let chunk_last = Offset::new((number * 64 + 63) as i64);
            let to = last.min(chunk_last);
            let bits = (u64::MAX >> (64 - length(from, to))) << (from.get() as u64 % 64);
            self.settle_in_chunk(number, bits);
            from = to.next();
        }
    }

    #[inline]
    fn settle_in_chunk(&mut self, number: u64, bits: u64) {
        let index = self.find(number);
        let unsettled = index.map_or(0, |index| self.chunks[index].unsettled);
        let Some(index) = index.filter(|_| bits & !unsettled == 0) else {
            let settled = Chunk {
                number,
                unsettled: bits & !unsettled,
            };
            panic!("offset settled twice: {} is not unsettled", settled.first_unsettled());
        };
        self.unsettled -= bits.count_ones() as usize;
        let chunk = &mut self.chunks[index];
        chunk.unsettled &= !bits;
        if chunk.is_hollow() {
            self.hollow += 1;
            self.drop_hollow();
        }
    }

    /// The next offset to read, when it is known: every admitted offset below it is settled. It never falls.
    #[inline]
    pub fn watermark(&self) -> Option<CommitWatermark> {
        self.oldest_unsettled().or(self.next_expected).map(CommitWatermark)
    }

    /// How many admitted offsets are not settled.
    pub fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// The lowest admitted offset that is not settled: what blocks the watermark.
    #[inline]
    pub fn oldest_unsettled(&self) -> Option<Offset> {
        self.chunks.front().map(Chunk::first_unsettled)
    }

    /// The offset after the last one that was received, or where reading starts.
    pub fn next_expected(&self) -> Option<Offset> {
        self.next_expected
    }

    /// Whether everything that was received is settled, so that the watermark alone says all.
    pub fn is_clean(&self) -> bool {
        self.unsettled == 0
    }

    /// How many offsets above the watermark need no work any more: the number of offsets in
    /// [`settled_ranges`](Self::settled_ranges), gaps among them. So `end of the log - watermark - settled above it`
    /// counts no gap that is known as backlog.
    pub fn settled_above(&self) -> u64 {
        let received = match (self.oldest_unsettled(), self.next_expected) {
            (Some(oldest), Some(next)) => (next.get() - oldest.get()) as u64 - self.unsettled as u64,
            _ => 0,
        };
        received + self.restored_offsets
    }

    /// The offsets from the watermark on that are settled, as rising ranges `(first, last)` that do not touch: what the
    /// ack map of a commit has to say.
    ///
    /// A gap between received offsets counts as settled, for it does not exist. What was restored and is not received
    /// again yet is part of it, else an early commit would forget it; only such a range may begin at the watermark
    /// itself.
    pub fn settled_ranges(&self) -> impl Iterator<Item = (Offset, Offset)> + '_ {
        SettledRanges {
            chunks: self.chunks.iter(),
            chunk: Chunk {
                number: 0,
                unsettled: 0,
            },
            settled_from: None,
            received_to: self.next_expected,
            restored: self.restored.iter(),
        }
    }

    /// The bytes that the ledger holds beside itself.
    pub fn heap_bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Chunk>() + self.restored.capacity() * size_of::<(Offset, Offset)>()
    }

    /// Where the chunk of this number is.
    #[inline]
    fn find(&self, number: u64) -> Option<usize> {
        let (first, last) = (self.chunks.front()?.number, self.chunks.back()?.number);
        if number < first || number > last {
            return None;
        }
        // Numbers rise strictly, so a chunk is at most as many places away from either end as its number is. In a
        // dense log both bounds meet at once; in a sparse one they bound a binary search.
        let end = self.chunks.len() - 1;
        let mut low = end.saturating_sub((last - number) as usize);
        let mut high = end.min((number - first) as usize);
        while low < high {
            let middle = low.midpoint(high);
            if self.chunks[middle].number < number {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (self.chunks[low].number == number).then_some(low)
    }

    /// Drops the hollow chunks at both ends, and those between when they are most of what is there.
    #[inline]
    fn drop_hollow(&mut self) {
        while self.chunks.front().is_some_and(Chunk::is_hollow) {
            self.chunks.pop_front();
            self.hollow -= 1;
        }
        while self.chunks.back().is_some_and(Chunk::is_hollow) {
            self.chunks.pop_back();
            self.hollow -= 1;
        }
        // At least half of what is walked here goes away, and each chunk became hollow by a settle: O(1) for each.
        // What remains has an unsettled bit each, so a single walk is as long as twice the unsettled records at most.
        if self.hollow > HOLLOW_MIN && self.hollow > self.chunks.len() / 2 {
            self.chunks.retain(|chunk| !chunk.is_hollow());
            self.hollow = 0;
        }
    }

    /// Whether `offset`, just received, was restored as settled; forgets what is restored up to it.
    fn take_restored(&mut self, offset: Offset) -> bool {
        while let Some(&(first, last)) = self.restored.front() {
            if first > offset {
                return false;
            }
            self.restored.pop_front();
            self.restored_offsets -= length(first, last);
            if last > offset {
                self.restored.push_front((offset.next(), last));
                self.restored_offsets += length(offset.next(), last);
            }
            if last >= offset {
                return true;
            }
        }
        false
    }
}

impl Chunk {
    fn is_hollow(&self) -> bool {
        self.unsettled == 0
    }

    /// The lowest unsettled offset of a chunk that is not hollow.
    #[inline]
    fn first_unsettled(&self) -> Offset {
        debug_assert!(!self.is_hollow(), "chunk {} is hollow", self.number);
        Offset::new((self.number * 64 + u64::from(self.unsettled.trailing_zeros())) as i64)
    }

    /// As [`first_unsettled`](Self::first_unsettled), and forgets it; `None` when the chunk is hollow.
    fn take_unsettled(&mut self) -> Option<Offset> {
        if self.is_hollow() {
            return None;
        }
        let offset = self.first_unsettled();
        self.unsettled &= self.unsettled - 1;
        Some(offset)
    }
}

/// How many offsets lie from `first` to `last`.
fn length(first: Offset, last: Offset) -> u64 {
    (last.get() - first.get()) as u64 + 1
}

/// See [`Ledger::settled_ranges`]. Walks the unsettled offsets, for what lies between two of them is settled.
struct SettledRanges<'a> {
    chunks: std::collections::vec_deque::Iter<'a, Chunk>,
    /// What is left of the chunk that is walked.
    chunk: Chunk,
    /// The offset after the last unsettled one, if there was any.
    settled_from: Option<Offset>,
    /// The next expected offset, until the walk has passed it.
    received_to: Option<Offset>,
    restored: std::collections::vec_deque::Iter<'a, (Offset, Offset)>,
}

impl SettledRanges<'_> {
    fn next_unsettled(&mut self) -> Option<Offset> {
        loop {
            if let Some(offset) = self.chunk.take_unsettled() {
                return Some(offset);
            }
            let &Chunk { number, unsettled } = self.chunks.next()?;
            self.chunk = Chunk { number, unsettled };
        }
    }

    /// The range from the last unsettled offset to the next expected one, joined with what is restored from there.
    fn last_received(&mut self) -> Option<(Offset, Offset)> {
        let received_to = self.received_to.take()?;
        let first = self.settled_from.filter(|&from| from < received_to)?;
        match self.restored.clone().next() {
            Some(&(from, to)) if from == received_to => {
                self.restored.next();
                Some((first, to))
            }
            _ => Some((first, before(received_to))),
        }
    }
}

impl Iterator for SettledRanges<'_> {
    type Item = (Offset, Offset);

    fn next(&mut self) -> Option<(Offset, Offset)> {
        while let Some(unsettled) = self.next_unsettled() {
            let from = self.settled_from.replace(unsettled.next());
            if let Some(from) = from.filter(|&from| from < unsettled) {
                return Some((from, before(unsettled)));
            }
        }
        self.last_received().or_else(|| self.restored.next().copied())
    }
}

impl FusedIterator for SettledRanges<'_> {}

fn before(offset: Offset) -> Offset {
    Offset::new(offset.get() - 1)
}

#[cfg(test)]
mod tests;
