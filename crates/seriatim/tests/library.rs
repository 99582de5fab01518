//! The builder, on a log in memory: what a user's own tests would look like.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use seriatim::engine::budget::Flow;
use seriatim::engine::record::PartitionId;
use seriatim::prelude::*;
use seriatim::runtime::ports::{Event, Observer};
use seriatim::{BuildError, Error};
use seriatim_testkit::log::{Log, NewRecord};

const SOON: Retry = Retry {
    base: Duration::from_millis(2),
    cap: Duration::from_millis(20),
    attempts_max: 5,
    elapsed_max: None,
    jitter_seed: 7,
};
const WITHIN: Duration = Duration::from_secs(20);

/// What handlers did, in order.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn note(&self, entry: impl Into<String>) {
        self.0.lock().unwrap().push(entry.into());
    }

    fn entries(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn of(&self, session: &str) -> Vec<String> {
        let entries = self.entries().into_iter();
        entries.filter(|entry| entry.starts_with(session)).collect()
    }
}

/// A log with topic `chat`, and these values in it; a value's first letter is its session.
fn log(values: &[&str]) -> Log {
    let log = Log::new();
    log.topic("chat", 2);
    append(&log, values);
    log
}

fn append(log: &Log, values: &[&str]) {
    for value in values {
        log.append("chat", &value[..1], value);
    }
}

fn consumer(log: &Log) -> Builder<Log> {
    Seriatim::group("test")
        .on(log.clone())
        .topic("chat")
        .retry(SOON)
        .check(true)
}

fn text(record: &Record) -> String {
    record.text().expect("these tests write text").to_owned()
}

/// Waits until all of the topic is committed, then drains, and returns what was counted.
async fn finish(running: Handle, log: &Log) -> Stats {
    let committed = log.wait_until_committed("test", "chat", WITHIN);
    let stats = running.stats();
    running.shutdown().await.expect("it drains");
    assert!(committed, "not all was committed: {stats:?}");
    assert_eq!(stats.violations, 0);
    stats
}

#[tokio::test]
async fn each_session_is_handled_in_order_and_none_waits_for_another() {
    let log = log(&["a1", "b1", "a2", "c1", "a3", "b2"]);
    let diary = Diary::default();
    let handler = {
        let diary = diary.clone();
        move |record: Record, _cx: Context| {
            let diary = diary.clone();
            async move {
                let value = text(&record);
                let takes = if value.starts_with('a') { 40 } else { 1 };
                tokio::time::sleep(Duration::from_millis(takes)).await;
                diary.note(value);
                Ok(())
            }
        }
    };
    let running = consumer(&log).start(handler).await.unwrap();
    let stats = finish(running, &log).await;
    assert_eq!(diary.of("a"), ["a1", "a2", "a3"]);
    assert_eq!(diary.of("b"), ["b1", "b2"]);
    assert_eq!(
        diary.entries().last().unwrap(),
        "a3",
        "the slow session held no other up"
    );
    assert_eq!((stats.settled, stats.checked, stats.retries), (6, 6, 0));
}

#[tokio::test]
async fn a_failed_record_is_tried_again_before_its_successor() {
    let log = log(&["a1", "a2", "b1"]);
    let diary = Diary::default();
    let handler = {
        let diary = diary.clone();
        move |record: Record, cx: Context| {
            let diary = diary.clone();
            async move {
                let value = text(&record);
                diary.note(format!("{value}#{}", cx.attempt()));
                if value == "a1" && cx.attempt() < 3 {
                    return Err("the network is down".into());
                }
                Ok(())
            }
        }
    };
    let running = consumer(&log).start(handler).await.unwrap();
    let stats = finish(running, &log).await;
    assert_eq!(diary.of("a"), ["a1#1", "a1#2", "a1#3", "a2#1"]);
    assert_eq!(diary.of("b"), ["b1#1"]);
    assert_eq!((stats.settled, stats.retries, stats.dead_letters), (3, 2, 0));
}

