//! `seriatim run` against a real broker.

mod command;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use command::{
    Done, Journal, Running, consumed, file, produce, seriatim, seriatim_alone, seriatim_with, topic, unique, until,
};
use serde_json::Value;
use seriatim_testkit::broker::{Broker, shared};

/// `count` records of each of `sessions`, as `session:number` lines, with the sessions taking turns.
fn lines(sessions: usize, count: usize) -> String {
    let line = |number, session| format!("s{session}:{number}\n");
    (0..count)
        .flat_map(|number| (0..sessions).map(move |session| line(number, session)))
        .collect()
}

/// The arguments of a run of `topic` in a group of its own, and `more`.
fn run_args<'a>(topic: &'a str, group: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["run", "-t", topic, "-g", group, "--check"], more].concat()
}

/// Runs to the end.
fn run(topic: &str, more: &[&str]) -> Done {
    seriatim(&run_args(topic, &unique("group"), more))
}

/// Printed lines as `(session, value)`.
fn printed(out: &str) -> Vec<(String, String)> {
    let pair = |line: &str| {
        let mut parts = line.split('\t').skip(1).map(str::to_owned);
        (parts.next().expect("a session"), parts.next().expect("a value"))
    };
    out.lines().map(pair).collect()
}

/// Fails unless each session's values are the numbers from 0 to `count`, once and in order.
#[track_caller]
fn assert_whole(records: &[(String, String)], sessions: usize, count: usize) {
    let mut next: HashMap<&str, usize> = HashMap::new();
    for (session, value) in records {
        let next = next.entry(session).or_default();
        assert_eq!(value, &next.to_string(), "of session {session}");
        *next += 1;
    }
    assert_eq!(next.len(), sessions);
    assert!(next.values().all(|next| *next == count), "{next:?}");
}

#[test]
fn every_record_is_printed_once_and_in_the_order_of_its_session() {
    let topic = topic("print", 4);
    produce(&topic, &lines(20, 50));
    let done = run(&topic, &["-n", "1000"]);
    assert!(
        done.err.contains("order: 1,000 starts checked, 0 violations"),
        "{}",
        done.err
    );
    assert!(done.err.contains("settled 1,000 records in "), "{}", done.err);
    assert_whole(&printed(&done.fine()), 20, 50);
}

#[test]
fn a_count_is_exact_and_the_next_run_goes_on_behind_it() {
    let (topic, group) = (topic("count", 1), unique("group"));
    produce(&topic, &lines(1, 300));
    let mut records = Vec::new();
    for count in ["7", "93", "200"] {
        let out = seriatim(&run_args(&topic, &group, &["-n", count])).fine();
        assert_eq!(out.lines().count().to_string(), count);
        records.extend(printed(&out));
    }
    assert_whole(&records, 1, 300);
}

#[test]
fn sigterm_drains_and_the_next_run_repeats_nothing() {
    let (topic, group) = (topic("sigterm", 4), unique("group"));
    produce(&topic, &lines(50, 400));
    let mut records = Vec::new();
    // Whatever the sessions have settled when the signal comes, each at another place of its partition.
    for _ in 0..3 {
        let mut running = Running::start(&run_args(&topic, &group, &[]));
        records.extend(printed(&running.line()));
        running.signal("TERM");
        let done = running.finish();
        assert!(done.err.contains("stopping"), "{}", done.err);
        assert!(done.err.contains("0 violations"), "{}", done.err);
        records.extend(printed(&done.fine()));
    }
    let left = (20_000 - records.len()).to_string();
    records.extend(printed(&seriatim(&run_args(&topic, &group, &["-n", &left])).fine()));
    assert_whole(&records, 50, 400);
}

#[test]
fn a_partition_that_is_held_for_long_is_told_with_its_backlog() {
    let (topic, group) = (topic("held", 1), unique("group"));
    produce(&topic, &lines(1, 200));
    // It never answers.
    let more = [
        "--exec",
        "exec sleep 1000",
        "--max-bytes",
        "1KiB",
        "--drain-timeout",
        "100ms",
    ];
    let running = Running::start(&run_args(&topic, &group, &more));
    let told = format!("intake of {topic}[0] is held for ");
    until("it is told", || running.said().contains(&told));
    running.signal("TERM");
    let done = running.finish();
    let line = done.err.lines().find(|line| line.contains(&told)).expect("it was said");
    assert!(line.contains("the oldest at 0, written "), "{line}");
    assert!(
        line.ends_with("the log ends at 200, a backlog of 200 records"),
        "{line}"
    );
}

