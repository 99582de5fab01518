//! People change their minds: "make it Paris" cuts "book London" short.
//!
//! A handler may ask whether a newer record of its session waits. Here a search ends early when one does: the session's
//! next command starts at once, and no booking is made that would have to be taken back. Other sessions notice nothing.
//!
//! `cargo run -p seriatim --example chat_corrections` needs no Kafka; `SERIATIM_BROKERS=localhost:9092` in front of it
//! uses yours, topic `chat`, until Ctrl-C.

use std::thread;
use std::time::Duration;

use seriatim::prelude::*;
use seriatim_testkit::log::Log;

async fn assist(record: Record, cx: Context) -> Result<(), Failure> {
    let person = String::from_utf8_lossy(record.key().unwrap_or(b"somebody"));
    let wish = record.text().map_err(Failure::permanent)?;
    tokio::select! {
        () = search() => {}
        () = cx.newer_record() => {
            println!("{person}: {wish}? Never mind.");
            return Ok(());
        }
    }
    // From here on nothing is cut short: a booking is made as a whole.
    println!("{person}: {wish}. Booked.");
    Ok(())
}

/// Looks for flights, which takes a while.
async fn search() {
    tokio::time::sleep(Duration::from_millis(400)).await;
}

#[tokio::main]
async fn main() -> seriatim::Result {
    let assistant = Seriatim::group("assistant").topic("chat");
    if let Ok(brokers) = std::env::var("SERIATIM_BROKERS") {
        return assistant.brokers(brokers).run(assist).await;
    }

    let log = Log::new();
    log.topic("chat", 1);
    let running = assistant.on(log.clone()).start(assist).await?;
    for (person, wish) in [
        ("alice", "book London"),
        ("bob", "book Oslo"),
        ("alice", "make it Paris"),
    ] {
        log.append("chat", person, wish);
        thread::sleep(Duration::from_millis(50));
    }
    log.wait_until_committed("assistant", "chat", Duration::from_secs(10));
    running.shutdown().await
}
