//! `seriatim bench` on a real broker: what it reports must be of all records, in order. How fast it was is not judged.

use std::process::Command;

use serde_json::Value;
use seriatim_testkit::broker;

/// Runs `seriatim bench` on the shared broker, and returns what it reports.
fn bench(args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_seriatim"))
        .args(["bench", "--format", "json", "-b", broker::shared().bootstrap()])
        .args(args)
        .output()
        .expect("the binary is there");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn positive(figure: &Value) -> bool {
    figure.as_f64().is_some_and(|figure| figure > 0.0)
}

#[test]
fn every_contender_of_a_row_handles_all_records_in_order() {
    let table = bench(&["--table", "--runs", "1", "--records", "100000", "--only", "noop-1k"]);
    let rows = table["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 1);
    let contenders = rows[0]["contenders"].as_array().expect("contenders");
    let names: Vec<_> = contenders.iter().map(|contender| &contender["contender"]).collect();
    assert_eq!(names, ["ours", "bare", "stream", "tasks"]);
    for contender in contenders {
        let run = &contender["runs"][0];
        assert_eq!(run["records"], 100_000, "{contender}");
        assert_eq!(run["violations"], 0, "{contender}");
        for figure in ["rate", "cpu_micros_per_record", "peak_bytes"] {
            assert!(positive(&run[figure]), "{figure}: {contender}");
        }
        assert!(positive(&contender["of_bare"]), "{contender}");
    }
    let bars = rows[0]["bars"].as_array().expect("bars");
    assert!(bars.iter().all(|bar| bar["met"].is_boolean()), "{bars:?}");
}

#[test]
fn a_topic_of_the_users_is_read_to_its_end_or_to_a_count_with_every_start_judged() {
    // One row fills a topic.
    bench(&[
        "--table",
        "--runs",
        "1",
        "--records",
        "5000",
        "--only",
        "noop-10",
        "--contenders",
        "ours",
    ]);
    let topic = "seriatim-bench-5000-of-10";

    let faulty = bench(&[
        "-t",
        topic,
        "--work",
        "1ms",
        "--faults",
        "10%",
        "--in-flight",
        "100",
        "--check",
    ]);
    assert_eq!(faulty["records"], 5_000);
    let retries = faulty["retries"].as_u64().expect("a number");
    assert!((100..1_000).contains(&retries), "about 555: {retries}");
    assert_eq!(faulty["checked"], 5_000 + retries, "each attempt's start is judged");
    assert_eq!(faulty["violations"], 0);
    assert!(faulty["handle"]["p99_micros"].as_f64() >= faulty["handle"]["p50_micros"].as_f64());
    assert!(
        faulty["handle"]["p50_micros"].as_f64() >= Some(1_000.0),
        "a handler waits for 1 ms: {faulty}"
    );

    let counted = bench(&["-t", topic, "-n", "1000", "--check"]);
    assert!(
        (1_000..=5_000).contains(&counted["records"].as_u64().expect("a number")),
        "{counted}"
    );
    for figure in ["rate", "cpu_micros_per_record", "peak_mib"] {
        assert!(positive(&counted[figure]), "{figure}: {counted}");
    }
}

#[test]
fn an_unknown_topic_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_seriatim"))
        .args(["bench", "-b", broker::shared().bootstrap(), "-t", "no-such-topic"])
        .output()
        .expect("the binary is there");
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("topic no-such-topic does not exist"));
}

#[test]
fn a_handover_and_a_crash_are_measured_on_processes_that_keep_their_promises() {
    let arguments = [
        "bench",
        "ownership",
        "--format",
        "json",
        "-b",
        broker::shared().bootstrap(),
    ];
    let output = Command::new(env!("CARGO_BIN_EXE_seriatim"))
        .args(arguments)
        .args(["--records", "150000", "--lanes", "20", "--sessions", "500"])
        .output()
        .expect("the binary is there");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!(figures["passed"], true, "{said}");

    let handover = &figures["handover"];
    for figure in [
        "handlers",
        "drain_millis",
        "group_millis",
        "whole_millis",
        "retained_rate",
    ] {
        assert!(positive(&handover[figure]), "{figure}: {handover}");
    }
    let crash = &figures["crash"];
    let count = |figure: &str| crash[figure].as_u64().unwrap_or_else(|| panic!("{figure}: {crash}"));
    assert!(count("settled") > 10_000, "{crash}");
    assert!(count("repeats") <= count("uncommitted") + count("in_flight"), "{crash}");
}