#[test]
fn a_closed_output_ends_the_run_in_order() {
    let (topic, group) = (topic("head", 1), unique("group"));
    produce(&topic, &lines(1, 20_000));
    let mut head = Running::start(&run_args(&topic, &group, &[]));
    assert_eq!(printed(&head.line()), [("s0".to_owned(), "0".to_owned())]);
    head.close_output();
    let done = head.finish();
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.err.contains("standard output was closed"), "{}", done.err);
    assert!(done.err.contains(" 0 retries"), "{}", done.err);
}

#[test]
fn json_tells_null_bytes_and_headers() {
    let topic = topic("json", 1);
    let input = concat!(
        r#"{"key":"k","value":{"base64":"/wA="},"headers":[["session","s1"],["empty",null]],"timestamp":1764417600000}"#,
        "\n",
        r#"{"key":null,"value":null,"headers":[["session","s1"]]}"#,
        "\n",
    );
    seriatim_with(
        input.as_bytes(),
        &["produce", &topic, "-J", "--session-by", "header:session"],
    )
    .fine();
    let out = run(
        &topic,
        &["-n", "2", "--format", "json", "--session-by", "header:session"],
    )
    .fine();
    let records: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records[0]["id"], format!("{topic}/0/0"));
    assert_eq!(records[0]["session"], "s1");
    assert_eq!(records[0]["attempt"], 1);
    assert_eq!(records[0]["timestamp"], 1_764_417_600_000_i64);
    assert_eq!(records[0]["key"], "k");
    assert_eq!(records[0]["value"]["base64"], "/wA=");
    assert_eq!(records[0]["headers"][1], serde_json::json!(["empty", null]));
    assert_eq!((&records[1]["key"], &records[1]["value"]), (&Value::Null, &Value::Null));
    assert_eq!(records[1]["offset"], 1);
}

/// A topic with a record that has no key, between two that have one.
fn topic_with_a_keyless_record() -> String {
    let topic = topic("keyless", 1);
    let input = concat!(
        r#"{"key":"a","value":"1","headers":[["s","x"]]}"#,
        "\n",
        r#"{"key":null,"value":"2","headers":[["s","x"]]}"#,
        "\n",
        r#"{"key":"a","value":"3","headers":[["s","x"]]}"#,
        "\n",
    );
    seriatim_with(input.as_bytes(), &["produce", &topic, "-J", "--session-by", "header:s"]).fine();
    topic
}

#[test]
fn a_record_without_a_session_becomes_a_dead_letter() {
    let source = topic_with_a_keyless_record();
    let letters = format!("{source}.dlq");
    shared().create_topic(&letters, 1, &[]).unwrap();
    let done = run(&source, &["-n", "3"]);
    assert!(done.err.contains("1 dead letter"), "{}", done.err);
    let values: Vec<_> = printed(&done.fine()).into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, ["1", "3"]);
    let letters = consumed(&letters, "%s %K %h");
    assert_eq!(letters.len(), 1);
    assert!(letters[0].starts_with("2 -1 "), "{}", letters[0]);
    assert!(letters[0].contains("seriatim-reason=undecodable"), "{}", letters[0]);
}

#[test]
fn a_record_without_a_session_may_end_the_run() {
    let (topic, group) = (topic_with_a_keyless_record(), unique("group"));
    let done = seriatim(&run_args(&topic, &group, &["--missing-session", "fail"]));
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(
        done.err.contains(&format!("{topic}[0]@1 has no session key")),
        "{}",
        done.err
    );
    // It stays the next to be handled, with whatever was not settled before it.
    let left = seriatim(&["consume", &topic, "-e", "-g", &group]).fine();
    assert!(left.ends_with("2\n3\n"), "{left}");
}

