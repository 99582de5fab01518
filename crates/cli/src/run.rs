//! `seriatim run`: processes topics, in order per session, until it is told to stop.

mod args;
mod exec;
mod held;
mod observer;
mod place;
mod print;
mod record;

use std::time::{Duration, Instant};

use seriatim::{Cluster, Error, Handle, Stats};
use tokio::time::{interval, sleep};

pub(crate) use self::args::Args;
use self::exec::Children;
use self::observer::RunObserver;
use self::print::{PrintEnd, Printer};
use self::record::Recording;
use crate::exit::Exit;
use crate::reach::Reach;
use crate::signals::Signals;
use crate::units::{counted, rate, took};

/// How often it is looked whether enough records are settled.
const COUNT_INTERVAL: Duration = Duration::from_millis(5);

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// What a drain may take beyond its timeout, for its last commit and for leaving the group.
const DRAIN_GRACE: Duration = Duration::from_secs(20);

/// Why a run stops.
#[derive(Debug)]
enum Cause {
    /// Somebody asked for it: by a signal, by a count that is reached, by closing what is printed to.
    Asked,
    /// No broker could be reached for too long.
    Unreachable,
    /// The program to hand records to cannot be run.
    Unusable(String),
}

/// How a run's last drain went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drained {
    /// Nothing that was settled will be handled again.
    Clean,
    /// Handlers were cancelled, or the last commit is uncertain.
    CutShort,
    /// A second signal came: nothing is waited for any more.
    Forced,
}

/// Who is handed the records.
enum Work {
    Print(Printer),
    Exec(Children),
}

pub(crate) fn run(args: Args) -> anyhow::Result<Exit> {
    args.verbosity.init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let exit = runtime.block_on(args.run());
    // Long enough to kill children; what else runs was cut short by a second signal.
    runtime.shutdown_timeout(Duration::from_millis(500));
    exit
}

impl Args {
    async fn run(self) -> anyhow::Result<Exit> {
        let mut signals = Signals::listen()?;
        let reach = self.reach()?;
        let recording = self.recording()?;
        let observer = RunObserver::new(recording.as_ref().map(Recording::observer));
        let work = self.work(&observer);
        let started = self.start(&work, self.cluster(&reach), &observer, recording.as_ref());
        let mut handle = started.await.map_err(start_error)?;
        let began = Instant::now();

        let cause = self.attend(&mut handle, &mut signals, &work, &reach, &observer).await;
        let drained = match &cause {
            Ok(cause) => self.drain(cause, &mut handle, &mut signals, &observer).await,
            Err(_) => Ok(Drained::CutShort),
        };
        if let Some(recording) = &recording {
            recording.end();
        }
        if let (Work::Exec(children), Ok(Drained::Clean | Drained::CutShort)) = (work, &drained) {
            self.finish(children, &mut signals).await;
        }
        let stats = handle.stats();
        self.sum_up(&stats, began.elapsed());
        let ended = drained.and_then(|drained| cause?.exit(drained));
        if stats.violations == 0 {
            return ended;
        }
        if let Err(error) = ended {
            Exit::of_error(error);
        }
        Ok(Exit::Violation)
    }

    fn work(&self, observer: &RunObserver) -> Work {
        let session_by = self.session_by.clone();
        match &self.exec {
            Some(command) => Work::Exec(Children::start(command, self.children, session_by)),
            None => {
                let quota = self.count.map(|count| count.get() as u64);
                Work::Print(Printer::start(self.format, session_by, quota, observer.draining()))
            }
        }
    }

    /// Starts the consumer, which is watched where it is recorded.
    async fn start(
        &self,
        work: &Work,
        cluster: Cluster,
        observer: &RunObserver,
        recording: Option<&Recording>,
    ) -> Result<Handle, Error> {
        let Some(recording) = recording else {
            let builder = self.builder(cluster).observer(observer.clone());
            return match work {
                Work::Print(printer) => builder.start(printer.clone()).await,
                Work::Exec(children) => builder.start(children.handler()).await,
            };
        };
        let builder = self.builder(recording.backend(cluster)).observer(observer.clone());
        match work {
            Work::Print(printer) => builder.start(recording.handler(printer.clone())).await,
            Work::Exec(children) => builder.start(recording.handler(children.handler())).await,
        }
    }

