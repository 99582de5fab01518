//! One instance: a dispatcher and its workers, and when each of them is stepped next.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::Flow;
use seriatim_runtime::context::Context;
use seriatim_runtime::dispatcher::{Dispatcher, Progressed};
use seriatim_runtime::drive::{Parts, StopHandle};
use seriatim_runtime::failure::Failure;
use seriatim_runtime::message::OwnedMessage;
use seriatim_runtime::ports::{
    Commit, CommitError, CommitMode, LeaseTerm, Records, Source, SourceError, SourceEvent, Start,
};
use seriatim_runtime::record::Record;
use seriatim_runtime::worker::{Next, Worker};

use super::clock::Clock;
use super::sabotage::Sabotaged;
use super::script::Leftovers;
use super::world::GROUP;
use crate::history::{History, Traced, What};
use crate::log::{Log, LogSource, MemberId};
use crate::rng::Rng;

/// A handler's future.
pub(crate) type Pending = Pin<Box<dyn Future<Output = Result<(), Failure>>>>;

/// How much later than it was woken an actor is stepped, at most: enough for others to come first.
const JITTER_MAX: Duration = Duration::from_micros(800);

/// One process with one consumer.
pub(crate) struct Instance {
    pub(crate) number: u32,
    pub(crate) member: MemberId,
    pub(crate) stop: StopHandle,
    pub(crate) paused: bool,
    /// It cannot hear its coordinator: what else is done to it then must not give it a word of the group.
    pub(crate) unheard: bool,
    /// `None` when it has stopped.
    dispatcher: Option<Dispatcher<SimSource>>,
    dispatcher_actor: Actor,
    polled: Polled,
    /// The log's version when its news were last looked at.
    log_seen: u64,
    workers: Vec<(Box<dyn Step>, Actor)>,
    pub(crate) leftovers: Leftovers,
}

impl Instance {
    pub(crate) fn new<C, F>(
        number: u32,
        member: MemberId,
        parts: Parts<SimSource, C, F>,
        (dispatcher_actor, polled): (Actor, Polled),
        leftovers: Leftovers,
        now: Duration,
    ) -> Self
    where
        C: Fn(Record, Context) -> F + 'static,
        F: Future<Output = Result<(), Failure>> + 'static,
    {
        let workers = parts.workers.into_iter().map(|worker| {
            let worker: Box<dyn Step> = Box::new(worker);
            (worker, Actor::new(now))
        });
        Self {
            number,
            member,
            stop: parts.stop,
            paused: false,
            unheard: false,
            dispatcher: Some(parts.dispatcher),
            dispatcher_actor,
            polled,
            log_seen: 0,
            workers: workers.collect(),
            leftovers,
        }
    }

    /// Whether the dispatcher and all workers have stopped.
    pub(crate) fn has_stopped(&self) -> bool {
        self.dispatcher.is_none() && self.workers.is_empty()
    }

    /// When something of it is to be done next.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        if self.paused {
            return None;
        }
        let actors = self
            .workers
            .iter()
            .map(|(_, actor)| actor)
            .chain([&self.dispatcher_actor]);
        let leftovers = self.leftovers.next_due();
        actors.filter_map(|actor| actor.due).chain(leftovers).min()
    }

    /// How often its workers were stepped.
    pub(crate) fn worker_steps(&self) -> u64 {
        self.workers.iter().map(|(_, actor)| actor.steps).sum()
    }

    /// Steps whatever is due.
    pub(crate) fn step_due(&mut self, clock: &Clock, history: &History, rng: &mut Rng) {
        if self.paused {
            return;
        }
        let now = clock.now();
        self.leftovers.end_due(now, history, self.number);
        if self.dispatcher_actor.takes_turn(now) {
            self.step_dispatcher(clock, rng);
        }
        self.workers.retain_mut(|(worker, actor)| {
            if !actor.takes_turn(now) {
                return true;
            }
            match worker.step(clock.instant()) {
                Next::Now => actor.due = Some(now + jitter(rng)),
                Next::At(due) => actor.due = due.map(|due| clock.since_start(due).max(now + Duration::from_micros(1))),
                Next::Stopped => return false,
            }
            if worker.wake_by_next(&actor.waker()) {
                actor.not_later_than(now + jitter(rng));
            }
            true
        });
    }

    fn step_dispatcher(&mut self, clock: &Clock, rng: &mut Rng) {
        let Some(dispatcher) = &mut self.dispatcher else { return };
        let progressed = dispatcher.step(clock.instant()).expect("the log can always deliver");
        if progressed == Progressed::Stopped {
            self.dispatcher = None;
            return;
        }
        let (wait, reported) = self.polled.last(|poll| (poll.wait, poll.reported));
        let wait = if reported {
            jitter(rng)
        } else {
            wait.max(Duration::from_micros(1))
        };
        self.dispatcher_actor.due = Some(clock.now() + wait);
    }

    /// Brings the turns of those forward that were woken, or whose log has news.
    pub(crate) fn notice_wakes(&mut self, log: &Log, now: Duration, rng: &mut Rng) {
        for (_, actor) in &mut self.workers {
            if actor.woken.0.swap(false, Ordering::Relaxed) {
                actor.not_later_than(now + jitter(rng));
            }
        }
        if self.dispatcher.is_none() {
            self.dispatcher_actor.due = None;
            return;
        }
        let woken = self.dispatcher_actor.woken.0.swap(false, Ordering::Relaxed);
        let changed = std::mem::replace(&mut self.log_seen, log.version()) != log.version();
        let news = || log.has_news(GROUP, self.member, self.polled.last(|poll| poll.room));
        if woken || changed && news() {
            self.dispatcher_actor.not_later_than(now + jitter(rng));
        }
    }

    /// The process is gone: everything is dropped where it stands.
    pub(crate) fn crash(self, history: &History) -> MemberId {
        history.note(self.number, What::Crashed);
        self.leftovers.clear();
        self.member
    }
}

