//! Stories: one instance on virtual time, told record by record.
//!
//! ```
//! use seriatim_testkit::story::Story;
//!
//! // Session a's first record fails and is tried again; session b does not wait for it, and a2 does.
//! Story::new().deliver("a1 a2 b1").running("a1 b1").fail("a1").expect("b1 a1 a2");
//! ```
//!
//! A record is written as its session and its number, `a1`; `_1` has no session. Handlers run until they are told how to
//! end. All records lie in one partition, in the order in which they are delivered.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use seriatim_engine::budget::Limits;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_engine::retry::Retry;
use seriatim_runtime::context::Context;
use seriatim_runtime::dispatcher::DispatcherConfig;
use seriatim_runtime::drive::RunConfig;
use seriatim_runtime::failure::Failure;
use seriatim_runtime::ports::{Handler, Source};
use seriatim_runtime::record::Record;
use seriatim_runtime::session_by::{MissingSession, SessionBy};
use seriatim_runtime::worker::WorkerConfig;

use crate::history::{Ended, TracedHandler, What};
use crate::log::{NewRecord, Protocol};
use crate::sim::{GROUP, Instance, Leftovers, Pending, Sabotage, TOPIC, World};

/// How long a drain waits for handlers in a story.
pub const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// An attempt that fails waits at least so long for the next,
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);

/// and at most so long.
pub const BACKOFF_MAX: Duration = Duration::from_millis(30);

/// Attempts of a record in a story.
pub const ATTEMPTS_MAX: u32 = 3;

/// Long enough for all that needs no time: turns of the actors, dead letters, a commit.
const A_MOMENT: Duration = Duration::from_millis(12);

/// A story that is being told.
pub struct Story {
    world: World,
    stage: Arc<Stage>,
    /// How much of the history was expected before.
    seen: usize,
}

/// What handlers and the story share.
#[derive(Default)]
struct Stage(Mutex<Scene>);

#[derive(Default)]
struct Scene {
    /// In the order of their starts.
    running: Vec<String>,
    verdicts: BTreeMap<String, Verdict>,
    wakers: BTreeMap<String, Waker>,
    /// Whose contexts are to outlive their handlers, and those that do.
    to_keep: BTreeSet<String>,
    kept: BTreeMap<String, Context>,
}

#[derive(Clone, Copy)]
enum Verdict {
    Finish,
    Fail,
    Reject,
    Panic,
}

impl Story {
    /// A story of one instance with one worker.
    #[allow(clippy::new_without_default, reason = "a story begins, it is no value")]
    pub fn new() -> Self {
        let world = World::new(0, config(), Sabotage::Nothing);
        world.log.topic(TOPIC, 1);
        // With one partition only an eager group takes it away and gives it back.
        world.log.set_protocol(GROUP, Protocol::Eager);
        let mut story = Self {
            world,
            stage: Arc::default(),
            seen: 0,
        };
        story.join();
        story
    }

    fn join(&mut self) {
        let actor = Arc::new(TracedHandler::new(
            Player(Arc::clone(&self.stage)),
            0,
            &self.world.history,
        ));
        let call = move |record: Record, cx: Context| -> Pending {
            let actor = Arc::clone(&actor);
            Box::pin(async move { actor.handle(record, cx).await })
        };
        self.world.join_with(call, Leftovers::default());
        self.pass(A_MOMENT)
    }

    fn pass(&mut self, duration: Duration) {
        self.world.advance(self.world.clock.now() + duration);
    }

    // --- what happens ---------------------------------------------------------------------------------------------

    /// Appends records, and lets start what may.
    pub fn deliver(&mut self, records: &str) -> &mut Self {
        for name in records.split_whitespace() {
            let session = name.trim_end_matches(|c: char| c.is_ascii_digit());
            let key = (session != "_").then_some(session.as_bytes());
            self.world
                .log
                .append_record(TOPIC, NewRecord::from_parts(key, Some(name.as_bytes())));
        }
        self.wait(A_MOMENT)
    }

    /// Lets running handlers end well.
    #[track_caller]
    pub fn finish(&mut self, records: &str) -> &mut Self {
        self.end(records, Verdict::Finish)
    }

    /// Lets running handlers fail, so that they are tried again.
    #[track_caller]
    pub fn fail(&mut self, records: &str) -> &mut Self {
        self.end(records, Verdict::Fail)
    }

