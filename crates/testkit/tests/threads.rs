//! The loops of production, on real threads and on real time, against the in-memory log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use seriatim_engine::budget::Limits;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_engine::retry::Retry;
use seriatim_runtime::context::Context;
use seriatim_runtime::dispatcher::{DispatcherConfig, RunError};
use seriatim_runtime::drive::{self, RunConfig, Running};
use seriatim_runtime::failure::Failure;
use seriatim_runtime::ports::{Event, Observer, Source};
use seriatim_runtime::record::Record;
use seriatim_runtime::session_by::{MissingSession, SessionBy};
use seriatim_runtime::worker::WorkerConfig;
use seriatim_testkit::history::{History, Traced, TracedHandler, TracedLetters, TracedObserver, What};
use seriatim_testkit::judge::{Judgement, Rules, Truth, judge};
use seriatim_testkit::log::{CommitFault, Log, LogDeadLetters, NewRecord};

const GROUP: &str = "threads";
const TOPIC: &str = "chat";
const PATIENCE: Duration = Duration::from_secs(60);

fn config() -> RunConfig {
    RunConfig {
        dispatcher: DispatcherConfig {
            session_by: SessionBy::Key,
            missing_session: MissingSession::DeadLetter,
            limits: Limits {
                unsettled_records_max: 4_000,
                partition_records_max: 1_500,
                ..Limits::default()
            },
            commit_interval: Duration::from_millis(20),
            drain_timeout: Duration::from_secs(3),
            stuck_after: None,
            process: 0,
            hash_key: (3, 4),
        },
        worker: WorkerConfig {
            retry: Retry {
                base: Duration::from_micros(200),
                cap: Duration::from_millis(2),
                ..Retry::default()
            },
            in_flight_max: 100,
            attempt_timeout: None,
            check: true,
        },
        workers: 2,
    }
}

/// A tenth of all attempts fails at once or after a while; a few records take their time.
async fn flaky(record: Record, cx: Context) -> Result<(), Failure> {
    let draw = (record.offset() as u64 * 31 + u64::from(cx.attempt()) * 17) % 100;
    match draw {
        0..5 => Err("not yet".into()),
        5..10 => {
            tokio::time::sleep(Duration::from_micros(100)).await;
            Err("not yet".into())
        }
        10..14 => {
            tokio::task::yield_now().await;
            Ok(())
        }
        14..16 => {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A log whose consumers are watched.
struct Bench {
    log: Log,
    history: History,
}

impl Bench {
    fn new(partitions: i32) -> Self {
        let log = Log::new();
        log.topic(TOPIC, partitions);
        Self {
            log,
            history: History::new(),
        }
    }

    fn start(&self, instance: u32) -> Running {
        let (log, history) = (self.log.clone(), self.history.clone());
        let connect = move || {
            let (source, waker) = log.member(GROUP, &[TOPIC]);
            Ok::<_, std::convert::Infallible>((Traced::new(source, instance, &history), waker))
        };
        let handler = Arc::new(TracedHandler::new(flaky, instance, &self.history));
        let letters = Arc::new(TracedLetters::new(
            LogDeadLetters::new(&self.log),
            instance,
            &self.history,
        ));
        let observer = Arc::new(TracedObserver::new(instance, &self.history));
        drive::start(connect, handler, letters, observer, config()).expect("the log can be joined")
    }

    fn run_until_all_is_committed(&self) {
        let running = self.start(0);
        assert!(
            self.log.wait_until_committed(GROUP, TOPIC, PATIENCE),
            "not all is committed"
        );
        running.stop();
        wait_for_end(running);
    }

    fn produce(&self, records: std::ops::Range<u32>, sessions: u32) {
        for n in records {
            self.log
                .append(TOPIC, format!("session-{}", n % sessions), n.to_string());
        }
    }

    fn judge(&self) -> Judgement {
        let truth = Truth::of(&self.log, GROUP, TOPIC, &SessionBy::Key);
        let config = config();
        let rules = Rules {
            attempts_max: config.worker.retry.attempts_max,
            in_flight_max: config.workers * config.worker.in_flight_max,
            drain_max: config.dispatcher.drain_timeout,
            clock_slack: Duration::from_millis(50),
            ..Rules::default()
        };
        judge(&self.history.entries(), &truth, &rules)
    }
}

/// `None`: it did not end in time.
fn block_on<T>(future: impl Future<Output = T>) -> Option<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.ok() })
}

fn wait_for_end(mut running: Running) {
    block_on(running.ended())
        .expect("it ends in time")
        .expect("it ends well");
}

#[test]
fn twenty_thousand_records_settle_in_order() {
    let bench = Bench::new(4);
    bench.produce(0..20_000, 200);
    bench.run_until_all_is_committed();
    let judgement = bench.judge();
    judgement.assert_clean();
    assert!(
        judgement.counts.settled == 20_000 && judgement.counts.retries > 1_000,
        "{:?}",
        judgement.counts
    );
}

#[test]
fn a_fresh_group_opens_all_its_periods_by_one_commit() {
    const PARTITIONS: i32 = 50;
    let bench = Bench::new(PARTITIONS);
    bench.produce(0..1_000, 200);
    bench.run_until_all_is_committed();
    let entries = bench.history.entries();
    let before_any_start = entries
        .iter()
        .map(|entry| &entry.what)
        .take_while(|what| !matches!(what, What::Start { .. }));
    let sent_together = before_any_start
        .skip_while(|what| !matches!(what, What::CommitSent(..)))
        .take_while(|what| matches!(what, What::CommitSent(..)))
        .count();
    assert_eq!(sent_together, PARTITIONS as usize);
}

