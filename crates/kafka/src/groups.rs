//! Consumer groups, looked at from outside: which there are, who is in them, what they have committed. And moved, while
//! nobody is in them.

use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::topic_partition_list::Offset as Place;
use seriatim_engine::record::{Offset, PartitionId};

use crate::config::Properties;
use crate::native::client::list_of;
use crate::native::event::Notice;
use crate::reader::{Extent, LogReader, ReadError};

/// Groups that are asked about at a time. librdkafka sends a request for each, and all of them have the same time.
const DESCRIBED_AT_A_TIME: usize = 100;

/// How long a coordinator may take over, while it answers that it is not ready or not it; and how often it is asked.
const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(10);
const COORDINATOR_INTERVAL: Duration = Duration::from_millis(100);

/// The topic of the groups' commits: one that each cluster knows, or will.
const COMMITS_TOPIC: &str = "__consumer_offsets";

/// Asks a cluster about its groups. It joins none.
pub struct Groups {
    reader: LogReader,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// What it does now.
    pub state: GroupState,
    /// How its members agree.
    pub kind: GroupKind,
    /// How partitions are given to members, e.g. `cooperative-sticky`; empty while there is no member.
    pub assignor: String,
    /// Its members.
    pub members: Vec<Member>,
}

/// What a group does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// It has no member.
    Empty,
    /// Each member knows its partitions.
    Stable,
    /// Members are to join again.
    PreparingRebalance,
    /// Members are to learn their partitions.
    CompletingRebalance,
    /// Something else, which this client has no name for.
    Unknown,
}

/// How the members of a group agree on who has what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// One of them decides.
    Classic,
    /// The broker decides (KIP-848).
    Consumer,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// What the group's coordinator calls it.
    pub id: String,
    /// Its `client.id`.
    pub client_id: String,
    /// Where it is connected from, as the coordinator sees it, e.g. `/10.0.0.7`.
    pub host: String,
    /// Its `group.instance.id`, if it has one.
    pub instance_id: Option<String>,
    /// What it has been given, in order.
    pub partitions: Vec<PartitionId>,
}

/// What a group has committed for a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupCommit {
    /// The partition.
    pub partition: PartitionId,
    /// The next offset to read.
    pub offset: Offset,
    /// What was committed beside it; empty when there is nothing. What is not UTF-8 is replaced.
    pub metadata: String,
}

/// The groups of a cluster, as far as its brokers tell.
#[derive(Debug)]
pub struct Listing {
    /// The groups' names, in order.
    pub names: Vec<String>,
    /// What kept brokers from telling theirs, in the client's words; empty when all names are there.
    pub missing: Vec<String>,
}

/// A commit for a partition that was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{partition} was not moved: {reason}")]
pub struct SeekError {
    /// The partition.
    pub partition: PartitionId,
    /// What the broker said, and what to do.
    pub reason: String,
}

impl fmt::Display for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            GroupState::Empty => "Empty",
            GroupState::Stable => "Stable",
            GroupState::PreparingRebalance => "PreparingRebalance",
            GroupState::CompletingRebalance => "CompletingRebalance",
            GroupState::Unknown => "Unknown",
        })
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            GroupKind::Classic => "classic",
            GroupKind::Consumer => "consumer",
        })
    }
}

impl Groups {
    /// Makes a client. Brokers are connected to in the background.
    ///
    /// # Errors
    /// When `properties` cannot work.
    pub fn connect(brokers: &str, properties: &Properties) -> Result<Self, ReadError> {
        let reader = LogReader::connect(brokers, None, properties)?;
        Ok(Self { reader })
    }

    /// Finds out whether a broker answers. Blocks, at most `within` and a little.
    ///
    /// # Errors
    /// [`ReadError::Unreachable`] with the reason when none does.
    pub fn reach(&self, within: Duration) -> Result<(), ReadError> {
        self.reader.reach(COMMITS_TOPIC, within)
    }

    /// The same client, to ask about logs.
    pub fn logs(&self) -> &LogReader {
        &self.reader
    }

    /// Which groups there are, of consumers and of those who only commit. Blocks.
    ///
    /// # Errors
    /// When no broker tells any.
    pub fn list(&self) -> Result<Listing, ReadError> {
        let doing = "asking for the groups";
        // A broker that has just started, or has been given a part of the groups, tells none before it has read them.
        let listed = patiently(|| {
            let listed = self.reader.admin().groups()?;
            let moving = listed
                .1
                .iter()
                .find(|notice| is_coordinator_moving(notice.code))
                .cloned();
            Ok((listed, moving))
        });
        let (mut names, notices) = listed.map_err(|notice| self.explain(doing, notice))?;
        match (names.is_empty(), notices.first()) {
            (true, Some(notice)) => Err(self.explain(doing, notice.clone())),
            _ => {
                names.sort_unstable();
                names.dedup();
                let missing = notices.into_iter().map(|notice| notice.text).collect();
                Ok(Listing { names, missing })
            }
        }
    }

    /// A group; `None` when there is none of this name. Blocks.
    ///
    /// # Errors
    /// When its coordinator cannot be asked.
    pub fn describe(&self, name: &str) -> Result<Option<Group>, ReadError> {
        let mut described = self.describe_all(&[name.to_owned()])?;
        described.pop().unwrap_or(Ok(None))
    }