    /// Lets running handlers fail for good.
    #[track_caller]
    pub fn reject(&mut self, records: &str) -> &mut Self {
        self.end(records, Verdict::Reject)
    }

    /// Lets running handlers panic.
    #[track_caller]
    pub fn panic(&mut self, records: &str) -> &mut Self {
        self.end(records, Verdict::Panic)
    }

    /// Lets something outlive the next handler of each of these records: a task that it spawns, say.
    pub fn keep(&mut self, records: &str) -> &mut Self {
        let names = records.split_whitespace().map(str::to_owned);
        self.stage.lock().to_keep.extend(names);
        self
    }

    /// Ends what outlived the handlers of these records.
    pub fn let_go(&mut self, records: &str) -> &mut Self {
        for name in records.split_whitespace() {
            let kept = self.stage.lock().kept.remove(name);
            drop(kept.unwrap_or_else(|| panic!("nothing of {name} is kept")));
        }
        self.wait(A_MOMENT)
    }

    /// Lets time pass.
    pub fn wait(&mut self, duration: Duration) -> &mut Self {
        self.pass(duration);
        self
    }

    /// The group takes the partition back, and gives it to the same instance again when it is released.
    pub fn rebalance(&mut self) -> &mut Self {
        // Another member comes and goes: an eager group deals anew.
        let (mut other, _) = self.world.log.member(GROUP, &[TOPIC]);
        other.close();
        self.wait(A_MOMENT)
    }

    /// The group drops the instance, which learns of it and joins anew.
    pub fn lose(&mut self) -> &mut Self {
        let members: Vec<_> = self.world.instances.values().map(|instance| instance.member).collect();
        members
            .into_iter()
            .for_each(|member| self.world.log.expire(GROUP, member));
        self.wait(A_MOMENT)
    }

    /// The process is killed. The group notices, and another instance starts in its place.
    pub fn crash(&mut self) -> &mut Self {
        let numbers: Vec<u32> = self.world.instances.keys().copied().collect();
        for number in numbers {
            let member = self.world.crash(number).expect("it was there");
            self.world.log.expire(GROUP, member);
        }
        self.join();
        self
    }

    /// Asks the instance to stop.
    pub fn stop(&mut self) -> &mut Self {
        let numbers: Vec<u32> = self.world.instances.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.world.stop(number));
        self.wait(A_MOMENT)
    }

    /// Starts an instance in place of the one that stopped.
    pub fn start_again(&mut self) -> &mut Self {
        self.world.bury();
        assert!(self.world.instances.is_empty(), "the instance has not stopped");
        self.join();
        self
    }

    /// Dead letters cannot be written from here on, or can again.
    pub fn dead_letters_down(&mut self, down: bool) -> &mut Self {
        self.world.weather.set_down(down);
        self
    }

    #[track_caller]
    fn end(&mut self, records: &str, verdict: Verdict) -> &mut Self {
        for name in records.split_whitespace() {
            self.stage.decide(name, verdict);
        }
        self.wait(A_MOMENT)
    }

    // --- what is seen ---------------------------------------------------------------------------------------------

    /// Exactly these run now, in the order of their starts.
    #[track_caller]
    pub fn running(&mut self, records: &str) -> &mut Self {
        let running = self.stage.lock().running.join(" ");
        assert_eq!(running, records, "what runs, and what should");
        self
    }

    /// Lets everything that runs and comes to run end well, and expects that the records settle in this order, from the
    /// last time on. A dead letter is written `a1!`.
    #[track_caller]
    pub fn expect(&mut self, settled: &str) -> &mut Self {
        // Each round ends what runs; the longest story waits through all attempts of each of its records.
        let mut idle = 0;
        while idle < ATTEMPTS_MAX + 2 {
            let running = self.stage.lock().running.clone();
            idle = if running.is_empty() { idle + 1 } else { 0 };
            running.iter().for_each(|name| self.stage.decide(name, Verdict::Finish));
            self.pass(BACKOFF_MAX);
        }
        self.settled(settled)
    }

    /// Expects that these records have settled, in this order, since the last time.
    #[track_caller]
    pub fn settled(&mut self, records: &str) -> &mut Self {
        let entries = self.world.history.entries();
        let names = self.names();
        let new = entries[self.seen..].iter().filter_map(|entry| match &entry.what {
            What::End(record, _, Ended::Handled) => Some(names[&record.offset].clone()),
            What::LetterAcked(record) => Some(format!("{}!", names[&record.offset])),
            _ => None,
        });
        let settled = new.collect::<Vec<_>>().join(" ");
        assert_eq!(settled, records, "what settled, and what should");
        self.seen = entries.len();
        self
    }

    /// This is committed.
    #[track_caller]
    pub fn committed(&mut self, watermark: impl Into<Option<i64>>) -> &mut Self {
        let committed = self.world.log.committed(GROUP, &PartitionId::new(TOPIC, 0));
        assert_eq!(
            committed.map(Offset::get),
            watermark.into(),
            "what is committed, and what should be"
        );
        self
    }

    /// Whether the instance has stopped.
    #[track_caller]
    pub fn stopped(&mut self, expected: bool) -> &mut Self {
        let stopped = self.world.instances.values().all(Instance::has_stopped);
        assert_eq!(stopped, expected, "whether the instance has stopped");
        self
    }

    fn names(&self) -> BTreeMap<Offset, String> {
        let records = self.world.log.records(TOPIC);
        let name = |record: &Record| record.text().expect("a name").to_owned();
        records
            .iter()
            .map(|record| (record.id().offset, name(record)))
            .collect()
    }
}