#[test]
fn a_record_without_a_session_may_be_its_partitions() {
    let topic = topic_with_a_keyless_record();
    let out = run(&topic, &["--missing-session", "partition-as-session", "-n", "3"]).fine();
    let mut records = printed(&out);
    records.sort();
    let expected = [("(null)", "2"), ("a", "1"), ("a", "3")];
    assert_eq!(
        records,
        expected.map(|(session, value)| (session.to_owned(), value.to_owned()))
    );
}

#[test]
fn a_child_is_given_every_record_in_the_order_of_its_session() {
    let (topic, journal) = (topic("exec", 4), Journal::new());
    produce(&topic, &lines(20, 50));
    let command = journal.command("");
    let done = run(&topic, &["-n", "1000", "--children", "3", "--exec", &command]);
    assert!(done.err.contains("0 violations"), "{}", done.err);
    done.fine();
    assert_eq!(journal.begun(), 1000);
    journal.assert_ordered();
}

#[test]
fn answers_may_come_in_any_order() {
    let (topic, journal) = (topic("reverse", 2), Journal::new());
    produce(&topic, &lines(8, 20));
    // All eight sessions have a record in flight, or the child would wait for more for ever.
    let command = journal.command("--reverse 8");
    run(&topic, &["-n", "160", "--exec", &command]).fine();
    assert_eq!(journal.begun(), 160);
    journal.assert_ordered();
}

#[test]
fn a_child_that_dies_is_started_again_and_nothing_is_lost() {
    let (topic, group, journal) = (topic("die", 2), unique("group"), Journal::new());
    let mut input = lines(10, 20);
    input.push_str("s3:die-now\n");
    input.push_str(&lines(10, 20));
    produce(&topic, &input);
    let command = journal.command("");
    let done = seriatim(&run_args(&topic, &group, &["-n", "401", "--exec", &command]));
    assert!(done.err.contains("child ended: signal: 6"), "{}", done.err);
    assert!(done.err.contains("settled 401 records"), "{}", done.err);
    assert!(done.err.contains("0 dead letters"), "{}", done.err);
    done.fine();
    journal.assert_ordered();
    // The last attempt of each record is the one that was answered.
    let mut ended: Vec<_> = journal.entries().into_iter().filter(|entry| !entry.begins).collect();
    ended.sort_by_key(|entry| (entry.session.clone(), entry.offset));
    ended.dedup_by_key(|entry| (entry.session.clone(), entry.offset));
    assert_eq!(ended.len(), 401);
}

#[test]
fn a_child_asks_for_another_attempt_or_gives_up() {
    let (source, journal) = (topic("outcomes", 1), Journal::new());
    let letters = format!("{source}.dlq");
    shared().create_topic(&letters, 1, &[]).unwrap();
    produce(&source, "a:1\na:retry-2\na:3\nb:dead-4\nb:5\nc:bad-6\nc:noise-7\n");
    let command = journal.command("");
    let done = run(&source, &["-n", "7", "--exec", &command]);
    assert!(done.err.contains("3 retries, 1 dead letter"), "{}", done.err);
    assert!(
        done.err.contains("a line of the child's is no answer: no JSON"),
        "{}",
        done.err
    );
    assert!(done.err.contains("without one of the outcomes"), "{}", done.err);
    done.fine();
    journal.assert_ordered();
    let attempts = |offset| {
        journal
            .entries()
            .iter()
            .filter(|e| e.begins && e.offset == offset)
            .count()
    };
    assert_eq!((0..7).map(attempts).collect::<Vec<_>>(), [1, 3, 1, 1, 1, 2, 1]);
    let letters = consumed(&letters, "%s %h");
    assert_eq!(letters.len(), 1);
    assert!(letters[0].starts_with("dead-4 "), "{}", letters[0]);
    assert!(
        letters[0].contains("kafka_dlt-exception-message=no such account"),
        "{}",
        letters[0]
    );
}

