//! `seriatim group` against a real broker.

mod command;
mod committer;

use command::{Journal, Running, file, produce, seriatim, seriatim_alone, seriatim_with, topic, unique, until};
use committer::commit;
use serde_json::{Value, json};
use seriatim_engine::ack_map;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_kafka::config::Properties;
use seriatim_kafka::groups::Groups;
use seriatim_testkit::broker::{Broker, shared};

/// What `group describe GROUP --format json ARGS` says.
#[track_caller]
fn described(group: &str, args: &[&str]) -> Value {
    let out = seriatim(&[&["group", "describe", group, "--format", "json"], args].concat()).fine();
    serde_json::from_str(&out).expect("it is one JSON document")
}

/// Moves the group without being asked.
#[track_caller]
fn seek(group: &str, args: &[&str]) -> String {
    seriatim(&[&["group", "seek", group, "--yes"], args].concat()).fine()
}

/// The values that a run of this group reads, until it has `count`.
#[track_caller]
fn values(topic: &str, group: &str, count: &str) -> Vec<String> {
    let out = seriatim(&["run", "-t", topic, "-g", group, "-n", count]).fine();
    let value = |line: &str| line.split('\t').nth(2).expect("a value").to_owned();
    let mut values: Vec<_> = out.lines().map(value).collect();
    values.sort();
    values
}

/// A topic of one partition with five records, of which a child never answers the first.
fn stuck_topic() -> String {
    let topic = topic("stuck", 1);
    produce(&topic, "a:deaf-1\nb:2\nc:3\na:4\nb:5\n");
    topic
}

/// A run of the group whose child has settled all it will, two records of session `a` being left.
fn stuck_run(topic: &str, group: &str, journal: &Journal, more: &[&str]) -> Running {
    let command = journal.command("");
    let args = [
        "run",
        "-t",
        topic,
        "-g",
        group,
        "--exec",
        &command,
        "--drain-timeout",
        "200ms",
    ];
    let running = Running::start(&[&args[..], more].concat());
    until("what is settled is committed", || {
        let done = seriatim(&["group", "describe", group, "--format", "json"]);
        let report: Value = serde_json::from_str(&done.out).unwrap_or_default();
        report["partitions"][0]["settled_above"] == 3
    });
    running
}

#[test]
fn a_running_group_is_told_with_its_members_and_what_it_waits_for() {
    let (topic, group, journal) = (stuck_topic(), unique("group"), Journal::new());
    let running = stuck_run(&topic, &group, &journal, &["-X", "group.instance.id=one"]);

    let report = described(&group, &[]);
    assert_eq!(report["state"], "Stable");
    assert_eq!(
        (&report["type"], &report["protocol"]),
        (&json!("classic"), &json!("cooperative-sticky"))
    );
    let member = &report["members"][0];
    assert_eq!(
        (&member["client_id"], &member["instance_id"]),
        (&json!("seriatim"), &json!("one"))
    );
    assert_eq!(member["partitions"], json!([{"topic": topic, "partition": 0}]));
    let partition = &report["partitions"][0];
    assert_eq!(
        (&partition["watermark"], &partition["begin"], &partition["end"]),
        (&json!(0), &json!(0), &json!(5))
    );
    assert_eq!(
        (&partition["backlog"], &partition["settled_above"]),
        (&json!(2), &json!(3))
    );
    assert_eq!(partition["metadata"], "ack_map");
    let oldest = &partition["oldest_unsettled"];
    assert_eq!((&oldest["offset"], &oldest["session"]), (&json!(0), &json!("a")));
    assert!(
        oldest["timestamp"].as_i64() > Some(0) && oldest["age_ms"].is_u64(),
        "{oldest}"
    );
    assert_eq!(partition["notes"], json!([]));

    let text = seriatim(&["group", "describe", &group]).fine();
    assert!(
        text.contains(&format!(
            "group {group}: Stable, classic, cooperative-sticky, 1 member\n"
        )),
        "{text}"
    );
    assert!(text.contains("backlog: 2 records"), "{text}");
    let row = text
        .lines()
        .find(|line| line.starts_with(&format!("{topic}[0]")))
        .expect("the partition's row");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        (&cells[1..7], cells[8]),
        (&["0", "0", "5", "2", "3", "0"][..], "a"),
        "{text}"
    );

    let listed = seriatim(&["group", "ls"]).fine();
    let row = listed
        .lines()
        .find(|line| line.starts_with(&group))
        .expect("the group's row");
    assert_eq!(
        row.split_whitespace().collect::<Vec<_>>(),
        [&group, "Stable", "classic", "1"]
    );
    let listed: Value = serde_json::from_str(&seriatim(&["group", "ls", "--format", "json"]).fine()).unwrap();
    let expected = json!({"group": group, "state": "Stable", "type": "classic", "members": 1, "error": null});
    assert!(listed["groups"].as_array().unwrap().contains(&expected), "{listed}");

    running.signal("TERM");
    running.finish();
}

