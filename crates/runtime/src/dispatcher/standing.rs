//! How far partitions have got: told at a fixed interval, whatever comes or does not, and the look for what stands still.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::Flow;
use seriatim_engine::record::{Offset, RecordId};

use super::Dispatcher;
use super::ownership::Owned;
use crate::message::Timestamp;
use crate::ports::{Event, Source, Standing};

/// How often the partitions are looked through: their standings are told, and stuck ones are reported.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Times are kept of reads that lie at least this share of what is unsettled apart.
const SPACING: i64 = 64;

/// Since when the watermark has stood where it stands.
pub(super) struct Progress {
    pub(super) watermark: Option<Offset>,
    pub(super) since: Instant,
    pub(super) reported: bool,
}

/// When the records of a partition were written, as far as some of them may be unsettled: the times of the first record of
/// some of its reads. Its length grows with the logarithm of the unsettled offsets' span: 64 for as many reads, and 45 for
/// each doubling.
#[derive(Debug, Default)]
pub(super) struct Ages(VecDeque<(Offset, Timestamp)>);

impl Ages {
    /// Takes note of a read that begins at `offset`, above which nothing was read before; `oldest` is unsettled.
    pub(super) fn note(&mut self, offset: Offset, written: Timestamp, oldest: Option<Offset>) {
        match oldest {
            Some(oldest) => self.forget_before(oldest),
            None => self.0.clear(),
        }
        if let (Some((first, _)), Some((last, _))) = (self.0.front(), self.0.back()) {
            let spacing = (offset.get() - first.get()) / SPACING;
            if offset <= *last || offset.get() - last.get() < spacing {
                return;
            }
        }
        self.0.push_back((offset, written));
    }

    /// When `oldest`, below which all is settled, was written, or a record shortly before it.
    fn of(&mut self, oldest: Offset) -> Timestamp {
        self.forget_before(oldest);
        self.0.front().map_or(Timestamp::None, |(_, written)| *written)
    }

    fn forget_before(&mut self, oldest: Offset) {
        while self.0.get(1).is_some_and(|(next, _)| *next <= oldest) {
            self.0.pop_front();
        }
    }
}

impl<S: Source> Dispatcher<S> {
    /// Takes note of where logs end.
    pub(super) fn note_ends(&mut self, ends: &[(AssignmentEpoch, Offset)]) {
        for (epoch, end) in ends {
            if let Some(owned) = self.owned.get_mut(*epoch) {
                owned.end = Some(*end);
            }
        }
    }

    /// Looks through the partitions, when it is time to.
    pub(super) fn look_through(&mut self, now: Instant) {
        if self.looked_through_at.is_some_and(|at| now < at + LOOK_INTERVAL) {
            return;
        }
        self.looked_through_at = Some(now);
        let all_held_since = self.held_since;
        for (_, owned) in self.owned.iter_mut() {
            let stuck = owned.note_progress(now, self.config.stuck_after);
            if let Some((record, stood)) = stuck {
                self.observer.observe(Event::Stuck(record, stood));
            }
            if let Some(standing) = owned.standing(now, all_held_since) {
                self.observer.observe(Event::Standing(standing));
            }
        }
    }
}

impl Owned {
    /// Looks whether the watermark has moved. Returns the record that blocks it, once, when that has taken too long.
    fn note_progress(&mut self, now: Instant, stuck_after: Option<Duration>) -> Option<(RecordId, Duration)> {
        let watermark = self.ledger.watermark().map(|watermark| watermark.offset());
        let blocking = self.ledger.oldest_unsettled();
        let progress = &mut self.progress;
        // A partition without unsettled records is idle, not stuck.
        let Some(blocking) = blocking.filter(|_| progress.watermark == watermark) else {
            *progress = Progress {
                watermark,
                since: now,
                reported: false,
            };
            return None;
        };
        let stood = now.saturating_duration_since(progress.since);
        if stood < stuck_after? || progress.reported {
            return None;
        }
        progress.reported = true;
        let record = RecordId {
            partition: self.partition.clone(),
            offset: blocking,
        };
        Some((record, stood))
    }

    /// How far it has got; `None` while nobody knows. `all_held_since` is when the intake of everything was held.
    fn standing(&mut self, now: Instant, all_held_since: Option<Instant>) -> Option<Standing<'_>> {
        // Nothing is committed and nothing was read: reading begins somewhere below the end.
        let watermark = self.ledger.watermark()?.offset();
        let end = self.end?.max(self.ledger.next_expected()?);
        let above = u64::try_from(end.get() - watermark.get()).unwrap_or(0);
        let oldest = self.ledger.oldest_unsettled();
        let held_since = [self.held_since, all_held_since].into_iter().flatten().min();
        Some(Standing {
            watermark,
            end,
            backlog: above.saturating_sub(self.ledger.settled_above()),
            unsettled: self.ledger.unsettled(),
            unsettled_bytes: self.usage.bytes,
            oldest: oldest.map_or(Timestamp::None, |oldest| self.ages.of(oldest)),
            flow: held_since.map_or(Flow::Flowing, |_| Flow::Held),
            held_for: held_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since)),
            stood: oldest.map_or(Duration::ZERO, |_| now.saturating_duration_since(self.progress.since)),
            partition: &self.partition,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: i64) -> Offset {
        Offset::new(offset)
    }

    /// Reads of 100 records each, one a millisecond.
    fn read(ages: &mut Ages, reads: std::ops::Range<i64>, oldest: Option<i64>) {
        for read in reads {
            ages.note(at(read * 100), Timestamp::Appended(read), oldest.map(at));
        }
    }

    #[test]
    fn the_oldest_record_is_as_old_as_its_read() {
        let mut ages = Ages::default();
        read(&mut ages, 0..10, Some(0));
        assert_eq!(ages.of(at(0)), Timestamp::Appended(0));
        assert_eq!(ages.of(at(99)), Timestamp::Appended(0));
        assert_eq!(ages.of(at(100)), Timestamp::Appended(1));
        assert_eq!(ages.of(at(950)), Timestamp::Appended(9));
    }

    #[test]
    fn a_million_reads_above_a_stuck_record_are_kept_as_a_few_hundred() {
        let mut ages = Ages::default();
        read(&mut ages, 0..1_000_000, Some(7));
        assert!(ages.0.len() < 64 + 45 * 15, "{}", ages.0.len());
        assert_eq!(ages.of(at(7)), Timestamp::Appended(0), "of it itself it is exact");
        // Settled at last, what is oldest now is told too old by a 64th of what was unsettled.
        for oldest in [200_000, 500_000, 999_999] {
            let Timestamp::Appended(told) = ages.of(at(oldest * 100)) else {
                panic!("its time is known");
            };
            assert!(told <= oldest && oldest - told <= oldest / 64 + 1, "{told} of {oldest}");
        }
    }

    #[test]
    fn what_is_settled_is_forgotten_and_what_comes_again_is_not_noted() {
        let mut ages = Ages::default();
        read(&mut ages, 0..10, None);
        assert_eq!(ages.0.len(), 1, "nothing was unsettled before the last");
        read(&mut ages, 3..12, Some(950));
        assert_eq!(ages.of(at(950)), Timestamp::Appended(9));
        assert_eq!(ages.of(at(1_020)), Timestamp::Appended(10));
        assert_eq!(ages.of(at(1_100)), Timestamp::Appended(11));
    }
}
