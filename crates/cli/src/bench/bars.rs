//! What Seriatim is to reach in a row, and whether it did.

use serde::Serialize;

use super::contender::Contender;
use super::report::{Medians, find};
use crate::units::grouped;

/// A figure of a row, and the limit that it is to keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// At least this share of the contender's rate.
    ShareOf(Contender, f64),
    /// At least this share of the rate that the handlers' waits alone allow.
    ShareOfBound(f64),
    /// At least so many records a second.
    Rate(f64),
    /// At most so much processor time a record, in microseconds.
    Cpu(f64),
    /// At most so many times the contender's processor time a record.
    CpuOf(Contender, f64),
    /// At most so much memory at its highest, in MiB.
    Peak(f64),
    /// Half of the records are handled within so many milliseconds of their production.
    P50(f64),
    /// 99 of 100 are.
    P99(f64),
    /// A lane in which a record waits takes at most so many bytes beside its record.
    Lane(f64),
    /// What one in which a handler waits takes, for information.
    LaneAndHandler,
}

/// A bar, and what was reached.
#[derive(Debug, Serialize)]
pub struct Judgement {
    pub what: String,
    pub reached: Option<f64>,
    /// `None` where nothing was measured, and where the figure is only for information.
    pub met: Option<bool>,
    #[serde(skip)]
    whole: bool,
}

impl Bar {
    /// Judges the row's medians; its number of sessions is what memory is divided by.
    pub fn judge(self, contenders: &[Medians], sessions: u32) -> Judgement {
        let reached = self.reached(contenders, sessions);
        let limited = reached.zip(self.limit());
        Judgement {
            what: self.what(),
            reached,
            met: limited.map(|(reached, limit)| {
                if self.is_floor() {
                    reached >= limit
                } else {
                    reached <= limit
                }
            }),
            whole: matches!(self, Bar::Rate(_) | Bar::Peak(_) | Bar::Lane(_) | Bar::LaneAndHandler),
        }
    }

    fn reached(self, contenders: &[Medians], sessions: u32) -> Option<f64> {
        let ours = find(contenders, Contender::Ours);
        let resident = |contender| find(contenders, contender)?.resident_mib;
        let lane = |waiting| {
            let added = resident(waiting)? - resident(Contender::Settled)? - resident(Contender::Records)?;
            Some(added.max(0.0) * f64::from(1 << 20) / f64::from(sessions))
        };
        match self {
            Bar::ShareOf(contender, _) => Some(ours?.rate? / find(contenders, contender)?.rate?),
            Bar::ShareOfBound(_) => ours?.of_bound,
            Bar::Rate(_) => ours?.rate,
            Bar::Cpu(_) => ours?.cpu_micros_per_record,
            Bar::CpuOf(contender, _) => {
                Some(ours?.cpu_micros_per_record? / find(contenders, contender)?.cpu_micros_per_record?)
            }
            Bar::Peak(_) => ours?.peak_mib,
            Bar::P50(_) => ours?.p50_millis,
            Bar::P99(_) => ours?.p99_millis,
            Bar::Lane(_) => lane(Contender::RecordsWaiting),
            Bar::LaneAndHandler => lane(Contender::HandlersWaiting),
        }
    }

    fn limit(self) -> Option<f64> {
        match self {
            Bar::ShareOf(_, limit)
            | Bar::ShareOfBound(limit)
            | Bar::Rate(limit)
            | Bar::Cpu(limit)
            | Bar::CpuOf(_, limit)
            | Bar::Peak(limit)
            | Bar::P50(limit)
            | Bar::P99(limit)
            | Bar::Lane(limit) => Some(limit),
            Bar::LaneAndHandler => None,
        }
    }

    /// Whether more is better.
    fn is_floor(self) -> bool {
        matches!(self, Bar::ShareOf(..) | Bar::ShareOfBound(_) | Bar::Rate(_))
    }

    fn what(self) -> String {
        match self {
            Bar::ShareOf(contender, least) => format!("of the rate of {}, at least {least}", contender.title()),
            Bar::ShareOfBound(least) => format!("of what the waits alone allow, at least {least}"),
            Bar::Rate(least) => format!("records/s, at least {}", grouped(least as u64)),
            Bar::Cpu(most) => format!("us of processor time a record, at most {most}"),
            Bar::CpuOf(contender, most) => {
                format!(
                    "times the processor time a record of {}, at most {most}",
                    contender.title()
                )
            }
            Bar::Peak(most) => format!("MiB at the highest, at most {most}"),
            Bar::P50(most) => format!("ms from production to handled at p50, at most {most}"),
            Bar::P99(most) => format!("ms from production to handled at p99, at most {most}"),
            Bar::Lane(most) => format!("bytes a lane in which a record waits, beside the record, at most {most}"),
            Bar::LaneAndHandler => "bytes a lane in which a handler waits, beside the record".to_owned(),
        }
    }
}

impl Judgement {
    pub fn text(&self) -> String {
        let met = match self.met {
            Some(true) => "met   ",
            Some(false) => "MISSED",
            None => "      ",
        };
        let reached = match self.reached {
            Some(reached) if self.whole => grouped(reached.round() as u64),
            Some(reached) => format!("{reached:.2}"),
            None => "-".to_owned(),
        };
        format!("{met} {reached} {}", self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn medians(contender: Contender, rate: Option<f64>, resident_mib: Option<f64>) -> Medians {
        Medians {
            contender,
            rate,
            resident_mib,
            ..Medians::of(contender, Vec::new(), Vec::new())
        }
    }

    #[test]
    fn a_share_is_met_at_its_limit_and_missed_below_it() {
        let rates = |ours| {
            [
                medians(Contender::Ours, Some(ours), None),
                medians(Contender::Bare, Some(10.0), None),
            ]
        };
        let met = |ours| Bar::ShareOf(Contender::Bare, 0.8).judge(&rates(ours), 1).met;
        assert_eq!([met(8.0), met(7.9)], [Some(true), Some(false)]);
        let text = Bar::ShareOf(Contender::Bare, 0.8).judge(&rates(9.0), 1).text();
        assert_eq!(text, "met    0.90 of the rate of bare batch loop, at least 0.8");
    }

    #[test]
    fn a_lane_weighs_what_is_neither_its_record_nor_there_anyway() {
        let weighed = [
            (Contender::Settled, 100.0),
            (Contender::Records, 200.0),
            (Contender::RecordsWaiting, 500.0),
        ];
        let contenders = weighed.map(|(contender, mib)| medians(contender, None, Some(mib)));
        let lane = Bar::Lane(256.0).judge(&contenders, 1 << 20);
        assert_eq!((lane.reached, lane.met), (Some(200.0), Some(true)));
        assert_eq!(
            Bar::LaneAndHandler.judge(&contenders, 1 << 20).reached,
            None,
            "it was not measured"
        );
    }
}
