//! What the published workloads read: topics whose records say of which session they are, and which record of it.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use seriatim::kafka::anchor::Loader;
use seriatim::kafka::config::Properties;
use seriatim::kafka::producer::partition_of;
use seriatim::kafka::reader::{LogReader, ReadError};
use seriatim_testkit::broker::Cluster;

/// Partitions of a topic, unless a row is about them.
pub const PARTITIONS: u32 = 8;

/// Bytes of each value.
pub const VALUE_BYTES: usize = 100;

/// A topic's worth of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    pub records: u64,
    pub sessions: u32,
    pub spread: Spread,
    /// Of the topic.
    pub partitions: u32,
}

/// Which session a record belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// One of all, at random with a fixed seed.
    Random,
    /// The next one, so that all have the same number of records.
    InTurn,
}

/// A record's place in its session, as it stands at the head of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// From 0.
    pub session: u32,
    /// The record's number in its session, from 0.
    pub sequence: u32,
    /// When it was sent, in nanoseconds since the Unix epoch; 0 where that does not matter.
    pub sent_nanos: u64,
}

impl Stamp {
    const BYTES: usize = 16;

    /// What stands at the head of `value`. A value that is none of ours belongs to no session there is.
    #[inline]
    pub fn read(value: &[u8]) -> Self {
        let Some(head) = value.first_chunk::<{ Stamp::BYTES }>() else {
            return Self {
                session: u32::MAX,
                sequence: 0,
                sent_nanos: 0,
            };
        };
        let word = |at: Range<usize>| u32::from_le_bytes(head[at].try_into().expect("four bytes"));
        Self {
            session: word(0..4),
            sequence: word(4..8),
            sent_nanos: u64::from_le_bytes(head[8..].try_into().expect("eight bytes")),
        }
    }

    /// The record's key.
    pub fn key(self) -> [u8; 10] {
        let mut key = *b"s000000000";
        let mut rest = self.session;
        for digit in key[1..].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        key
    }

    /// The record's value.
    pub fn value(self) -> [u8; VALUE_BYTES] {
        let mut value = [b'.'; VALUE_BYTES];
        value[0..4].copy_from_slice(&self.session.to_le_bytes());
        value[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        value[8..16].copy_from_slice(&self.sent_nanos.to_le_bytes());
        value
    }
}

impl Workload {
    /// The topic's name, which says what it holds: so a topic is loaded once, and read by many runs.
    pub fn topic(&self) -> String {
        let Self {
            records,
            sessions,
            spread,
            partitions,
        } = self;
        let spread = match spread {
            Spread::Random => "",
            Spread::InTurn => "-in-turn",
        };
        let partitions = match *partitions {
            PARTITIONS => String::new(),
            partitions => format!("-on-{partitions}"),
        };
        format!("seriatim-bench-{records}-of-{sessions}{spread}{partitions}")
    }

    /// All records, in the order in which they are written.
    pub fn stamps(&self) -> impl Iterator<Item = Stamp> {
        let Self {
            records,
            sessions,
            spread,
            ..
        } = *self;
        let mut sequences = vec![0; sessions as usize];
        (0..records).map(move |index| {
            let session = match spread {
                Spread::Random => (mix(index) % u64::from(sessions)) as u32,
                Spread::InTurn => (index % u64::from(sessions)) as u32,
            };
            let sequence = sequences[session as usize];
            sequences[session as usize] += 1;
            Stamp {
                session,
                sequence,
                sent_nanos: 0,
            }
        })
    }

    /// Where each partition ends when all records are written.
    pub fn ends(&self) -> Vec<i64> {
        let mut ends = vec![0; self.partitions as usize];
        for stamp in self.stamps() {
            ends[partition_of(&stamp.key(), self.partitions as i32) as usize] += 1;
        }
        ends
    }

    /// Makes the topic and fills it, unless an earlier run has; returns where each partition ends.
    pub fn load(&self, cluster: &Cluster, properties: &Properties) -> anyhow::Result<Vec<i64>> {
        let (topic, ends) = (self.topic(), self.ends());
        match LogReader::connect(cluster.bootstrap(), None, properties)?.extents(&topic) {
            Ok(found)
                if found
                    .iter()
                    .map(|extent| extent.offsets.clone())
                    .eq(ends.iter().map(|end| 0..*end)) =>
            {
                return Ok(ends);
            }
            Ok(_) => bail!("topic {topic} is there and holds something else; delete it"),
            Err(ReadError::UnknownTopic { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        cluster.create_topic(&topic, self.partitions, &[])?;
        let loader = Loader::connect(cluster.bootstrap(), &topic, LINGER, properties)?;
        for stamp in self.stamps() {
            loader.send(&stamp.key(), &stamp.value())?;
        }
        let written = loader
            .finish(LOAD_TIMEOUT)
            .with_context(|| format!("loading topic {topic}"))?;
        ensure!(
            written == self.records,
            "{written} records of {} were written to {topic}",
            self.records
        );
        Ok(ends)
    }
}

/// Long enough to fill a batch.
const LINGER: Duration = Duration::from_millis(20);

/// For what is still in the queue when all is sent.
const LOAD_TIMEOUT: Duration = Duration::from_secs(120);

/// One step of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
pub fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_says_which_record_it_is() {
        let stamp = Stamp {
            session: 999_999,
            sequence: 7,
            sent_nanos: u64::MAX,
        };
        assert_eq!(Stamp::read(&stamp.value()), stamp);
        assert_eq!(&stamp.key(), b"s000999999");
        assert_eq!(Stamp::read(b"a stranger's").session, u32::MAX);
    }

    #[test]
    fn every_session_counts_its_records_without_a_gap() {
        let workload = Workload {
            records: 5_000,
            sessions: 100,
            spread: Spread::Random,
            partitions: PARTITIONS,
        };
        let mut next = vec![0; 100];
        for stamp in workload.stamps() {
            assert_eq!(stamp.sequence, next[stamp.session as usize]);
            next[stamp.session as usize] += 1;
        }
        assert_eq!(next.iter().map(|count| u64::from(*count)).sum::<u64>(), 5_000);
        assert!(
            next.iter().all(|count| (10..100).contains(count)),
            "about 50 each: {next:?}"
        );
        assert_eq!(workload.ends().iter().sum::<i64>(), 5_000);
    }
}