#[test]
fn an_attempt_that_ran_out_of_time_is_over_only_when_the_child_says_so() {
    let (topic, journal) = (topic("slow", 1), Journal::new());
    produce(&topic, "a:slow-1\na:2\nb:3\n");
    let command = journal.command("");
    let limits = ["--attempt-timeout", "200ms", "--retry-base", "1ms"];
    let done = run(&topic, &[&["-n", "3", "--exec", &command], &limits[..]].concat());
    assert!(done.err.contains("1 retry"), "{}", done.err);
    assert!(done.err.contains("0 violations"), "{}", done.err);
    done.fine();
    // The second attempt begins after the end of the first, 1.5 s later, though nobody waited for its answer.
    journal.assert_ordered();
    let of_a: Vec<_> = journal
        .entries()
        .into_iter()
        .filter(|entry| entry.session == "a")
        .collect();
    let told: Vec<_> = of_a
        .iter()
        .map(|entry| (entry.begins, entry.offset, entry.attempt))
        .collect();
    let expected = [
        (true, 0, 1),
        (false, 0, 1),
        (true, 0, 2),
        (false, 0, 2),
        (true, 1, 1),
        (false, 1, 1),
    ];
    assert_eq!(told, expected);
}

#[test]
fn what_a_child_does_not_finish_is_cut_short_and_repeated() {
    let (topic, group, journal) = (topic("deaf", 1), unique("group"), Journal::new());
    produce(&topic, "a:deaf-1\nb:2\n");
    let command = journal.command("");
    let args = run_args(&topic, &group, &["--exec", &command, "--drain-timeout", "500ms"]);
    let first = Running::start(&args);
    until("both are given to the child", || journal.begun() == 2);
    first.signal("INT");
    let done = first.finish();
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(done.err.contains("handlers were cancelled"), "{}", done.err);
    // `b` is settled, but lies above the watermark; `a` is not settled.
    let out = seriatim(&run_args(&topic, &group, &["-n", "1"])).fine();
    assert_eq!(printed(&out), [("a".to_owned(), "deaf-1".to_owned())]);
}