#[test]
fn a_running_group_is_not_moved_and_a_stopped_one_forgets_its_ack_map() {
    let (topic, group, journal) = (stuck_topic(), unique("group"), Journal::new());
    let running = stuck_run(&topic, &group, &journal, &[]);

    let done = seriatim(&["group", "seek", &group, "--to", "end", "--yes"]);
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(
        done.err.contains("is running, with 1 member (seriatim at "),
        "{}",
        done.err
    );
    assert!(done.err.contains("Stop it first"), "{}", done.err);
    // Nor does the broker take it, from one who has not looked.
    let groups = Groups::connect(shared().bootstrap(), &Properties::default()).unwrap();
    let refused = groups
        .seek(&group, &[(PartitionId::new(&*topic, 0), Offset::new(5))])
        .unwrap();
    assert!(refused[0].reason.contains("the group has members"), "{refused:?}");
    let done = seriatim(&["group", "seek", &group, "--to", "end", "--dry-run", "--format", "json"]);
    assert!(done.err.contains("only when it is stopped"), "{}", done.err);
    let plan: Value = serde_json::from_str(&done.fine()).unwrap();
    let expected = json!([{
        "topic": topic, "partition": 0, "from": 0, "to": 5, "repeated": 0, "skipped": 2, "metadata": "ack_map",
        "settled_discarded": 3,
    }]);
    assert_eq!((&plan["moved"], &plan["partitions"]), (&json!(false), &expected));

    running.signal("TERM");
    running.finish();
    let report = described(&group, &[]);
    assert_eq!((&report["state"], &report["members"]), (&json!("Empty"), &json!([])));
    let partition = &report["partitions"][0];
    assert_eq!(
        (&partition["watermark"], &partition["settled_above"]),
        (&json!(0), &json!(3))
    );

    let text = seek(&group, &["--to", "start"]);
    let row = text.lines().nth(1).expect("a row");
    assert!(row.ends_with("ack map of 3 settled"), "{text}");
    assert_eq!(row.split_whitespace().collect::<Vec<_>>()[1..5], ["0", "0", "3", "0"]);
    assert_eq!(described(&group, &[])["partitions"][0]["metadata"], "none");
    assert_eq!(values(&topic, &group, "5"), ["2", "3", "4", "5", "deaf-1"]);
}

#[test]
fn the_next_run_begins_where_the_group_was_moved_to() {
    let (topic, group) = (topic("seek", 1), unique("group"));
    let line = |number| {
        format!(
            "{{\"key\":\"a\",\"value\":\"{number}\",\"timestamp\":{}}}\n",
            1_764_417_600_000_i64 + number
        )
    };
    let lines: String = (0..5).map(line).collect();
    seriatim_with(lines.as_bytes(), &["produce", &topic, "-J"]).fine();
    assert_eq!(values(&topic, &group, "5").len(), 5);

    seek(&group, &["--to", "start"]);
    assert_eq!(values(&topic, &group, "5"), ["0", "1", "2", "3", "4"]);
    seek(&group, &["--to", "@1764417600003"]);
    assert_eq!(values(&topic, &group, "2"), ["3", "4"]);
    seek(&group, &["--to", "-1"]);
    assert_eq!(values(&topic, &group, "1"), ["4"]);
    seek(&group, &["--to", "2", "-t", &format!("{topic}:0")]);
    assert_eq!(values(&topic, &group, "1"), ["2"]);
    seek(&group, &["--to", "end", "-t", &topic]);
    produce(&topic, "a:new\n");
    assert_eq!(values(&topic, &group, "1"), ["new"]);
}

