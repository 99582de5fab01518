//! The judge on topics that have grown, in histories that are written by hand: `chat` had partition 0, and has two.

use std::time::Duration;

use seriatim_engine::growth::Growth;
use seriatim_engine::record::{Offset, PartitionId, RecordId};
use seriatim_testkit::history::{AckMap, Ended, Entry, EpochNumber, What};
use seriatim_testkit::judge::{GrowthTruth, PartitionTruth, RecordTruth, Rules, Truth, judge};

fn chat(number: i32) -> PartitionId {
    PartitionId::new("chat", number)
}

fn id(partition: i32, offset: i64) -> RecordId {
    RecordId {
        partition: chat(partition),
        offset: Offset::new(offset),
    }
}

fn partition(sessions: &str) -> PartitionTruth {
    let records = sessions.bytes().zip(0..).map(|(session, offset)| RecordTruth {
        offset: Offset::new(offset),
        session: Some(vec![session]),
        fingerprint: 7,
    });
    PartitionTruth {
        records: records.collect(),
        end: sessions.len() as i64,
        committed: None,
        settled: AckMap::new(),
    }
}

/// Sessions a and b lay in partition 0, and something was committed for it, when a moved to partition 1; then b went on.
fn truth() -> Truth {
    let growth = GrowthTruth {
        topic: "chat".to_owned(),
        partitions: vec![(Offset::new(2), Some(Offset::ZERO))],
    };
    Truth {
        partitions: [(chat(0), partition("abb")), (chat(1), partition("a"))].into(),
        growths: vec![growth],
        ..Truth::default()
    }
}

/// `begin 0`, `handle 0 1`, `commit 0 2`: the verb, the partition, and the offset.
fn violations(truth: &Truth, growth: Growth, steps: &str) -> Vec<&'static str> {
    let mut entries = Vec::new();
    for step in steps.split("; ") {
        let words: Vec<&str> = step.split(' ').collect();
        let number = words[1].parse().unwrap();
        let offset = words.get(2).map_or(0, |word| word.parse().unwrap());
        let epoch = EpochNumber(number as usize);
        entries.extend(match words[0] {
            "begin" => vec![What::Assign {
                epoch,
                partition: chat(number),
                committed: None,
                settled: AckMap::new(),
                attempts: Vec::new(),
            }],
            "handle" => {
                let record = id(number, offset);
                let start = What::Start {
                    record: record.clone(),
                    attempt: 1,
                    fingerprint: 7,
                };
                vec![start, What::End(record, 1, Ended::Handled)]
            }
            "commit" => vec![
                What::CommitSent(epoch, Offset::new(offset), AckMap::new()),
                What::CommitAnswered(epoch, true),
            ],
            verb => panic!("{verb}: no such verb"),
        });
    }
    let (at, instance) = (Duration::ZERO, 0);
    let history: Vec<Entry> = entries.into_iter().map(|what| Entry { at, instance, what }).collect();
    let rules = Rules {
        growth,
        settled: false,
        ..Rules::default()
    };
    let found = judge(&history, truth, &rules).violations;
    found.iter().map(|violation| violation.property).collect()
}

#[test]
fn a_new_partition_that_has_waited_is_good() {
    let waited = "begin 0; begin 1; handle 0 0; handle 0 1; commit 0 2; handle 1 0";
    assert_eq!(violations(&truth(), Growth::Hold, waited), [""; 0]);
    let others_go_on = "begin 0; begin 1; handle 0 0; commit 0 1; handle 1 0; handle 0 1";
    assert_eq!(violations(&truth(), Growth::Hold, others_go_on), [""; 0]);
}

#[test]
fn p14_a_new_partition_before_what_was_there() {
    let not_settled = "begin 0; begin 1; handle 1 0; handle 0 0";
    let not_committed = "begin 0; begin 1; handle 0 0; handle 1 0; commit 0 1";
    for steps in [not_settled, not_committed] {
        assert_eq!(violations(&truth(), Growth::Hold, steps), ["P14"], "{steps}");
        assert_eq!(violations(&truth(), Growth::Warn, steps), [""; 0], "{steps}");
    }
}

#[test]
fn what_the_group_had_committed_nothing_for_is_not_waited_for() {
    let mut truth = truth();
    truth.growths[0].partitions[0].1 = None;
    assert_eq!(
        violations(&truth, Growth::Hold, "begin 0; begin 1; handle 1 0"),
        [""; 0]
    );
}
