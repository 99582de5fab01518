//! Groups whose commits were moved, removed or overtaken while nobody was in them, and where `seriatim run` goes on.

mod command;
mod committer;

use command::{Running, produce, seriatim, topic, unique, until};
use committer::commit;
use serde_json::Value;
use seriatim_testkit::broker::shared;

/// A topic of one partition with five records, and a group that has committed this, with that beside it.
fn committed(watermark: i64, metadata: &str) -> (String, String) {
    let (topic, group) = (topic("moved", 1), unique("group"));
    produce(&topic, "a:0\nb:1\na:2\nb:3\na:4\n");
    commit(&topic, &group, watermark, metadata);
    (topic, group)
}

/// What a run of the group prints as values until it has settled `count`, and what it logs.
#[track_caller]
fn run(topic: &str, group: &str, count: &str, more: &[&str]) -> (Vec<String>, String) {
    // One record at a time: in the order of the log.
    let args = [
        "run",
        "-t",
        topic,
        "-g",
        group,
        "-n",
        count,
        "--in-flight",
        "1",
        "--workers",
        "1",
    ];
    let done = seriatim(&[&args[..], more].concat());
    let log = done.err.clone();
    let out = done.fine();
    let value = |line: &str| line.split('\t').nth(2).expect("a value").to_owned();
    (out.lines().map(value).collect(), log)
}

fn watermark(group: &str) -> Option<i64> {
    let done = seriatim(&["group", "describe", group, "--format", "json"]);
    let report: Value = serde_json::from_str(&done.out).ok()?;
    report["partitions"][0]["watermark"].as_i64()
}

#[test]
fn the_next_run_follows_a_commit_that_was_moved_or_removed() {
    let (topic, group) = committed(3, "");
    let seek = |to| seriatim(&["group", "seek", &group, "--yes", "--to", to]).fine();
    seek("1");
    assert_eq!(run(&topic, &group, "4", &[]).0, ["1", "2", "3", "4"]);
    seek("start");
    seek("4");
    assert_eq!(run(&topic, &group, "1", &[]).0, ["4"]);

    let class = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand";
    let remove = ["--delete-offsets", "--group", &group, "--topic", &topic];
    shared().tool(class, &remove).unwrap();
    assert_eq!(run(&topic, &group, "5", &[]).0, ["0", "1", "2", "3", "4"]);
}

#[test]
fn what_others_wrote_beside_a_commit_is_ignored_with_a_warning() {
    let (topic, group) = committed(3, "s1:written by something else");
    let (values, log) = run(&topic, &group, "2", &[]);
    assert_eq!(values, ["3", "4"]);
    assert!(
        log.contains("WARN") && log.contains("records settled above the commit are handled again"),
        "{log}"
    );
}

#[test]
fn a_commit_beyond_the_log_goes_on_as_it_is_said() {
    let (topic, group) = committed(99, "");
    let policy = format!("{topic}=earliest");
    let (values, log) = run(
        &topic,
        &group,
        "5",
        &["--out-of-range", "stop", "--out-of-range", &policy],
    );
    assert_eq!(values, ["0", "1", "2", "3", "4"]);
    assert!(
        log.contains("[0] goes on elsewhere: the next offset, 99, is not in the log"),
        "{log}"
    );
    assert_eq!(watermark(&group), Some(5));
}

#[test]
fn a_jump_to_the_end_is_committed_though_no_record_comes() {
    let (topic, group) = committed(99, "");
    let running = Running::start(&["run", "-t", &topic, "-g", &group, "--out-of-range", "latest"]);
    until("it is committed", || watermark(&group) == Some(5));
    running.signal("TERM");
    let done = running.finish();
    assert!(
        done.err.contains("what it has from 0 to 4 is passed over"),
        "{}",
        done.err
    );
    assert_eq!((done.code, done.out.as_str()), (0, ""));
}

#[test]
fn by_default_a_commit_beyond_the_log_stops_its_partition_and_says_what_to_do() {
    let (topic, group) = committed(99, "");
    let running = Running::start(&["run", "-t", &topic, "-g", &group]);
    until("it is told", || running.said().contains("stands still"));
    running.signal("TERM");
    let done = running.finish();
    let command = format!("`seriatim group seek GROUP --topic {topic}:0 --to start`");
    assert!(done.err.contains(&command), "{}", done.err);
    assert_eq!((done.out.as_str(), watermark(&group)), ("", Some(99)));
}