    /// As [`describe`](Self::describe), of several that are not the same twice.
    ///
    /// # Errors
    /// When none can be asked about.
    pub fn describe_all(&self, names: &[String]) -> Result<Vec<Result<Option<Group>, ReadError>>, ReadError> {
        let doing = "asking for the group's members";
        let mut groups = Vec::with_capacity(names.len());
        for names in names.chunks(DESCRIBED_AT_A_TIME) {
            let described = patiently(|| {
                let described = self.reader.admin().describe(names)?;
                let mut failed = described.iter().filter_map(|group| group.as_ref().err());
                let moving = failed.find(|notice| is_coordinator_moving(notice.code)).cloned();
                Ok((described, moving))
            });
            let described = described.map_err(|notice| self.explain(doing, notice))?;
            let explained = described
                .into_iter()
                .map(|group| group.map_err(|notice| self.explain(doing, notice)));
            groups.extend(explained);
        }
        Ok(groups)
    }

    /// What the group has committed, of all topics, in order. Blocks.
    ///
    /// # Errors
    /// When its coordinator cannot be asked, or does not tell all.
    pub fn commits(&self, group: &str) -> Result<Vec<GroupCommit>, ReadError> {
        let doing = "asking for the group's commits";
        let asked = patiently(|| {
            let (commits, notices) = self.reader.admin().commits(group)?;
            let moving = notices
                .iter()
                .find(|notice| is_coordinator_moving(notice.code))
                .cloned();
            Ok(((commits, notices), moving))
        });
        let (mut commits, notices) = asked.map_err(|notice| self.explain(doing, notice))?;
        if let Some(notice) = notices.into_iter().next() {
            return Err(self.explain(doing, notice));
        }
        commits.sort_by(|one, other| one.partition.cmp(&other.partition));
        Ok(commits)
    }

    /// What the logs of these partitions have now, or why one does not tell: a leader may be away while the others
    /// answer. Blocks.
    ///
    /// # Errors
    /// When none can be asked.
    pub fn extents(&self, partitions: &[PartitionId]) -> Result<Vec<Result<Extent, ReadError>>, ReadError> {
        let doing = "asking where the log begins and ends";
        let committed_only = self.reader.reads_committed_only();
        let told = self.reader.admin().extents(partitions, committed_only);
        let told = told.map_err(|notice| self.explain(doing, notice))?;
        let extent = |(partition, told): (&PartitionId, Result<(Offset, Offset), Code>)| match told {
            Ok(told) => Ok(Extent::of((partition.clone(), told))),
            Err(code) => Err(ReadError::Failed {
                doing,
                reason: code.to_string(),
            }),
        };
        Ok(partitions.iter().zip(told).map(extent).collect())
    }

    /// Moves the group: commits these offsets, with nothing beside them, as no member of it. Brokers refuse it while the
    /// group has members. Returns what was refused. Blocks.
    ///
    /// # Errors
    /// When the coordinator cannot be asked; the group may have been moved all the same.
    pub fn seek(&self, group: &str, places: &[(PartitionId, Offset)]) -> Result<Vec<SeekError>, ReadError> {
        let list = list_of(places.iter().map(|(partition, _)| partition));
        for ((_, offset), mut element) in places.iter().zip(list.elements()) {
            let place = Place::Offset(offset.get());
            element.set_offset(place).expect("an offset of ours is not negative");
        }
        let answer = patiently(|| {
            let refused = self.reader.admin().commit(group, &list)?;
            let moving = refused.iter().find(|(_, code)| is_coordinator_moving(*code));
            let moving = moving.map(|(partition, code)| Notice::of_code(*code, Some(partition.clone())));
            Ok((refused, moving))
        });
        let refused = answer.map_err(|notice| self.explain("moving the group", notice))?;
        let refused = refused.into_iter().map(|(partition, code)| SeekError {
            partition,
            reason: meaning(code),
        });
        Ok(refused.collect())
    }

    fn explain(&self, doing: &'static str, notice: Notice) -> ReadError {
        self.reader.explain_code(doing, Some(notice.code), notice.text)
    }
}

/// Asks until the groups' coordinators have been found and are ready, or it is too late: then the last answer counts. An
/// answer may come with the news that the coordinator is moving.
fn patiently<T>(mut ask: impl FnMut() -> Result<(T, Option<Notice>), Notice>) -> Result<T, Notice> {
    let deadline = Instant::now() + COORDINATOR_TIMEOUT;
    loop {
        let answer = ask();
        let moving = match &answer {
            Ok((_, moving)) => moving.is_some(),
            Err(notice) => is_coordinator_moving(notice.code),
        };
        if !moving || Instant::now() >= deadline {
            return answer.map(|(answer, _)| answer);
        }
        sleep(COORDINATOR_INTERVAL);
    }
}

fn is_coordinator_moving(code: Code) -> bool {
    matches!(
        code,
        Code::NotCoordinator | Code::CoordinatorNotAvailable | Code::CoordinatorLoadInProgress
    )
}

/// What a refusal means for who commits from outside.
fn meaning(code: Code) -> String {
    match code {
        Code::UnknownMemberId | Code::IllegalGeneration | Code::RebalanceInProgress | Code::StaleMemberEpoch => {
            "the group has members, whose own commits count; stop them first".to_owned()
        }
        Code::GroupAuthorizationFailed => {
            "the principal may not commit for this group; grant it Read on the group".to_owned()
        }
        Code::TopicAuthorizationFailed => {
            "the principal may not commit for this topic; grant it Read on the topic".to_owned()
        }
        other => other.to_string(),
    }
}