#[test]
fn a_child_that_works_on_what_another_instance_may_start_is_killed() {
    let (topic, group, pids) = (topic("forsaken", 2), unique("group"), file("pids"));
    let (journal, others) = (Journal::new(), Journal::new());
    produce(&topic, &(0..20).map(|n| format!("s{n}:deaf\n")).collect::<String>());
    let command = format!("echo $$ >> '{}'; {}", pids.display(), journal.command(""));
    let of = |command: &str| {
        Running::start(&run_args(
            &topic,
            &group,
            &["--exec", command, "--drain-timeout", "500ms"],
        ))
    };
    let first = of(&command);
    until("all are given to its child", || journal.begun() == 20);
    let pid = fs::read_to_string(&pids).expect("it has noted its id");
    let process = Path::new("/proc").join(pid.trim());
    assert!(process.exists());

    let second = of(&others.command(""));
    until("the child is gone", || !process.exists());
    assert!(first.said().contains("the child is killed"), "{}", first.said());
    until("all are begun again", || journal.begun() + others.begun() == 40);
    let again: HashSet<_> = journal
        .entries()
        .into_iter()
        .skip(20)
        .map(|entry| entry.session)
        .collect();
    let left: HashSet<_> = others.entries().into_iter().map(|entry| entry.session).collect();
    assert!(!again.is_empty() && !left.is_empty(), "each has a partition");
    assert!(again.is_disjoint(&left), "{again:?} stayed, {left:?} left");
    for running in [first, second] {
        running.signal("INT");
        assert_eq!(running.finish().code, 1, "its drain is cut short");
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let (topic, journal) = (topic("twice", 1), Journal::new());
    produce(&topic, "a:deaf-1\n");
    let command = journal.command("");
    let running = Running::start(&run_args(
        &topic,
        &unique("group"),
        &["--exec", &command, "--drain-timeout", "60s"],
    ));
    until("it is given to the child", || journal.begun() == 1);
    running.signal("INT");
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    running.signal("INT");
    let done = running.finish();
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(done.err.contains("ended at once"), "{}", done.err);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn a_command_that_does_not_exist_is_bad_configuration() {
    let done = run(&topic("typo", 1), &["--exec", "no-such-command-anywhere"]);
    assert_eq!(done.code, 78, "{}", done.err);
    assert!(
        done.err.contains("`no-such-command-anywhere` cannot be run"),
        "{}",
        done.err
    );
}

#[test]
fn an_unknown_topic_is_told_and_waited_for() {
    let (name, group) = (unique("later"), unique("group"));
    let args = run_args(
        &name,
        &group,
        &["-n", "1", "-X", "topic.metadata.refresh.interval.ms=500"],
    );
    let mut running = Running::start(&args);
    std::thread::sleep(Duration::from_secs(2));
    shared().create_topic(&name, 1, &[]).unwrap();
    produce(&name, "a:1\n");
    assert_eq!(printed(&running.line()), [("a".to_owned(), "1".to_owned())]);
    let done = running.finish();
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.err.contains("unknown topic"), "{}", done.err);
}

#[test]
fn without_a_broker_it_says_so_and_gives_up_when_told_to() {
    let began = Instant::now();
    // Nothing listens there.
    let args = [
        "run",
        "-t",
        "t",
        "-g",
        "g",
        "-b",
        "127.0.0.1:1",
        "--give-up-after",
        "3s",
    ];
    let done = seriatim_alone(&args);
    assert_eq!(done.code, 69, "{}", done.err);
    assert!(done.err.contains("no broker can be reached: "), "{}", done.err);
    assert!(done.err.contains("Connection refused"), "{}", done.err);
    let took = began.elapsed();
    assert!(
        (Duration::from_secs(3)..Duration::from_secs(20)).contains(&took),
        "{took:?}"
    );
}

#[test]
fn a_broker_that_goes_away_is_told_and_waited_for_or_given_up() {
    let broker = Broker::start().unwrap();
    broker.create_topic("gone", 1, &[]).unwrap();
    let write = |lines: &str| {
        let mut running = Running::start_alone(&["produce", "gone", "-K", ":", "-b", broker.bootstrap()]);
        running.write(lines.as_bytes());
        running.finish().fine();
    };
    let args = ["run", "-t", "gone", "-g", "g", "-b", broker.bootstrap()];

    let mut patient = Running::start_alone(&args);
    write("a:1\n");
    assert_eq!(printed(&patient.line()), [("a".to_owned(), "1".to_owned())]);
    broker.node(1).kill().unwrap();
    until("it is told", || patient.said().contains("no broker can be reached"));
    broker.node(1).restart().unwrap();
    write("a:2\n");
    assert_eq!(printed(&patient.line()), [("a".to_owned(), "2".to_owned())]);
    until("it is told", || patient.said().contains("a broker answers"));
    patient.signal("TERM");
    patient.finish().fine();

    let mut impatient =
        Running::start_alone(&[&args[..], &["--give-up-after", "3s", "--drain-timeout", "1s"]].concat());
    write("a:3\n");
    assert_eq!(printed(&impatient.line()), [("a".to_owned(), "3".to_owned())]);
    broker.node(1).kill().unwrap();
    let done = impatient.finish();
    assert_eq!(done.code, 69, "{}", done.err);
}

#[test]
fn what_is_wrong_with_the_command_line_is_told_before_anything_runs() {
    let code_of = |more: &[&str], part: &str| {
        let done = seriatim_alone(&[&["run", "-t", "t", "-g", "g", "-b", "127.0.0.1:1"], more].concat());
        assert!(done.err.contains(part), "{}", done.err);
        done.code
    };
    assert_eq!(code_of(&["--in-flite", "5"], "--in-flight"), 2);
    assert_eq!(code_of(&["--drain-timeout", "5"], "100ms"), 2);
    assert_eq!(code_of(&["--session-by", "value"], "header:NAME"), 2);
    assert_eq!(code_of(&["--children", "2"], "--exec"), 2);
    assert_eq!(
        code_of(&["-X", "fetch.min.byte=1"], "did you mean `fetch.min.bytes`?"),
        78
    );
    assert_eq!(
        code_of(&["-X", "enable.auto.commit=true"], "commits what is settled"),
        78
    );
    assert_eq!(code_of(&["-F", "/nowhere/at/all"], "/nowhere/at/all"), 78);
    let done = seriatim_alone(&["run", "-t", "t", "-g", "g"]);
    assert_eq!(
        (done.code, done.err.contains("-b localhost:9092")),
        (2, true),
        "{}",
        done.err
    );
}
