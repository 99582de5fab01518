//! The smallest consumer: it prints who wrote what, each writer's texts in the order of the writing.
//!
//! `cargo run -p seriatim --example hello` needs no Kafka; `SERIATIM_BROKERS=localhost:9092` in front of it uses yours.

use std::time::Duration;

use seriatim::prelude::*;
use seriatim_testkit::log::Log;

async fn greet(record: Record, _cx: Context) -> Result<(), Failure> {
    println!(
        "{}: {}",
        String::from_utf8_lossy(record.key().unwrap_or(b"nobody")),
        record.text()?
    );
    Ok(())
}

#[tokio::main]
async fn main() -> seriatim::Result {
    let hello = Seriatim::group("hello").topic("greetings");
    if let Ok(brokers) = std::env::var("SERIATIM_BROKERS") {
        return hello.brokers(brokers).run(greet).await; // until Ctrl-C or SIGTERM
    }

    // The same consumer on a log in memory, as in a test.
    let log = Log::new();
    log.topic("greetings", 4);
    for (writer, text) in [("alice", "hello"), ("bob", "good morning"), ("alice", "and good bye")] {
        log.append("greetings", writer, text);
    }
    let running = hello.on(log.clone()).start(greet).await?;
    log.wait_until_committed("hello", "greetings", Duration::from_secs(10));
    running.shutdown().await
}
