//! Several instances on one virtual clock and one log.
//!
//! A step of one may wake others, which step a little later, by a seeded jitter: so seeds differ in who comes first.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use seriatim_runtime::context::Context;
use seriatim_runtime::drive::{self, RunConfig, WallClock};
use seriatim_runtime::ports::{Handler, Observer};
use seriatim_runtime::record::Record;

use super::clock::Clock;
use super::instance::{Actor, Instance, Pending, Polled, SimSource};
use super::letters::{SimLetters, Weather};
use super::sabotage::{Sabotage, Sabotaged, ToldLonger};
use super::script::{Act, Killed, Leftovers, Scripted, Temper};
use crate::history::{Ended, History, Traced, TracedHandler, TracedLetters, TracedObserver, What, fingerprint};
use crate::log::{Log, MemberId};
use crate::rng::Rng;

/// The group and the topic of every simulation.
pub(crate) const GROUP: &str = "sim";
pub(crate) const TOPIC: &str = "chat";

/// What it takes a supervisor to start another instance.
const RESTARTED_AFTER: Duration = Duration::from_millis(5);

pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) log: Log,
    pub(crate) history: History,
    pub(crate) weather: Weather,
    pub(crate) instances: BTreeMap<u32, Instance>,
    temper: Temper,
    killed: Killed,
    /// When others are started in place of those that were killed.
    restarts: Vec<Duration>,
    config: RunConfig,
    sabotage: Sabotage,
    rng: Rng,
    next_instance: u32,
}

impl World {
    pub(crate) fn new(seed: u64, config: RunConfig, sabotage: Sabotage) -> Self {
        let clock = Clock::new();
        let history = {
            let clock = clock.clone();
            History::on_clock(move || clock.now())
        };
        Self {
            temper: Temper {
                seed,
                may_hang: config.worker.attempt_timeout.is_some(),
            },
            killed: Killed::default(),
            restarts: Vec::new(),
            clock,
            log: Log::on_virtual_time(),
            history,
            weather: Weather::default(),
            instances: BTreeMap::new(),
            config,
            sabotage,
            rng: Rng::of(&[seed, 1]),
            next_instance: 0,
        }
    }

    /// Starts an instance whose handlers follow the seed.
    pub(crate) fn join(&mut self) -> u32 {
        let leftovers = Leftovers::default();
        let scripted = Scripted {
            temper: self.temper.clone(),
            clock: self.clock.clone(),
            history: self.history.clone(),
            instance: self.next_instance,
            leftovers: leftovers.clone(),
            killed: self.killed.clone(),
        };
        let call = self.scripted_call(scripted);
        self.join_with(call, leftovers)
    }

    /// Starts an instance with handlers of one's own.
    pub(crate) fn join_with<C>(&mut self, call: C, leftovers: Leftovers) -> u32
    where
        C: Fn(Record, Context) -> Pending + Clone + 'static,
    {
        let (number, now) = (self.next_instance, self.clock.now());
        self.next_instance += 1;
        let (source, _) = self.log.member(GROUP, &[TOPIC]);
        let (member, polled, dispatcher) = (source.id(), Polled::default(), Actor::new(now));
        let source = SimSource {
            source: Sabotaged::new(Traced::new(source, number, &self.history), self.sabotage),
            polled: polled.clone(),
        };
        let letters = SimLetters {
            log: self.log.clone(),
            clock: self.clock.clone(),
            seed: self.temper.seed ^ u64::from(number),
            weather: self.weather.clone(),
            sabotage: self.sabotage,
            sent: AtomicU64::new(0),
        };
        let observer = TracedObserver::new(number, &self.history);
        let observer: Arc<dyn Observer> = match self.sabotage {
            Sabotage::RetryEarly => Arc::new(ToldLonger(observer)),
            _ => Arc::new(observer),
        };
        let mut config = self.config.clone();
        config.dispatcher.process = number;
        let parts = drive::assemble(
            (source, dispatcher.waker()),
            call,
            Arc::new(TracedLetters::new(letters, number, &self.history)),
            observer,
            config,
            WallClock {
                instant: self.clock.instant(),
                wall: SystemTime::UNIX_EPOCH,
            },
        );
        let instance = Instance::new(number, member, parts, (dispatcher, polled), leftovers, now);
        self.instances.insert(number, instance);
        number
    }

