//! Negative controls on a real broker: something between Kafka and the engine is broken on purpose, and the judge must
//! see it. What it says of a run in which nothing is broken shows that it is the sabotage that it sees.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::{Flow, Limits};
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_engine::retry::Retry;
use seriatim_kafka::config::Properties;
use seriatim_kafka::dead_letters::{KafkaDeadLetters, TOPIC_PATTERN};
use seriatim_kafka::reader::{Extent, LogReader, Read};
use seriatim_kafka::source::{ConnectError, KafkaSource, SourceSettings, StartAt};
use seriatim_runtime::context::Context;
use seriatim_runtime::dispatcher::DispatcherConfig;
use seriatim_runtime::drive::{self, RunConfig, Running};
use seriatim_runtime::failure::Failure;
use seriatim_runtime::message::OwnedMessage;
use seriatim_runtime::ports::{
    Commit, CommitError, CommitMode, DeadLetter, DeadLetterError, DeadLetters, LeaseTerm, Records, Source, SourceError,
    SourceEvent, Start,
};
use seriatim_runtime::record::Record;
use seriatim_runtime::session_by::{MissingSession, SessionBy};
use seriatim_runtime::worker::WorkerConfig;
use seriatim_testkit::broker::shared;
use seriatim_testkit::history::{History, Traced, TracedHandler, TracedLetters, TracedObserver, What};
use seriatim_testkit::judge::{Judgement, Rules, Truth, judge};
use seriatim_testkit::sim::{Sabotage, Sabotaged};

/// A join takes a heartbeat interval or two; the machine may be busy.
const SOON: Duration = Duration::from_secs(60);

const PARTITIONS: i32 = 4;
/// Of each partition. A session has its share of one of them.
const RECORDS: i64 = 2_000;
const SESSIONS: i64 = 20;

/// How long a run may take to settle everything. Some never do, since what they lack is gone.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);

fn brokers() -> &'static str {
    shared().bootstrap()
}

fn config() -> RunConfig {
    RunConfig {
        dispatcher: DispatcherConfig {
            session_by: SessionBy::Key,
            missing_session: MissingSession::DeadLetter,
            limits: Limits::default(),
            commit_interval: Duration::from_millis(50),
            drain_timeout: Duration::from_secs(3),
            stuck_after: None,
            process: std::process::id(),
            hash_key: (3, 4),
        },
        worker: WorkerConfig {
            retry: Retry {
                base: Duration::from_millis(200),
                cap: Duration::from_millis(200),
                ..Retry::default()
            },
            in_flight_max: 100,
            attempt_timeout: None,
            check: false,
        },
        workers: 2,
    }
}

/// Takes its time. Some first attempts fail, so that sessions wait while others go on; some records are rejected.
async fn flaky(record: Record, cx: Context) -> Result<(), Failure> {
    tokio::time::sleep(Duration::from_millis(15)).await;
    // Of each session some.
    match record.offset() % 49 {
        0 => Err(Failure::permanent(std::io::Error::other("never"))),
        1..5 if cx.attempt() == 1 => Err("not yet".into()),
        _ => Ok(()),
    }
}

/// A source whose messages are copied out of the client's memory: what sabotages can change.
struct Copied(KafkaSource, Records<<KafkaSource as Source>::Message>);

impl Source for Copied {
    type Message = OwnedMessage;

    fn poll(
        &mut self,
        wait: Duration,
        records: Option<&mut Records<OwnedMessage>>,
    ) -> Result<Option<SourceEvent>, SourceError> {
        let event = self.0.poll(wait, records.is_some().then_some(&mut self.1))?;
        if let Some(records) = records {
            records.runs.append(&mut self.1.runs);
            let copies = self.1.messages.drain(..).map(|message| OwnedMessage::copied(&message));
            records.messages.extend(copies);
        }
        Ok(event)
    }

    fn start(&mut self, starts: &[Start]) {
        self.0.start(starts);
    }

    fn set_flow(&mut self, epoch: AssignmentEpoch, flow: Flow) {
        self.0.set_flow(epoch, flow);
    }

    fn commit(&mut self, commits: &[Commit], mode: CommitMode) -> Result<(), CommitError> {
        self.0.commit(commits, mode)
    }

