//! How much is read: the budget holds whatever comes, and what is held says so. The tiers are stepped on virtual time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use seriatim_engine::budget::{Flow, Limits, Usage};
use seriatim_engine::retry::Retry;
use seriatim_runtime::context::Context;
use seriatim_runtime::dispatcher::{Dispatcher, DispatcherConfig};
use seriatim_runtime::drive::{self, RunConfig, WallClock};
use seriatim_runtime::failure::Failure;
use seriatim_runtime::ports::{Event, Observer};
use seriatim_runtime::record::Record;
use seriatim_runtime::session_by::{MissingSession, SessionBy};
use seriatim_runtime::worker::{Next, WorkerConfig};
use seriatim_testkit::log::{Log, LogDeadLetters, LogSource, NewRecord};
use tokio::sync::Semaphore;

const GROUP: &str = "flow";
const TOPIC: &str = "chat";

/// What a round of steps takes.
const ROUND: Duration = Duration::from_millis(1);

/// More rounds than anything here needs.
const ROUNDS_MAX: usize = 100_000;

/// What the first byte of a value says: whether its handler waits until it is let go.
const WAITS: u8 = b'w';
const GOES: u8 = b'g';

/// By session: the offsets of what was settled, in this order.
type Settled = Arc<Mutex<BTreeMap<Vec<u8>, Vec<i64>>>>;

/// One consumer, its log, and where its handlers wait.
struct Stage {
    log: Log,
    /// Handlers go in the order in which they came, one a permit.
    gate: Arc<Semaphore>,
    settled: Settled,
    standings: Standings,
    limits: Limits,
    dispatcher: Dispatcher<LogSource>,
    workers: Vec<Box<dyn FnMut(Instant) -> Next>>,
    now: Instant,
    /// The most that was unsettled at a time, of records and of bytes.
    peak: Usage,
}

impl Stage {
    fn new(partitions: i32, limits: Limits) -> Self {
        let log = Log::on_virtual_time();
        log.topic(TOPIC, partitions);
        // As many as Kafka's source reads at a time.
        log.set_batch_max(2_048);
        let (gate, settled, standings) = (Arc::new(Semaphore::new(0)), Settled::default(), Standings::default());
        let call = {
            let (gate, settled) = (Arc::clone(&gate), Arc::clone(&settled));
            move |record: Record, _: Context| handle(record, Arc::clone(&gate), Arc::clone(&settled))
        };
        let clock = WallClock::now();
        let letters = Arc::new(LogDeadLetters::new(&log));
        let observer = Arc::new(standings.clone());
        let parts = drive::assemble(
            log.member(GROUP, &[TOPIC]),
            call,
            letters,
            observer,
            config(limits),
            clock,
        );
        let workers = parts.workers.into_iter().map(|mut worker| {
            let step: Box<dyn FnMut(Instant) -> Next> = Box::new(move |now| worker.step(now));
            step
        });
        Self {
            log,
            gate,
            settled,
            standings,
            limits,
            dispatcher: parts.dispatcher,
            workers: workers.collect(),
            now: clock.instant,
            peak: Usage::ZERO,
        }
    }

    /// Appends a record of so many bytes to its session's partition.
    fn append(&self, session: u32, kind: u8, bytes: usize) {
        self.log
            .append(TOPIC, format!("{session:06}"), vec![kind; bytes.max(1)]);
    }

    /// Steps everything once, and looks at the budget.
    fn round(&mut self) {
        self.dispatcher.step(self.now).expect("the log can always deliver");
        let Usage { records, bytes } = self.dispatcher.usage();
        self.peak.records = self.peak.records.max(records);
        self.peak.bytes = self.peak.bytes.max(bytes);
        for step in &mut self.workers {
            step(self.now);
        }
        self.now += ROUND;
    }

    fn rounds(&mut self, rounds: u32) {
        (0..rounds).for_each(|_| self.round());
    }

