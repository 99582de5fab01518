//! What a seed stands for: the configuration, the records, and the faults with their times.

use std::time::Duration;

use seriatim_engine::budget::Limits;
use seriatim_engine::growth::Growth;
use seriatim_engine::retry::Retry;
use seriatim_runtime::dispatcher::DispatcherConfig;
use seriatim_runtime::drive::RunConfig;
use seriatim_runtime::session_by::{MissingSession, SessionBy};
use seriatim_runtime::worker::WorkerConfig;

use super::sabotage::Sabotage;
use crate::judge::Rules;
use crate::log::Protocol;
use crate::rng::Rng;

/// How long faults go on before all is healed.
pub(super) const FAULTS_FOR: Duration = Duration::from_secs(2);

/// What is left to a drain when its handlers are cancelled: a few turns of every actor, and a commit that is tried again.
const DRAIN_SLACK: Duration = Duration::from_millis(10);

pub(super) struct Plan {
    pub(super) partitions: i32,
    pub(super) sessions: u64,
    pub(super) instances: u32,
    pub(super) batch_max: usize,
    /// How long the group waits for a word of a member.
    pub(super) session_timeout: Duration,
    pub(super) protocol: Protocol,
    growth: Growth,
    pub(super) config: RunConfig,
    pub(super) agenda: Vec<(Duration, Deed)>,
}

/// Something that happens to the instances and the log.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deed {
    Produce(u32),
    Gap,
    Join,
    Leave,
    Crash,
    /// A crashed instance's session ends.
    ExpireCrashed,
    Freeze(Duration),
    /// It stands still past the end of its session, and then goes on.
    Zombie(Duration),
    /// It is cut off from the coordinator only, and learns late that it was dropped.
    CutOff(Duration),
    HoldCommits(Duration),
    HoldAnswers(Duration),
    FailCommits,
    LettersDown(Duration),
    /// A record is produced that kills whatever process starts it.
    Poison,
    /// The topic gets twice as many partitions: a session stays where it is, or goes to a new one.
    Grow,
}

impl Plan {
    pub(super) fn of(seed: u64) -> Self {
        let mut rng = Rng::of(&[seed, 2]);
        let (growth, growths) = growth(seed);
        Self {
            partitions: rng.within(1..5) as i32,
            sessions: rng.within(2..24),
            instances: rng.within(1..4) as u32,
            batch_max: *rng.pick(&[1, 7, 40, 500]),
            session_timeout: rng.millis(60..300),
            protocol: if rng.percent(20) {
                Protocol::Eager
            } else {
                Protocol::Cooperative
            },
            growth,
            config: config(&mut rng, seed),
            agenda: agenda(&mut rng, growths),
        }
    }

    /// What becomes of new partitions, unless a saboteur lets them start.
    pub(super) fn growth(&self, sabotage: Sabotage) -> Growth {
        match sabotage {
            Sabotage::OpenGates => Growth::Warn,
            _ => self.growth,
        }
    }

    /// What the judge holds the instances to.
    pub(super) fn rules(&self) -> Rules {
        let (limits, worker) = (&self.config.dispatcher.limits, &self.config.worker);
        Rules {
            attempts_max: worker.retry.attempts_max,
            in_flight_max: worker.in_flight_max * self.config.workers,
            // A batch may pass the limit and wait for room; if its partition leaves meanwhile it is not wanted any more, and
            // another is read while the first counts as delivered.
            unsettled_max: limits.unsettled_records_max + 2 * self.batch_max,
            partition_unsettled_max: limits.partition_records_max + self.batch_max,
            drain_max: self.config.dispatcher.drain_timeout + DRAIN_SLACK,
            lease: true,
            growth: self.growth,
            ..Rules::default()
        }
    }