    fn relinquish(&mut self, epochs: &[AssignmentEpoch]) {
        self.0.relinquish(epochs);
    }

    fn lease(&self) -> Option<LeaseTerm> {
        self.0.lease()
    }

    fn close(&mut self) {
        self.0.close();
    }
}

/// Dead letters that are acknowledged and not written, when that is the sabotage.
struct Letters(KafkaDeadLetters, Sabotage);

impl DeadLetters for Letters {
    async fn publish(&self, letter: DeadLetter) -> Result<(), DeadLetterError> {
        match self.1 {
            Sabotage::AcknowledgeLetterFirst => Ok(()),
            _ => self.0.publish(letter).await,
        }
    }
}

/// A group whose members are all sabotaged alike, and what they did.
struct Group {
    topic: String,
    name: String,
    sabotage: Sabotage,
    history: History,
}

impl Group {
    fn start(&self, instance: u32) -> Running {
        let settings = SourceSettings {
            brokers: brokers().to_owned(),
            group: self.name.clone(),
            topics: vec![self.topic.clone()],
            start_at: StartAt::Earliest,
            out_of_range: Default::default(),
            growth: Default::default(),
            properties: "heartbeat.interval.ms=200\nsession.timeout.ms=6000".parse().unwrap(),
        };
        let (history, sabotage) = (self.history.clone(), self.sabotage);
        let connect = move || -> Result<(_, Waker), ConnectError> {
            let (source, waker) = KafkaSource::connect(settings)?;
            let traced = Traced::new(Copied(source, Records::default()), instance, &history);
            Ok((Sabotaged::new(traced, sabotage), waker))
        };
        let letters = KafkaDeadLetters::connect(brokers(), &self.name, &Properties::default()).unwrap();
        let letters = TracedLetters::new(Letters(letters, sabotage), instance, &self.history);
        let handler = TracedHandler::new(flaky, instance, &self.history);
        let observer = Arc::new(TracedObserver::new(instance, &self.history));
        drive::start(connect, Arc::new(handler), Arc::new(letters), observer, config()).unwrap()
    }