#[tokio::test]
async fn a_permanent_failure_and_an_exhausted_one_become_dead_letters_and_the_session_goes_on() {
    let log = log(&["a1 garbage", "a2", "b1 hopeless", "b2"]);
    let diary = Diary::default();
    let handler = {
        let diary = diary.clone();
        move |record: Record, _cx: Context| {
            let diary = diary.clone();
            async move {
                let value = text(&record);
                if value.ends_with("garbage") {
                    return Err(Failure::permanent("this is no command"));
                } else if value.ends_with("hopeless") {
                    return Err(Failure::transient("still no answer"));
                }
                diary.note(value);
                Ok(())
            }
        }
    };
    let running = consumer(&log).start(handler).await.unwrap();
    let stats = finish(running, &log).await;
    let mut handled = diary.entries();
    handled.sort();
    assert_eq!(handled, ["a2", "b2"]);
    assert_eq!((stats.settled, stats.dead_letters, stats.retries), (4, 2, 4));

    let letters = log.records("chat.dlq");
    let reason = |value: &str| {
        let letter = letters
            .iter()
            .find(|letter| letter.payload() == value.as_bytes())
            .unwrap();
        String::from_utf8(letter.header("seriatim-reason").unwrap().to_vec()).unwrap()
    };
    assert_eq!(reason("a1 garbage"), "permanent");
    assert_eq!(reason("b1 hopeless"), "exhausted");
}

#[tokio::test]
async fn a_record_without_session_becomes_a_dead_letter_unless_told_otherwise() {
    let handler = |_: Record, _: Context| async { Ok(()) };

    let log = log(&["a1"]);
    log.append_record("chat", NewRecord::from_parts(None, Some(b"whose?")));
    let running = consumer(&log).start(handler).await.unwrap();
    let stats = finish(running, &log).await;
    assert_eq!((stats.settled, stats.dead_letters), (2, 1));

    log.append_record("chat", NewRecord::from_parts(None, Some(b"whose?")));
    let lenient = consumer(&log).missing_session(MissingSession::PartitionAsSession);
    let stats = finish(lenient.start(handler).await.unwrap(), &log).await;
    assert_eq!((stats.settled, stats.dead_letters), (1, 0));

    log.append_record("chat", NewRecord::from_parts(None, Some(b"whose?")));
    let mut strict = consumer(&log)
        .missing_session(MissingSession::Fail)
        .start(handler)
        .await
        .unwrap();
    let error = strict.drained().await.unwrap_err();
    assert!(matches!(error, Error::Run(_)), "{error}");
    assert!(error.to_string().contains("chat["), "it names the record: {error}");
    assert_eq!(log.backlog("test", "chat"), 1, "it was not passed over");
}

#[tokio::test]
async fn a_shutdown_lets_running_handlers_finish_and_leaves_the_rest_to_the_next() {
    let log = log(&["a1", "a2"]);
    let diary = Diary::default();
    let (started_tx, started) = tokio::sync::oneshot::channel();
    let started_tx = Arc::new(Mutex::new(Some(started_tx)));
    let handler = {
        let diary = diary.clone();
        move |record: Record, _cx: Context| {
            let (diary, started) = (diary.clone(), started_tx.lock().unwrap().take());
            async move {
                started.map(|started| started.send(()));
                tokio::time::sleep(Duration::from_millis(50)).await;
                diary.note(text(&record));
                Ok(())
            }
        }
    };
    let running = consumer(&log).start(handler.clone()).await.unwrap();
    started.await.unwrap();
    running.shutdown().await.unwrap();
    assert_eq!(diary.entries(), ["a1"], "what ran finished, what waited did not start");
    assert_eq!(log.backlog("test", "chat"), 1, "and just that is committed");

    finish(consumer(&log).start(handler).await.unwrap(), &log).await;
    assert_eq!(diary.entries(), ["a1", "a2"], "nothing is repeated, nothing lost");
}

#[tokio::test]
async fn a_drain_has_a_deadline() {
    let log = log(&["a1"]);
    let handler = |_: Record, _: Context| std::future::pending();
    let running = consumer(&log)
        .drain_timeout(Duration::from_millis(50))
        .start(handler)
        .await
        .unwrap();
    while running.stats().in_flight == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let began = Instant::now();
    running.shutdown().await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(50));
    assert_eq!(log.backlog("test", "chat"), 1);
}

