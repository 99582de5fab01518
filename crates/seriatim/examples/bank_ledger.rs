//! A ledger: every account's bookings in order, each exactly once, whatever is repeated, and what cannot be read set aside.
//!
//! Deposits come before the withdrawals that they cover, so an account that is overdrawn would show that order was lost.
//! The example's database loses some of its answers after it has booked: the booking is tried again, and must not count
//! twice.
//!
//! `cargo run -p seriatim --example bank_ledger` needs no Kafka; `SERIATIM_BROKERS=localhost:9092` in front of it uses
//! yours, topic `bookings`, until Ctrl-C.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim::prelude::*;
use seriatim_testkit::log::Log;

#[derive(serde::Deserialize)]
struct Booking {
    account: String,
    cents: i64,
}

#[derive(Clone, Default)]
struct Ledger {
    accounts: Arc<Mutex<BTreeMap<String, Account>>>,
}

#[derive(Clone, Copy, Default)]
struct Account {
    cents: i64,
    lowest: i64,
    /// The offset of the last booking that counts. An account lies in one partition, so all up to here are booked: this
    /// one number takes the place of a table of ids.
    booked_through: Option<i64>,
}

impl Handler for Ledger {
    async fn handle(&self, record: Record, cx: Context) -> Result<(), Failure> {
        let booking: Booking = record.json().map_err(Failure::permanent)?; // no attempt will ever read it
        self.book(&booking, record.offset());
        if record.offset() % 3 == 0 && cx.attempt() == 1 {
            return Err("the database booked, and its answer was lost".into()); // transient: tried again, in place
        }
        Ok(())
    }
}

impl Ledger {
    fn book(&self, booking: &Booking, offset: i64) {
        let mut accounts = self.accounts.lock().expect("no handler panics under the lock");
        let account = accounts.entry(booking.account.clone()).or_default();
        if account.booked_through < Some(offset) {
            account.cents += booking.cents;
            account.lowest = account.lowest.min(account.cents);
            account.booked_through = Some(offset);
        }
    }

    fn print(&self) {
        for (name, account) in &*self.accounts.lock().expect("no handler panics under the lock") {
            println!("{name:<6} {:>8.2}", account.cents as f64 / 100.0);
        }
    }

    fn total(&self) -> (i64, i64) {
        let accounts = self.accounts.lock().expect("no handler panics under the lock");
        let cents = accounts.values().map(|account| account.cents).sum();
        let lowest = accounts.values().map(|account| account.lowest).min();
        (cents, lowest.unwrap_or(0))
    }
}

#[tokio::main]
async fn main() -> seriatim::Result {
    let ledger = Ledger::default();
    let consumer = Seriatim::group("ledger")
        .topic("bookings")
        .session_by(SessionBy::json("/account"));
    if let Ok(brokers) = std::env::var("SERIATIM_BROKERS") {
        consumer.brokers(brokers).run(ledger.clone()).await?;
        ledger.print();
        return Ok(());
    }

    let log = Log::new();
    log.topic("bookings", 3);
    let total = write_bookings(&log);
    log.append("bookings", "a1", r#"{"account": "a1", "cents": "a lot"}"#);
    let soon = Retry {
        base: Duration::from_millis(5),
        ..Retry::default()
    };
    let running = consumer.retry(soon).on(log.clone()).start(ledger.clone()).await?;
    log.wait_until_committed("ledger", "bookings", Duration::from_secs(10));
    let stats = running.stats();
    running.shutdown().await?;

    ledger.print();
    println!("{} attempts were repeated; no booking was", stats.retries);
    println!(
        "{} booking could not be read: it is in bookings.dlq",
        log.records("bookings.dlq").len()
    );
    assert_eq!(
        ledger.total(),
        (total, 0),
        "all is booked once, and no account was ever overdrawn"
    );
    Ok(())
}

/// Writes the bookings of a few accounts, interleaved, and returns their sum.
fn write_bookings(log: &Log) -> i64 {
    let mut total = 0;
    for day in 1..=20 {
        for account in ["a1", "a2", "a3", "a4"] {
            for cents in [day * 1_000, -day * 990] {
                let booking = format!(r#"{{"account": "{account}", "cents": {cents}}}"#);
                log.append("bookings", account, booking);
                total += cents;
            }
        }
    }
    total
}