#[test]
fn topics_and_partitions_are_chosen_and_the_others_left() {
    let (first, second, group) = (topic("first", 2), topic("second", 1), unique("group"));
    produce(&second, "a:1\n");
    commit(&second, &group, 1, "");
    let by_topic = |topic: &str| described(&group, &["-t", topic])["partitions"].clone();
    assert_eq!(by_topic(&second)[0]["watermark"], 1);
    // A topic of which nothing is committed is moved when it is named, with all its partitions.
    seek(&group, &["--to", "end", "-t", &first]);
    assert_eq!(by_topic(&first).as_array().unwrap().len(), 2);
    seek(&group, &["--to", "start", "-t", &format!("{second}:0")]);
    assert_eq!(by_topic(&second)[0]["watermark"], 0);
    assert_eq!(described(&group, &[])["partitions"].as_array().unwrap().len(), 3);

    let refused = |args: &[&str], code, part: &str| {
        let done = seriatim(&[&["group", "seek", &group, "--yes"], args].concat());
        assert_eq!((done.code, done.err.contains(part)), (code, true), "{}", done.err);
    };
    refused(&["--to", "1"], 2, "choose one with `-t TOPIC:PARTITION`");
    refused(
        &["--to", "7", "-t", &format!("{second}:0")],
        2,
        "begins at 0 and ends at 1",
    );
    refused(
        &["--to", "end", "-t", &format!("{second}:9")],
        4,
        "has no partition 9; it has 1",
    );
    refused(&["--to", "end", "-t", &unique("no-topic")], 4, "does not exist");
    let done = seriatim(&["group", "describe", &group, "-t", "no-topic"]);
    assert_eq!(
        (done.code, done.err.contains("nothing for no-topic")),
        (4, true),
        "{}",
        done.err
    );
}

#[test]
fn metadata_of_others_is_named_and_overwritten() {
    let (topic, group) = (topic("foreign", 1), unique("group"));
    produce(&topic, "a:1\na:2\na:3\n");
    for (metadata, name, words) in [
        ("checkpoint=7", "foreign", "written by another program or version"),
        ("s1:AAAAAAAA", "damaged", "damaged, or was written for another offset"),
    ] {
        commit(&topic, &group, 1, metadata);
        let partition = &described(&group, &[])["partitions"][0];
        assert_eq!(
            (&partition["metadata"], &partition["settled_above"]),
            (&json!(name), &json!(0))
        );
        assert_eq!(
            (&partition["backlog"], &partition["oldest_unsettled"]["offset"]),
            (&json!(2), &json!(1))
        );
        let text = seriatim(&["group", "describe", &group]).fine();
        assert!(text.contains(words) && text.contains("It will be ignored"), "{text}");
    }
    let text = seek(&group, &["--to", "end"]);
    assert!(text.contains("metadata: damaged"), "{text}");
    let partition = &described(&group, &[])["partitions"][0];
    assert_eq!(
        (&partition["watermark"], &partition["metadata"]),
        (&json!(3), &json!("none"))
    );
    assert_eq!(partition["oldest_unsettled"], Value::Null);
}

#[test]
fn a_watermark_outside_the_log_is_told_with_what_the_next_start_will_do() {
    let (topic, group) = (topic("outside", 1), unique("group"));
    produce(&topic, "a:0\na:1\na:2\na:3\n");
    let notes = || {
        described(&group, &[])["partitions"][0]["notes"][0]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let stands_still = || {
        let running = Running::start(&["run", "-t", &topic, "-g", &group]);
        until("it is told", || running.said().contains("is not in the log"));
        running.signal("TERM");
        running.finish().fine();
    };

    commit(&topic, &group, 500, "");
    assert!(notes().contains("500 lies beyond the log's end 4"), "{}", notes());
    stands_still();
    commit(&topic, &group, 1, "");
    assert_eq!(notes(), "");
    let request = file("delete-records");
    let partitions = json!({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 3}]});
    std::fs::write(&request, partitions.to_string()).unwrap();
    let class = "org.apache.kafka.tools.DeleteRecordsCommand";
    shared()
        .tool(class, &["--offset-json-file", request.to_str().unwrap()])
        .unwrap();
    let report = described(&group, &[]);
    assert_eq!(report["partitions"][0]["backlog"], 1, "what is gone is no backlog");
    assert!(notes().contains("1 lies below the log's begin 3"), "{}", notes());
    stands_still();

    // The note says how to go on.
    let notes = notes();
    let command = notes
        .split('`')
        .find(|part| part.starts_with("seriatim "))
        .expect("a command");
    let args: Vec<&str> = command.split(' ').skip(1).chain(["--yes"]).collect();
    seriatim(&args).fine();
    assert_eq!(values(&topic, &group, "1"), ["3"]);
}

#[test]
fn the_session_of_the_oldest_record_is_found_where_it_is_said_to_be() {
    let (topic, group) = (topic("session", 1), unique("group"));
    let line = r#"{"key":null,"value":"{\"account\":17}","headers":[["session","x y"]]}"#;
    seriatim_with(
        line.as_bytes(),
        &["produce", &topic, "-J", "--session-by", "header:session"],
    )
    .fine();
    commit(&topic, &group, 0, "");
    let oldest = |place: &str| described(&group, &["--session-by", place])["partitions"][0].clone();
    assert_eq!(oldest("header:session")["oldest_unsettled"]["session"], "x y");
    assert_eq!(oldest("json:/account")["oldest_unsettled"]["session"], "17");
    let partition = oldest("key");
    assert_eq!(partition["oldest_unsettled"]["session"], Value::Null);
    assert!(
        partition["notes"][0]
            .as_str()
            .unwrap()
            .contains("names no session: the record has no key"),
        "{partition}"
    );
}

