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