    /// The configuration that the instances get, which a saboteur may have changed behind the judge's back.
    pub(super) fn config(&self, sabotage: Sabotage) -> RunConfig {
        let mut config = self.config.clone();
        match sabotage {
            Sabotage::OneAttemptMore => config.worker.retry.attempts_max += 1,
            Sabotage::NoLimits => config.dispatcher.limits = Limits::default(),
            Sabotage::CrowdedWorkers => config.worker.in_flight_max = 1_000,
            Sabotage::EndlessDrain => config.dispatcher.drain_timeout = Duration::from_secs(60),
            _ => {}
        }
        config
    }
}

fn config(rng: &mut Rng, seed: u64) -> RunConfig {
    let partition_records_max = *rng.pick(&[3, 15, 1_000]);
    let retry = Retry {
        base: rng.millis(1..10),
        cap: rng.millis(10..60),
        attempts_max: rng.within(1..5) as u32,
        elapsed_max: None,
        jitter_seed: seed,
    };
    RunConfig {
        dispatcher: DispatcherConfig {
            session_by: SessionBy::Key,
            missing_session: *rng.pick(&[MissingSession::DeadLetter, MissingSession::PartitionAsSession]),
            limits: Limits {
                unsettled_records_max: partition_records_max * rng.within(1..4) as usize,
                partition_records_max,
                ..Limits::default()
            },
            commit_interval: rng.millis(5..120),
            drain_timeout: rng.millis(5..150),
            stuck_after: None,
            process: 0,
            hash_key: (seed, 7),
        },
        worker: WorkerConfig {
            retry,
            in_flight_max: *rng.pick(&[1, 2, 8, 1_000]),
            attempt_timeout: rng.percent(75).then(|| rng.millis(10..120)),
            check: true,
        },
        workers: rng.within(1..4) as usize,
    }
}

/// In some runs the topic grows, and in more than half of them its new partitions are to wait. From draws of their own: the
/// other runs are what they would be without these.
fn growth(seed: u64) -> (Growth, Vec<(Duration, Deed)>) {
    let mut rng = Rng::of(&[seed, 4]);
    let growth = if rng.percent(60) { Growth::Hold } else { Growth::Warn };
    let upto = FAULTS_FOR.as_millis() as u64;
    let first = rng.millis(0..upto);
    let times = match rng.below(100) {
        0..65 => vec![],
        65..85 => vec![first],
        85..92 => vec![first, rng.millis(0..upto)],
        // While what is new still waits.
        _ => vec![first, first + rng.millis(2..100)],
    };
    let growths = times.into_iter().map(|at| (at, Deed::Grow)).collect();
    (growth, growths)
}

fn agenda(rng: &mut Rng, mut agenda: Vec<(Duration, Deed)>) -> Vec<(Duration, Deed)> {
    let upto = FAULTS_FOR.as_millis() as u64;
    for _ in 0..rng.within(20..60) {
        agenda.push((rng.millis(0..upto), Deed::Produce(rng.within(1..16) as u32)));
    }
    for _ in 0..rng.within(0..8) {
        agenda.push((rng.millis(0..upto), Deed::Gap));
    }
    for _ in 0..rng.within(2..14) {
        let (at, lasts) = (rng.millis(0..upto), rng.millis(5..300));
        let deed = match rng.below(14) {
            0..=2 => Deed::Join,
            3 | 4 => Deed::Leave,
            5 => {
                agenda.push((at + lasts, Deed::ExpireCrashed));
                Deed::Crash
            }
            6 => Deed::Freeze(lasts),
            7 => Deed::Zombie(lasts),
            8 => Deed::CutOff(lasts),
            9 => Deed::HoldCommits(lasts),
            10 => Deed::HoldAnswers(lasts),
            11 | 12 => Deed::FailCommits,
            _ => Deed::LettersDown(lasts),
        };
        agenda.push((at, deed));
    }
    if rng.percent(25) {
        agenda.push((rng.millis(0..upto), Deed::Poison));
    }
    agenda.sort_by_key(|(at, _)| *at);
    agenda
}
