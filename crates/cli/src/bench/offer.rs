//! Records offered at an even pace, each stamped with the time of its sending.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use seriatim::kafka::anchor::Loader;
use seriatim::kafka::config::Properties;

use super::stage::now_nanos;
use super::workload::{Stamp, Workload};

/// The pause between two lots. Shorter than what is measured, long enough to leave the processor to it.
const PAUSE: Duration = Duration::from_micros(200);

/// For what is on its way when all is sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);

/// The topic that warms up the producer of `topic`.
pub fn beside(topic: &str) -> String {
    format!("{topic}-beside")
}

/// Sends the workload's records to `topic`, so many a second, and returns how many it really were. One that is late is
/// sent at once; its delay in here is not counted.
pub fn offer(
    workload: &Workload,
    per_second: u32,
    brokers: &str,
    topic: &str,
    properties: &Properties,
) -> anyhow::Result<f64> {
    let loader = Loader::connect(brokers, topic, Duration::ZERO, properties)?;
    // What is measured is a stream in its course, not how long a producer takes to connect.
    loader.warm_up(&beside(topic), FLUSH_TIMEOUT)?;
    let began = Instant::now();
    let interval = Duration::from_secs(1) / per_second;
    for (index, stamp) in workload.stamps().enumerate() {
        let due = began + interval * index as u32;
        while Instant::now() < due {
            thread::sleep(PAUSE);
        }
        let stamp = Stamp {
            sent_nanos: now_nanos(),
            ..stamp
        };
        loader.send(&stamp.key(), &stamp.value())?;
    }
    let took = began.elapsed();
    let written = loader.finish(FLUSH_TIMEOUT)?;
    ensure!(
        written == workload.records,
        "{written} of {} records were written",
        workload.records
    );
    Ok(written as f64 / took.as_secs_f64())
}