fn jitter(rng: &mut Rng) -> Duration {
    // Mostly next to nothing, at times long.
    let max = if rng.percent(70) {
        20
    } else {
        JITTER_MAX.as_micros() as u64
    };
    Duration::from_micros(rng.within(1..max))
}

/// When something is stepped next, and what wakes it before.
pub(crate) struct Actor {
    due: Option<Duration>,
    woken: Arc<Woken>,
    steps: u64,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Actor {
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            due: Some(now),
            woken: Arc::default(),
            steps: 0,
        }
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.woken))
    }

    fn not_later_than(&mut self, due: Duration) {
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    /// Takes its turn, if it has come.
    fn takes_turn(&mut self, now: Duration) -> bool {
        let turn = self.due.is_some_and(|due| due <= now);
        if turn {
            self.due = None;
            self.steps += 1;
        }
        turn
    }
}

/// A worker, whatever its handler's type.
trait Step {
    fn step(&mut self, now: Instant) -> Next;
    fn wake_by_next(&self, waker: &Waker) -> bool;
}

impl<C, F> Step for Worker<C, F>
where
    C: Fn(Record, Context) -> F,
    F: Future<Output = Result<(), Failure>>,
{
    fn step(&mut self, now: Instant) -> Next {
        Worker::step(self, now)
    }

    fn wake_by_next(&self, waker: &Waker) -> bool {
        Worker::wake_by_next(self, waker)
    }
}

/// The source of an instance. It tells the instance how long the dispatcher meant to wait.
pub(crate) struct SimSource {
    pub(crate) source: Sabotaged<Traced<LogSource>>,
    pub(crate) polled: Polled,
}

/// The dispatcher's last poll.
#[derive(Clone, Default)]
pub(crate) struct Polled(Arc<Mutex<Poll>>);

#[derive(Default)]
struct Poll {
    wait: Duration,
    room: bool,
    reported: bool,
}

impl Polled {
    fn last<T>(&self, read: impl FnOnce(&Poll) -> T) -> T {
        read(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Source for SimSource {
    type Message = OwnedMessage;

    fn poll(
        &mut self,
        wait: Duration,
        records: Option<&mut Records<OwnedMessage>>,
    ) -> Result<Option<SourceEvent>, SourceError> {
        let room = records.is_some();
        let event = self.source.poll(wait, records)?;
        *self.polled.0.lock().unwrap_or_else(PoisonError::into_inner) = Poll {
            wait,
            room,
            reported: event.is_some(),
        };
        Ok(event)
    }

    fn start(&mut self, starts: &[Start]) {
        self.source.start(starts);
    }

    fn set_flow(&mut self, epoch: AssignmentEpoch, flow: Flow) {
        self.source.set_flow(epoch, flow);
    }

    fn commit(&mut self, commits: &[Commit], mode: CommitMode) -> Result<(), CommitError> {
        self.source.commit(commits, mode)
    }

    fn relinquish(&mut self, epochs: &[AssignmentEpoch]) {
        self.source.relinquish(epochs);
    }

    fn lease(&self) -> Option<LeaseTerm> {
        self.source.lease()
    }

    fn close(&mut self) {
        self.source.close();
    }
}
