//! After a crash: which records may be handed to workers, until it is known which of them is to blame.
//!
//! The engine's [`Suspicion`] says how much may be in flight; what is in flight is named by a commit first, and only then
//! handed over. So whatever crashes the process, the next owner knows what it may have been.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::record::Offset;
use seriatim_engine::trail::Suspicion;

use super::Dispatcher;
use super::intake::Intake;
use super::ownership::Owned;
use crate::message::Message;
use crate::ports::Source;

/// Suspects of all partitions that are in flight together after a first crash. After a second they go one at a time: that
/// takes as long as so many handlers one after the other.
const SUSPECTS_MAX: usize = 128;

/// How long to wait after a commit that failed before the next one that is to name suspects.
const NAME_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Records of a partition under suspicion that were received and not handed over: as many as the budget admits.
pub(super) struct Withheld<M> {
    pub(super) epoch: AssignmentEpoch,
    pub(super) messages: VecDeque<M>,
}

/// What may be handed over, once it is committed that it is.
struct Release {
    epoch: AssignmentEpoch,
    records: usize,
}

impl<S: Source> Dispatcher<S> {
    /// Lets the commits say that these periods are open, before anything of them is started. A partition for which nothing
    /// is committed has no commit before its first record.
    ///
    /// When that fails, work begins all the same unless there is a suspicion: a crash before the next commit is not counted.
    pub(super) fn commit_open(&mut self, now: Instant) {
        let (known, unknown) = std::mem::take(&mut self.unopened)
            .into_iter()
            .filter(|epoch| self.owned.get(*epoch).is_some_and(|owned| !owned.is_draining()))
            .partition::<Vec<_>, _>(|epoch| self.owned.get(*epoch).is_some_and(|owned| owned.mark().is_some()));
        self.unopened = unknown;
        self.commit_and_wait(&known, self.patience(now), now);
    }

    /// Hands over what may be of the partitions under suspicion.
    pub(super) fn release_suspects(&mut self, now: Instant) {
        self.name_from = self.name_from.filter(|from| now < *from);
        if self.withheld.is_empty() || self.commit_in_flight || self.name_from.is_some() {
            return;
        }
        let releases = self.plan_releases();
        if releases.is_empty() {
            return;
        }
        // All of them, so that none that was settled is still said to be in flight.
        let epochs: Vec<_> = self.withheld.iter().map(|withheld| withheld.epoch).collect();
        self.commit_and_wait(&epochs, self.patience(now), now);
        let stands = |epoch: &AssignmentEpoch| self.owned.get(*epoch).is_none_or(Owned::is_committed);
        if !epochs.iter().all(stands) {
            self.name_from = Some(now + NAME_AGAIN_AFTER);
            return;
        }
        for release in releases {
            self.hand_over(&release);
        }
        for tail in &mut self.workers {
            tail.send();
        }
        let owned = &self.owned;
        self.withheld
            .retain(|withheld| owned.get(withheld.epoch).is_some_and(Owned::is_suspected));
    }

    fn plan_releases(&mut self) -> Vec<Release> {
        let mut one_is_alone = self.withheld.iter().any(|withheld| {
            let owned = self.owned.get(withheld.epoch);
            owned.is_some_and(|owned| owned.goes_alone() && owned.in_flight(withheld) > 0)
        });
        // What leaves may still run, and nothing is to run beside it.
        one_is_alone |= self
            .owned
            .iter()
            .any(|(_, owned)| owned.is_draining() && owned.goes_alone());
        let share = (SUSPECTS_MAX / self.withheld.len()).max(1);
        let mut releases = Vec::new();
        for withheld in &self.withheld {
            let Some(owned) = self.owned.get_mut(withheld.epoch) else {
                continue;
            };
            let to = match owned.suspicion {
                Suspicion::Below { to, .. } => to,
                // Nothing else goes before its dead letter is written: it may have been blamed for another.
                Suspicion::Poison(poison) => poison.next(),
                // It is over, and that could not be committed.
                Suspicion::None => Offset::ZERO,
            };
            let suspects = withheld.messages.partition_point(|message| message.offset() < to);
            let in_flight = owned.in_flight(withheld);
            let past_them = owned.ledger.next_expected().is_none_or(|next| next >= to);
            if suspects == 0 && in_flight == 0 && past_them {
                if owned.is_suspected() {
                    owned.suspicion = Suspicion::None;
                    owned.revision += 1;
                }
                releases.push(Release {
                    epoch: withheld.epoch,
                    records: withheld.messages.len(),
                });
                continue;
            }
            let records = match owned.suspicion {
                Suspicion::Below { crashes: 2.., .. } if one_is_alone || in_flight > 0 => 0,
                Suspicion::Below { crashes: 2.., .. } => suspects.min(1),
                // By the half, so that a commit is made for many.
                Suspicion::Below { .. } if in_flight > share / 2 => 0,
                Suspicion::Below { .. } => suspects.min(share - in_flight),
                Suspicion::Poison(_) | Suspicion::None => suspects,
            };
            if records > 0 {
                one_is_alone |= owned.goes_alone();
                owned.handed_to = withheld.messages[records - 1].offset().next();
                owned.revision += 1;
                releases.push(Release {
                    epoch: withheld.epoch,
                    records,
                });
            }
        }
        releases
    }

    fn hand_over(&mut self, release: &Release) {
        let withheld = self
            .withheld
            .iter_mut()
            .find(|withheld| withheld.epoch == release.epoch);
        let (Some(withheld), Some(owned)) = (withheld, self.owned.get(release.epoch)) else {
            return;
        };
        let mut intake = Intake {
            epoch: release.epoch,
            router: &self.router,
            session_by: &self.config.session_by,
            missing_session: self.config.missing_session,
            workers: &mut self.workers,
        };
        for message in withheld.messages.drain(..release.records) {
            let past = owned.past(message.offset());
            if let Err(failure) = intake.route(message, &owned.partition, past) {
                self.failure.get_or_insert(failure);
                return;
            }
        }
    }
}

impl Owned {
    pub(super) fn is_suspected(&self) -> bool {
        self.suspicion != Suspicion::None
    }

    /// Whether its suspects go one at a time, in the whole process.
    fn goes_alone(&self) -> bool {
        matches!(self.suspicion, Suspicion::Below { crashes: 2.., .. })
    }

    fn in_flight<M>(&self, withheld: &Withheld<M>) -> usize {
        self.ledger.unsettled() - withheld.messages.len()
    }
}
