//! The smallest story around a violation.

use crate::history::{Entry, What};

/// Lines of a story: enough to see the last two epochs of a partition.
const LINES_MAX: usize = 40;

/// The last entries up to `now` that concern the violation, oldest first.
pub(super) fn around(history: &[Entry], now: usize, concerns: impl Fn(&What) -> bool) -> Vec<String> {
    let upto = history.len().min(now + 1);
    let backwards = history[..upto].iter().rev();
    let concerned = backwards.filter(|entry| concerns(&entry.what));
    let mut lines: Vec<String> = concerned.take(LINES_MAX).map(Entry::to_string).collect();
    lines.reverse();
    lines
}
