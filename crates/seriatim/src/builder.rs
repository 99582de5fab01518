//! From a group's name to a running consumer.

use std::hash::{BuildHasher, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use seriatim_engine::budget::Limits;
use seriatim_engine::retry::Retry;
use seriatim_kafka::growth::Growth;
use seriatim_kafka::range::OutOfRange;
use seriatim_runtime::backend::Backend;
use seriatim_runtime::dispatcher::DispatcherConfig;
use seriatim_runtime::drive::{self, RunConfig};
use seriatim_runtime::ports::{Handler, Observer};
use seriatim_runtime::session_by::{MissingSession, SessionBy};
use seriatim_runtime::worker::WorkerConfig;

use crate::cluster::Cluster;
use crate::error::{BuildError, Error, Result};
use crate::handle::Handle;
use crate::log::LogEvents;

/// Where every consumer begins: [`Seriatim::group`].
pub struct Seriatim(());

impl Seriatim {
    /// A consumer that joins the consumer group `group`.
    pub fn group(group: impl Into<String>) -> Builder<()> {
        Builder {
            backend: (),
            group: group.into(),
            topics: Vec::new(),
            observer: Arc::new(LogEvents),
            in_flight_max: IN_FLIGHT_MAX,
            workers: default_workers().get(),
            dispatcher: DispatcherConfig {
                session_by: SessionBy::default(),
                missing_session: MissingSession::default(),
                limits: Limits::default(),
                commit_interval: Duration::from_secs(1),
                drain_timeout: Duration::from_secs(10),
                stuck_after: Some(Duration::from_secs(60)),
                process: random_key().0 as u32,
                hash_key: random_key(),
            },
            worker: WorkerConfig {
                retry: Retry {
                    // So that the processes of a group do not retry in step.
                    jitter_seed: random_key().0,
                    ..Retry::default()
                },
                in_flight_max: 0,
                attempt_timeout: Some(Duration::from_secs(60)),
                check: false,
            },
        }
    }
}

/// Handlers that wait at a time, unless [`Builder::in_flight`] says otherwise: enough to hide the latency of calls to
/// other services, few enough not to overrun them.
const IN_FLIGHT_MAX: usize = 1_000;

/// A consumer in the making. `B` is what it runs on: [`brokers`](Builder::brokers) or [`on`](Builder::on) sets it.
///
/// | Setting | Default |
/// |---|---|
/// | [`session_by`](Self::session_by) | the record's key |
/// | [`missing_session`](Self::missing_session) | dead letter |
/// | [`retry`](Self::retry) | [`Retry::default`] |
/// | [`in_flight`](Self::in_flight) | 1,000 handlers that wait |
/// | [`attempt_timeout`](Self::attempt_timeout) | 60 s |
/// | [`commit_interval`](Self::commit_interval) | 1 s |
/// | [`drain_timeout`](Self::drain_timeout) | 10 s |
/// | [`stuck_after`](Self::stuck_after) | reported after 60 s |
/// | [`limits`](Self::limits) | [`Limits::default`] |
/// | [`workers`](Self::workers) | [`default_workers`]: one a core, less one |
/// | [`check`](Self::check) | off |
#[must_use = "a builder does nothing until it is run"]
pub struct Builder<B> {
    backend: B,
    group: String,
    topics: Vec<String>,
    observer: Arc<dyn Observer>,
    in_flight_max: usize,
    workers: usize,
    dispatcher: DispatcherConfig,
    worker: WorkerConfig,
}

impl Builder<()> {
    /// Runs on the Kafka cluster whose brokers are listed, e.g. `localhost:9092,localhost:9093`.
    pub fn brokers(self, brokers: impl Into<String>) -> Builder<Cluster> {
        self.on(Cluster::new(brokers))
    }

    /// Runs on `backend`: a [`Cluster`] with settings of its own, or in tests the in-memory log of `seriatim-testkit`.
    pub fn on<B: Backend>(self, backend: B) -> Builder<B> {
        Builder {
            backend,
            group: self.group,
            topics: self.topics,
            observer: self.observer,
            in_flight_max: self.in_flight_max,
            workers: self.workers,
            dispatcher: self.dispatcher,
            worker: self.worker,
        }
    }
}

impl Builder<Cluster> {
    /// Sets a property of the Kafka client, in librdkafka's names.
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.backend = self.backend.property(name, value);
        self
    }

    /// Says what becomes of a partition whose next offset is not in its log: by default it stops, with a message.
    pub fn out_of_range(mut self, policy: OutOfRange) -> Self {
        self.backend = self.backend.out_of_range(policy);
        self
    }

    /// Says it for one topic.
    pub fn topic_out_of_range(mut self, topic: impl Into<String>, policy: OutOfRange) -> Self {
        self.backend = self.backend.topic_out_of_range(topic, policy);
        self
    }

    /// Says what becomes of partitions that are added to a topic while it is read. By default they are started at once,
    /// and it is told; [`Growth::Hold`] lets them wait for what the others had.
    pub fn growth(mut self, growth: Growth) -> Self {
        self.backend = self.backend.growth(growth);
        self
    }
}

