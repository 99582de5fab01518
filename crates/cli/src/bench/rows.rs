//! The published workloads, row by row, and what each is to reach.

use std::time::Duration;

use super::bars::Bar;
use super::contender::Contender::{
    self, Bare, HandlersWaiting, OnEight, Ours, Records, RecordsWaiting, Settled, Sleepers, Stream, Tasks,
};
use super::stage::Work;
use super::workload::{PARTITIONS, Spread, Workload};

/// One row of the table: a workload, and who runs it.
#[derive(Clone, Debug)]
pub struct Row {
    /// What `--only` calls it.
    pub name: &'static str,
    pub title: &'static str,
    pub workload: Workload,
    pub work: Work,
    /// Handlers that may wait at a time.
    pub in_flight: usize,
    /// Records a second that are offered while they are read; `None` when all are there before.
    pub offered: Option<u32>,
    pub contenders: &'static [Contender],
    pub bars: &'static [Bar],
}

/// The names of all rows, in order.
pub const NAMES: [&str; 13] = [
    "noop-1",
    "noop-10",
    "noop-1k",
    "noop-100k",
    "noop-1m",
    "wait-10ms-1k",
    "wait-10ms-20k",
    "wait-1ms",
    "article-10ms",
    "article-1ms",
    "offered",
    "memory",
    "partitions-1k",
];

/// Handlers that wait at a time where none has to: the library's default.
const IN_FLIGHT: usize = 1_000;

const ARTICLE: Workload = Workload {
    records: 50_000,
    sessions: 10,
    spread: Spread::InTurn,
    partitions: PARTITIONS,
};
const OFFERED_PER_SECOND: u32 = 50_000;
const OFFERED_SECONDS: u64 = 20;

/// All rows, on topics of `records` where the row does not fix their number.
pub fn all(records: u64) -> Vec<Row> {
    let no_op = |name, title, sessions, bars| Row {
        name,
        title,
        workload: Workload {
            records,
            sessions,
            spread: Spread::Random,
            partitions: PARTITIONS,
        },
        work: Work::Nothing,
        in_flight: IN_FLIGHT,
        offered: None,
        contenders: &[Ours, Bare, Stream, Tasks],
        bars,
    };
    let waiting = |name, title, millis, in_flight, records, sessions, contenders, bars| Row {
        name,
        title,
        workload: Workload {
            records,
            sessions,
            spread: Spread::Random,
            partitions: PARTITIONS,
        },
        work: Work::Wait(Duration::from_millis(millis)),
        in_flight,
        offered: None,
        contenders,
        bars,
    };
    let article = |name, title, backoff, bars| Row {
        name,
        title,
        workload: ARTICLE,
        work: Work::Fail {
            rate: 0.1,
            backoff: Duration::from_millis(backoff),
        },
        in_flight: IN_FLIGHT,
        offered: None,
        contenders: &[Ours, Tasks],
        bars,
    };
    vec![
        no_op("noop-1", "1 session, no-op", 1, &[Bar::ShareOf(Bare, 0.8)]),
        no_op("noop-10", "10 sessions, no-op", 10, &[Bar::ShareOf(Bare, 0.8)]),
        no_op(
            "noop-1k",
            "1,000 sessions, no-op",
            1_000,
            &[Bar::ShareOf(Bare, 0.8), Bar::ShareOf(Stream, 1.0), Bar::Cpu(0.45)],
        ),
        no_op(
            "noop-100k",
            "100,000 sessions, no-op",
            100_000,
            &[Bar::ShareOf(Bare, 0.75)],
        ),
        no_op(
            "noop-1m",
            "1,000,000 sessions, no-op",
            1_000_000,
            &[Bar::ShareOf(Bare, 0.6), Bar::Peak(400.0)],
        ),
        // A quarter of the records: they take long.
        waiting(
            "wait-10ms-1k",
            "10 ms handler, 100,000 sessions, 1,000 in flight",
            10,
            1_000,
            records / 4,
            100_000,
            &[Ours, Tasks],
            &[Bar::ShareOfBound(0.95)],
        ),
        waiting(
            "wait-10ms-20k",
            "10 ms handler, 100,000 sessions, 20,000 in flight",
            10,
            20_000,
            records,
            100_000,
            &[Ours, Tasks],
            &[Bar::Rate(1e6), Bar::Cpu(1.0)],
        ),
        // Twice as many may wait as there are sessions, which fall to workers unevenly: so sessions are the limit.
        waiting(
            "wait-1ms",
            "1 ms handler, 1,000 sessions",
            1,
            2_000,
            records,
            1_000,
            &[Ours, Sleepers, Tasks],
            &[Bar::ShareOf(Sleepers, 0.9)],
        ),
        article(
            "article-10ms",
            "10 sessions of 5,000, 10 % faults, back-off 10 ms",
            10,
            &[Bar::ShareOfBound(0.95)],
        ),
        article(
            "article-1ms",
            "10 sessions of 5,000, 10 % faults, back-off 1 ms",
            1,
            &[Bar::Rate(60_000.0)],
        ),
        Row {
            name: "offered",
            title: "1,000 sessions, 50,000 records/s offered for 20 s",
            workload: Workload {
                records: u64::from(OFFERED_PER_SECOND) * OFFERED_SECONDS,
                sessions: 1_000,
                spread: Spread::Random,
                partitions: PARTITIONS,
            },
            work: Work::Receive,
            in_flight: IN_FLIGHT,
            offered: Some(OFFERED_PER_SECOND),
            contenders: &[Ours, Bare],
            bars: &[Bar::P50(0.8), Bar::P99(4.0)],
        },
        Row {
            name: "memory",
            title: "1,000,000 sessions, something waiting in each",
            workload: Workload {
                records: 1_000_000,
                sessions: 1_000_000,
                spread: Spread::InTurn,
                partitions: PARTITIONS,
            },
            work: Work::Nothing,
            in_flight: IN_FLIGHT,
            offered: None,
            contenders: &[Settled, RecordsWaiting, HandlersWaiting, Records],
            bars: &[Bar::Lane(256.0), Bar::LaneAndHandler],
        },
        Row {
            name: "partitions-1k",
            title: "1,000 partitions on one instance, 10,000 sessions, 10 ms handler",
            workload: Workload {
                records,
                sessions: 10_000,
                spread: Spread::Random,
                partitions: 1_000,
            },
            work: Work::Wait(Duration::from_millis(10)),
            // As for `wait-1ms`: sessions are the limit, and each has its lane.
            in_flight: 20_000,
            offered: None,
            contenders: &[Ours, OnEight],
            bars: &[Bar::CpuOf(OnEight, 1.2)],
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_rows() {
        let rows = all(1_000);
        assert!(rows.iter().map(|row| row.name).eq(NAMES));
    }
}
