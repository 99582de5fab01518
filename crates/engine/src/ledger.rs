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
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn offset(offset: i64) -> Offset {
        Offset::new(offset)
    }

    fn range(first: i64, last: i64) -> RangeInclusive<Offset> {
        offset(first)..=offset(last)
    }

    /// A ledger read from offset 0 that admitted these offsets.
    fn admitted(offsets: impl IntoIterator<Item = i64>) -> Ledger {
        let mut ledger = Ledger::new(Some(Offset::ZERO));
        for n in offsets {
            assert_eq!(ledger.admit(offset(n)), Admission::Admitted, "offset {n}");
        }
        ledger
    }

    fn settle(ledger: &mut Ledger, offsets: impl IntoIterator<Item = i64>) {
        for n in offsets {
            ledger.settle(offset(n));
        }
    }

    fn watermark(ledger: &Ledger) -> Option<i64> {
        ledger.watermark().map(|watermark| watermark.offset().get())
    }

    fn ranges(ledger: &Ledger) -> Vec<(i64, i64)> {
        ledger
            .settled_ranges()
            .map(|(first, last)| (first.get(), last.get()))
            .collect()
    }

    #[test]
    fn a_slow_record_holds_the_watermark_and_all_others_go_on() {
        let mut ledger = admitted(0..5);
        settle(&mut ledger, [0, 2, 4]);
        assert_eq!(watermark(&ledger), Some(1));
        assert_eq!(ledger.oldest_unsettled(), Some(offset(1)));
        assert_eq!(ranges(&ledger), [(2, 2), (4, 4)]);
        assert_eq!(
            (ledger.unsettled(), ledger.settled_above(), ledger.is_clean()),
            (2, 2, false)
        );

        settle(&mut ledger, [1]);
        assert_eq!(watermark(&ledger), Some(3));
        settle(&mut ledger, [3]);
        assert_eq!(watermark(&ledger), Some(5));
        assert_eq!(ranges(&ledger), []);
        assert!(ledger.is_clean());
    }

    #[test]
    fn offset_0_is_an_offset_like_any_other() {
        let mut ledger = Ledger::new(None);
        assert_eq!((watermark(&ledger), ledger.next_expected()), (None, None));
        assert_eq!(ledger.admit(Offset::ZERO), Admission::Admitted);
        assert_eq!(watermark(&ledger), Some(0));
        assert_eq!(ledger.admit(Offset::ZERO), Admission::Behind);
        ledger.settle(Offset::ZERO);
        assert_eq!(watermark(&ledger), Some(1));

        let mut ledger = Ledger::new(None);
        ledger.restore([range(0, 0)]);
        assert_eq!(ranges(&ledger), [(0, 0)]);
        assert_eq!(ledger.admit(Offset::ZERO), Admission::AlreadySettled);
        assert_eq!((watermark(&ledger), ledger.is_clean()), (Some(1), true));
    }

    #[test]
    fn a_gap_is_passed_as_if_it_were_settled() {
        // A transaction marker at 2, and a compacted stretch from 4 to 999.
        let mut ledger = admitted([0, 1, 3, 1_000]);
        settle(&mut ledger, [1, 3]);
        assert_eq!(ranges(&ledger), [(1, 999)]);
        assert_eq!(ledger.settled_above(), 999);
        settle(&mut ledger, [0]);
        assert_eq!(watermark(&ledger), Some(1_000));
        settle(&mut ledger, [1_000]);
        assert_eq!(watermark(&ledger), Some(1_001));
    }

    #[test]
    #[should_panic(expected = "offset settled twice: 70 is not unsettled")]
    fn a_run_with_a_settled_offset_in_it_is_refused() {
        let mut ledger = admitted(0..100);
        settle(&mut ledger, [70]);
        ledger.settle_run(offset(60), offset(80));
    }

    #[test]
    fn a_skip_is_passed_when_what_was_admitted_before_it_is_settled() {
        let mut ledger = admitted([7, 8]);
        ledger.restore([range(20, 29), range(95, 104)]);
        settle(&mut ledger, [8]);
        ledger.skip_to(offset(100));
        assert_eq!(watermark(&ledger), Some(7), "it was received, and is not settled");
        assert_eq!(ranges(&ledger), [(8, 104)]);
        assert_eq!(ledger.admit(offset(99)), Admission::Behind);
        assert_eq!(ledger.admit(offset(100)), Admission::AlreadySettled);
        settle(&mut ledger, [7]);
        assert_eq!(watermark(&ledger), Some(101));
        ledger.skip_to(offset(50));
        assert_eq!(watermark(&ledger), Some(101), "it never falls");

        let mut nothing_committed = Ledger::new(None);
        nothing_committed.skip_to(Offset::ZERO);
        assert_eq!(watermark(&nothing_committed), Some(0));
    }

    #[test]
    fn what_is_read_again_in_the_same_epoch_is_not_processed_again() {
        let mut ledger = Ledger::new(Some(offset(10)));
        assert_eq!(ledger.admit(offset(9)), Admission::Behind, "committed before");
        assert_eq!(ledger.admit(offset(10)), Admission::Admitted);
        assert_eq!(ledger.admit(offset(12)), Admission::Admitted);
        for again in [10, 11, 12] {
            assert_eq!(ledger.admit(offset(again)), Admission::Behind);
        }
        assert_eq!(ledger.unsettled(), 2);
    }

    #[test]
    fn after_a_crash_only_what_was_in_flight_repeats() {
        let mut before = admitted(0..100);
        settle(&mut before, (0..100).filter(|n| n % 10 != 7));
        let committed = before.watermark().map(CommitWatermark::offset);
        let ack_map = before
            .settled_ranges()
            .map(|(first, last)| first..=last)
            .collect::<Vec<_>>();

        let mut after = Ledger::new(committed);
        after.restore(ack_map);
        let repeated = (7..120)
            .filter(|&n| after.admit(offset(n)) == Admission::Admitted)
            .collect::<Vec<_>>();
        let in_flight = (0..10).map(|tens| tens * 10 + 7);
        assert_eq!(repeated, in_flight.chain(100..120).collect::<Vec<_>>());
    }

    #[test]
    fn an_early_commit_after_a_restart_still_tells_what_is_not_read_again_yet() {
        let mut ledger = Ledger::new(Some(offset(5)));
        ledger.restore([range(20, 29), range(6, 9)]);
        assert_eq!((watermark(&ledger), ranges(&ledger)), (Some(5), vec![(6, 9), (20, 29)]));
        assert_eq!(ledger.settled_above(), 14);

        assert_eq!(ledger.admit(offset(5)), Admission::Admitted);
        assert_eq!(ledger.admit(offset(6)), Admission::AlreadySettled);
        assert_eq!(ranges(&ledger), [(6, 9), (20, 29)], "received and restored parts join");
        ledger.settle(offset(5));
        assert_eq!((watermark(&ledger), ranges(&ledger)), (Some(7), vec![(7, 9), (20, 29)]));

        // The log was compacted meanwhile: 8 to 24 are gone.
        assert_eq!(ledger.admit(offset(25)), Admission::AlreadySettled);
        assert_eq!((watermark(&ledger), ranges(&ledger)), (Some(26), vec![(26, 29)]));
    }

    #[test]
    fn ranges_may_come_in_any_order_overlap_and_reach_below_what_is_read() {
        let mut ledger = Ledger::new(Some(offset(10)));
        #[allow(clippy::reversed_empty_ranges)]
        ledger.restore([range(14, 20), range(0, 11), range(12, 12), range(15, 16), range(40, 30)]);
        assert_eq!(ranges(&ledger), [(10, 12), (14, 20)]);
        ledger.restore([range(13, 13), range(20, 21)]);
        assert_eq!(ranges(&ledger), [(10, 21)]);
        assert_eq!(ledger.settled_above(), 12);
    }

    #[test]
    #[should_panic(expected = "offset settled twice: 3")]
    fn settling_twice_is_a_bug() {
        let mut ledger = admitted(0..10);
        settle(&mut ledger, [3, 3]);
    }

    #[test]
    #[should_panic(expected = "offset settled twice: 70")]
    fn settling_what_was_never_admitted_is_a_bug() {
        let mut ledger = admitted([0, 200]);
        settle(&mut ledger, [70]);
    }

    #[test]
    fn ten_million_settled_offsets_above_a_stuck_record_cost_next_to_nothing() {
        const RECORDS: i64 = 10_000_000;
        let mut ledger = admitted([0]);
        let mut heap_bytes_max = 0;
        // They settle a thousand at a time and out of order: 7 and 1,000 have no common factor.
        for thousand in (1..RECORDS).step_by(1_000) {
            for n in thousand..thousand + 1_000 {
                ledger.admit(offset(n));
            }
            settle(&mut ledger, (0..1_000).map(|n| thousand + n * 7 % 1_000));
            heap_bytes_max = heap_bytes_max.max(ledger.heap_bytes());
        }
        assert_eq!((watermark(&ledger), ledger.unsettled()), (Some(0), 1));
        assert_eq!(ledger.settled_above() as i64, RECORDS);
        assert!(heap_bytes_max < 8 << 10, "{heap_bytes_max} bytes");
    }

    #[test]
    fn ten_million_unsettled_offsets_and_then_settled_ones_stay_below_eight_megabytes() {
        const RECORDS: i64 = 10_000_000;
        let mut ledger = admitted(0..RECORDS);
        assert!(ledger.heap_bytes() < 8_000_000, "{} bytes", ledger.heap_bytes());
        // Every second one first, so that each chunk stays until the end, then from the back.
        settle(&mut ledger, (1..RECORDS).step_by(2));
        assert_eq!(ranges(&ledger).len() as i64, RECORDS / 2);
        settle(&mut ledger, (1..RECORDS / 2).rev().map(|n| n * 2));
        assert_eq!((watermark(&ledger), ranges(&ledger)), (Some(0), vec![(1, RECORDS - 1)]));
        assert!(ledger.heap_bytes() < 8_000_000, "{} bytes", ledger.heap_bytes());
    }

    #[test]
    fn a_few_stuck_records_far_apart_are_found_in_a_sparse_log() {
        // One record in 1,000 offsets, every tenth of them stuck.
        let places = || (0..10_000).map(|n| n * 1_000);
        let mut ledger = admitted(places());
        settle(&mut ledger, places().filter(|n| n % 10_000 != 0));
        assert_eq!((watermark(&ledger), ledger.unsettled()), (Some(0), 1_000));
        assert!(
            ledger.chunks.len() <= 2_000,
            "hollow chunks are dropped: {}",
            ledger.chunks.len()
        );
        settle(&mut ledger, places().filter(|n| n % 10_000 == 0));
        assert_eq!((watermark(&ledger), ledger.is_clean()), (Some(9_999_001), true));
    }

    /// The ledger as one would first write it: every offset on its own.
    #[derive(Default)]
    struct Model {
        settled_by_offset: BTreeMap<i64, bool>,
        restored: BTreeSet<i64>,
        next: Option<i64>,
    }

    impl Model {
        fn admit(&mut self, offset: i64) -> Admission {
            if self.next.is_some_and(|next| offset < next) {
                return Admission::Behind;
            }
            self.next = Some(offset + 1);
            let settled = self.restored.contains(&offset);
            self.restored.retain(|&restored| restored > offset);
            self.settled_by_offset.insert(offset, settled);
            if settled {
                Admission::AlreadySettled
            } else {
                Admission::Admitted
            }
        }

        fn unsettled(&self) -> Vec<i64> {
            let unsettled = self.settled_by_offset.iter().filter(|&(_, &settled)| !settled);
            unsettled.map(|(&offset, _)| offset).collect()
        }

        fn watermark(&self) -> Option<i64> {
            self.unsettled().first().copied().or(self.next)
        }

        fn settled_ranges(&self) -> Vec<(i64, i64)> {
            let unsettled = self.unsettled();
            let received = self.watermark().unwrap_or(0)..self.next.unwrap_or(0);
            let settled = received
                .filter(|offset| unsettled.binary_search(offset).is_err())
                .chain(self.restored.iter().copied());
            let mut ranges: Vec<(i64, i64)> = Vec::new();
            for offset in settled {
                match ranges.last_mut() {
                    Some((_, last)) if *last + 1 == offset => *last = offset,
                    _ => ranges.push((offset, offset)),
                }
            }
            ranges
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Admits the offset this far beyond the next expected one, or before it.
        Admit(i64),
        /// Settles the unsettled offset at this place, modulo their number.
        Settle(usize),
        /// Restores a range that starts this far from the next expected offset.
        Restore(Vec<(i64, i64)>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            40 => Just(Step::Admit(0)),
            6 => (-20i64..40).prop_map(Step::Admit),
            3 => (0i64..700).prop_map(Step::Admit),
            40 => any::<usize>().prop_map(Step::Settle),
            20 => Just(Step::Settle(0)),
            1 => prop::collection::vec((-10i64..200, -2i64..80), 1..6).prop_map(Step::Restore),
        ]
    }

    fn check(ledger: &Ledger, model: &Model) -> Result<(), TestCaseError> {
        let unsettled = model.unsettled();
        prop_assert_eq!(watermark(ledger), model.watermark());
        prop_assert_eq!(ledger.unsettled(), unsettled.len());
        prop_assert_eq!(ledger.oldest_unsettled().map(Offset::get), unsettled.first().copied());
        prop_assert_eq!(ledger.next_expected().map(Offset::get), model.next);
        prop_assert_eq!(ledger.is_clean(), unsettled.is_empty());
        prop_assert_eq!(
            ledger.hollow,
            ledger.chunks.iter().filter(|chunk| chunk.is_hollow()).count()
        );
        Ok(())
    }

    fn check_ranges(ledger: &Ledger, model: &Model) -> Result<(), TestCaseError> {
        let expected = model.settled_ranges();
        prop_assert_eq!(ranges(ledger), &expected[..]);
        let offsets = expected.iter().map(|(first, last)| last - first + 1).sum::<i64>();
        prop_assert_eq!(ledger.settled_above() as i64, offsets);
        Ok(())
    }

    proptest! {
        #[test]
        fn a_run_is_settled_as_its_offsets_one_by_one(cuts in proptest::collection::btree_set(1i64..300, 1..12)) {
            let bounds: Vec<i64> = std::iter::once(0).chain(cuts).collect();
            let len = *bounds.last().unwrap();
            let (mut by_run, mut by_one) = (admitted(0..len), admitted(0..len));
            let runs: Vec<_> = bounds.windows(2).map(|bounds| (bounds[0], bounds[1] - 1)).collect();
            // Every second one first, so that some are above the watermark.
            for (first, last) in runs.iter().skip(1).step_by(2).chain(runs.iter().step_by(2)) {
                by_run.settle_run(offset(*first), offset(*last));
                settle(&mut by_one, *first..=*last);
                prop_assert_eq!(watermark(&by_run), watermark(&by_one));
                prop_assert_eq!(ranges(&by_run), ranges(&by_one));
                prop_assert_eq!(by_run.unsettled(), by_one.unsettled());
            }
            prop_assert_eq!(watermark(&by_run), Some(len));
        }

        #[test]
        fn the_ledger_agrees_with_a_naive_model(
            start in prop::option::of(0i64..200),
            steps in prop::collection::vec(step(), 0..400),
        ) {
            let mut ledger = Ledger::new(start.map(offset));
            let mut model = Model { next: start, ..Model::default() };
            for (number, step) in steps.into_iter().enumerate() {
                let watermark_before = watermark(&ledger);
                let next = model.next.unwrap_or(0);
                match step {
                    Step::Admit(distance) => {
                        let n = (next + distance).max(0);
                        prop_assert_eq!(ledger.admit(offset(n)), model.admit(n), "offset {}", n);
                    }
                    Step::Settle(index) => {
                        let unsettled = model.unsettled();
                        if !unsettled.is_empty() {
                            let n = unsettled[index % unsettled.len()];
                            ledger.settle(offset(n));
                            model.settled_by_offset.insert(n, true);
                        }
                    }
                    Step::Restore(ranges) => {
                        let ranges = ranges.into_iter().map(|(distance, length)| {
                            let first = (next + distance).max(0);
                            (first, (first + length).max(0))
                        });
                        ledger.restore(ranges.clone().map(|(first, last)| range(first, last)));
                        model.restored.extend(ranges.flat_map(|(first, last)| first..=last).filter(|&n| n >= next));
                    }
                }
                check(&ledger, &model)?;
                prop_assert!(watermark_before <= watermark(&ledger), "the watermark fell");
                if number % 16 == 0 {
                    check_ranges(&ledger, &model)?;
                }
            }
            check_ranges(&ledger, &model)?;
        }

        #[test]
        fn whatever_the_order_all_settled_leaves_a_clean_ledger(
            gaps in prop::collection::vec(prop_oneof![9 => Just(1i64), 1 => 1i64..5_000_000_000], 1..2_000),
            seed: u64,
        ) {
            let mut offsets = gaps
                .iter()
                .scan(0i64, |offset, gap| {
                    *offset += gap;
                    Some(*offset)
                })
                .collect::<Vec<_>>();
            let next = offsets[offsets.len() - 1] + 1;
            let mut ledger = admitted(offsets.iter().copied());
            offsets.sort_by_key(|&n| (n as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            settle(&mut ledger, offsets);
            prop_assert_eq!((watermark(&ledger), ledger.is_clean(), ranges(&ledger)), (Some(next), true, vec![]));
            prop_assert_eq!((ledger.chunks.len(), ledger.hollow), (0, 0));
        }
    }
}
