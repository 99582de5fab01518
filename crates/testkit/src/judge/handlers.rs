//! P0, P1, P2, P6, P7, P9, P10, P14: what a handler's start and end say.

use std::time::Duration;

use seriatim_engine::record::RecordId;

use super::bench::{Judge, Open};
use crate::history::{Ended, EpochNumber};

impl Judge<'_> {
    pub(super) fn started(&mut self, i: u32, record: &RecordId, attempt: u32, fingerprint: u64, at: Duration) {
        self.judgement.counts.starts += 1;
        let partition = &record.partition;
        let Some(place) = self.place(record) else {
            return self.blame("P0", record, format!("{record} was started, and does not exist"));
        };
        if self.truth.partitions[partition].records[place].fingerprint != fingerprint {
            self.blame(
                "P0",
                record,
                format!("{record} was started with another payload than it has"),
            );
        }
        let Some(number) = self.owned.get(&(i, partition.clone())).copied() else {
            return self.started_unowned(i, record, attempt, place, at);
        };
        if self.epochs[number.0].fenced {
            self.judgement.counts.starts_after_lease += 1;
            if self.rules.lease && !self.was_about_to_start(i, number, place, at) {
                self.blame(
                    "P7",
                    record,
                    format!("{record} starts after the instance's lease has ended"),
                );
            }
        }
        self.judge_place(number, record, place);
        self.judge_growth(record, place);
        self.judge_overlap(i, number, record, place);
        self.judge_attempt(number, record, place, attempt, at);
        self.open(i, number, record, place, attempt);
        let instance = self.instance(i);
        if instance.open > self.rules.in_flight_max {
            self.blame(
                "P10",
                record,
                format!("{record} starts, and one handler too many runs in instance {i}"),
            );
        }
    }

    /// P7: a process may be frozen anywhere, also between its look at the clock and the starts for which it has looked. When it
    /// goes on, it starts these yet: a few records that it had, at once.
    fn was_about_to_start(&mut self, i: u32, number: EpochNumber, place: usize, at: Duration) -> bool {
        let (slack, starts_max) = (self.rules.loss_slack, self.rules.starts_per_look);
        let had = self.epochs[number.0].was_delivered_before_silence(place);
        let woken = &mut self.instance(i).woken;
        woken.late_starts += 1;
        had && woken.late_starts <= starts_max && at <= woken.at + slack
    }

    /// P7: in real processes a worker hears of a loss a moment after it was noted. What it starts by then is the old
    /// period's, which the group has fenced.
    fn started_unowned(&mut self, i: u32, record: &RecordId, attempt: u32, place: usize, at: Duration) {
        let lost = self.lost.get(&(i, record.partition.clone())).copied();
        let slack = self.rules.loss_slack;
        match lost.filter(|(_, lost_at)| !slack.is_zero() && at <= *lost_at + slack) {
            Some((number, _)) => {
                self.judgement.counts.starts_after_loss += 1;
                self.judge_overlap(i, number, record, place);
                self.open(i, number, record, place, attempt);
            }
            None => self.blame(
                "P7",
                record,
                format!("{record} starts in instance {i}, which does not own it"),
            ),
        }
    }

    fn open(&mut self, i: u32, number: EpochNumber, record: &RecordId, place: usize, attempt: u32) {
        let open = Open {
            instance: i,
            epoch: number,
            record: record.clone(),
            attempt,
            kept: 0,
            cancelled: false,
        };
        let session = self.session(&record.partition, place);
        self.open.entry(session).or_default().push(open);
        self.instance(i).open += 1;
    }

    /// P1 and P6: whether it is the record's turn in its session.
    pub(super) fn judge_place(&mut self, number: EpochNumber, record: &RecordId, place: usize) {
        let epoch = &self.epochs[number.0];
        let index = &self.partitions[&record.partition];
        let before = index.records[place]
            .1
            .filter(|before| *before >= epoch.start && !epoch.is_settled(*before));
        let (again, below) = (epoch.is_settled(place), place < epoch.start);
        self.judgement.counts.repeats += u64::from(index.settled_ever[place]);
        if below {
            let text = format!("{record} starts, below the commit from which {number} began");
            self.blame("P6", record, text);
        } else if again {
            self.blame(
                "P6",
                record,
                format!("{record} starts again, and was settled in {number}"),
            );
        } else if let Some(before) = before {
            let before = self.truth.partitions[&record.partition].records[before].offset;
            let text = format!("{record} starts before offset {before} of its session is settled");
            self.blame("P1", record, text);
        }
    }

    /// P2: whether anything else of the session runs.
    pub(super) fn judge_overlap(&mut self, i: u32, number: EpochNumber, record: &RecordId, place: usize) {
        let session = self.session(&record.partition, place);
        let ours_fenced = self.epochs[number.0].fenced;
        let mut after_loss = 0;
        let mut overlapped = None;
        for open in self.open.get(&session).into_iter().flatten() {
            let same_instance = open.instance == i;
            // Work that a cancelled attempt left behind cannot be waited for by another instance.
            let counts = same_instance || (open.record.partition == record.partition && !open.cancelled);
            let fenced = !same_instance && (ours_fenced || self.epochs[open.epoch.0].fenced);
            match (counts, fenced) {
                (false, _) => {}
                (true, true) => after_loss += 1,
                (true, false) => overlapped = Some(open.record.clone()),
            }
        }
        self.judgement.counts.overlaps_after_loss += after_loss;
        if let Some(open) = overlapped {
            let text = format!("{record} starts in {number} while {open} of its session runs");
            self.blame("P2", record, text);
        }
    }

    pub(super) fn judge_attempt(
        &mut self,
        number: EpochNumber,
        record: &RecordId,
        place: usize,
        attempt: u32,
        at: Duration,
    ) {
        let attempts = self.epochs[number.0].attempts.entry(place).or_default();
        let last = *attempts;
        attempts.made = attempt;
        attempts.not_before = None;
        let due = last.made + 1;
        self.judgement.counts.resumed += u64::from(last.made > 0 && last.ended.is_none());
        let slack = self.rules.clock_slack;
        let text = if attempt != due {
            format!("{record} starts attempt {attempt}, and attempt {due} was due")
        } else if attempt > self.rules.attempts_max {
            format!(
                "{record} starts attempt {attempt}, and {} are allowed",
                self.rules.attempts_max
            )
        } else if last.ended == Some(Ended::Permanent) {
            format!("{record} is tried again after a permanent failure")
        } else if last.not_before.is_some_and(|not_before| at + slack < not_before) {
            format!("{record} starts attempt {attempt} before its back-off is over")
        } else {
            return;
        };
        self.blame("P9", record, text);
    }

    pub(super) fn ended(&mut self, i: u32, record: &RecordId, attempt: u32, ended: Ended) {
        let Some(place) = self.place(record) else { return };
        let session = self.session(&record.partition, place);
        let running = self.open.entry(session).or_default();
        let found = running
            .iter()
            .position(|open| open.is(i, record, attempt) && !open.cancelled);
        let Some(found) = found else {
            return self.blame("P2", record, format!("{record} ends, and was not running"));
        };
        let number = running[found].epoch;
        match ended == Ended::Cancelled && running[found].kept > 0 {
            true => running[found].cancelled = true,
            false => drop(running.swap_remove(found)),
        }
        self.instance(i).open -= 1;
        let counts = &mut self.judgement.counts;
        match ended {
            Ended::Handled => self.settle(number, &record.partition, place),
            Ended::Panicked => counts.panics += 1,
            Ended::Cancelled => counts.cancelled += 1,
            Ended::Transient | Ended::Permanent => {}
        }
        if let Some(attempts) = self.epochs[number.0].attempts.get_mut(&place) {
            attempts.ended = Some(ended);
        }
    }

    pub(super) fn kept(&mut self, i: u32, record: &RecordId, attempt: u32) {
        self.judgement.counts.kept_contexts += 1;
        if let Some(open) = self.open_mut(i, record, attempt) {
            open.kept += 1;
        }
    }

    pub(super) fn freed(&mut self, i: u32, record: &RecordId, attempt: u32) {
        // Nobody waits for the work of an attempt that was not cancelled, so it may be gone.
        let Some(open) = self.open_mut(i, record, attempt) else {
            return;
        };
        open.kept = open.kept.saturating_sub(1);
        if open.cancelled && open.kept == 0 {
            let place = self.place(record).expect("it was started");
            let running = self
                .open
                .get_mut(&self.session(&record.partition, place))
                .expect("it is there");
            running.retain(|open| !(open.is(i, record, attempt) && open.cancelled && open.kept == 0));
        }
    }

    pub(super) fn retry(&mut self, i: u32, record: &RecordId, not_before: Duration) {
        self.judgement.counts.retries += 1;
        let Some(place) = self.place(record) else { return };
        if let Some(attempts) = self.attempts_mut(i, record, place) {
            attempts.not_before = Some(not_before);
        }
    }
}
