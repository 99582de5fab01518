//! What a lane weighs: the memory that a process holds with something waiting in each of its sessions, beside what it
//! holds when all is settled, and beside the records themselves.

use std::future;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use seriatim::engine::record::Offset;
use seriatim::prelude::*;
use seriatim::runtime::message::{OwnedMessage, Timestamp};

use super::contender::{Contender, Measured, PATIENCE, Spec};
use super::meter::Memory;
use super::ours::{self, Watch, builder, runtime, until_committed};
use super::stage::Stage;

/// How long memory is given before it is weighed: the allocator returns pages late.
const SETTLING: Duration = Duration::from_secs(2);

/// Longer than anything is weighed for.
const FAR_AWAY: Duration = Duration::from_secs(3_600);

/// What is resident when all records are settled.
pub fn settled(spec: &Spec) -> anyhow::Result<Measured> {
    let stage: &'static Stage = Box::leak(Box::new(Stage::new(spec.workload.sessions, spec.work)));
    let (watch, committed) = Watch::new(&spec.ends, stage);
    runtime()?.block_on(async {
        let handle = builder(spec)?
            .limits(UNLIMITED)
            .observer(watch)
            .start(ours::passing(stage))
            .await?;
        until_committed(&handle, committed).await?;
        weighed(spec)
    })
}

/// What is resident when something waits in each session: a handler, or a record whose next attempt is far away.
pub fn waiting(spec: &Spec) -> anyhow::Result<Measured> {
    let handlers_wait = spec.contender == Contender::HandlersWaiting;
    // Beyond the number of sessions, as sessions fall to workers unevenly.
    let in_flight = 2 * spec.workload.sessions as usize;
    let sessions = u64::from(spec.workload.sessions);
    runtime()?.block_on(async {
        let wait = move |record: Record, cx: Context| async move {
            if handlers_wait {
                future::pending::<()>().await;
            }
            drop((record, cx));
            Err(Failure::transient("it is to wait").retry_after(FAR_AWAY))
        };
        let retry = Retry {
            elapsed_max: None,
            ..spec.work.retry()
        };
        let consumer = builder(spec)?.retry(retry).limits(UNLIMITED);
        let consumer = consumer.attempt_timeout(None).stuck_after(None);
        let handle = consumer.in_flight(in_flight).start(wait).await?;
        let began = Instant::now();
        while handle.stats().sessions < sessions {
            ensure!(began.elapsed() < PATIENCE, "{:?}", handle.stats());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        weighed(spec)
    })
}

/// Memory is what is weighed here, so it is not to be the limit.
const UNLIMITED: Limits = Limits {
    unsettled_bytes_max: usize::MAX,
    unsettled_records_max: usize::MAX,
    partition_bytes_max: usize::MAX,
    partition_records_max: usize::MAX,
};

/// What a list of the topic's records adds: each copied out of the client's memory, as one that waits is.
pub fn records(spec: &Spec) -> anyhow::Result<Measured> {
    let mut records = Vec::with_capacity(spec.workload.records as usize);
    let before = Memory::now().context("no figures of memory here")?;
    for (offset, stamp) in spec.workload.stamps().enumerate() {
        let (key, value) = (stamp.key(), stamp.value());
        let offset = Offset::new(offset as i64);
        let message = OwnedMessage::build(
            &spec.topic,
            0,
            offset,
            Timestamp::None,
            Some(&key),
            Some(&value),
            std::iter::empty(),
        );
        records.push(Record::from(message));
    }
    let measured = weighed(spec)?;
    // The list itself is no part of a record.
    let list = size_of_val(records.as_slice()) as u64;
    let added = |after: u64| after.saturating_sub(before.resident + list);
    Ok(Measured {
        resident_bytes: measured.resident_bytes.map(added),
        ..measured
    })
}

fn weighed(spec: &Spec) -> anyhow::Result<Measured> {
    thread::sleep(SETTLING);
    let memory = Memory::now().context("no figures of memory here")?;
    Ok(Measured {
        records: spec.workload.records,
        peak_bytes: Some(memory.peak),
        resident_bytes: Some(memory.resident),
        ..Measured::default()
    })
}