fn config() -> RunConfig {
    RunConfig {
        dispatcher: DispatcherConfig {
            session_by: SessionBy::Key,
            missing_session: MissingSession::DeadLetter,
            limits: Limits::default(),
            commit_interval: Duration::from_millis(5),
            drain_timeout: DRAIN_TIMEOUT,
            stuck_after: None,
            process: 0,
            hash_key: (1, 2),
        },
        worker: WorkerConfig {
            retry: Retry {
                base: BACKOFF_MAX - BACKOFF_MIN,
                cap: BACKOFF_MAX - BACKOFF_MIN,
                attempts_max: ATTEMPTS_MAX,
                elapsed_max: None,
                jitter_seed: 0,
            },
            in_flight_max: 100,
            attempt_timeout: None,
            check: true,
        },
        workers: 1,
    }
}

/// A handler that waits to be told.
struct Player(Arc<Stage>);

impl Handler for Player {
    async fn handle(&self, record: Record, cx: Context) -> Result<(), Failure> {
        let on_stage = OnStage::enter(&self.0, record.text()?, &cx);
        drop(cx);
        let verdict = poll_fn(|task| on_stage.verdict(task.waker())).await;
        match verdict {
            Verdict::Finish => Ok(()),
            Verdict::Fail => Err(Failure::transient("not yet").retry_after(BACKOFF_MIN)),
            Verdict::Reject => Err(Failure::permanent("never")),
            Verdict::Panic => resume_unwind(Box::new("told to panic")),
        }
    }
}

/// A handler that runs, until this is dropped.
struct OnStage<'a> {
    stage: &'a Stage,
    name: String,
}

impl<'a> OnStage<'a> {
    fn enter(stage: &'a Stage, name: &str, cx: &Context) -> Self {
        let mut scene = stage.lock();
        scene.running.push(name.to_owned());
        if scene.to_keep.remove(name) {
            scene.kept.insert(name.to_owned(), cx.clone());
        }
        Self {
            stage,
            name: name.to_owned(),
        }
    }

    fn verdict(&self, waker: &Waker) -> Poll<Verdict> {
        let mut scene = self.stage.lock();
        match scene.verdicts.remove(&self.name) {
            Some(verdict) => Poll::Ready(verdict),
            None => {
                scene.wakers.insert(self.name.clone(), waker.clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for OnStage<'_> {
    fn drop(&mut self) {
        let mut scene = self.stage.lock();
        scene.running.retain(|name| *name != self.name);
        scene.wakers.remove(&self.name);
    }
}

impl Stage {
    /// Tells a running handler how to end.
    #[track_caller]
    fn decide(&self, name: &str, verdict: Verdict) {
        let mut scene = self.lock();
        assert!(
            scene.running.iter().any(|running| running == name),
            "{name} does not run, but {:?}",
            scene.running
        );
        scene.verdicts.insert(name.to_owned(), verdict);
        let waker = scene.wakers.remove(name);
        drop(scene);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Scene> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
