//! Runs a broker for scripts and for work by hand:
//!
//! ```text
//! cargo run -p seriatim-testkit --example broker -- [NODES [HEAP_MIB]]
//! ```
//!
//! It prints `SERIATIM_TEST_BROKERS=127.0.0.1:PORT` when the broker serves, and runs until its standard input ends
//! or it is interrupted.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use seriatim_testkit::broker::{BROKERS_VARIABLE, Broker, BrokerOptions};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("broker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut options = BrokerOptions::default();
    let mut args = std::env::args().skip(1);
    if let Some(nodes) = args.next() {
        options.nodes = nodes.parse()?;
    }
    if let Some(heap_mib) = args.next() {
        options.heap_mib = heap_mib.parse()?;
    }

    let broker = Broker::start_with(&options)?;
    println!("{BROKERS_VARIABLE}={}", broker.bootstrap());
    // An interrupt just ends this process: the broker's keepers see to the rest.
    io::copy(&mut io::stdin(), &mut io::sink())?;
    broker.stop();
    Ok(())
}