    #[track_caller]
    fn until(&mut self, what: &str, reached: impl Fn(&Self) -> bool) {
        for _ in 0..ROUNDS_MAX {
            if reached(self) {
                return;
            }
            self.round();
        }
        panic!("{what}: not reached; {:?} unsettled", self.dispatcher.usage());
    }

    fn settled(&self) -> usize {
        self.settled.lock().unwrap().values().map(Vec::len).sum()
    }

    /// That no limit of the whole was passed by more than a record of `bytes`, and that it was reached.
    #[track_caller]
    fn assert_within_budget(&self, record_bytes: usize) {
        let Limits {
            unsettled_records_max,
            unsettled_bytes_max,
            ..
        } = self.limits;
        let Usage { records, bytes } = self.peak;
        assert!(records <= unsettled_records_max + 1, "{records} records were unsettled");
        assert!(
            bytes <= unsettled_bytes_max + record_bytes,
            "{bytes} bytes were unsettled"
        );
        assert!(
            records > unsettled_records_max || bytes > unsettled_bytes_max,
            "no limit was reached: {:?}",
            self.peak
        );
    }

    /// That everything was settled once, each session in the order of its log, and committed.
    #[track_caller]
    fn assert_all_in_order(&mut self) {
        self.until("all is committed", |stage| stage.log.backlog(GROUP, TOPIC) == 0);
        let mut logged = BTreeMap::<Vec<u8>, Vec<i64>>::new();
        for record in self.log.records(TOPIC) {
            let key = record.key().expect("each has one").to_vec();
            logged.entry(key).or_default().push(record.offset());
        }
        assert!(*self.settled.lock().unwrap() == logged, "not once each, in order");
        assert_eq!(self.dispatcher.usage(), Usage::ZERO);
    }
}

async fn handle(record: Record, gate: Arc<Semaphore>, settled: Settled) -> Result<(), Failure> {
    if record.payload()[0] == WAITS {
        gate.acquire().await.expect("it is never closed").forget();
    }
    let mut settled = settled.lock().unwrap();
    let key = record.key().expect("each has one").to_vec();
    settled.entry(key).or_default().push(record.offset());
    Ok(())
}

fn config(limits: Limits) -> RunConfig {
    RunConfig {
        dispatcher: DispatcherConfig {
            session_by: SessionBy::Key,
            missing_session: MissingSession::DeadLetter,
            limits,
            commit_interval: Duration::from_millis(100),
            drain_timeout: Duration::from_secs(1),
            stuck_after: None,
            process: 0,
            hash_key: (5, 6),
        },
        worker: WorkerConfig {
            retry: Retry::default(),
            in_flight_max: 100_000,
            attempt_timeout: None,
            check: true,
        },
        workers: 2,
    }
}

/// What was told of the partition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    end: i64,
    backlog: u64,
    unsettled: usize,
    oldest: Option<i64>,
    flow: Flow,
    held_for: Duration,
    stood: Duration,
}

#[derive(Clone, Default)]
struct Standings(Arc<Mutex<Vec<Told>>>);