    fn scripted_call(&self, scripted: Scripted) -> impl Fn(Record, Context) -> Pending + Clone + 'static {
        let (sabotage, number) = (self.sabotage, scripted.instance);
        let (temper, history) = (scripted.temper.clone(), scripted.history.clone());
        let (clock, leftovers) = (self.clock.clone(), scripted.leftovers.clone());
        let handler = Arc::new(TracedHandler::new(scripted, number, &self.history));
        move |record: Record, cx: Context| -> Pending {
            let (id, attempt) = (record.id(), cx.attempt());
            let ended = |ended| What::End(id.clone(), attempt, ended);
            if temper.acts(&record, attempt).first() == Some(&Act::Panic) {
                history.note(number, start_of(&record, attempt));
                history.note(number, ended(Ended::Panicked));
                resume_unwind(Box::new("the call itself panics"));
            }
            let handler = Arc::clone(&handler);
            match sabotage {
                Sabotage::ReturnEarly => {
                    history.note(number, start_of(&record, attempt));
                    leftovers.add(clock.now() + Duration::from_millis(5), ended(Ended::Handled), cx, None);
                    Box::pin(async { Ok(()) })
                }
                Sabotage::StartTwice => Box::pin(async move {
                    let mut twin = pin!(handler.handle(record.clone(), cx.clone()));
                    let mut first = pin!(handler.handle(record, cx));
                    let mut twin_ended = false;
                    poll_fn(|task| {
                        twin_ended = twin_ended || twin.as_mut().poll(task).is_ready();
                        first.as_mut().poll(task)
                    })
                    .await
                }),
                _ => Box::pin(async move { handler.handle(record, cx).await }),
            }
        }
    }

    /// Lets everything happen that happens up to `until`.
    pub(crate) fn advance(&mut self, until: Duration) {
        loop {
            self.notice_wakes();
            let instances = self.instances.values().filter_map(Instance::next_due);
            let restarts = self.restarts.iter().copied();
            let next = instances.chain(self.clock.next_timer()).chain(restarts).min();
            let Some(next) = next.filter(|next| *next <= until) else {
                break;
            };
            self.clock.advance_to(next.max(self.clock.now()));
            for instance in self.instances.values_mut() {
                instance.step_due(&self.clock, &self.history, &mut self.rng);
            }
            self.replace_killed();
        }
        self.clock.advance_to(until);
    }

    /// The group notices that they are gone, and a supervisor starts others.
    fn replace_killed(&mut self) {
        let now = self.clock.now();
        for number in self.killed.take() {
            if let Some(member) = self.crash(number) {
                self.log.expire(GROUP, member);
                self.restarts.push(now + RESTARTED_AFTER);
            }
        }
        let due = self.restarts.extract_if(.., |at| *at <= now).count();
        for _ in 0..due {
            self.join();
        }
    }

    fn notice_wakes(&mut self) {
        let now = self.clock.now();
        for instance in self.instances.values_mut() {
            instance.notice_wakes(&self.log, now, &mut self.rng);
        }
    }

    /// Advances in small steps until `done`, or `within` is over; returns whether it was done.
    pub(crate) fn advance_until(&mut self, within: Duration, done: impl Fn(&World) -> bool) -> bool {
        let deadline = self.clock.now() + within;
        while !done(self) {
            if self.clock.now() >= deadline {
                return false;
            }
            self.advance(self.clock.now() + Duration::from_millis(5));
        }
        true
    }

    // --- faults ---------------------------------------------------------------------------------------------------

    pub(crate) fn crash(&mut self, number: u32) -> Option<MemberId> {
        let instance = self.instances.remove(&number)?;
        Some(instance.crash(&self.history))
    }

    pub(crate) fn pause(&mut self, number: u32) {
        if let Some(instance) = self.instances.get_mut(&number).filter(|instance| !instance.paused) {
            instance.paused = true;
            self.history.note(number, What::Paused);
        }
    }

    pub(crate) fn resume(&mut self, number: u32) {
        if let Some(instance) = self.instances.get_mut(&number).filter(|instance| instance.paused) {
            instance.paused = false;
            self.history.note(number, What::Resumed);
        }
    }

    /// The group drops an instance, which does not know.
    pub(crate) fn expire(&mut self, number: u32) {
        if let Some(instance) = self.instances.get(&number) {
            self.history.note(number, What::Expired);
            self.log.expire_unnoticed(GROUP, instance.member);
        }
    }

    /// The coordinator is out of an instance's reach.
    pub(crate) fn cut_off(&mut self, number: u32) {
        if let Some(instance) = self.instances.get_mut(&number) {
            instance.unheard = true;
            self.log.cut_off(GROUP, instance.member);
        }
    }

    pub(crate) fn reconnect(&mut self, number: u32) {
        if let Some(instance) = self.instances.get_mut(&number) {
            instance.unheard = false;
            self.log.reconnect(GROUP, instance.member);
        }
    }

    /// An expired instance learns that it is.
    pub(crate) fn notice_expiry(&mut self, number: u32) {
        if let Some(instance) = self.instances.get_mut(&number) {
            instance.unheard = false;
            self.log.notice_expiry(GROUP, instance.member);
        }
    }

    pub(crate) fn stop(&mut self, number: u32) {
        if let Some(instance) = self.instances.get(&number) {
            instance.stop.stop();
        }
    }

    /// Removes the instances that have stopped.
    pub(crate) fn bury(&mut self) {
        self.instances.retain(|_, instance| !instance.has_stopped());
    }
}

fn start_of(record: &Record, attempt: u32) -> What {
    What::Start {
        record: record.id(),
        attempt,
        fingerprint: fingerprint(record),
    }
}
