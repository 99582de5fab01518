//! A simulator: the very state machines of production, several instances of them, on virtual time and in one thread, with
//! everything going wrong that the [log](crate::log), the handlers and the dead letters can be asked to do.
//!
//! A run is a function of its seed. It has two phases: first records are produced while instances join, leave, crash,
//! freeze and are dropped by the group, commits and dead letters fail, handlers fail, panic, hang and leave work behind.
//! Then all is healed, and everything must settle. The [judge](crate::judge) judges the history and the log.
//!
//! ```
//! use seriatim_testkit::sim;
//!
//! let run = sim::run(42);
//! run.judgement.assert_clean();
//! ```

mod clock;
mod instance;
mod letters;
mod plan;
mod sabotage;
mod script;
mod world;

use std::collections::BTreeSet;
use std::time::Duration;

use seriatim_engine::record::PartitionId;
use seriatim_runtime::session_by::MissingSession;

use crate::history::Entry;
use crate::judge::{GrowthTruth, Judgement, Rules, Truth, judge};
use crate::log::{CommitFault, MemberId, NewRecord};
use crate::rng::Rng;
pub(crate) use instance::{Instance, Pending};
use plan::{Deed, FAULTS_FOR, Plan};
pub use sabotage::{Sabotage, Sabotaged};
pub(crate) use script::Leftovers;
use script::POISON;
pub(crate) use world::{GROUP, TOPIC, World};

/// What is allowed for everything to settle once all is healed: far more than the longest retries and dead letters take.
const HEALED_WITHIN: Duration = Duration::from_secs(60);

/// How long nothing is to be done at the end, and how often an instance's workers may be stepped meanwhile: as often as a
/// few late timers ask.
const IDLE_FOR: Duration = Duration::from_millis(400);
const IDLE_STEPS_MAX: u64 = 10;

/// A run that is over.
pub struct Run {
    /// Its seed.
    pub seed: u64,
    /// What the judge found.
    pub judgement: Judgement,
    /// What happened.
    pub history: Vec<Entry>,
    /// What was to happen.
    pub truth: Truth,
    /// What the judge judged by.
    pub rules: Rules,
}

/// Runs a seed.
///
/// # Panics
/// When the engine panics, or does not come to rest.
pub fn run(seed: u64) -> Run {
    run_with(seed, Sabotage::Nothing)
}

/// Runs a seed with something broken.
///
/// # Panics
/// As [`run`]; a broken engine may.
pub fn run_with(seed: u64, sabotage: Sabotage) -> Run {
    let _told = TellSeed(seed);
    let plan = Plan::of(seed);
    let mut sim = Sim::new(seed, &plan, sabotage);
    for (at, deed) in &plan.agenda {
        sim.advance(*at);
        sim.carry_out(*deed);
    }
    let rests = sim.heal();
    let session_by = plan.config.dispatcher.session_by.clone();
    let mut truth = Truth::of(&sim.world.log, GROUP, TOPIC, &session_by);
    if plan.config.dispatcher.missing_session == MissingSession::PartitionAsSession {
        truth.keyless_are_partition_sessions();
    }
    truth.growths = std::mem::take(&mut sim.growths);
    let (history, rules) = (sim.world.history.entries(), plan.rules());
    let mut judgement = judge(&history, &truth, &rules);
    if let Err(text) = rests {
        judgement.note_unrest(&history, text);
    }
    judgement.counts.waits = sim.waited.len() as u64;
    Run {
        seed,
        judgement,
        history,
        truth,
        rules,
    }
}

/// Prints the seed of a run that panics.
struct TellSeed(u64);

impl Drop for TellSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the simulation panicked: replay with SERIATIM_SIM_SEED={}", self.0);
        }
    }
}

struct Sim {
    world: World,
    rng: Rng,
    sessions: u64,
    partitions: i32,
    session_timeout: Duration,
    /// What the topic was each time that it grew.
    growths: Vec<GrowthTruth>,
    /// The partitions that were seen to wait with records in them.
    waited: BTreeSet<PartitionId>,
    produced: u64,
    crashed: Vec<MemberId>,
    /// What ends a fault, and when.
    endings: Vec<(Duration, Ending)>,
}

#[derive(Clone, Copy)]
enum Ending {
    Resume(u32),
    Notice(u32),
    Expire(u32),
    Reconnect(u32),
    ReleaseCommits,
    LettersUp,
}

