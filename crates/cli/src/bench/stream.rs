//! rdkafka's `StreamConsumer`, tuned, checked for order.

use std::ops::ControlFlow;

use seriatim::kafka::anchor;
use tokio::time::timeout;

use super::contender::{PATIENCE, Spec, properties};
use super::meter::Reading;
use super::ours::runtime;
use super::stage::Stage;

pub fn run(spec: &Spec, stage: &'static Stage) -> anyhow::Result<Reading> {
    let properties = properties(&spec.properties)?;
    let mut left = spec.workload.records;
    let each = |value: &[u8]| {
        stage.pass(value);
        left -= 1;
        if left == 0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    runtime()?.block_on(async {
        let read = anchor::stream(&spec.brokers, &spec.group, &spec.topic, &properties, each);
        timeout(10 * PATIENCE, read).await??;
        Ok(Reading::now())
    })
}
