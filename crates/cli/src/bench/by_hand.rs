//! Reading a source by hand: batch after batch on one thread, without the runtime.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use seriatim::engine::assignment::Assignments;
use seriatim::engine::record::Offset;
use seriatim::kafka::source::{KafkaSource, SourceSettings};
use seriatim::runtime::ports::{Commit, CommitMode, Granted, Records, Source, SourceEvent, Start};

use super::contender::{PATIENCE, READY, Spec, properties};

/// As long as a dispatcher waits.
const COMMIT_WAIT_MAX: Duration = Duration::from_secs(5);

/// The source that Seriatim itself reads, with the same settings.
pub fn source(spec: &Spec) -> anyhow::Result<KafkaSource> {
    let (source, _waker) = KafkaSource::connect(SourceSettings {
        brokers: spec.brokers.clone(),
        group: spec.group.clone(),
        topics: vec![spec.topic.clone()],
        start_at: Default::default(),
        out_of_range: Default::default(),
        growth: Default::default(),
        properties: properties(&spec.properties)?,
    })?;
    Ok(source)
}

/// Reads a topic to its end.
pub struct Reader<S> {
    source: S,
    /// By period of ownership: the next offset to read.
    owned: Assignments<Option<Offset>>,
    unassigned: usize,
}

impl<S: Source> Reader<S> {
    pub fn new(source: S, partitions: usize) -> Self {
        Self {
            source,
            owned: Assignments::default(),
            unassigned: partitions,
        }
    }

    /// Hands `count` messages to `each`.
    pub fn read(&mut self, count: u64, mut each: impl FnMut(S::Message)) -> anyhow::Result<()> {
        let mut records = Records::default();
        let (mut left, mut heard) = (count, Instant::now());
        while left > 0 {
            match self.source.poll(PATIENCE / 10, Some(&mut records))? {
                Some(SourceEvent::Records) => {
                    heard = Instant::now();
                    left = left.saturating_sub(records.messages.len() as u64);
                    self.hand_out(&mut records, &mut each);
                }
                Some(SourceEvent::Assigned(granted)) => self.begin(granted),
                Some(SourceEvent::Trouble(trouble)) => eprintln!("{trouble}"),
                Some(SourceEvent::Revoked(_) | SourceEvent::Lost(_)) => bail!("partitions were taken away"),
                Some(
                    SourceEvent::Committed(_)
                    | SourceEvent::Skipped(..)
                    | SourceEvent::Ends(_)
                    | SourceEvent::Grown { .. },
                )
                | None => {}
            }
            ensure!(
                heard.elapsed() < PATIENCE,
                "no record for {PATIENCE:?}; {left} are missing"
            );
        }
        Ok(())
    }

    #[inline]
    fn hand_out(&mut self, records: &mut Records<S::Message>, each: &mut impl FnMut(S::Message)) {
        use seriatim::runtime::message::Message;
        let mut messages = records.messages.drain(..);
        for run in records.runs.drain(..) {
            for message in messages.by_ref().take(run.len) {
                if let Some(next) = self.owned.get_mut(run.epoch) {
                    *next = Some(message.offset().next());
                }
                each(message);
            }
        }
    }

    fn begin(&mut self, granted: Vec<Granted>) {
        let begin = |granted: Granted| Start {
            epoch: self.owned.open(granted.committed),
            from: granted.first_wanted(),
            partition: granted.partition,
        };
        let starts: Vec<Start> = granted.into_iter().map(begin).collect();
        self.source.start(&starts);
        self.unassigned = self.unassigned.saturating_sub(starts.len());
        if self.unassigned == 0 {
            println!("{READY}");
        }
    }

    /// Commits what was read, and waits for the answer.
    pub fn commit(&mut self) -> anyhow::Result<()> {
        let commit = |(epoch, next): (_, &Option<Offset>)| {
            next.map(|watermark| Commit {
                epoch,
                watermark,
                metadata: String::new(),
            })
        };
        let commits: Vec<Commit> = self.owned.iter().filter_map(commit).collect();
        Ok(self.source.commit(&commits, CommitMode::Wait(COMMIT_WAIT_MAX))?)
    }

    /// Leaves the group.
    pub fn close(mut self) {
        let epochs: Vec<_> = self.owned.iter().map(|(epoch, _)| epoch).collect();
        self.source.relinquish(&epochs);
        self.source.close();
    }
}
