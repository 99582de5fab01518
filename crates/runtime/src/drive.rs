//! The loops that step the state machines: a thread for the dispatcher, which waits in its source, and a thread with a
//! tokio runtime of its own for each worker.
//!
//! A worker's runtime is of the current-thread kind: its timers are several times cheaper than those of a shared one,
//! and what a handler spawns stays on the worker's thread. A handler that blocks therefore stalls its worker's sessions;
//! blocking work belongs on [`tokio::task::spawn_blocking`].

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::clock;
use crate::context::Context;
use crate::dispatcher::{Dispatcher, DispatcherConfig, Progressed, RunError, Stop};
use crate::failure::Failure;
use crate::lease::Lease;
use crate::letter::Letters;
pub use crate::letter::WallClock;
pub use crate::mail::WorkerCounters;
use crate::mail::{FromWorker, Link, ToWorker};
use crate::ports::{DeadLetters, Handler, Observer, Source};
use crate::record::Record;
use crate::worker::{Beats, Next, Worker, WorkerConfig};

/// How a consumer runs.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Tier 1.
    pub dispatcher: DispatcherConfig,
    /// Tier 2, each worker.
    pub worker: WorkerConfig,
    /// How many workers.
    pub workers: usize,
}

/// A consumer that runs. Dropping it stops the consumer without waiting for its drain.
#[derive(Debug)]
pub struct Running {
    stop: StopHandle,
    counters: Vec<Arc<WorkerCounters>>,
    ended: Option<oneshot::Receiver<Result<(), RunError>>>,
}

impl Running {
    /// Begins the drain: intake stops, what runs may finish until the drain's deadline, progress is committed.
    pub fn stop(&self) {
        self.stop.stop();
    }

    /// Returns when the consumer has ended: after [`stop`](Self::stop), or by itself when it cannot go on.
    ///
    /// # Errors
    /// Why it could not go on.
    pub async fn ended(&mut self) -> Result<(), RunError> {
        match &mut self.ended {
            Some(ended) => {
                let result = ended.await.unwrap_or(Err(RunError::Panicked));
                self.ended = None;
                result
            }
            None => Ok(()),
        }
    }

