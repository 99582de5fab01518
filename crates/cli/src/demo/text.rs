//! The report as people read it: a picture, an episode, the judgement.

use std::fmt::{Display, Formatter, Result};
use std::io::{IsTerminal, stdout};
use std::iter;
use std::time::Duration;

use super::members::Changes;
use super::report::{Report, Side};
use super::traffic;
use crate::units::{counted, grouped};

/// As many marks as fit a line.
const STRIP_LEN: usize = 50;

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let paint = Paint::for_stdout();
        writeln!(
            f,
            "{} of {} in {} partitions; {:.0} % of all attempts fail; seed {}\n",
            counted(self.workload.records, "record"),
            counted(self.workload.sessions.into(), "session"),
            self.partitions,
            self.workload.faults * 100.0,
            self.workload.seed,
        )?;
        self.picture(f, paint)?;
        self.episode(f, paint)?;
        self.judgement(f, paint)
    }
}

impl Report {
    fn picture(&self, f: &mut Formatter<'_>, paint: Paint) -> Result {
        let sessions = self.workload.sessions;
        let a_mark = (sessions as usize).div_ceil(STRIP_LEN);
        for (name, side) in [("seriatim", &self.seriatim), ("plain pool", &self.plain)] {
            let (hurt, strip) = (side.verdict.hurt(), strip(&side.verdict.hurt, a_mark));
            let strip = paint.with(if hurt == 0 { GREEN } else { RED }, &strip);
            let of = counted(sessions.into(), "session");
            writeln!(f, "  {name:10}  {strip}  {} of {of} hurt", grouped(hurt))?;
        }
        let each = counted(a_mark as u64, "session");
        writeln!(
            f,
            "{:14}a mark is {each}, as high as the share of them that was hurt",
            ""
        )
    }

    fn episode(&self, f: &mut Formatter<'_>, paint: Paint) -> Result {
        let Some(episode) = &self.episode else {
            return writeln!(
                f,
                "\nThe plain pool was lucky: with more records or more faults it is not."
            );
        };
        writeln!(f, "\nIn the plain pool, {}. The order of handling there:", episode.told)?;
        for (name, order) in [("seriatim", &episode.seriatim), ("plain pool", &episode.plain)] {
            let before = iter::once(None).chain(order.iter().map(Some));
            let marked = order.iter().zip(before).map(|(seq, before)| match before {
                Some(before) if *seq != before + 1 => paint.with(RED, &seq.to_string()),
                _ => seq.to_string(),
            });
            writeln!(f, "  {name:10}  {}", marked.collect::<Vec<_>>().join(" "))?;
        }
        Ok(())
    }

    fn judgement(&self, f: &mut Formatter<'_>, paint: Paint) -> Result {
        if self.passed() {
            let proven = paint.with(GREEN, "PROVEN");
            writeln!(f, "\n{proven}: every record of every session was handled in order.")?;
        } else {
            let example = self.seriatim.example();
            let example = example.unwrap_or_else(|| "records were handled that nobody sent".to_owned());
            writeln!(f, "\n{}: {example}.", paint.with(RED, "NOT PROVEN"))?;
        }
        for (name, text) in self.findings() {
            writeln!(f, "  {name:8}  {text}")?;
        }
        Ok(())
    }

    fn findings(&self) -> [(&'static str, String); 6] {
        let Side { verdict, latencies, .. } = &self.seriatim;
        let found = verdict.violations;
        let none = |count: u64, none: &str, some: &str| match count {
            0 => none.to_owned(),
            count => format!("{} {some}", grouped(count)),
        };
        let [settled, records] = [verdict.settled, self.workload.records].map(grouped);
        let lost = none(found.lost, "nothing lost", "lost");
        let repeated = none(found.repeated, "nothing handled twice", "handled again");
        let starts = counted(verdict.starts, "start");
        let order = none(found.overtaken, "each after its predecessor was settled", "too early");
        let overlap = none(found.overlapping, "never two of a session at a time", "overlapping");
        let retries = counted(verdict.retries(), "retry");
        let rates = [self.seriatim.rate(), traffic::rate(&self.workload) as u64];
        let [rate, sent] = rates.map(grouped);
        let [p50, p99, rebalancing] = [latencies.p50, latencies.p99, latencies.rebalancing_p99].map(Latency);
        [
            ("records", format!("{settled} of {records}: {lost}, {repeated}")),
            ("order", format!("{starts} of handlers judged: {order}, {overlap}")),
            ("faults", format!("{retries}, each in place")),
            ("group", self.changes.to_string()),
            ("speed", format!("{rate} records/s; at most {sent}/s were sent")),
            (
                "latency",
                format!("sent to settled: p50 {p50}, p99 {p99}; while the group rebalanced p99 {rebalancing}"),
            ),
        ]
    }
}

impl Display for Changes {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let rebalances = counted(self.rebalances, "rebalance");
        write!(
            f,
            "{rebalances} under load, {} handed over",
            counted(self.handovers, "partition")
        )?;
        match self.lost {
            0 => Ok(()),
            lost => write!(f, ", {lost} of them lost without a drain"),
        }
    }
}

/// One mark for each `a_mark` sessions, as high as the share of them that was hurt.
fn strip(hurt: &[bool], a_mark: usize) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let mark = |sessions: &[bool]| match sessions.iter().filter(|hurt| **hurt).count() {
        0 => '·',
        hurt => HEIGHTS[(hurt * HEIGHTS.len()).div_ceil(sessions.len()) - 1],
    };
    hurt.chunks(a_mark).map(mark).collect()
}

/// A latency, with two digits or three that mean something.
struct Latency(Duration);

impl Display for Latency {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let millis = self.0.as_secs_f64() * 1e3;
        match millis {
            ..10.0 => write!(f, "{millis:.1} ms"),
            10.0..1000.0 => write!(f, "{millis:.0} ms"),
            _ => write!(f, "{:.1} s", millis / 1e3),
        }
    }
}

/// Colours, where they are wanted.
#[derive(Clone, Copy)]
struct Paint {
    colours: bool,
}

const RED: u8 = 31;
const GREEN: u8 = 32;

impl Paint {
    fn for_stdout() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            colours: stdout().is_terminal() && !unwanted,
        }
    }

    fn with(self, colour: u8, text: &str) -> String {
        match self.colours {
            true => format!("\x1b[{colour}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_as_high_as_the_share_that_was_hurt() {
        assert_eq!(strip(&[false, true, false], 1), "·█·");
        let one_of_ten: Vec<bool> = (0..10).map(|session| session == 3).collect();
        assert_eq!(strip(&one_of_ten, 10), "▁", "the least is seen");
        assert_eq!(strip(&[true; 25], 10), "███", "the last mark stands for fewer");
    }
}