#[test]
fn a_stop_finishes_what_runs_and_nothing_is_repeated() {
    let bench = Bench::new(3);
    bench.produce(0..5_000, 100);
    for instance in 0.. {
        let running = bench.start(instance);
        let done = bench.log.wait_until_committed(GROUP, TOPIC, Duration::from_millis(40));
        running.stop();
        wait_for_end(running);
        if done {
            break;
        }
    }
    let judgement = bench.judge();
    judgement.assert_clean();
    assert_eq!(judgement.counts.repeats, 0, "a clean stop repeats nothing");
    assert!(judgement.counts.releases >= 3);
}

#[test]
fn members_come_and_go_while_records_are_produced() {
    let bench = Bench::new(6);
    let produced = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..100 {
                bench.produce(n * 60..(n + 1) * 60, 150);
                thread::sleep(Duration::from_millis(4));
            }
            produced.store(true, Ordering::Relaxed);
        });
        let stays = bench.start(0);
        let mut instance = 1;
        while !produced.load(Ordering::Relaxed) {
            let guest = bench.start(instance);
            thread::sleep(Duration::from_millis(40));
            guest.stop();
            wait_for_end(guest);
            instance += 1;
        }
        assert!(
            bench.log.wait_until_committed(GROUP, TOPIC, PATIENCE),
            "not all is committed"
        );
        stays.stop();
        wait_for_end(stays);
    });
    let judgement = bench.judge();
    judgement.assert_clean();
    assert!(judgement.counts.assignments > 10, "{:?}", judgement.counts);
    assert_eq!(judgement.counts.repeats, 0, "a clean rebalance repeats nothing");
}

#[test]
fn a_member_that_is_expired_comes_back() {
    let bench = Bench::new(2);
    let running = bench.start(0);
    for round in 0..20 {
        bench.produce(round * 100..(round + 1) * 100, 30);
        let owner = bench.log.owner(GROUP, &PartitionId::new(TOPIC, 0));
        if let Some(owner) = owner {
            bench.log.expire(GROUP, owner);
        }
        thread::sleep(Duration::from_millis(5));
    }
    assert!(
        bench.log.wait_until_committed(GROUP, TOPIC, PATIENCE),
        "not all is committed"
    );
    running.stop();
    wait_for_end(running);
    // A worker may start a few records of a lost epoch before it has read that it is lost, so the judge, who does not see
    // epochs of single starts, is not asked; the engine's own checker is.
    let entries = bench.history.entries();
    let count = |wanted: fn(&What) -> bool| entries.iter().filter(|entry| wanted(&entry.what)).count();
    assert_eq!(count(|what| matches!(what, What::CheckerViolation(_))), 0);
    assert!(count(|what| matches!(what, What::Lost(_))) > 10);
}

/// An observer with a defect: it takes the worker with it that tells it of a dead letter.
struct Defective;

impl Observer for Defective {
    fn observe(&self, event: Event<'_>) {
        if let Event::DeadLettered(_) = event {
            // Without the panic hook, which would print it.
            std::panic::resume_unwind(Box::new("a defect in an observer"));
        }
    }
}

#[test]
fn a_consumer_that_has_lost_a_worker_leaves_its_group() {
    let log = Log::new();
    log.topic(TOPIC, 1);
    log.append_record(
        TOPIC,
        NewRecord::from_parts(None, Some(b"no session, so a dead letter")),
    );
    let joined = log.clone();
    let connect = move || Ok::<_, std::convert::Infallible>(joined.member(GROUP, &[TOPIC]));
    let letters = Arc::new(LogDeadLetters::new(&log));
    let mut running =
        drive::start(connect, Arc::new(flaky), letters, Arc::new(Defective), config()).expect("the log can be joined");
    let ended = block_on(running.ended()).expect("it ends in time");
    assert!(matches!(ended, Err(RunError::Panicked)));
    drop(running);
    let deadline = Instant::now() + config().dispatcher.drain_timeout * 2;
    while log.owner(GROUP, &PartitionId::new(TOPIC, 0)).is_some() {
        assert!(
            Instant::now() < deadline,
            "it holds its partitions, and works on none of them"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_late_answer_speaks_of_its_own_commit_only() {
    let log = Log::new();
    log.topic(TOPIC, 2);
    let [stays, leaves] = [0, 1].map(|number| PartitionId::new(TOPIC, number));
    let append = |partition: &PartitionId| {
        log.append_record(TOPIC, NewRecord::new("s", "").partition(partition.number()));
        thread::sleep(Duration::from_millis(60));
    };
    let joined = log.clone();
    let connect = move || Ok::<_, std::convert::Infallible>(joined.member(GROUP, &[TOPIC]));
    let mut config = config();
    config.dispatcher.drain_timeout = Duration::from_millis(200);
    let letters = Arc::new(LogDeadLetters::new(&log));
    let running = drive::start(connect, Arc::new(well), letters, Arc::new(()), config).expect("the log can be joined");

    // A commit is under way when a partition is to leave. At the drain's deadline its answer is waited for no longer.
    log.hold_answers(GROUP);
    append(&stays);
    assert_eq!(log.committed(GROUP, &stays), Some(Offset::new(1)));
    append(&leaves);
    let (mut other, _) = log.member(GROUP, &[TOPIC]);
    thread::sleep(Duration::from_millis(400));
    assert_eq!(log.committed(GROUP, &leaves), Some(Offset::new(1)));

    // The next commit fails, and then both answers come.
    log.fail_commits(GROUP, [CommitFault::Fenced]);
    append(&stays);
    log.release_commits(GROUP);
    thread::sleep(Duration::from_millis(200));
    running.stop();
    wait_for_end(running);
    assert_eq!(log.committed(GROUP, &stays), Some(Offset::new(2)));
    other.close();
}

async fn well(_record: Record, _cx: Context) -> Result<(), Failure> {
    Ok(())
}