    /// What each worker has done so far.
    pub fn counters(&self) -> &[Arc<WorkerCounters>] {
        &self.counters
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The state machines of one consumer, for a driver of one's own: a simulator steps them on virtual time.
pub struct Parts<S: Source, C, F> {
    /// Tier 1.
    pub dispatcher: Dispatcher<S>,
    /// Tier 2.
    pub workers: Vec<Worker<C, F>>,
    /// Asks the dispatcher to drain and stop.
    pub stop: StopHandle,
}

/// Asks a dispatcher to drain and stop.
#[derive(Clone, Debug)]
pub struct StopHandle {
    stop: Arc<Stop>,
    waker: Waker,
}

impl StopHandle {
    /// Begins the drain.
    pub fn stop(&self) {
        self.stop.request();
        self.waker.wake_by_ref();
    }
}

/// Makes the state machines of one consumer, whose handlers are called by clones of `call`.
pub fn assemble<S, C, F>(
    (source, waker): (S, Waker),
    call: C,
    dead_letters: Arc<impl DeadLetters>,
    observer: Arc<dyn Observer>,
    config: RunConfig,
    clock: WallClock,
) -> Parts<S, C, F>
where
    S: Source,
    C: Fn(Record, Context) -> F + Clone,
    F: Future<Output = Result<(), Failure>>,
{
    let links: Vec<Link> = (0..config.workers).map(|_| Link::new()).collect();
    let lease = Arc::new(Lease::new(clock.instant));
    let session_by = Arc::new(config.dispatcher.session_by.clone());
    let workers = links.iter().map(|link| {
        let letters = Letters::new(Arc::clone(&dead_letters), Arc::clone(&session_by), clock);
        let observer = Arc::clone(&observer);
        let beats = Beats {
            lease: Arc::clone(&lease),
            look: None,
        };
        Worker::new(
            call.clone(),
            config.worker.clone(),
            link.clone(),
            letters,
            observer,
            beats,
        )
    });
    let workers = workers.collect();
    let stop = Arc::new(Stop::default());
    Parts {
        stop: StopHandle {
            stop: Arc::clone(&stop),
            waker: waker.clone(),
        },
        dispatcher: Dispatcher::new(source, waker, config.dispatcher, links, observer, lease, stop),
        workers,
    }
}

/// Starts a consumer. `connect` runs on the thread that will own the source.
///
/// # Errors
/// What `connect` returned.
pub fn start<S, E>(
    connect: impl FnOnce() -> Result<(S, Waker), E> + Send + 'static,
    handler: Arc<impl Handler>,
    dead_letters: Arc<impl DeadLetters>,
    observer: Arc<dyn Observer>,
    config: RunConfig,
) -> Result<Running, E>
where
    S: Source + 'static,
    E: Send + 'static,
{
    let links: Vec<Link> = (0..config.workers).map(|_| Link::new()).collect();
    let stop = Arc::new(Stop::default());
    let (connected_tx, connected) = mpsc::sync_channel(1);
    let (ended_tx, ended) = oneshot::channel();
    let ending = Ending::new(ended_tx);
    let lease = Arc::new(Lease::new(clock::now()));

    {
        let (links, observer, stop, ending) = (links.clone(), observer.clone(), Arc::clone(&stop), ending.clone());
        let (config, lease) = (config.dispatcher.clone(), Arc::clone(&lease));
        spawn("seriatim-dispatcher".into(), move || {
            let (source, waker) = match connect() {
                Ok(connected) => connected,
                Err(error) => return drop(connected_tx.send(Err(error))),
            };
            let _ = connected_tx.send(Ok(waker.clone()));
            let workers = links.clone();
            let dispatcher = Dispatcher::new(source, waker, config, links, observer, lease, stop);
            ending.with(catch_unwind(AssertUnwindSafe(|| dispatch(dispatcher))));
            for worker in workers {
                worker.inbox.put(ToWorker::Stop);
            }
        });
    }
    let waker = connected
        .recv()
        .expect("the dispatcher's thread reports before it ends")?;

    let counters = links.iter().map(|link| Arc::clone(&link.counters)).collect();
    let session_by = Arc::new(config.dispatcher.session_by.clone());
    let clock = WallClock::now();
    for (index, link) in links.into_iter().enumerate() {
        let letters = Letters::new(Arc::clone(&dead_letters), Arc::clone(&session_by), clock);
        let (handler, observer, config) = (Arc::clone(&handler), observer.clone(), config.worker.clone());
        let (ending, outbox) = (ending.clone(), link.outbox.clone());
        let beats = Beats {
            lease: Arc::clone(&lease),
            look: Some(clock::now),
        };
        spawn(format!("seriatim-worker-{index}"), move || {
            let call = |record, cx| handler.handle(record, cx);
            let worked = catch_unwind(AssertUnwindSafe(|| {
                work(Worker::new(call, config, link, letters, observer, beats))
            }));
            if let Err(panic) = worked {
                ending.with(Err(panic));
                outbox.put(FromWorker::Died);
            }
        });
    }
    Ok(Running {
        stop: StopHandle { stop, waker },
        counters,
        ended: Some(ended),
    })
}

/// Reports how a consumer ended: the first of its threads to say so is believed.
#[derive(Clone)]
struct Ending(Arc<Mutex<Option<Sender>>>);

type Sender = oneshot::Sender<Result<(), RunError>>;

impl Ending {
    fn new(sender: Sender) -> Self {
        Self(Arc::new(Mutex::new(Some(sender))))
    }

    fn with(&self, result: thread::Result<Result<(), RunError>>) {
        let result = result.unwrap_or_else(|_| Err(RunError::Panicked));
        if let Some(sender) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = sender.send(result);
        }
    }
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) {
    thread::Builder::new()
        .name(name)
        .spawn(body)
        .expect("the system has room for another thread");
}

/// The dispatcher's loop.
fn dispatch<S: Source>(mut dispatcher: Dispatcher<S>) -> Result<(), RunError> {
    loop {
        match dispatcher.step(clock::now())? {
            Progressed::On => {}
            Progressed::Stopped => return dispatcher.take_failure().map_or(Ok(()), Err),
        }
    }
}

/// How long a worker steps before it lets its runtime look at I/O and timers.
const TURN: Duration = Duration::from_micros(500);

/// The worker's loop.
fn work<C, F>(mut worker: Worker<C, F>)
where
    C: Fn(Record, Context) -> F,
    F: Future<Output = Result<(), Failure>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the system has room for another event queue");
    let turns = async {
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        poll_fn(|cx| {
            let began = clock::now();
            let mut now = began;
            loop {
                let due = match worker.step(now) {
                    Next::Stopped => return Poll::Ready(()),
                    Next::Now => Some(now),
                    Next::At(due) => due,
                };
                if due.is_none_or(|due| due > now) && !worker.wake_by_next(cx.waker()) {
                    match wait(due, now, timer.as_mut(), cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(()) => {}
                    }
                }
                now = clock::now();
                if now - began >= TURN {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        })
        .await;
    };
    // Handlers are polled in place, all on this one task: tokio's budget a task would starve them.
    runtime.block_on(tokio::task::coop::unconstrained(turns));
    // What handlers spawned and left behind is not waited for.
    runtime.shutdown_background();
}

/// tokio's timers tick each millisecond, and a retry's back-off may be shorter. The last stretch before a due time is
/// slept through in naps, between which the runtime looks at I/O.
const TICK: Duration = Duration::from_millis(1);
const NAP: Duration = Duration::from_micros(50);

fn wait(
    due: Option<Instant>,
    now: Instant,
    mut timer: std::pin::Pin<&mut tokio::time::Sleep>,
    cx: &mut std::task::Context<'_>,
) -> Poll<()> {
    let Some(due) = due else { return Poll::Pending };
    let left = due - now;
    if left <= TICK {
        thread::sleep(left.min(NAP));
        cx.waker().wake_by_ref();
        return Poll::Pending;
    }
    timer.as_mut().reset(tokio::time::Instant::now() + (left - TICK));
    timer.poll(cx)
}