impl<B> Builder<B> {
    /// Adds a topic to read. A session's records in all topics share one lane.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topics.push(topic.into());
        self
    }

    /// Says which part of a record names its session.
    pub fn session_by(mut self, session_by: SessionBy) -> Self {
        self.dispatcher.session_by = session_by;
        self
    }

    /// Says what becomes of a record without a session key.
    pub fn missing_session(mut self, policy: MissingSession) -> Self {
        self.dispatcher.missing_session = policy;
        self
    }

    /// Sets when failed attempts are made again, and how often.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.worker.retry = retry;
        self
    }

    /// Sets how many handlers may wait at a time, over all sessions.
    pub fn in_flight(mut self, handlers: usize) -> Self {
        self.in_flight_max = handlers;
        self
    }

    /// Sets how long an attempt may take before it is cancelled and counted as a transient failure; `None` for ever.
    pub fn attempt_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.worker.attempt_timeout = timeout.into();
        self
    }

    /// Sets how often progress is committed. What was settled since the last commit is repeated after a crash.
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.dispatcher.commit_interval = interval;
        self
    }

    /// Sets how long running handlers may go on after a shutdown or a rebalance has begun.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.dispatcher.drain_timeout = timeout;
        self
    }

    /// Sets after what time without progress a partition's blocking record is reported; `None` for never.
    pub fn stuck_after(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.dispatcher.stuck_after = time.into();
        self
    }

    /// Sets how much may be read and not settled before reading is held.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.dispatcher.limits = limits;
        self
    }

    /// Sets how many workers there are, in place of [`default_workers`]. Each is a thread.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Lets the order checker judge every start and end of a handler; what it finds is reported to the observer and
    /// counted in [`Stats`](crate::Stats).
    pub fn check(mut self, check: bool) -> Self {
        self.worker.check = check;
        self
    }

    /// Is told what happens, in place of [`LogEvents`], which writes it to the log.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Arc::new(observer);
        self
    }
}

impl<B: Backend> Builder<B> {
    /// Starts the consumer, and returns when it has ended: it drains on Ctrl-C and SIGTERM, and a second signal ends it
    /// at once.
    ///
    /// # Errors
    /// When a setting is wrong, when the consumer cannot go on, or when the drain was cut short.
    pub async fn run(self, handler: impl Handler) -> Result {
        let handle = self.start(handler).await?;
        handle.until_signalled().await
    }

    /// Starts the consumer, and returns a handle to it.
    ///
    /// # Errors
    /// When a setting is wrong. That brokers cannot be reached is no error: the consumer keeps trying, and says so.
    pub async fn start(self, handler: impl Handler) -> Result<Handle> {
        let config = self.config()?;
        let Builder {
            backend,
            group,
            topics,
            observer,
            ..
        } = self;
        let backend_error = |error: B::Error| Error::Backend(Box::new(error));
        let start = move || {
            let dead_letters = Arc::new(backend.dead_letters(&group)?);
            let join = move || backend.join(&group, &topics);
            drive::start(join, Arc::new(handler), dead_letters, observer, config)
        };
        // Clients are made by code that may block for a while.
        let running = tokio::task::spawn_blocking(start)
            .await
            .expect("starting a consumer does not panic")
            .map_err(backend_error)?;
        Ok(Handle::new(running))
    }

    fn config(&self) -> Result<RunConfig, BuildError> {
        if self.group.is_empty() {
            return Err(BuildError::NoGroup);
        }
        if self.topics.is_empty() {
            return Err(BuildError::NoTopic);
        }
        let workers = NonZeroUsize::new(self.workers).ok_or(BuildError::Zero("workers"))?;
        let in_flight_max = NonZeroUsize::new(self.in_flight_max).ok_or(BuildError::Zero("in_flight"))?;
        if self.worker.attempt_timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(BuildError::Zero("attempt_timeout"));
        }
        Ok(RunConfig {
            dispatcher: self.dispatcher.clone(),
            worker: WorkerConfig {
                in_flight_max: in_flight_max.get().div_ceil(workers.get()),
                ..self.worker.clone()
            },
            workers: workers.get(),
        })
    }
}

/// As many workers as there are unless [`Builder::workers`] says otherwise: one processor is left to the client and the
/// dispatcher, which are busy when workers are. Handlers that compute for long do so on blocking threads, not on workers.
pub fn default_workers() -> NonZeroUsize {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new(processors - 1).unwrap_or(NonZeroUsize::MIN)
}

/// A key that whoever chooses session keys does not know.
fn random_key() -> (u64, u64) {
    let random = || std::hash::RandomState::new().build_hasher().finish();
    (random(), random())
}