    /// Waits until this happened so often in an instance.
    fn await_entries(&self, instance: u32, count: usize, wanted: fn(&What) -> bool) {
        let deadline = Instant::now() + SOON;
        let seen = || {
            let entries = self.history.entries();
            let seen = entries
                .iter()
                .filter(|entry| entry.instance == instance && wanted(&entry.what));
            seen.count()
        };
        while seen() < count {
            assert!(Instant::now() < deadline, "not within {SOON:?}, in instance {instance}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn reader(&self) -> LogReader {
        LogReader::connect(brokers(), Some(&self.name), &Properties::default()).unwrap()
    }

    fn is_settled(&self) -> bool {
        let reader = self.reader();
        let extents = reader.extents(&self.topic).unwrap();
        let committed = reader.committed(&extents).unwrap();
        let mut both = extents.iter().zip(committed);
        both.all(|(extent, committed)| committed.is_some_and(|(offset, _)| offset.get() == extent.offsets.end))
    }

    fn truth(&self) -> Truth {
        let mut truth = Truth::default();
        let reader = self.reader();
        let extents = reader.extents(&self.topic).unwrap();
        for (extent, committed) in extents.iter().zip(reader.committed(&extents).unwrap()) {
            let committed = committed.map(|(offset, _)| offset);
            truth.add_partition(extent.partition.clone(), extent.offsets.end, committed, Vec::new());
        }
        for record in read_all(reader, extents) {
            truth.add_record(&record, &SessionBy::Key);
        }
        let reader = self.reader();
        let extents = reader.extents(&TOPIC_PATTERN.replace("{topic}", &self.topic)).unwrap();
        for letter in read_all(reader, extents) {
            truth.add_letter(&letter);
        }
        truth
    }
}

fn read_all(reader: LogReader, extents: Vec<Extent>) -> Vec<Record> {
    let mut left: Vec<PartitionId> = extents.into_iter().map(|extent| extent.partition).collect();
    let starts: Vec<_> = left.iter().map(|partition| (partition.clone(), Offset::ZERO)).collect();
    let (mut reading, mut records) = (reader.read(&starts).unwrap(), Vec::new());
    let deadline = Instant::now() + SOON;
    while !left.is_empty() {
        assert!(Instant::now() < deadline, "not read within {SOON:?}: {left:?}");
        match reading.poll(Duration::from_millis(50)).unwrap() {
            Some(Read::Record(record)) => records.push(record),
            Some(Read::End(partition, _)) => left.retain(|other| *other != partition),
            _ => {}
        }
    }
    records
}

fn stopped(mut running: Running) {
    running.stop();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let ended = runtime.block_on(async { tokio::time::timeout(SOON, running.ended()).await });
    ended.expect("it ends in time").expect("it ends well");
}

fn produce(topic: &str) {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", brokers())
        .create()
        .unwrap();
    for (number, partition) in (0..RECORDS).flat_map(|number| (0..PARTITIONS).map(move |partition| (number, partition)))
    {
        let key = format!("{partition}-{}", number % SESSIONS);
        let record = BaseRecord::to(topic).partition(partition).key(&key).payload("");
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(SOON).unwrap();
}

/// Two members share the work, then the first leaves: partitions change hands twice while sessions are in the middle.
fn run(test: &str, sabotage: Sabotage) -> Judgement {
    let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let topic = format!("sabotage-{test}-{nanos}");
    let name = format!("{topic}-group");
    for (topic, partitions) in [(&topic, PARTITIONS), (&TOPIC_PATTERN.replace("{topic}", &topic), 1)] {
        shared().create_topic(topic, partitions as u32, &[]).unwrap();
    }
    produce(&topic);
    let group = Group {
        topic,
        name,
        sabotage,
        history: History::new(),
    };
    let first = group.start(0);
    group.await_entries(0, 100, |what| matches!(what, What::Start { .. }));
    let second = group.start(1);
    group.await_entries(1, 1, |what| matches!(what, What::Assign { .. }));
    stopped(first);
    let deadline = Instant::now() + SETTLED_WITHIN;
    while !group.is_settled() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    stopped(second);
    let rules = Rules {
        attempts_max: config().worker.retry.attempts_max,
        in_flight_max: config().workers * config().worker.in_flight_max,
        drain_max: Duration::from_secs(9),
        clock_slack: Duration::from_millis(250),
        loss_slack: Duration::from_secs(1),
        ..Rules::default()
    };
    judge(&group.history.entries(), &group.truth(), &rules)
}

#[track_caller]
fn convicted(test: &str, sabotage: Sabotage, of: &str) {
    let judgement = run(test, sabotage);
    let found: Vec<&str> = judgement
        .violations
        .iter()
        .map(|violation| violation.property)
        .collect();
    assert!(
        found.contains(&of),
        "{sabotage:?} was not convicted of {of}, but of {found:?}"
    );
}

#[test]
fn nothing_is_found_where_nothing_is_broken() {
    let judgement = run("sound", Sabotage::Nothing);
    judgement.assert_clean();
    let counts = judgement.counts;
    assert!(counts.retries > 50 && counts.dead_letters > 10, "{counts:?}");
    assert!(counts.releases > PARTITIONS as u64 && counts.skipped > 0, "{counts:?}");
    assert_eq!(counts.repeats, 0, "{counts:?}");
}

#[test]
fn committing_the_highest_seen() {
    convicted("highest", Sabotage::CommitHighestSeen, "P3");
}

#[test]
fn not_committing_the_ack_map() {
    convicted("no-map", Sabotage::DropAckMap, "P6");
}

#[test]
fn committing_an_older_watermark_again() {
    convicted("older", Sabotage::CommitAgainOlder, "P4");
}

#[test]
fn not_committing_at_the_end_of_a_drain() {
    convicted("no-last", Sabotage::SwallowDrainCommit, "P6");
}

#[test]
fn giving_back_without_a_drain() {
    convicted("no-drain", Sabotage::HideRevoke, "P2");
}

#[test]
fn settling_before_the_dead_letter_is_written() {
    convicted("no-letter", Sabotage::AcknowledgeLetterFirst, "P8");
}

#[test]
fn reading_offset_0_as_none() {
    convicted("zero", Sabotage::SkipOffsetZero, "P3");
}
