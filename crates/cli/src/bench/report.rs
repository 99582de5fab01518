//! What many runs come to: medians, whether the bars are met, and both as text.

use std::fmt::Write as _;

use serde::Serialize;

use super::bars::Judgement;
use super::contender::{Contender, Measured};
use super::rows::Row;
use super::stage::Work;
use super::workload::Workload;
use crate::units::grouped;

/// A row of the table, with what it is made of.
#[derive(Debug, Serialize)]
pub struct RowReport {
    pub name: &'static str,
    pub title: &'static str,
    pub workload: Workload,
    pub work: Work,
    pub in_flight: usize,
    pub contenders: Vec<Medians>,
    pub bars: Vec<Judgement>,
}

/// One contender's runs, and the median of each figure.
#[derive(Debug, Serialize)]
pub struct Medians {
    pub contender: Contender,
    pub title: &'static str,
    /// Records a second.
    pub rate: Option<f64>,
    /// The rate as a share of the bare loop's.
    pub of_bare: Option<f64>,
    /// The rate as a share of what the handlers' waits alone allow, run by run.
    pub of_bound: Option<f64>,
    pub cpu_micros_per_record: Option<f64>,
    pub peak_mib: Option<f64>,
    pub resident_mib: Option<f64>,
    /// From production to the end of the handler where records are offered, else of the handler alone.
    pub p50_millis: Option<f64>,
    pub p99_millis: Option<f64>,
    pub violations: u64,
    pub runs: Vec<Measured>,
    /// Why runs failed.
    pub failures: Vec<String>,
}

impl Medians {
    pub fn of(contender: Contender, runs: Vec<Measured>, failures: Vec<String>) -> Self {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let over = |figure: &dyn Fn(&Measured) -> Option<f64>| median(runs.iter().filter_map(figure).collect());
        let times = |run: &Measured| run.delivery.or(run.handle);
        Self {
            contender,
            title: contender.title(),
            rate: over(&|run| run.rate),
            of_bare: None,
            of_bound: over(&|run| Some(run.rate? / run.bound?)),
            cpu_micros_per_record: over(&|run| run.cpu_micros_per_record),
            peak_mib: over(&|run| run.peak_bytes.map(mib)),
            resident_mib: over(&|run| run.resident_bytes.map(mib)),
            p50_millis: over(&|run| Some(times(run)?.p50_micros / 1e3)),
            p99_millis: over(&|run| Some(times(run)?.p99_micros / 1e3)),
            violations: runs.iter().map(|run| run.violations).sum(),
            runs,
            failures,
        }
    }
}

fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(figures[middle]),
        _ => Some((figures[middle - 1] + figures[middle]) / 2.0),
    }
}

impl RowReport {
    pub fn new(row: &Row, mut contenders: Vec<Medians>) -> Self {
        let bare = find(&contenders, Contender::Bare).and_then(|bare| bare.rate);
        for contender in &mut contenders {
            // Where records are offered, the rate is the offer's.
            contender.of_bare = contender
                .rate
                .zip(bare)
                .map(|(rate, bare)| rate / bare)
                .filter(|_| row.offered.is_none());
        }
        let sessions = row.workload.sessions;
        let bars = row.bars.iter().map(|bar| bar.judge(&contenders, sessions)).collect();
        Self {
            name: row.name,
            title: row.title,
            workload: row.workload,
            work: row.work,
            in_flight: row.in_flight,
            contenders,
            bars,
        }
    }

    pub fn violations(&self) -> u64 {
        self.contenders.iter().map(|contender| contender.violations).sum()
    }
}

/// The medians of `contender`, if it ran.
pub fn find(contenders: &[Medians], contender: Contender) -> Option<&Medians> {
    contenders.iter().find(|medians| medians.contender == contender)
}

/// The row as text.
pub fn text(row: &RowReport) -> String {
    let mut text = String::new();
    let Workload { records, .. } = row.workload;
    let _ = writeln!(text, "\n{}: {}; {} records", row.name, row.title, grouped(records));
    let _ = writeln!(
        text,
        "  {:<24}{:>12}{:>9}{:>9}{:>11}{:>10}{:>10}{:>10}",
        "", "records/s", "of bare", "of wait", "us/record", "peak MiB", "p50 ms", "p99 ms"
    );
    for contender in &row.contenders {
        let _ = writeln!(text, "{}", line(contender));
        for failure in &contender.failures {
            let _ = writeln!(text, "    failed: {failure}");
        }
        if contender.violations > 0 {
            let _ = writeln!(text, "    ORDER VIOLATED: {}", grouped(contender.violations));
        }
    }
    for bar in &row.bars {
        let _ = writeln!(text, "  {}", bar.text());
    }
    text
}

fn line(contender: &Medians) -> String {
    let figure =
        |figure: Option<f64>, places: usize| figure.map_or("-".to_owned(), |figure| format!("{figure:.places$}"));
    let rate = contender
        .rate
        .map_or("-".to_owned(), |rate| grouped(rate.round() as u64));
    format!(
        "  {:<24}{rate:>12}{:>9}{:>9}{:>11}{:>10}{:>10}{:>10}",
        contender.title,
        figure(contender.of_bare, 2),
        figure(contender.of_bound, 2),
        figure(contender.cpu_micros_per_record, 3),
        figure(contender.peak_mib, 0),
        figure(contender.p50_millis, 2),
        figure(contender.p99_millis, 2),
    )
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;

    fn runs(contender: Contender, rates: &[f64]) -> Medians {
        let run = |rate: &f64| Measured {
            rate: Some(*rate),
            ..Measured::default()
        };
        Medians::of(contender, rates.iter().map(run).collect(), Vec::new())
    }

    #[test]
    fn a_row_is_made_of_medians() {
        let contenders = vec![
            runs(Contender::Ours, &[1.0, 9.0, 10.0]),
            runs(Contender::Bare, &[10.0, 11.0, 90.0, 7.0]),
        ];
        let report = RowReport::new(&rows::all(1_000)[0], contenders);
        assert_eq!(report.contenders[0].rate, Some(9.0));
        assert_eq!(report.contenders[1].rate, Some(10.5));
        assert_eq!(report.bars[0].met, Some(true), "{:?}", report.bars);
    }

    #[test]
    fn what_did_not_run_is_neither_met_nor_missed() {
        let contenders = vec![runs(Contender::Ours, &[1.0]), runs(Contender::Bare, &[])];
        let report = RowReport::new(&rows::all(1_000)[0], contenders);
        assert_eq!(report.bars[0].met, None);
        assert!(
            text(&report).contains("- of the rate of bare batch loop"),
            "{}",
            text(&report)
        );
    }
}
