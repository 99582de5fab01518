//! A program may end while its clients are still at work in other threads.

use std::env;
use std::process::{Command, exit};
use std::thread;
use std::time::Duration;

use seriatim_kafka::config::Properties;
use seriatim_kafka::reader::LogReader;

/// Set for the processes that this test starts.
const IS_PROGRAM: &str = "SERIATIM_TEST_PROGRAM_THAT_ENDS";

const PROGRAMS: u64 = 20;

#[test]
fn a_program_may_end_while_clients_that_use_tls_are_made() {
    if let Ok(lives) = env::var(IS_PROGRAM) {
        make_clients_and_end(Duration::from_millis(lives.parse().expect("a number")));
    }
    let program = env::current_exe().expect("this test");
    for number in 0..PROGRAMS {
        let ended = Command::new(&program)
            .args(["--exact", "a_program_may_end_while_clients_that_use_tls_are_made"])
            .env(IS_PROGRAM, (20 + number).to_string())
            .output()
            .expect("it starts");
        assert!(ended.status.success(), "program {number} of {PROGRAMS}: {ended:?}");
    }
}

#[expect(clippy::disallowed_methods, reason = "it is the end of a program that is looked at")]
fn make_clients_and_end(lives: Duration) -> ! {
    for _ in 0..4 {
        thread::spawn(|| {
            let tls: Properties = "security.protocol=ssl".parse().expect("properties");
            loop {
                LogReader::connect("127.0.0.1:1", None, &tls).expect("a client");
            }
        });
    }
    thread::sleep(lives);
    // As at the end of `main`.
    exit(0)
}
