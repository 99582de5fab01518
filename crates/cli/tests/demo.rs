//! `seriatim demo`: its proof passes, its numbers agree, and it fails when order is broken.

use std::process::{Command, Output};

use serde_json::Value;

fn demo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_seriatim"))
        .arg("demo")
        .args(args)
        .output()
        .expect("the command is built")
}

/// A small demonstration that ends with `code`, and what it reports.
fn report(args: &[&str], code: i32) -> Value {
    let small = [
        "--sessions",
        "40",
        "--records",
        "4000",
        "--partitions",
        "4",
        "--format",
        "json",
    ];
    let output = demo(&[&small, args].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout);
    assert_eq!(output.status.code(), Some(code), "{report:#?}\n{told}");
    report.expect("standard output is JSON and nothing else")
}

#[test]
fn order_is_proven_and_the_numbers_agree() {
    let report = report(&["--seed", "7"], 0);
    assert_eq!(report["passed"], true);
    assert_eq!(report["records"], 4000);
    assert_eq!(report["sessions"], 40);
    assert_eq!(report["seed"], 7);
    assert!(report["rebalances"].as_u64() >= Some(3), "{report:#}");
    assert!(report["partitions_handed_over"].as_u64() >= Some(6), "{report:#}");

    let seriatim = &report["seriatim"];
    assert_eq!(seriatim["settled"], 4000);
    assert_eq!(seriatim["sessions_hurt"], 0);
    for violation in ["overtaken", "overlapping", "repeated", "lost"] {
        assert_eq!(seriatim["violations"][violation], 0, "{violation}");
    }
    let [attempts, retries] = ["attempts", "retries"].map(|count| seriatim[count].as_u64().unwrap());
    assert_eq!(attempts - retries, 4000);
    assert!(
        (200..900).contains(&retries),
        "a tenth of the attempts fails: {retries}"
    );

    let plain = &report["plain_pool"];
    assert_eq!(plain["passed"], false, "the plain pool shows the disease");
    assert_eq!(plain["settled"], 4000);
    assert!(plain["sessions_hurt"].as_u64() > Some(0));
    assert!(plain["example"].as_str().unwrap().starts_with("session s-"));
}

#[test]
fn the_proof_fails_when_a_plain_pool_takes_seriatims_place() {
    let report = report(&["--sabotage", "reorder"], 100);
    assert_eq!(report["passed"], false);
    assert!(report["seriatim"]["sessions_hurt"].as_u64() > Some(0));
    assert!(report["seriatim"]["example"].is_string());
}

#[test]
fn a_wrong_option_is_explained() {
    for (args, hint) in [
        (["--faults", "2"], "from 0 to 0.9"),
        (["--sessions", "0"], "1..="),
        (["--partitions", "1"], "2..="),
    ] {
        let output = demo(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains(hint), "{told}");
    }
}
