//! A member of a group as the suite drives it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use seriatim_engine::assignment::{AssignmentEpoch, Assignments};
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::message::Message;
use seriatim_runtime::ports::{Commit, CommitError, CommitMode, Granted, Records, Source, SourceEvent, Start};

use super::Harness;

/// A member that is polled, with what it was given.
pub(super) struct Client<S: Source> {
    pub(super) source: S,
    pub(super) epochs: Assignments<PartitionId>,
    pub(super) granted: BTreeMap<PartitionId, Granted>,
    pub(super) owned: BTreeMap<PartitionId, AssignmentEpoch>,
    pub(super) revoked: Vec<AssignmentEpoch>,
    pub(super) received: BTreeMap<PartitionId, Vec<(Offset, Vec<u8>)>>,
    pub(super) committed: Vec<Result<Vec<Commit>, CommitError>>,
    pub(super) ends: BTreeMap<PartitionId, Offset>,
    /// From how many partitions to how many its topic has grown, and whether the new ones wait.
    pub(super) grown: Vec<(i32, i32, bool)>,
    pub(super) patience: Duration,
}

pub(super) const TICK: Duration = Duration::from_millis(20);

impl<S: Source> Client<S> {
    pub(super) fn join<H: Harness<Source = S>>(harness: &H, group: &str, topic: &str) -> Self {
        Self::new(harness.member(group, topic).0, harness.patience())
    }

    pub(super) fn new(source: S, patience: Duration) -> Self {
        Self {
            source,
            epochs: Assignments::default(),
            granted: BTreeMap::new(),
            owned: BTreeMap::new(),
            revoked: Vec::new(),
            received: BTreeMap::new(),
            committed: Vec::new(),
            ends: BTreeMap::new(),
            grown: Vec::new(),
            patience,
        }
    }

    /// Polls once; starts what is granted.
    pub(super) fn poll(&mut self, wait: Duration, room: bool) {
        let mut records = Records::default();
        let event = self
            .source
            .poll(wait, room.then_some(&mut records))
            .expect("the source can deliver");
        match event {
            Some(SourceEvent::Records) => self.receive(&records),
            Some(SourceEvent::Assigned(granted)) => self.start(granted),
            Some(SourceEvent::Revoked(epochs)) => self.revoked.extend(epochs),
            Some(SourceEvent::Lost(epochs)) => panic!("{epochs:?} were lost, and nobody took them"),
            Some(SourceEvent::Committed(answer)) => self.committed.push(answer),
            Some(SourceEvent::Ends(ends)) => {
                let known = ends
                    .into_iter()
                    .filter_map(|(epoch, end)| Some((self.epochs.get(epoch)?.clone(), end)));
                self.ends.extend(known);
            }
            Some(SourceEvent::Skipped(epoch, to)) => {
                panic!("{epoch:?} goes on at {to}, and nothing is gone from its log")
            }
            Some(SourceEvent::Grown {
                before, after, held, ..
            }) => self.grown.push((before, after, held)),
            Some(SourceEvent::Trouble(_)) | None => {}
        }
    }

    fn receive(&mut self, records: &Records<S::Message>) {
        assert_eq!(
            records.runs.iter().map(|run| run.len).sum::<usize>(),
            records.messages.len(),
            "the runs cover the messages"
        );
        let mut messages = records.messages.iter();
        for run in &records.runs {
            let partition = self
                .epochs
                .get(run.epoch)
                .expect("records come under a started epoch")
                .clone();
            for message in messages.by_ref().take(run.len) {
                assert_eq!(
                    message.partition(),
                    (partition.topic(), partition.number()),
                    "a run is of one partition"
                );
                let value = message.value().unwrap_or_default().to_vec();
                self.received
                    .entry(partition.clone())
                    .or_default()
                    .push((message.offset(), value));
            }
        }
    }

    pub(super) fn start(&mut self, granted: Vec<Granted>) {
        let starts: Vec<Start> = granted
            .into_iter()
            .map(|granted| {
                let (partition, from) = (granted.partition.clone(), granted.first_wanted());
                let epoch = self.epochs.open(partition.clone());
                self.owned.insert(partition.clone(), epoch);
                self.granted.insert(partition.clone(), granted);
                Start { partition, epoch, from }
            })
            .collect();
        self.source.start(&starts);
    }

    pub(super) fn relinquish(&mut self) -> Vec<PartitionId> {
        let epochs = std::mem::take(&mut self.revoked);
        self.source.relinquish(&epochs);
        let partitions: Vec<PartitionId> = epochs.iter().filter_map(|epoch| self.epochs.close(*epoch)).collect();
        self.owned.retain(|partition, _| !partitions.contains(partition));
        partitions
    }

    pub(super) fn commit(
        &mut self,
        partition: &PartitionId,
        watermark: i64,
        metadata: &str,
        mode: CommitMode,
    ) -> Result<(), CommitError> {
        let commit = Commit {
            epoch: self.owned[partition],
            watermark: Offset::new(watermark),
            metadata: metadata.to_owned(),
        };
        self.source.commit(&[commit], mode)
    }

    pub(super) fn leave(mut self) {
        self.revoked = self.owned.values().copied().collect();
        self.relinquish();
        self.source.close();
    }

    /// Polls for a while in which nothing should happen.
    pub(super) fn listen(&mut self, silence: Duration) {
        let until = Instant::now() + silence;
        while Instant::now() < until {
            self.poll(TICK, true);
        }
    }

    #[track_caller]
    pub(super) fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + self.patience;
        while !done(self) {
            assert!(
                Instant::now() < deadline,
                "in {:?} it has not come to this: {what}",
                self.patience
            );
            self.poll(TICK, true);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.received.values().map(Vec::len).sum()
    }

    pub(super) fn offsets(&self, partition: &PartitionId) -> Vec<i64> {
        let received = self.received.get(partition).into_iter().flatten();
        received.map(|(offset, _)| offset.get()).collect()
    }
}

/// Polls two members in turn.
#[track_caller]
pub(super) fn both_until<S: Source>(
    (a, b): (&mut Client<S>, &mut Client<S>),
    what: &str,
    done: impl Fn(&Client<S>, &Client<S>) -> bool,
) {
    let deadline = Instant::now() + a.patience;
    while !done(a, b) {
        assert!(
            Instant::now() < deadline,
            "in {:?} it has not come to this: {what}",
            a.patience
        );
        a.poll(TICK, true);
        b.poll(TICK, true);
    }
}
