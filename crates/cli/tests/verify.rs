//! `seriatim run --record` and `seriatim verify`: what is good is found good, and what was doctored is found out.

mod command;

use std::fs;
use std::path::PathBuf;

use command::{Done, Journal, Running, file, produce, seriatim, seriatim_alone, topic, unique, until};
use serde_json::Value;
use seriatim_testkit::broker::shared;

/// A recording on disk, gone with the test.
struct Tape(PathBuf);

impl Tape {
    fn blank() -> Self {
        Self(file("tape"))
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a path of ours is text")
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.0).expect("it was recorded")
    }

    /// The recording with something changed.
    fn doctored(&self, change: impl FnOnce(Vec<String>) -> Vec<String>) -> Tape {
        let doctored = Tape::blank();
        let lines = change(self.text().lines().map(str::to_owned).collect());
        fs::write(&doctored.0, lines.join("\n") + "\n").expect("it can be written");
        doctored
    }

    fn verify(&self, more: &[&str]) -> Done {
        seriatim(&[&["verify", self.path()], more].concat())
    }

    /// The verdict, as JSON.
    #[track_caller]
    fn verdict(&self, code: i32) -> Value {
        let done = self.verify(&["--format", "json"]);
        assert_eq!(done.code, code, "{}{}", done.out, done.err);
        serde_json::from_str(&done.out).expect("JSON")
    }

    /// What promises are found broken, and the story of the first.
    #[track_caller]
    fn broken(&self) -> (Vec<String>, Vec<String>) {
        let verdict = self.verdict(100);
        let violations = verdict["violations"].as_array().expect("a list");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let story = violations[0]["story"].as_array().expect("a list");
        (
            violations
                .iter()
                .map(|violation| text(&violation["property"]))
                .collect(),
            story.iter().map(text).collect(),
        )
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A run of `topic` that is recorded, to its end.
fn record(tape: &Tape, topic: &str, group: &str, more: &[&str]) -> Done {
    let args = ["run", "-t", topic, "-g", group, "--record", tape.path()];
    seriatim(&[&args[..], more].concat())
}

/// A topic of ten sessions with five records each, and the recording of a run that handled all of them.
fn recorded(stem: &str) -> (String, Tape) {
    let (topic, tape) = (topic(stem, 2), Tape::blank());
    let lines: String = (0..50).map(|n| format!("s{}:{}\n", n % 10, n / 10)).collect();
    produce(&topic, &lines);
    record(&tape, &topic, &unique("group"), &["-n", "50"]).fine();
    (topic, tape)
}

fn at(lines: &[String], verb: &str) -> usize {
    let found = lines.iter().position(|line| line.split(' ').nth(1) == Some(verb));
    found.unwrap_or_else(|| panic!("nothing is recorded of {verb}"))
}

#[test]
fn what_was_handled_in_order_is_proven() {
    let (topic, tape) = recorded("proven");
    let verdict = tape.verdict(0);
    for (what, count) in [
        ("records", 50),
        ("sessions", 10),
        ("starts", 50),
        ("repeats", 0),
        ("crashes", 0),
    ] {
        assert_eq!(verdict[what], count, "{what}");
    }
    let told = tape.verify(&[]).fine();
    assert!(told.contains("1 recording of group") && told.contains(&topic), "{told}");
    assert!(told.contains("PROVEN: every session"), "{told}");
    assert!(told.contains("50 records of 10 sessions in 2 partitions"), "{told}");
}

#[test]
fn retries_dead_letters_and_children_are_judged_too() {
    let (source, journal, tape) = (topic("judged", 1), Journal::new(), Tape::blank());
    shared().create_topic(&format!("{source}.dlq"), 1, &[]).unwrap();
    produce(&source, "a:1\na:retry-2\na:3\nb:dead-4\nb:5\n");
    let command = journal.command("");
    let done = record(
        &tape,
        &source,
        &unique("group"),
        &["-n", "5", "--check", "--exec", &command],
    );
    assert!(done.err.contains("0 violations"), "{}", done.err);
    done.fine();
    let verdict = tape.verdict(0);
    for (what, count) in [("starts", 7), ("retries", 2), ("dead_letters", 1)] {
        assert_eq!(verdict[what], count, "{what}");
    }
}

#[test]
fn no_key_and_no_value_is_recorded() {
    let (topic, tape) = (topic("secret", 1), Tape::blank());
    produce(&topic, "alice:password\nalice:swordfish\n");
    record(&tape, &topic, &unique("group"), &["-n", "2"]).fine();
    let text = tape.text();
    for secret in ["alice", "password", "swordfish"] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[test]
fn runs_that_go_on_in_one_file_are_one_history() {
    let (topic, group, tape) = (topic("again", 1), unique("group"), Tape::blank());
    produce(&topic, "a:1\nb:2\na:3\n");
    for count in ["1", "2"] {
        record(&tape, &topic, &group, &["-n", count]).fine();
    }
    let verdict = tape.verdict(0);
    assert_eq!(verdict["instances"].as_array().map(Vec::len), Some(2));
    assert_eq!((&verdict["assignments"], &verdict["repeats"]), (&2.into(), &0.into()));
}

#[test]
fn a_run_that_was_killed_is_judged_with_the_one_that_followed() {
    let (topic, group, journal) = (topic("killed", 1), unique("group"), Journal::new());
    let tapes = [Tape::blank(), Tape::blank()];
    produce(&topic, "a:deaf-1\nb:2\nc:3\n");
    let command = journal.command("");
    let args = ["run", "-t", &topic, "-g", &group, "--commit-interval", "50ms"];
    let quick = ["-X", "session.timeout.ms=1000", "-X", "heartbeat.interval.ms=100"];
    let first = Running::start(&[&args[..], &quick, &["--record", tapes[0].path(), "--exec", &command]].concat());
    until("its ack map is committed", || {
        let committed = |line: &str| line.contains(" commit ") && line.contains(" 1-2");
        fs::read_to_string(&tapes[0].0).is_ok_and(|text| text.lines().any(committed) && text.ends_with("yes\n"))
    });
    first.signal("KILL");
    first.finish();
    seriatim(&[&args[..], &quick, &["--record", tapes[1].path(), "-n", "1"]].concat()).fine();

    let done = seriatim(&["verify", tapes[0].path(), tapes[1].path(), "--format", "json"]);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    let verdict: Value = serde_json::from_str(&done.out).unwrap();
    for (what, count) in [("crashes", 1), ("skipped", 2), ("repeats", 0), ("starts", 4)] {
        assert_eq!(verdict[what], count, "{what}");
    }
    // Alone, the second tells of what was left for it, and the first lacks somebody who went on.
    assert_eq!(tapes[1].verdict(0)["starts"], 1);
    assert_eq!(tapes[0].broken().0, ["P3"]);
}

#[test]
fn what_is_not_settled_is_lost_unless_the_run_goes_on() {
    let (topic, tape) = (topic("left", 1), Tape::blank());
    produce(&topic, "a:1\na:2\na:3\n");
    record(&tape, &topic, &unique("group"), &["-n", "2"]).fine();
    let told = tape.verify(&[]);
    assert_eq!(told.code, 100, "{}", told.err);
    assert!(told.out.contains("NOT PROVEN"), "{}", told.out);
    assert!(
        told.out.contains(&format!("P3: {topic}[0]@2 was never settled")),
        "{}",
        told.out
    );
    tape.verify(&["--unfinished"]).fine();
}

#[test]
fn a_run_that_goes_on_is_judged_up_to_now() {
    let (topic, tape, group) = (topic("live", 4), Tape::blank(), unique("group"));
    let args = [
        "run",
        "-t",
        &topic,
        "-g",
        &group,
        "--record",
        tape.path(),
        "--commit-interval",
        "20ms",
    ];
    let mut running = Running::start(&args);
    running.read_on();
    let mut producing = Running::start(&["produce", &topic, "-K", ":", "-q"]);
    for round in 0..3 {
        let lines: String = (0..2_000).map(|n| format!("s{}:{round}\n", n % 50)).collect();
        producing.write_and_hold(lines.as_bytes());
        until("more is handled", || at_least(&tape, "start", 2_000 * round + 100));
        tape.verify(&["--unfinished"]).fine();
    }
    producing.finish().fine();
    until("all is handled", || at_least(&tape, "end", 6_000));
    running.signal("TERM");
    running.finish().fine();
    assert_eq!(tape.verdict(0)["starts"], 6_000);
}

fn at_least(tape: &Tape, verb: &str, count: usize) -> bool {
    let text = fs::read_to_string(&tape.0).unwrap_or_default();
    let verbs = text.lines().filter_map(|line| line.split(' ').nth(1));
    verbs.filter(|found| *found == verb).count() >= count
}

#[test]
fn an_end_that_was_removed_is_missed_by_the_next_of_its_session_and_by_the_commit() {
    let (_, tape) = recorded("no-end");
    let doctored = tape.doctored(|mut lines| {
        let first = at(&lines, "end");
        lines.remove(first);
        lines
    });
    let (properties, story) = doctored.broken();
    assert!(properties.contains(&"P1".to_owned()), "{properties:?}");
    assert!(properties.contains(&"P3".to_owned()), "{properties:?}");
    assert!(story.iter().any(|line| line.contains("starts, attempt 1")), "{story:?}");
}

#[test]
fn two_handlers_of_a_session_at_a_time_are_seen() {
    let (_, tape) = recorded("overlap");
    // The first end comes last of its session's: it moves behind the session's next start.
    let doctored = tape.doctored(|mut lines| {
        let end = at(&lines, "end");
        let mut line = lines.remove(end);
        let last = lines
            .iter()
            .rposition(|line| line.contains(" start "))
            .expect("a start");
        let time = lines[last].split(' ').next().expect("a time").to_owned();
        line.replace_range(..line.find(' ').expect("a time"), &time);
        lines.insert(last + 1, line);
        lines
    });
    let (properties, _) = doctored.broken();
    assert!(properties.contains(&"P1".to_owned()), "{properties:?}");
    assert!(properties.contains(&"P2".to_owned()), "{properties:?}");
}

#[test]
fn other_lies_are_seen() {
    let (topic, tape) = recorded("lies");
    // Another payload than the log has.
    let doctored = tape.doctored(|mut lines| {
        let start = at(&lines, "start");
        let cut = lines[start].len() - 16;
        lines[start].replace_range(cut.., "0000000000000000");
        lines
    });
    assert_eq!(doctored.broken().0[0], "P0");
    // A commit of more than was settled by then.
    let doctored = tape.doctored(|mut lines| {
        let commit = at(&lines, "commit");
        let words: Vec<&str> = lines[commit].split(' ').collect();
        lines[commit] = [words[0], words[1], words[2], "1000", words[4]].join(" ");
        lines
    });
    assert!(doctored.broken().0.contains(&"P3".to_owned()));
    // A start after the partition was given back.
    let doctored = tape.doctored(|mut lines| {
        let left = lines.pop().expect("an end");
        let time = left.split(' ').next().expect("a time");
        let (partition, offset) = (0, 0);
        lines.push(format!("{time} start {topic}/{partition}/{offset} 1 0000000000000000"));
        lines.push(left);
        lines
    });
    assert!(doctored.broken().0.contains(&"P7".to_owned()));
}

#[test]
fn what_cannot_be_judged_is_named() {
    let (source, tape) = recorded("named");
    let fails_with = |doctored: &Tape, part: &str| {
        let done = doctored.verify(&[]);
        assert_eq!((done.code, done.err.contains(part)), (1, true), "{}", done.err);
    };
    let damaged = tape.doctored(|mut lines| {
        let start = at(&lines, "start");
        lines[start].truncate(20);
        lines
    });
    fails_with(&damaged, "is damaged in line ");
    let beyond = tape.doctored(|lines| {
        let moved = |line: String| line.replace(&format!("start {source}/0/0 "), &format!("start {source}/0/900000 "));
        lines.into_iter().map(moved).collect()
    });
    fails_with(&beyond, "the topic is another, or was truncated");
    let renamed = tape.doctored(|lines| {
        let moved = |line: String| line.replace(&format!("{source}/0"), &format!("{source}/77"));
        lines.into_iter().map(moved).collect()
    });
    fails_with(&renamed, "has no partition 77");

    let (_, other) = recorded("another");
    let done = seriatim(&["verify", tape.path(), other.path()]);
    assert_eq!(
        (done.code, done.err.contains("recordings of different groups")),
        (1, true),
        "{}",
        done.err
    );

    let done = seriatim_alone(&["verify", tape.path(), "-b", "127.0.0.1:1"]);
    assert_eq!(done.code, 69, "{}", done.err);
    let done = record(
        &Tape(PathBuf::from("/nowhere/at/all")),
        &source,
        &unique("group"),
        &["-n", "1"],
    );
    assert_eq!(
        (done.code, done.err.contains("/nowhere/at/all")),
        (78, true),
        "{}",
        done.err
    );
}