impl Sim {
    fn new(seed: u64, plan: &Plan, sabotage: Sabotage) -> Self {
        let mut world = World::new(seed, plan.config(sabotage), sabotage);
        world.log.topic(TOPIC, plan.partitions);
        world.log.set_batch_max(plan.batch_max);
        world.log.set_protocol(GROUP, plan.protocol);
        world.log.set_growth(GROUP, plan.growth(sabotage));
        let clock = world.clock.clone();
        world
            .log
            .set_session_timeout(plan.session_timeout, move || clock.instant());
        for _ in 0..plan.instances {
            world.join();
        }
        Self {
            world,
            rng: Rng::of(&[seed, 3]),
            sessions: plan.sessions,
            partitions: plan.partitions,
            session_timeout: plan.session_timeout,
            growths: Vec::new(),
            waited: BTreeSet::new(),
            produced: 0,
            crashed: Vec::new(),
            endings: Vec::new(),
        }
    }

    fn carry_out(&mut self, deed: Deed) {
        let now = self.world.clock.now();
        match deed {
            Deed::Produce(records) => (0..records).for_each(|_| self.produce()),
            Deed::Gap => {
                let number = self.rng.below(self.partitions as u64) as i32;
                self.world
                    .log
                    .gap(&PartitionId::new(TOPIC, number), self.rng.within(1..90) as i64);
            }
            Deed::Join => drop(self.world.join()),
            Deed::Leave => self.on_one(|sim, number| sim.world.stop(number)),
            Deed::Crash => self.on_one(|sim, number| sim.crashed.extend(sim.world.crash(number))),
            Deed::ExpireCrashed => self.expire_crashed(),
            Deed::Freeze(lasts) => self.on_one_heard(|sim, number| {
                sim.world.pause(number);
                sim.endings.push((now + lasts, Ending::Resume(number)));
            }),
            Deed::Zombie(lasts) => self.on_one_heard(|sim, number| {
                sim.world.pause(number);
                sim.world.cut_off(number);
                let (expires, late) = (now + sim.session_timeout, sim.rng.millis(0..30));
                sim.endings.push((expires, Ending::Expire(number)));
                sim.endings.push((expires + lasts, Ending::Resume(number)));
                sim.endings.push((expires + lasts + late, Ending::Notice(number)));
            }),
            Deed::CutOff(lasts) => self.on_one_heard(|sim, number| {
                sim.world.cut_off(number);
                if sim.rng.percent(30) {
                    // For a moment only.
                    sim.endings
                        .push((now + lasts.min(sim.session_timeout), Ending::Reconnect(number)));
                    return;
                }
                let expires = now + sim.session_timeout;
                sim.endings.push((expires, Ending::Expire(number)));
                sim.endings.push((expires + lasts, Ending::Notice(number)));
            }),
            Deed::HoldCommits(lasts) => {
                self.world.log.hold_commits(GROUP);
                self.endings.push((now + lasts, Ending::ReleaseCommits));
            }
            Deed::HoldAnswers(lasts) => {
                self.world.log.hold_answers(GROUP);
                self.endings.push((now + lasts, Ending::ReleaseCommits));
            }
            Deed::FailCommits => self.fail_commits(),
            Deed::Poison => {
                let key = format!("s{}", self.rng.below(self.sessions));
                self.world.log.append_record(TOPIC, NewRecord::new(key, POISON));
            }
            Deed::LettersDown(lasts) => {
                self.world.weather.set_down(true);
                self.endings.push((now + lasts, Ending::LettersUp));
            }
            Deed::Grow => {
                self.growths.push(GrowthTruth::of(&self.world.log, GROUP, TOPIC));
                self.partitions *= 2;
                self.world.log.topic(TOPIC, self.partitions);
            }
        }
        self.waited.extend(self.world.log.waiting(GROUP));
        self.world.bury();
    }

    /// Lets time pass, and ends the faults whose time is over.
    fn advance(&mut self, until: Duration) {
        let due = |endings: &[(Duration, Ending)]| (0..endings.len()).min_by_key(|at| endings[*at].0);
        while let Some(first) = due(&self.endings).filter(|first| self.endings[*first].0 <= until) {
            let (at, ending) = self.endings.swap_remove(first);
            self.world.advance(at);
            self.end(ending);
        }
        self.world.advance(until);
    }

    fn end(&mut self, ending: Ending) {
        match ending {
            Ending::Resume(number) => self.world.resume(number),
            Ending::Notice(number) => self.world.notice_expiry(number),
            Ending::Expire(number) => self.world.expire(number),
            Ending::Reconnect(number) => self.world.reconnect(number),
            Ending::ReleaseCommits => self.world.log.release_commits(GROUP),
            Ending::LettersUp => self.world.weather.set_down(false),
        }
    }

