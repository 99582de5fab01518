//! What is seen on standard error while the demonstration runs: two bars on a terminal, plain lines elsewhere.

use std::cell::Cell;
use std::io::{IsTerminal, stderr};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::proof::Proof;
use crate::units::{counted, grouped};

/// The progress of both approaches.
pub(super) struct Progress {
    records: u64,
    bars: Option<Bars>,
    /// How many tenths have been told of.
    tenths: Cell<u64>,
}

struct Bars {
    all: MultiProgress,
    seriatim: ProgressBar,
    plain: ProgressBar,
}

impl Progress {
    pub(super) fn new(records: u64) -> Self {
        Self {
            records,
            bars: stderr().is_terminal().then(|| Bars::new(records)),
            tenths: Cell::new(0),
        }
    }

    /// Says what just happened.
    pub(super) fn news(&self, text: &str) {
        match &self.bars {
            // A terminal that cannot be written to is no reason to end.
            Some(bars) => drop(bars.all.println(text)),
            None => eprintln!("{text}"),
        }
    }

    /// Shows how far both are.
    pub(super) fn show(&self, [seriatim, plain]: [&Proof; 2]) {
        if let Some(bars) = &self.bars {
            for (bar, proof) in [(&bars.seriatim, seriatim), (&bars.plain, plain)] {
                bar.set_position(proof.settled());
                bar.set_message(format!("{} hurt", counted(proof.hurt(), "session")));
            }
            return;
        }
        let tenths = seriatim.settled() * 10 / self.records;
        if tenths > self.tenths.replace(tenths) {
            eprintln!(
                "{:>3} %: {} records, sessions hurt: {} by seriatim, {} by the plain pool",
                tenths * 10,
                grouped(seriatim.settled()),
                grouped(seriatim.hurt()),
                grouped(plain.hurt()),
            );
        }
    }

    /// Takes the bars away: what they showed comes again in the report.
    pub(super) fn finish(&self) {
        if let Some(bars) = &self.bars {
            bars.seriatim.finish_and_clear();
            bars.plain.finish_and_clear();
        }
    }
}

impl Bars {
    fn new(records: u64) -> Self {
        let all = MultiProgress::new();
        let bar = |name: &'static str, colour: &str| {
            let template = format!("  {{prefix:10}}  {{bar:40.{colour}}}  {{human_pos:>7}} records, {{msg}}");
            let style = ProgressStyle::with_template(&template).expect("the template is a constant");
            let bar = ProgressBar::new(records).with_style(style.progress_chars("█▉▊▋▌▍▎▏·"));
            all.add(bar.with_prefix(name))
        };
        let (seriatim, plain) = (bar("seriatim", "green"), bar("plain pool", "red"));
        Self { all, seriatim, plain }
    }
}