impl Standings {
    fn take(&self) -> Vec<Told> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Observer for Standings {
    fn observe(&self, event: Event<'_>) {
        match event {
            Event::Standing(standing) => self.0.lock().unwrap().push(Told {
                end: standing.end.get(),
                backlog: standing.backlog,
                unsettled: standing.unsettled,
                oldest: standing.oldest.millis(),
                flow: standing.flow,
                held_for: standing.held_for,
                stood: standing.stood,
            }),
            Event::Violation(violation) => panic!("{violation}"),
            _ => {}
        }
    }
}

#[test]
fn large_records_pass_the_budget_by_one_of_them_at_most() {
    const MEGABYTE: usize = 1_000_000;
    let limits = Limits {
        unsettled_bytes_max: 12 * MEGABYTE,
        partition_bytes_max: 3 * MEGABYTE,
        ..Limits::default()
    };
    let mut stage = Stage::new(16, limits);
    // All of them are read in one batch, if nothing holds it.
    for number in 0..60 {
        stage.append(number % 25, WAITS, MEGABYTE);
    }
    for settled in (0..60).step_by(3) {
        stage.rounds(5);
        stage.gate.add_permits(3);
        stage.until("handlers that are let go end", |stage| stage.settled() >= settled + 3);
    }
    assert!(
        stage.peak.bytes * 10 <= limits.unsettled_bytes_max * 11,
        "{:?}",
        stage.peak
    );
    stage.assert_within_budget(MEGABYTE + 100);
    stage.assert_all_in_order();
}

#[test]
fn a_hundred_thousand_stuck_sessions_hold_what_the_budget_says_and_nothing_else() {
    const STUCK: u32 = 100_000;
    const FREE: u32 = 1_000;
    let limits = Limits {
        unsettled_records_max: 120_000,
        partition_records_max: 60_000,
        ..Limits::default()
    };
    let mut stage = Stage::new(8, limits);
    // Of each session one that is stuck, among records of sessions that are not.
    for number in 0..STUCK {
        stage.append(FREE + number, WAITS, 1);
        stage.append(number % FREE, GOES, 1);
    }
    stage.until("what may go on goes on", |stage| stage.settled() == STUCK as usize);
    stage.rounds(2);
    let stuck = stage.dispatcher.usage();
    assert_eq!(
        stuck.records, STUCK as usize,
        "all that is stuck, and nothing else, is unsettled"
    );

    // What comes behind them waits for them, and takes the rest of the budget. Others go on as long as there is any.
    for number in 0..STUCK {
        stage.append(FREE + number, GOES, 1);
        stage.append(number % FREE, GOES, 1);
    }
    stage.until("the budget is used up", |stage| {
        stage.dispatcher.usage().records > limits.unsettled_records_max
    });
    stage.rounds(1_000);
    let went_on = stage.settled() - STUCK as usize;
    assert!(
        went_on > 15_000,
        "{went_on} others went on with room for 20,000 that wait"
    );
    assert!(went_on < STUCK as usize, "nothing more is read: {went_on}");

    stage.gate.add_permits(STUCK as usize);
    stage.until("intake resumes", |stage| stage.settled() == 4 * STUCK as usize);
    stage.assert_within_budget(100);
    stage.assert_all_in_order();
}

#[test]
fn a_partition_tells_how_it_stands_each_second_while_it_is_held_and_while_nothing_comes() {
    let mut stage = Stage::new(
        1,
        Limits {
            partition_records_max: 4,
            ..Limits::default()
        },
    );
    let append = |stage: &Stage, kind: u8, millis: i64| {
        let record = NewRecord::new("a session", [kind]).created_at(millis);
        stage.log.append_record(TOPIC, record);
    };
    for number in 0..10 {
        append(&stage, if number == 2 { WAITS } else { GOES }, 7_000 + number);
    }
    stage.until("it is held", |stage| stage.settled() == 2);
    stage.standings.take();

    // Nothing comes, goes or changes.
    stage.rounds(15_000);
    let told = stage.standings.take();
    assert_eq!(told.len(), 15, "once a second: {told:?}");
    let last = told.last().unwrap();
    assert!(
        last.held_for > Duration::from_secs(13) && last.stood > Duration::from_secs(13),
        "{last:?}"
    );
    let expected = Told {
        end: 10,
        backlog: 8,
        unsettled: 8,
        // Of the read that has brought it.
        oldest: Some(7_000),
        flow: Flow::Held,
        ..last.clone()
    };
    assert_eq!(*last, expected);

    // What comes is not read, but told.
    append(&stage, GOES, 9_000);
    stage.rounds(1_001);
    let told = stage.standings.take();
    assert_eq!((told[0].end, told[0].backlog, told[0].unsettled), (11, 9, 8));

    stage.gate.add_permits(1);
    stage.assert_all_in_order();
    stage.rounds(3_000);
    let last = stage.standings.take().pop().expect("it is told when nothing comes too");
    let idle = Told {
        end: 11,
        backlog: 0,
        unsettled: 0,
        oldest: None,
        flow: Flow::Flowing,
        held_for: Duration::ZERO,
        stood: Duration::ZERO,
    };
    assert_eq!(last, idle);
}
