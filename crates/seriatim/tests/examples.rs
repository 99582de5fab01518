//! The examples run, without a Kafka, and say what they promise.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Runs an example as `cargo test` has built it, and returns the lines that it printed.
fn run(name: &str) -> Vec<String> {
    let program = built(name);
    assert!(
        program.exists(),
        "{name} is not built: run `cargo build -p seriatim --examples`"
    );
    let output = Command::new(&program)
        .env_remove("SERIATIM_BROKERS")
        .output()
        .expect("the example is a program");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{errors}", output.status);
    let printed = String::from_utf8(output.stdout).expect("the examples print text");
    printed.lines().map(str::to_owned).collect()
}

/// Cargo puts a test at `target/<profile>/deps/` and an example at `target/<profile>/examples/`.
fn built(name: &str) -> PathBuf {
    let mut path = env::current_exe().expect("a test knows where it is");
    path.pop();
    path.set_file_name("examples");
    path.join(name).with_extension(env::consts::EXE_EXTENSION)
}

fn place(lines: &[String], line: &str) -> usize {
    let found = lines.iter().position(|printed| printed == line);
    found.unwrap_or_else(|| panic!("“{line}” is not in {lines:#?}"))
}

#[test]
fn hello_prints_each_writers_texts_in_order() {
    let lines = run("hello");
    assert_eq!(lines.len(), 3);
    assert!(place(&lines, "alice: hello") < place(&lines, "alice: and good bye"));
    place(&lines, "bob: good morning");
}

#[test]
fn bank_ledger_books_everything_once() {
    // It checks its own balance.
    let lines = run("bank_ledger");
    for account in ["a1", "a2", "a3", "a4"] {
        place(&lines, &format!("{account}        21.00"));
    }
    place(&lines, "1 booking could not be read: it is in bookings.dlq");
}

#[test]
fn chat_corrections_books_what_was_said_last() {
    let lines = run("chat_corrections");
    assert_eq!(lines.len(), 3);
    assert_eq!(place(&lines, "alice: book London? Never mind."), 0);
    place(&lines, "alice: make it Paris. Booked.");
    place(&lines, "bob: book Oslo. Booked.");
}
