//! `seriatim consume` against a real broker.

mod command;

use std::time::{SystemTime, UNIX_EPOCH};

use command::{Running, produce, seriatim, seriatim_alone, seriatim_with, topic, unique};
use serde_json::Value;

/// A topic of one partition with the values 0 to `count`, all of session `a`.
fn numbers(count: usize) -> String {
    let topic = topic("numbers", 1);
    produce(
        &topic,
        &(0..count).map(|number| format!("a:{number}\n")).collect::<String>(),
    );
    topic
}

/// What `consume TOPIC -e ARGS` prints.
#[track_caller]
fn consume(topic: &str, args: &[&str]) -> String {
    seriatim(&[&["consume", topic, "-e"], args].concat()).fine()
}

#[test]
fn offsets_say_where_to_begin() {
    let topic = numbers(10);
    assert_eq!(consume(&topic, &[]).lines().count(), 10);
    assert_eq!(consume(&topic, &["-o", "beginning", "-n", "2"]), "0\n1\n");
    assert_eq!(consume(&topic, &["-o", "start", "-n", "1"]), "0\n");
    assert_eq!(consume(&topic, &["-o", "7"]), "7\n8\n9\n");
    assert_eq!(consume(&topic, &["-o", "-2"]), "8\n9\n");
    assert_eq!(consume(&topic, &["-o", "-99"]).lines().count(), 10);
    assert_eq!(consume(&topic, &["-o", "end"]), "");
    assert_eq!(consume(&topic, &["-o", "@0"]).lines().count(), 10);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    assert_eq!(consume(&topic, &["-o", &format!("@{}", now + 60_000)]), "");
}

#[test]
fn a_groups_commits_say_where_it_stands_and_are_left_alone() {
    let (topic, group) = (numbers(10), unique("group"));
    assert_eq!(
        consume(&topic, &["-g", &group]).lines().count(),
        10,
        "nothing is committed yet"
    );
    seriatim(&["run", "-t", &topic, "-g", &group, "-n", "6"]).fine();
    for _ in 0..2 {
        assert_eq!(consume(&topic, &["-g", &group]), "6\n7\n8\n9\n");
    }
    assert_eq!(consume(&topic, &["-g", &group, "-o", "9"]), "9\n");
    let done = seriatim(&["consume", &topic, "-o", "stored"]);
    assert_eq!((done.code, done.err.contains("-g GROUP")), (2, true), "{}", done.err);
}

#[test]
fn partitions_and_topics_are_chosen() {
    let (first, second) = (topic("first", 4), topic("second", 1));
    produce(
        &first,
        &(0..40)
            .map(|number| format!("k{number}:{number}\n"))
            .collect::<String>(),
    );
    produce(&second, "a:x\n");
    let format = ["-f", "%t %p\\n"];
    let all = consume(&first, &[&[&second[..]], &format[..]].concat());
    assert_eq!(all.lines().count(), 41);
    assert!(all.contains(&format!("{second} 0\n")));
    let some = consume(&first, &[&["-p", "1", "-p", "3"], &format[..]].concat());
    let partition = |number: &str| all.lines().filter(|line| **line == format!("{first} {number}")).count();
    assert_eq!(some.lines().count(), partition("1") + partition("3"));
    let done = seriatim(&["consume", &first, "-p", "9"]);
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(done.err.contains("has no partition 9; it has 4"), "{}", done.err);
}

#[test]
fn formats_and_json_show_null_and_headers() {
    let topic = topic("formats", 1);
    let input = concat!(
        r#"{"key":"k","value":"v","headers":[["h","x"]],"timestamp":1764417600000}"#,
        "\n",
        r#"{"key":null,"value":null,"headers":[["h","x"]]}"#,
        "\n"
    );
    seriatim_with(input.as_bytes(), &["produce", &topic, "-J", "--session-by", "header:h"]).fine();
    let out = consume(&topic, &["-f", r"%p@%o %k(%K)=%s(%S)\t%%\n"]);
    assert_eq!(out, "0@0 k(1)=v(1)\t%\n0@1 (-1)=(-1)\t%\n");
    let out = consume(&topic, &["-J"]);
    let records: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records[0]["headers"][0], serde_json::json!(["h", "x"]));
    assert_eq!(records[0]["timestamp"], 1_764_417_600_000_i64);
    assert_eq!((&records[1]["key"], &records[1]["value"]), (&Value::Null, &Value::Null));
    let done = seriatim_alone(&["consume", "t", "-b", "127.0.0.1:1", "-f", "%z"]);
    assert_eq!((done.code, done.err.contains("%s value")), (2, true), "{}", done.err);
}

#[test]
fn what_was_consumed_as_json_can_be_produced() {
    let (from, to) = (topic("from", 2), topic("to", 2));
    produce(&from, "a:1\nb:2\na:3\n");
    let json = consume(&from, &["-J"]);
    seriatim_with(json.as_bytes(), &["produce", &to, "-J"]).fine();
    let format = ["-f", "%k %s %T\\n"];
    let lines = |topic| {
        let mut lines: Vec<_> = consume(topic, &format).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&from), lines(&to));
}

#[test]
fn one_session_is_read_or_known_not_to_be_there() {
    let topic = topic("session", 4);
    produce(&topic, "a:1\nb:2\na:3\n");
    assert_eq!(consume(&topic, &["--session", "a"]), "1\n3\n");
    let done = seriatim(&["consume", &topic, "-e", "--session", "nobody"]);
    assert_eq!((done.code, done.out.as_str()), (4, ""), "{}", done.err);
}

#[test]
fn without_an_end_it_follows() {
    let topic = numbers(1);
    let mut running = Running::start(&["consume", &topic]);
    assert_eq!(running.line(), "0");
    produce(&topic, "a:next\n");
    assert_eq!(running.line(), "next");
    running.signal("INT");
    running.finish().fine();
}

#[test]
fn what_is_missing_is_told_by_the_exit_code() {
    let name = unique("nowhere");
    let done = seriatim(&["consume", &name]);
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(
        done.err.contains(&format!("topic {name} does not exist")),
        "{}",
        done.err
    );
    let done = seriatim_alone(&["consume", "t", "-b", "127.0.0.1:1"]);
    assert_eq!(done.code, 69, "{}", done.err);
    let done = seriatim_alone(&["consume", "t", "-b", "127.0.0.1:1", "-X", "nonsense"]);
    assert_eq!(done.code, 78, "{}", done.err);
}