    fn produce(&mut self) {
        let number = self.produced;
        self.produced += 1;
        let key = format!("s{}", self.rng.below(self.sessions));
        let mut record = NewRecord::new(key, format!("record {number}")).header("n", number.to_string());
        if self.rng.percent(2) {
            record = NewRecord::from_parts(None, Some(b"no session"));
        } else if self.rng.percent(5) {
            // A producer with another partitioner: the session lies in two partitions.
            record = record.partition(self.rng.below(self.partitions as u64) as i32);
        }
        self.world.log.append_record(TOPIC, record);
    }

    /// Does something to an instance that hears its coordinator.
    fn on_one_heard(&mut self, act: impl FnOnce(&mut Self, u32)) {
        self.on_one_where(|instance| !instance.paused && !instance.unheard, act);
    }

    /// Does something to an instance that does not stand still.
    fn on_one(&mut self, act: impl FnOnce(&mut Self, u32)) {
        self.on_one_where(|instance| !instance.paused, act);
    }

    fn on_one_where(&mut self, fit: impl Fn(&Instance) -> bool, act: impl FnOnce(&mut Self, u32)) {
        let sound = self.world.instances.values().filter(|instance| fit(instance));
        let numbers: Vec<u32> = sound.map(|instance| instance.number).collect();
        if !numbers.is_empty() {
            let number = *self.rng.pick(&numbers);
            act(self, number);
        }
    }

    fn expire_crashed(&mut self) {
        for member in std::mem::take(&mut self.crashed) {
            self.world.log.expire(GROUP, member);
        }
    }

    fn fail_commits(&mut self) {
        let faults = [CommitFault::Refused, CommitFault::Fenced, CommitFault::AnswerLost];
        let faults: Vec<CommitFault> = (0..self.rng.within(1..4)).map(|_| *self.rng.pick(&faults)).collect();
        self.world.log.fail_commits(GROUP, faults);
    }

    /// Ends all faults, and lets everything settle; then lets all instances leave.
    fn heal(&mut self) -> Result<(), String> {
        self.advance(FAULTS_FOR.max(self.world.clock.now()));
        let mut endings = std::mem::take(&mut self.endings);
        endings.sort_by_key(|(at, _)| *at);
        for (_, ending) in endings {
            self.end(match ending {
                // Not before its time: it is heard again.
                Ending::Expire(number) => Ending::Reconnect(number),
                other => other,
            });
        }
        self.expire_crashed();
        self.world.join();
        self.fill_up();
        let settled = |world: &World| world.log.backlog(GROUP, TOPIC) == 0;
        if !self.world.advance_until(HEALED_WITHIN, settled) {
            let left = self.world.log.backlog(GROUP, TOPIC);
            return Err(format!(
                "{left} records are not committed {HEALED_WITHIN:?} after all was healed"
            ));
        }
        self.rest()?;
        let numbers: Vec<u32> = self.world.instances.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.world.stop(number));
        let stopped = |world: &World| world.instances.values().all(|instance| instance.has_stopped());
        match self.world.advance_until(HEALED_WITHIN, stopped) {
            true => Ok(()),
            false => Err(format!("an instance has not stopped after {HEALED_WITHIN:?}")),
        }
    }

    /// A log that ends in a gap is read to its end only with its next record, and new partitions wait for that.
    fn fill_up(&mut self) {
        if !self.growths.is_empty() {
            for number in 0..self.partitions {
                let record = NewRecord::new("s0", "the last").partition(number);
                self.world.log.append_record(TOPIC, record);
            }
        }
    }

    /// Nothing is left to do, so that nothing is to be done.
    fn rest(&mut self) -> Result<(), String> {
        // What was left behind ends, and what timed out is looked at, before it is counted.
        self.world.advance(self.world.clock.now() + Duration::from_millis(600));
        let before: u64 = self
            .world
            .instances
            .values()
            .map(|instance| instance.worker_steps())
            .sum();
        self.world.advance(self.world.clock.now() + IDLE_FOR);
        let after: u64 = self
            .world
            .instances
            .values()
            .map(|instance| instance.worker_steps())
            .sum();
        let steps = after - before;
        let allowed = IDLE_STEPS_MAX * self.world.instances.len() as u64;
        match steps <= allowed {
            true => Ok(()),
            false => Err(format!("idle workers were stepped {steps} times in {IDLE_FOR:?}")),
        }
    }
}
