//! Two consumers of one group that come and go while records flow, and who owned what meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use seriatim::LogEvents;
use seriatim::prelude::*;
use seriatim_kafka::embedded::EmbeddedBroker;
use seriatim_runtime::ports::{Event, Observer};
use tokio::sync::watch;
use tokio::time::timeout;

use super::progress::Progress;
use super::traffic::Traffic;
use super::work::Work;

/// When a failed attempt is made again, here and in the plain pool: soon, and until it succeeds, since nothing may be
/// lost.
pub(super) const RETRY: Retry = Retry {
    base: Duration::from_millis(10),
    cap: Duration::from_millis(100),
    attempts_max: u32::MAX,
    elapsed_max: None,
    jitter_seed: 0,
};

/// A rebalance takes a second or two. After this time something is wrong.
const REBALANCE_TIMEOUT: Duration = Duration::from_secs(30);

/// The consumer group: what its members share.
pub(super) struct Group<'a> {
    broker: &'a EmbeddedBroker,
    topic: &'static str,
    partitions: usize,
    work: Arc<Work>,
    owners: watch::Sender<Owners>,
}

/// Who owns which partition, and how often that changed.
#[derive(Default)]
struct Owners {
    /// By partition: its last owner, and whether it still is.
    partitions: BTreeMap<i32, (&'static str, bool)>,
    changes: Changes,
}

/// How ownership moved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Changes {
    /// Times that a member gave partitions up, each by draining them.
    pub(super) rebalances: u64,
    /// Partitions that went from one member to another.
    pub(super) handovers: u64,
    /// Partitions that a member lost without a drain.
    pub(super) lost: u64,
}

impl<'a> Group<'a> {
    pub(super) fn new(broker: &'a EmbeddedBroker, topic: &'static str, partitions: i32, work: Arc<Work>) -> Self {
        Self {
            broker,
            topic,
            partitions: partitions as usize,
            work,
            owners: watch::Sender::default(),
        }
    }

    /// The run: A alone; B joins; A leaves; A comes back. Each change happens under traffic, and the traffic of the next
    /// waits for it. Returns A and B when all of them have happened.
    pub(super) async fn come_and_go(&self, traffic: &Traffic, progress: &Progress) -> anyhow::Result<[Handle; 2]> {
        let a = self.join("A").await?;
        self.owns("A", self.partitions).await?;
        progress.news("consumer A owns all partitions; records flow");
        traffic.allow(60);

        self.change_at(10, traffic).await?;
        let b = self.join("B").await?;
        let partitions = self.owns("B", 1).await?;
        progress.news(&format!("consumer B joined, and took {partitions} partitions over"));
        self.rest(traffic, 80)?;

        self.change_at(50, traffic).await?;
        a.shutdown().await?;
        self.owns("B", self.partitions).await?;
        progress.news("consumer A left; B owns all");
        self.rest(traffic, 95)?;

        self.change_at(70, traffic).await?;
        let a = self.join("A").await?;
        let partitions = self.owns("A", 1).await?;
        progress.news(&format!("consumer A came back, and took {partitions} partitions over"));
        self.rest(traffic, 100)?;
        Ok([a, b])
    }

    /// The members leave one after the other, so that whatever was handled and not committed would be handled again.
    pub(super) async fn disband(&self, [a, b]: [Handle; 2]) -> anyhow::Result<()> {
        /// Longer than a fetch.
        const QUIET: Duration = Duration::from_millis(300);
        a.shutdown().await?;
        self.owns("B", self.partitions).await?;
        tokio::time::sleep(QUIET).await;
        Ok(b.shutdown().await?)
    }

    /// Waits until so many percent of the records have been sent. From then on the group rebalances.
    async fn change_at(&self, percent: u64, traffic: &Traffic) -> anyhow::Result<()> {
        /// Longer than a member's thread has to wait for a processor, on a machine that has other work as well.
        const ROUND_TRIP: Duration = Duration::from_millis(100);
        traffic.reaches(percent).await;
        traffic.set_calm(false);
        Ok(self.broker.set_round_trip(ROUND_TRIP)?)
    }

    /// The group is at rest again, and so many percent of the records may be sent.
    fn rest(&self, traffic: &Traffic, percent: u64) -> anyhow::Result<()> {
        self.broker.set_round_trip(Duration::ZERO)?;
        traffic.set_calm(true);
        traffic.allow(percent);
        Ok(())
    }

    pub(super) fn changes(&self) -> Changes {
        self.owners.borrow().changes
    }

    async fn join(&self, name: &'static str) -> anyhow::Result<Handle> {
        let cluster = Cluster::new(self.broker.bootstrap()).properties(EmbeddedBroker::properties());
        let work = Arc::clone(&self.work);
        let handler = move |record: Record, cx: Context| {
            let work = Arc::clone(&work);
            async move { work.attempt(record.payload(), cx.attempt()).await }
        };
        let consumer = Seriatim::group("demo")
            .on(cluster)
            .topic(self.topic)
            .retry(RETRY)
            .observer(Watch {
                name,
                owners: self.owners.clone(),
            })
            .start(handler)
            .await?;
        Ok(consumer)
    }

    /// Waits until `name` owns at least so many partitions, and every partition has an owner. Returns how many it owns.
    async fn owns(&self, name: &'static str, partitions: usize) -> anyhow::Result<usize> {
        let mut owners = self.owners.subscribe();
        let settled = |owners: &Owners| {
            let all = owners.partitions.values().filter(|(_, owns)| *owns).count();
            all == self.partitions && owners.owned_by(name) >= partitions
        };
        let owners = timeout(REBALANCE_TIMEOUT, owners.wait_for(settled)).await;
        let owners = owners.with_context(|| format!("consumer {name} did not get its partitions"))?;
        Ok(owners.expect("the sender is in self").owned_by(name))
    }
}

impl Owners {
    fn owned_by(&self, name: &str) -> usize {
        self.partitions.values().filter(|owner| **owner == (name, true)).count()
    }

    fn assign(&mut self, partition: i32, name: &'static str) {
        let before = self.partitions.insert(partition, (name, true));
        self.changes.handovers += u64::from(before.is_some_and(|(before, _)| before != name));
    }

    fn release(&mut self, partition: i32, name: &'static str) {
        self.partitions.insert(partition, (name, false));
    }
}

/// Sees what one member owns.
struct Watch {
    name: &'static str,
    owners: watch::Sender<Owners>,
}

impl Observer for Watch {
    fn observe(&self, event: Event<'_>) {
        self.owners.send_if_modified(|owners| {
            match event {
                Event::Assigned(partition, _) => owners.assign(partition.number(), self.name),
                Event::DrainBegan(_) => owners.changes.rebalances += 1,
                Event::Released(partition) => owners.release(partition.number(), self.name),
                Event::Lost(partition) => {
                    owners.changes.lost += 1;
                    owners.release(partition.number(), self.name);
                }
                _ => return false,
            }
            true
        });
        LogEvents.observe(event);
    }
}