#[tokio::test]
async fn what_was_committed_for_a_former_topic_says_nothing_about_its_namesake() {
    let log = Log::new();
    log.topic("chat", 1);
    append(&log, &["a0", "b1", "b2"]);
    let waits = |record: Record, _: Context| async move {
        if record.offset() == 0 {
            std::future::pending::<()>().await;
        }
        Ok(())
    };
    let running = consumer(&log)
        .drain_timeout(Duration::from_millis(50))
        .start(waits)
        .await
        .unwrap();
    while running.stats().settled < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running.shutdown().await.unwrap();
    let partition = PartitionId::new("chat", 0);
    let metadata = log.metadata("test", &partition).unwrap();
    assert!(
        metadata.starts_with("s1:"),
        "b1 and b2 are settled above a0: {metadata}"
    );

    log.recreate("chat", 1);
    append(&log, &["c0", "d1", "e2", "f3"]);
    let diary = Diary::default();
    let handler = {
        let diary = diary.clone();
        move |record: Record, _cx: Context| {
            diary.note(text(&record));
            async { Ok(()) }
        }
    };
    let running = consumer(&log).start(handler).await.unwrap();
    finish(running, &log).await;
    let mut handled = diary.entries();
    handled.sort();
    assert_eq!(
        handled,
        ["c0", "d1", "e2", "f3"],
        "the former topic's ack map names 1 and 2"
    );
}

#[tokio::test]
async fn dropping_the_handle_stops_the_consumer() {
    let log = log(&[]);
    let diary = Diary::default();
    let handler = {
        let diary = diary.clone();
        move |record: Record, _cx: Context| {
            diary.note(text(&record));
            async { Ok(()) }
        }
    };
    drop(consumer(&log).start(handler.clone()).await.unwrap());
    // The next member gets all partitions only when the first has left.
    let running = consumer(&log).start(handler).await.unwrap();
    append(&log, &["a1", "b1"]);
    finish(running, &log).await;
    assert_eq!(diary.entries().len(), 2);
}

#[tokio::test]
async fn blocking_handlers_run_beside_each_other_and_in_order_within_a_session() {
    let log = log(&["a1", "b1", "a2", "b2"]);
    let diary = Diary::default();
    let handler = {
        let diary = diary.clone();
        blocking(move |record: Record, cx: Context| {
            thread::sleep(Duration::from_millis(20));
            if text(&record) == "a1" && cx.attempt() == 1 {
                return Err("once more".into());
            }
            diary.note(text(&record));
            Ok(())
        })
    };
    let running = consumer(&log).start(handler).await.unwrap();
    let stats = finish(running, &log).await;
    assert_eq!(diary.of("a"), ["a1", "a2"]);
    assert_eq!(diary.of("b"), ["b1", "b2"]);
    assert_eq!(stats.retries, 1);
}

#[tokio::test]
async fn a_panic_is_a_transient_failure_with_its_message() {
    let log = log(&["a1", "a2", "b1"]);
    let panicking = |record: Record, cx: Context| async move {
        assert!(text(&record) != "a1" || cx.attempt() > 2, "a1 is too much");
        Ok(())
    };
    let stats = finish(consumer(&log).start(panicking).await.unwrap(), &log).await;
    assert_eq!((stats.settled, stats.retries, stats.dead_letters), (3, 2, 0));

    append(&log, &["a3"]);
    let hopeless = blocking(|_: Record, _: Context| panic!("always too much"));
    let stats = finish(consumer(&log).start(hopeless).await.unwrap(), &log).await;
    assert_eq!(stats.dead_letters, 1);
    let letters = log.records("chat.dlq");
    let message = letters[0].header("kafka_dlt-exception-message").unwrap();
    assert!(String::from_utf8_lossy(message).contains("always too much"));
}

#[tokio::test]
async fn an_attempt_that_takes_too_long_is_cancelled_and_tried_again() {
    let log = log(&["a1", "a2"]);
    let slow_at_first = |_: Record, cx: Context| async move {
        if cx.attempt() == 1 {
            std::future::pending::<()>().await;
        }
        Ok(())
    };
    let consumer = consumer(&log).attempt_timeout(Duration::from_millis(20));
    let stats = finish(consumer.start(slow_at_first).await.unwrap(), &log).await;
    assert_eq!((stats.settled, stats.retries), (2, 2));
}

#[tokio::test]
async fn who_cannot_be_cancelled_learns_whether_another_may_start_the_record() {
    let log = log(&["a1"]);
    let diary = Diary::default();
    let stubborn = {
        let diary = diary.clone();
        blocking(move |_: Record, cx: Context| {
            while !cx.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            // The first is out of time, and holds on until its partition has left.
            diary.note(format!("leaving: {}", cx.is_leaving()));
            while !cx.is_leaving() {
                std::thread::sleep(Duration::from_millis(1));
            }
            diary.note("has left");
            Ok(())
        })
    };
    let consumer = consumer(&log)
        .attempt_timeout(Duration::from_millis(20))
        .drain_timeout(Duration::from_millis(50));
    let running = consumer.start(stubborn).await.unwrap();
    while diary.entries().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(diary.entries(), ["leaving: false"]);
    running.shutdown().await.unwrap();
    while diary.entries().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(log.backlog("test", "chat"), 1, "it is not settled");
}

