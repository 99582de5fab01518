//! A child for `seriatim run --exec` that is slow, fails, and gives up, as a seed says.
//!
//! ```text
//! faulty-child SEED LATENCY_MAX_MS TRANSIENT_PERCENT PERMANENT_PER_MILLE
//! ```
//!
//! Each attempt is answered after a while of its own, many at a time: see `temper`.

mod temper;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufRead, Write};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use temper::{Fate, Temper};

/// Records that were read and are not looked at: a few pipes full.
const READ_MAX: usize = 1_000;

/// With nothing to answer, it waits for records this long at a time.
const IDLE_WAIT: Duration = Duration::from_secs(60);

fn main() -> io::Result<()> {
    let args: Result<Vec<u64>, _> = std::env::args().skip(1).map(|arg| arg.parse()).collect();
    let args = args.map_err(io::Error::other)?;
    let [seed, latency_max_ms, transient_percent, permanent_per_mille] = args[..] else {
        return Err(io::Error::other(
            "say SEED LATENCY_MAX_MS TRANSIENT_PERCENT PERMANENT_PER_MILLE",
        ));
    };
    let temper = Temper {
        seed,
        latency_max_ms,
        transient_percent,
        permanent_per_mille,
    };

    let (read, lines) = sync_channel(READ_MAX);
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if read.send(line).is_err() {
                return;
            }
        }
    });
    let mut due: BinaryHeap<Reverse<(Instant, String)>> = BinaryHeap::new();
    let mut ended = false;
    while !ended || !due.is_empty() {
        let next = due.peek().map(|Reverse((at, _))| *at);
        let wait = next.map_or(IDLE_WAIT, |at| at.saturating_duration_since(Instant::now()));
        match lines.recv_timeout(wait) {
            Ok(line) => {
                let (latency, answer) = treat(&temper, &serde_json::from_str(&line)?);
                due.push(Reverse((Instant::now() + latency, answer)));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                ended = true;
                thread::sleep(wait.min(Duration::from_millis(5)));
            }
        }
        answer(&mut due)?;
    }
    Ok(())
}

/// Answers what is due.
fn answer(due: &mut BinaryHeap<Reverse<(Instant, String)>>) -> io::Result<()> {
    let now = Instant::now();
    let mut stdout = io::stdout().lock();
    while due.peek().is_some_and(|Reverse((at, _))| *at <= now) {
        let Some(Reverse((_, answer))) = due.pop() else { break };
        writeln!(stdout, "{answer}")?;
    }
    stdout.flush()
}

fn treat(temper: &Temper, record: &Value) -> (Duration, String) {
    let id = &record["id"];
    let attempt = record["attempt"].as_u64().unwrap_or_default();
    let (latency, fate) = temper.treat(id.as_str().unwrap_or_default(), attempt as u32);
    let answer = match fate {
        Fate::Handled => json!({"id": id, "outcome": "ok"}),
        Fate::Transient => json!({"id": id, "outcome": "retry", "error": "not yet"}),
        Fate::Permanent => json!({"id": id, "outcome": "dead", "error": "never"}),
    };
    (latency, answer.to_string())
}