    /// Looks after a run until there is a cause to stop it.
    async fn attend(
        &self,
        handle: &mut Handle,
        signals: &mut Signals,
        work: &Work,
        reach: &Reach,
        observer: &RunObserver,
    ) -> Result<Cause, Error> {
        let mut lost = std::pin::pin!(reach.lost(|| observer.unreachable()));
        let mut ended = std::pin::pin!(work.ended());
        let mut count_ticks = interval(COUNT_INTERVAL);
        let mut progress_ticks = interval(PROGRESS_INTERVAL);
        progress_ticks.reset();
        let mut told = Stats::default();
        loop {
            tokio::select! {
                ended = handle.drained() => {
                    ended?;
                    unreachable!("nobody has stopped it");
                }
                () = signals.next() => {
                    let drain_timeout = self.limits.drain_timeout;
                    tracing::info!(?drain_timeout, "stopping: what runs is finished; a second signal ends it at once");
                    return Ok(Cause::Asked);
                }
                cause = &mut ended => return Ok(cause),
                () = &mut lost => return Ok(Cause::Unreachable),
                _ = count_ticks.tick(), if self.count.is_some() => {
                    if self.count.is_some_and(|count| handle.stats().settled >= count.get() as u64) {
                        return Ok(Cause::Asked);
                    }
                }
                _ = progress_ticks.tick() => {
                    told = tell_progress(told, handle.stats());
                    observer.held_lines().iter().for_each(|line| tracing::info!("{line}"));
                }
            }
        }
    }

    /// Lets what runs finish, and commits.
    async fn drain(
        &self,
        cause: &Cause,
        handle: &mut Handle,
        signals: &mut Signals,
        observer: &RunObserver,
    ) -> anyhow::Result<Drained> {
        observer.stopping();
        handle.stop();
        let grace = match cause {
            // Nothing can be committed.
            Cause::Unreachable => Duration::ZERO,
            Cause::Asked | Cause::Unusable(_) => DRAIN_GRACE,
        };
        tokio::select! {
            ended = handle.drained() => {
                ended?;
                Ok(if observer.was_cut_short() { Drained::CutShort } else { Drained::Clean })
            }
            () = sleep(self.limits.drain_timeout + grace) => {
                tracing::warn!("the cluster does not answer: what was settled since the last commit will be handled again");
                Ok(Drained::CutShort)
            }
            () = signals.second() => {
                tracing::warn!("ended at once: what was settled since the last commit will be handled again");
                Ok(Drained::Forced)
            }
        }
    }

    async fn finish(&self, children: Children, signals: &mut Signals) {
        tokio::select! {
            finished = children.finish(self.limits.drain_timeout) => {
                if !finished {
                    tracing::warn!("children that did not exit when their input ended were killed");
                }
            }
            () = signals.second() => tracing::warn!("children were killed"),
        }
    }

    fn sum_up(&self, stats: &Stats, elapsed: Duration) {
        if self.check {
            let (checked, violations) = (counted(stats.checked, "start"), counted(stats.violations, "violation"));
            eprintln!("order: {checked} checked, {violations}");
        }
        if !self.verbosity.is_quiet() {
            eprintln!(
                "settled {} in {} ({}), {}, {}",
                counted(stats.settled, "record"),
                took(elapsed),
                rate(stats.settled, elapsed),
                counted(stats.retries, "retry"),
                counted(stats.dead_letters, "dead letter"),
            );
        }
    }
}

impl Work {
    /// Returns when there is nothing more that it can do.
    async fn ended(&self) -> Cause {
        match self {
            Work::Print(printer) => {
                match printer.ended().await {
                    PrintEnd::Quota => {}
                    PrintEnd::Closed => tracing::info!("standard output was closed"),
                }
                Cause::Asked
            }
            Work::Exec(children) => Cause::Unusable(children.unusable().await),
        }
    }
}

impl Cause {
    fn exit(self, drained: Drained) -> anyhow::Result<Exit> {
        match (self, drained) {
            (Cause::Asked, Drained::Clean) => Ok(Exit::Fine),
            (Cause::Asked, Drained::CutShort | Drained::Forced) => Ok(Exit::Unexpected),
            (Cause::Unreachable, _) => Err(Exit::Unreachable.error("no broker could be reached: given up")),
            (Cause::Unusable(reason), _) => Err(Exit::BadConfiguration.error(reason)),
        }
    }
}

/// Tells what has changed since it was `told`, and returns what is told now.
fn tell_progress(told: Stats, now: Stats) -> Stats {
    if now != told {
        tracing::info!(
            settled = now.settled,
            retries = now.retries,
            dead_letters = now.dead_letters,
            in_flight = now.in_flight,
            sessions = now.sessions,
            "progress"
        );
    }
    now
}

/// A run that does not start has something wrong in its configuration.
fn start_error(error: Error) -> anyhow::Error {
    match error {
        Error::Build(error) => Exit::Usage.error(error.to_string()),
        Error::Backend(error) => Exit::BadConfiguration.caused(error),
        other => other.into(),
    }
}
