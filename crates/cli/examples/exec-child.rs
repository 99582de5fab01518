//! A child for `seriatim run --exec` that does what the tests ask of it.
//!
//! ```text
//! exec-child JOURNAL [--reverse N]
//! ```
//!
//! Each record's value says how it is treated:
//!
//! | Value begins with | Treatment |
//! |---|---|
//! | `retry` | the first two attempts are answered with `retry` |
//! | `dead` | answered with `dead` |
//! | `die` | at the first attempt the child exits without an answer |
//! | `kill` | `seriatim` itself is killed |
//! | `slow` | the first attempt is answered after 1.5 s |
//! | `deaf` | never answered |
//! | `bad` | the first attempt is answered with an outcome that does not exist |
//! | `noise` | answered, after a line that is no answer |
//! | anything else | answered with `ok` |
//!
//! The journal has a line for the beginning and one for the end of each attempt: `begin SESSION OFFSET ATTEMPT`. With
//! `--reverse` answers are held until there are N of them, and then given in reverse order.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

const SLOW: Duration = Duration::from_millis(1500);

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let journal = OpenOptions::new().create(true).append(true).open(&args[0])?;
    let hold = match args.get(1).map(String::as_str) {
        Some("--reverse") => args[2].parse().map_err(io::Error::other)?,
        _ => 1,
    };
    let child = Arc::new(Child {
        journal,
        hold,
        held: Mutex::new(Vec::new()),
    });
    let mut slow = Vec::new();
    for line in io::stdin().lock().lines() {
        let record: Value = serde_json::from_str(&line?)?;
        child.note("begin", &record)?;
        let attempt = record["attempt"].as_u64();
        let value = record["value"].as_str().unwrap_or_default().to_owned();
        let id = &record["id"];
        match value.split('-').next() {
            Some("retry") if attempt < Some(3) => {
                child.answer(
                    &record,
                    &json!({"id": id, "outcome": "retry", "after_ms": 20, "error": "not yet"}),
                )?;
            }
            Some("dead") => child.answer(
                &record,
                &json!({"id": id, "outcome": "dead", "error": "no such account"}),
            )?,
            Some("die") if attempt == Some(1) => std::process::abort(),
            Some("kill") => {
                let parent = std::os::unix::process::parent_id().to_string();
                Command::new("sh").args(["-c", "kill -KILL $0", &parent]).status()?;
            }
            Some("deaf") => {}
            Some("slow") if attempt == Some(1) => {
                let child = Arc::clone(&child);
                slow.push(thread::spawn(move || {
                    thread::sleep(SLOW);
                    child.answer(&record, &json!({"id": record["id"], "outcome": "ok"}))
                }));
            }
            Some("bad") if attempt == Some(1) => child.answer(&record, &json!({"id": id, "outcome": "maybe"}))?,
            Some("noise") => {
                println!("a line that is no answer");
                child.answer(&record, &json!({"id": id, "outcome": "ok"}))?;
            }
            _ => child.answer(&record, &json!({"id": id, "outcome": "ok"}))?,
        }
    }
    for answering in slow {
        answering.join().map_err(|_| io::Error::other("a thread panicked"))??;
    }
    child.flush()
}

struct Child {
    journal: File,
    hold: usize,
    held: Mutex<Vec<String>>,
}

impl Child {
    fn note(&self, what: &str, record: &Value) -> io::Result<()> {
        let session = record["session"].as_str().unwrap_or("(null)");
        // One write, so that the lines of several children do not mix.
        let line = format!("{what} {session} {} {}\n", record["offset"], record["attempt"]);
        (&self.journal).write_all(line.as_bytes())
    }

    fn answer(&self, record: &Value, answer: &Value) -> io::Result<()> {
        self.note("end", record)?;
        let mut held = self.held.lock().expect("no thread panics with it");
        held.push(answer.to_string());
        if held.len() < self.hold {
            return Ok(());
        }
        give(&mut held)
    }

    fn flush(&self) -> io::Result<()> {
        give(&mut self.held.lock().expect("no thread panics with it"))
    }
}

fn give(held: &mut Vec<String>) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    for answer in held.drain(..).rev() {
        writeln!(stdout, "{answer}")?;
    }
    stdout.flush()
}