#[tokio::test]
async fn a_handler_learns_that_a_newer_record_of_its_session_waits() {
    let log = log(&["a1", "b1"]);
    let diary = Diary::default();
    let handler = {
        let diary = diary.clone();
        move |record: Record, cx: Context| {
            let diary = diary.clone();
            async move {
                tokio::select! {
                    () = cx.newer_record() => diary.note(format!("{} was cut short", text(&record))),
                    () = tokio::time::sleep(Duration::from_millis(150)) => diary.note(text(&record)),
                }
                Ok(())
            }
        }
    };
    let running = consumer(&log).start(handler).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    append(&log, &["a2"]);
    finish(running, &log).await;
    assert_eq!(diary.of("a"), ["a1 was cut short", "a2"]);
    assert_eq!(diary.of("b"), ["b1"], "that is no news for another session");
}

#[tokio::test]
async fn an_error_says_which_call_of_the_builder_is_wrong() {
    let handler = |_: Record, _: Context| async { Ok(()) };
    let log = log(&[]);
    let group = |name: &str| Seriatim::group(name).on(log.clone());
    let refused = [
        (group("test"), BuildError::NoTopic, ".topic("),
        (group("").topic("chat"), BuildError::NoGroup, "Seriatim::group("),
        (
            group("test").topic("chat").workers(0),
            BuildError::Zero("workers"),
            ".workers(",
        ),
        (
            group("test").topic("chat").in_flight(0),
            BuildError::Zero("in_flight"),
            ".in_flight(",
        ),
        (
            group("test").topic("chat").attempt_timeout(Duration::ZERO),
            BuildError::Zero("attempt_timeout"),
            ".attempt_timeout(",
        ),
    ];
    for (builder, expected, call) in refused {
        let error = builder.start(handler).await.unwrap_err();
        assert!(error.to_string().contains(call), "{error}");
        assert!(matches!(error, Error::Build(error) if error == expected));
    }
    let error = group("test").topic("orders").start(handler).await.unwrap_err();
    assert!(matches!(error, Error::Backend(_)), "{error}");
    assert!(error.to_string().contains("orders"), "{error}");
}

/// Watermark, end, backlog, and whether the partition is held.
type Told = (i64, i64, u64, bool);

/// The last standing that was told.
#[derive(Clone, Default)]
struct Standings(Arc<Mutex<Option<Told>>>);

impl Observer for Standings {
    fn observe(&self, event: Event<'_>) {
        if let Event::Standing(standing) = event {
            let told = (
                standing.watermark.get(),
                standing.end.get(),
                standing.backlog,
                standing.flow == Flow::Held,
            );
            *self.0.lock().unwrap() = Some(told);
        }
    }
}

#[tokio::test]
async fn a_held_partition_still_tells_its_backlog() {
    let log = Log::new();
    log.topic("chat", 1);
    append(&log, &["a0", "b1", "b2", "b3", "b4"]);
    let limits = Limits {
        partition_records_max: 1,
        ..Limits::default()
    };
    let (standings, released) = (Standings::default(), Arc::new(tokio::sync::Notify::new()));
    let handler = {
        let released = Arc::clone(&released);
        move |record: Record, _cx: Context| {
            let released = Arc::clone(&released);
            async move {
                if record.offset() == 0 {
                    released.notified().await;
                }
                Ok(())
            }
        }
    };
    let running = consumer(&log)
        .limits(limits)
        .observer(standings.clone())
        .start(handler)
        .await
        .unwrap();
    // The first five were read together; nothing more is read while the first of them stands.
    let held = tokio::time::timeout(WITHIN, async {
        loop {
            log.append("chat", "c", "c");
            tokio::time::sleep(Duration::from_millis(5)).await;
            let told = *standings.0.lock().unwrap();
            if let Some((0, end, backlog, true)) = told
                && running.stats().settled >= 4
                && backlog == end as u64 - running.stats().settled
            {
                return end;
            }
        }
    });
    let end = held.await.expect("it tells its backlog while it is held");
    assert!(end > 5, "the end moves on: {end}");
    released.notify_one();
    finish(running, &log).await;
}
