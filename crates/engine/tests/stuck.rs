//! Ten million records settled above one that is stuck: what is kept, and what a commit says of it.

use seriatim_engine::ack_map;
use seriatim_engine::budget::Limits;
use seriatim_engine::ledger::{Admission, Ledger};
use seriatim_engine::record::Offset;

const RECORDS: i64 = 10_000_000;
const METADATA_LEN_MAX: usize = 4_096;
const LEDGER_BYTES_MAX: usize = 8 << 20;

/// A read's worth.
const RUN: i64 = 2_000;

/// Admits all records, and settles all but each `every`th, the first among them, as they come.
fn settled_above(every: i64) -> Ledger {
    let mut ledger = Ledger::new(Some(Offset::ZERO));
    let mut largest = 0;
    for run in (0..RECORDS).step_by(RUN as usize) {
        for offset in run..run + RUN {
            assert_eq!(ledger.admit(Offset::new(offset)), Admission::Admitted);
        }
        let mut from = run;
        for offset in run..=run + RUN {
            if offset % every == 0 || offset == run + RUN {
                if from < offset {
                    ledger.settle_run(Offset::new(from), Offset::new(offset - 1));
                }
                from = offset + 1;
            }
        }
        largest = largest.max(ledger.heap_bytes());
    }
    assert!(largest < LEDGER_BYTES_MAX, "{largest} bytes");
    ledger
}

#[test]
fn one_stuck_record_costs_next_to_nothing_and_a_commit_says_all() {
    let ledger = settled_above(RECORDS);
    assert_eq!(ledger.unsettled(), 1, "what is settled above it counts for no limit");
    assert!(ledger.heap_bytes() < 4_096, "{} bytes", ledger.heap_bytes());
    let map = ack_map::encode(Offset::ZERO, ledger.settled_ranges(), METADATA_LEN_MAX);
    assert!(!map.truncated && map.text.len() < 32, "{map:?}");
    let told = ack_map::decode(&map.text, Offset::ZERO, Some(Offset::new(RECORDS)));
    assert_eq!(told, Ok(vec![Offset::new(1)..=Offset::new(RECORDS - 1)]));
}

#[test]
fn as_many_stuck_records_as_a_partition_may_have_fit_and_a_commit_says_the_lowest() {
    let every = RECORDS / Limits::default().partition_records_max as i64;
    let ledger = settled_above(every);
    assert_eq!(ledger.unsettled(), Limits::default().partition_records_max);
    let map = ack_map::encode(Offset::ZERO, ledger.settled_ranges(), METADATA_LEN_MAX);
    assert!(
        map.truncated && map.text.len() <= METADATA_LEN_MAX,
        "{} bytes",
        map.text.len()
    );
    let told = ack_map::decode(&map.text, Offset::ZERO, Some(Offset::new(RECORDS))).expect("it is ours");
    let lowest = ledger
        .settled_ranges()
        .map(|(first, last)| first..=last)
        .take(told.len());
    // The last of them may be cut.
    let whole = told.len() - 1;
    assert!(whole > 400, "{whole} ranges");
    assert!(
        lowest.take(whole).eq(told[..whole].iter().cloned()),
        "the lowest, without a gap"
    );
}
