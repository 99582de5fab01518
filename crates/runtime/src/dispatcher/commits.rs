//! Commits: when they are due, what they say, and what becomes of them.

use std::time::{Duration, Instant};

use seriatim_engine::assignment::AssignmentEpoch;

use super::{Dispatcher, QUIET_COMMIT_INTERVAL};
use crate::ports::{Commit, CommitError, CommitMode, Event, Source};

/// An unchanged watermark is committed again this often: lag monitors call a group stopped that commits nothing, and
/// brokers forget offsets that are not refreshed.
const RECOMMIT_INTERVAL: Duration = Duration::from_secs(60);

/// While the lease has ended, commits are made this often to renew it.
const LEASE_COMMIT_INTERVAL: Duration = Duration::from_millis(250);

/// How long a commit that is waited for may take. The dispatcher stands still meanwhile, but no handler does; and while
/// the coordinator moves, a few seconds are usual.
const COMMIT_WAIT_MAX: Duration = Duration::from_secs(5);

/// How long also when a drain's time is over: a few round trips.
const COMMIT_WAIT_MIN: Duration = Duration::from_secs(1);

/// How long a commit may be waited for, with a drain that is to end by `deadline`.
pub(super) fn patience(deadline: Option<Instant>, now: Instant) -> Duration {
    let left = deadline.map_or(COMMIT_WAIT_MAX, |deadline| deadline.saturating_duration_since(now));
    left.clamp(COMMIT_WAIT_MIN, COMMIT_WAIT_MAX)
}

impl<S: Source> Dispatcher<S> {
    /// How long a commit may be waited for while drains are under way.
    pub(super) fn patience(&self, now: Instant) -> Duration {
        patience(self.drains.iter().map(|drain| drain.deadline).min(), now)
    }

    /// The commits of those among `epochs` for which the broker does not know how far they have got.
    pub(super) fn commits_of(&mut self, epochs: &[AssignmentEpoch]) -> Vec<Commit> {
        let mut commits = Vec::new();
        for epoch in epochs {
            let Some(owned) = self.owned.get_mut(*epoch) else {
                continue;
            };
            let mark = owned.mark();
            if mark == owned.acknowledged {
                continue;
            }
            if let Some((commit, whole)) = owned.commit(*epoch, self.config.process, self.metadata_len_max) {
                owned.sent = mark;
                commits.push(commit);
                if !whole {
                    self.observer.observe(Event::AckMapTruncated(&owned.partition));
                }
            }
        }
        commits
    }

    pub(super) fn next_commit(&self) -> Option<Instant> {
        let quiet = self.usage.records == 0 && self.owned.iter().any(|(_, owned)| owned.is_dirty());
        let interval = match (quiet, self.lease_held) {
            (true, _) => QUIET_COMMIT_INTERVAL.min(self.config.commit_interval),
            (false, true) => self.config.commit_interval,
            // Everything waits for an answer.
            (false, false) => LEASE_COMMIT_INTERVAL.min(self.config.commit_interval),
        };
        (!self.commit_in_flight).then_some(())?;
        self.committed_at.map(|at| at + interval)
    }

    /// Sends what is due. One commit at a time, so that none overtakes another.
    pub(super) fn commit_due(&mut self, now: Instant) {
        let due = !self.commit_in_flight && self.next_commit().is_none_or(|due| due <= now);
        if !due {
            return;
        }
        self.committed_at = Some(now);
        // One commit is answer enough.
        let mut renews = self.source.lease().is_some_and(|term| term.renew_from <= now);
        let mut due = Vec::new();
        for (epoch, owned) in self.owned.iter_mut() {
            let renews_this = renews && !owned.is_draining() && owned.mark().is_some();
            renews &= !renews_this;
            let stale = renews_this || now.saturating_duration_since(owned.acknowledged_at) >= RECOMMIT_INTERVAL;
            if stale {
                owned.acknowledged = None;
            }
            if !owned.is_draining() && (owned.is_dirty() || stale) {
                due.push(epoch);
            }
        }
        let commits = self.commits_of(&due);
        if commits.is_empty() {
            return;
        }
        match self.source.commit(&commits, CommitMode::Background) {
            Ok(()) => self.commit_in_flight = true,
            Err(error) => self.note_committed(Err(error), now),
        }
    }

    pub(super) fn note_committed(&mut self, answer: Result<Vec<Commit>, CommitError>, now: Instant) {
        match answer {
            Ok(commits) => {
                for commit in commits {
                    if let Some(owned) = self.owned.get_mut(commit.epoch) {
                        owned.acknowledged = owned.sent;
                        owned.acknowledged_at = now;
                        self.observer
                            .observe(Event::Committed(&owned.partition, commit.watermark));
                    }
                }
            }
            Err(error) => {
                if error.metadata_too_long {
                    self.metadata_len_max /= 2;
                }
                // Whatever was sent counts as not sent, and is committed again when next due.
                for (_, owned) in self.owned.iter_mut() {
                    owned.sent = owned.acknowledged;
                }
                self.observer.observe(Event::CommitFailed(&error));
            }
        }
    }
}
