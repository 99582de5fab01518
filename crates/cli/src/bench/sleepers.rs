//! Loops of tokio's sleep, one a session, without Kafka: what handlers that only wait can reach at most.

use std::time::Duration;

use super::contender::{Measured, Spec};
use super::meter::{Memory, Reading};
use super::stage::Work;

pub fn run(spec: &Spec) -> anyhow::Result<Measured> {
    let Work::Wait(time) = spec.work else {
        anyhow::bail!("loops of sleep need a time to sleep");
    };
    let loops = u64::from(spec.workload.sessions);
    let records = spec.workload.records / loops * loops;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let began = Reading::now();
    let sleepers: Vec<_> = (0..loops)
        .map(|_| runtime.spawn(sleep(records / loops, time)))
        .collect();
    runtime.block_on(async {
        for sleeper in sleepers {
            sleeper.await?;
        }
        anyhow::Ok(())
    })?;
    let (wall, cpu) = Reading::now().since(began);
    Ok(Measured {
        records,
        seconds: Some(wall.as_secs_f64()),
        rate: Some(records as f64 / wall.as_secs_f64()),
        cpu_micros_per_record: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / records as f64),
        peak_bytes: Memory::now().map(|memory| memory.peak),
        ..Measured::default()
    })
}

async fn sleep(times: u64, time: Duration) {
    for _ in 0..times {
        tokio::time::sleep(time).await;
    }
}