#[test]
fn where_the_log_has_gaps_the_oldest_record_is_looked_for_behind_them() {
    let (topic, group) = (topic("gaps", 1), unique("group"));
    // Each transaction writes three records, and its end takes an offset: 0 1 2 - 4 5 6 -.
    for _ in 0..2 {
        let class = "org.apache.kafka.tools.ProducerPerformance";
        let amount = ["--num-records", "3", "--record-size", "1", "--throughput", "-1"];
        let transaction = ["--transactional-id", &topic, "--transaction-duration-ms", "60000"];
        shared()
            .tool(class, &[&["--topic", &topic], &amount[..], &transaction].concat())
            .unwrap();
    }
    let partition = || described(&group, &[])["partitions"][0].clone();
    commit(&topic, &group, 7, "");
    assert_eq!(
        (&partition()["end"], &partition()["oldest_unsettled"]),
        (&json!(8), &Value::Null)
    );
    assert_eq!(partition()["notes"], json!([]));
    let settled = ack_map::encode(Offset::new(3), [(Offset::new(4), Offset::new(4))], 4096);
    commit(&topic, &group, 3, &settled.text);
    assert_eq!(partition()["oldest_unsettled"]["offset"], 5);
}

#[test]
fn without_a_terminal_nothing_is_moved_unless_it_is_said() {
    let (topic, group) = (topic("unasked", 1), unique("group"));
    produce(&topic, "a:1\n");
    commit(&topic, &group, 1, "");
    for more in [&[][..], &["--format", "json"]] {
        let done = seriatim_with(b"y\n", &[&["group", "seek", &group, "--to", "start"], more].concat());
        assert_eq!(done.code, 2, "{}", done.err);
        assert!(
            done.err.contains("`--yes`") && done.err.contains("`--dry-run`"),
            "{}",
            done.err
        );
    }
    assert_eq!(
        seriatim(&["group", "seek", &group, "--to", "start", "--dry-run"]).code,
        0
    );
    assert_eq!(described(&group, &[])["partitions"][0]["watermark"], 1);
}

#[test]
fn a_cluster_without_groups_says_so() {
    let broker = Broker::start().unwrap();
    let on_it = |args: &[&str]| seriatim_alone(&[&["group"], args, &["-b", broker.bootstrap()]].concat());
    let done = on_it(&["ls"]);
    assert_eq!((done.code, done.out.as_str()), (4, ""), "{}", done.err);
    assert!(done.err.contains("the cluster has no consumer group"), "{}", done.err);
    let done = on_it(&["ls", "--format", "json"]);
    assert_eq!(done.code, 4, "{}", done.err);
    assert_eq!(serde_json::from_str::<Value>(&done.out).unwrap()["groups"], json!([]));
    // The first to ask for a group's coordinator, which the cluster then has to make ready.
    for args in [
        &["describe", "nobody"][..],
        &["seek", "nobody", "--to", "start", "--yes"],
    ] {
        let done = on_it(args);
        assert_eq!(done.code, 4, "{}", done.err);
        assert!(
            done.err.contains("group nobody does not exist; `seriatim group ls`"),
            "{}",
            done.err
        );
    }
}

#[test]
fn what_is_wrong_with_the_command_line_or_the_way_to_the_brokers_is_told() {
    let code_of = |args: &[&str], part: &str| {
        let done = seriatim_alone(&[&["group"], args, &["-b", "127.0.0.1:1"]].concat());
        assert!(done.err.contains(part), "{}", done.err);
        done.code
    };
    assert_eq!(code_of(&["ls"], "Connection refused"), 69);
    assert_eq!(code_of(&["describe", "g"], "no broker can be reached"), 69);
    assert_eq!(
        code_of(&["seek", "g", "--to", "start", "--yes"], "no broker can be reached"),
        69
    );
    assert_eq!(code_of(&["seek", "g", "--to", "stored"], "@MILLIS"), 2);
    assert_eq!(code_of(&["seek", "g"], "--to"), 2);
    assert_eq!(
        code_of(&["seek", "g", "--to", "end", "-t", "chat:x"], "TOPIC:PARTITION"),
        2
    );
    assert_eq!(code_of(&["describe", ""], "value"), 2);
    assert_eq!(
        code_of(&["ls", "-X", "fetch.min.byte=1"], "did you mean `fetch.min.bytes`?"),
        78
    );
}
