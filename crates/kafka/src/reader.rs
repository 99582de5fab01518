//! Reading topics as they lie in the log: from any place, in no group, with nothing committed. For people who look.
//!
//! A [`LogReader`] asks: which partitions there are, where they begin and end, which place a time or a group's commit
//! stands for. [`LogReader::read`] turns it into [`LogRecords`], which delivers.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as KafkaOffset, TopicPartitionList};
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::message::OwnedMessage;
use seriatim_runtime::ports::SourceTrouble;
use seriatim_runtime::record::Record;

use crate::config::{self, ConfigError, Properties};
use crate::native::admin::Admin;
use crate::native::client::Consumer;
use crate::native::event::{ClientEvent, Notice};
use crate::native::message::KafkaMessage;
use crate::native::queue::FlowQueue;
use crate::trouble::{LastFailure, Meaning, Reported, meaning_of, undecodable};

/// How long the cluster may take to answer a question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a log whose leader is moving is asked for again.
const LEADER_INTERVAL: Duration = Duration::from_millis(100);

/// How long the client may take to tell why it reaches no broker, once it has said that it does not.
const REASON_TIMEOUT: Duration = Duration::from_millis(100);

/// Records taken from the client at a time.
const BATCH_MAX: usize = 1_000;

/// Without a group's name the client would have no queue for records. This one is neither joined nor committed for.
const NO_GROUP: &str = "seriatim-reader";

/// Asks a cluster about its logs.
pub struct LogReader {
    client: BaseConsumer<ReaderContext>,
    config: ClientConfig,
}

/// A partition, and the offsets that its log has: from the first to before the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The partition.
    pub partition: PartitionId,
    /// The first offset, and the one after the last.
    pub offsets: Range<i64>,
}

impl Extent {
    /// As it was told: the first offset, and the one after the last.
    pub(crate) fn of((partition, (begin, end)): (PartitionId, (Offset, Offset))) -> Self {
        Self {
            partition,
            offsets: begin.get()..end.get(),
        }
    }
}

/// Where to begin in a partition. What lies outside its log begins at the nearer of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// At the first record.
    Beginning,
    /// After the last record.
    End,
    /// Where the group has committed; at the first record where it has not.
    Committed,
    /// At this offset.
    Offset(i64),
    /// This many offsets before the end.
    Tail(i64),
    /// At the first record of this time, in milliseconds since the Unix epoch, or later.
    Time(i64),
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A property is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no such topic.
    #[error("topic {topic} does not exist; create it, or correct the name")]
    UnknownTopic {
        /// The topic.
        topic: String,
    },
    /// The client may not do what it needs to.
    #[error("not permitted: {reason}; check the principal's ACLs")]
    Denied {
        /// The client's words.
        reason: String,
    },
    /// No broker answers.
    #[error("no broker can be reached: {reason}")]
    Unreachable {
        /// The client's words.
        reason: String,
    },
    /// Anything else, in the client's words.
    #[error("{doing} failed: {reason}")]
    Failed {
        /// What was being done.
        doing: &'static str,
        /// The client's words.
        reason: String,
    },
}

impl LogReader {
    /// Makes a client. Brokers are connected to in the background. `group` is whose commits
    /// [`ReadFrom::Committed`] asks for; it is not joined.
    ///
    /// # Errors
    /// When `properties` cannot work.
    pub fn connect(brokers: &str, group: Option<&str>, properties: &Properties) -> Result<Self, ReadError> {
        let mut config = config::consumer_config(brokers, group.unwrap_or(NO_GROUP), properties)?;
        // The end of a log is told, also where markers of transactions or compaction leave no record before it.
        config.set("enable.partition.eof", "true");
        let client = config
            .create_with_context(ReaderContext {
                last_failure: LastFailure::none(config::brokers_of(&config)),
            })
            .map_err(config::client_refused)?;
        Ok(Self { client, config })
    }

    /// Finds out whether a broker answers. Blocks, at most `within` and a little.
    ///
    /// # Errors
    /// [`ReadError::Unreachable`] with the reason when none does.
    pub fn reach(&self, topic: &str, within: Duration) -> Result<(), ReadError> {
        match self.client.fetch_metadata(Some(topic), within) {
            Ok(_) => Ok(()),
            Err(error) => match self.explain("asking for brokers", &error) {
                unreachable @ ReadError::Unreachable { .. } => Err(unreachable),
                // Whatever else it is, somebody said it.
                _ => Ok(()),
            },
        }
    }

    /// The partitions of `topic` and what their logs have now. Blocks.
    ///
    /// # Errors
    /// When there is no such topic, or the cluster cannot be asked.
    pub fn extents(&self, topic: &str) -> Result<Vec<Extent>, ReadError> {
        let doing = "asking where the log begins and ends";
        let partitions = self.partitions(topic)?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let told = self.admin().extents(&partitions, self.reads_committed_only());
            let told = told.map_err(|notice| self.explain_code(doing, Some(notice.code), notice.text))?;
            match told.into_iter().collect::<Result<Vec<_>, _>>() {
                Ok(told) => return Ok(partitions.into_iter().zip(told).map(Extent::of).collect()),
                Err(code) if is_leader_moving(code) && Instant::now() < deadline => thread::sleep(LEADER_INTERVAL),
                Err(code) => return Err(self.explain_code(doing, Some(code), code.to_string())),
            }
        }
    }

    /// The partitions of `topic`, in order. Blocks.
    ///
    /// # Errors
    /// When there is no such topic, or the cluster cannot be asked.
    pub fn partitions(&self, topic: &str) -> Result<Vec<PartitionId>, ReadError> {
        let doing = "asking for the topic's partitions";
        let metadata = self
            .client
            .fetch_metadata(Some(topic), ANSWER_TIMEOUT)
            .map_err(|error| self.explain(doing, &error))?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let partitions = match found.map(|found| (found.error(), found.partitions())) {
            Some((None, partitions)) if !partitions.is_empty() => partitions,
            None | Some((None, _)) => return Err(unknown(topic)),
            Some((Some(error), _)) => {
                return Err(match RDKafkaErrorCode::from(error) {
                    RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::InvalidTopic => unknown(topic),
                    code => self.explain(doing, &KafkaError::MetadataFetch(code)),
                });
            }
        };
        let topic: Arc<str> = topic.into();
        let ids = partitions.iter().map(|partition| partition.id());
        let mut partitions: Vec<_> = ids.map(|id| PartitionId::new(Arc::clone(&topic), id)).collect();
        partitions.sort_unstable();
        Ok(partitions)
    }

    /// The offset that `from` stands for in each of `extents`. Blocks.
    ///
    /// # Errors
    /// When the cluster cannot be asked.
    pub fn resolve(&self, extents: &[Extent], from: ReadFrom) -> Result<Vec<Offset>, ReadError> {
        let offsets: Vec<i64> = match from {
            ReadFrom::Beginning => extents.iter().map(|extent| extent.offsets.start).collect(),
            ReadFrom::End => extents.iter().map(|extent| extent.offsets.end).collect(),
            ReadFrom::Offset(offset) => vec![offset; extents.len()],
            ReadFrom::Tail(count) => extents
                .iter()
                .map(|extent| extent.offsets.end.saturating_sub(count))
                .collect(),
            ReadFrom::Committed => {
                let asked = self
                    .client
                    .committed_offsets(list_of(extents, |_| KafkaOffset::Invalid)?, ANSWER_TIMEOUT);
                let answer = asked.map_err(|error| self.explain("asking for the group's commits", &error))?;
                answered(extents, &answer, |extent| extent.offsets.start)
            }
            ReadFrom::Time(millis) => {
                let asked = self
                    .client
                    .offsets_for_times(list_of(extents, |_| KafkaOffset::Offset(millis))?, ANSWER_TIMEOUT);
                let answer = asked.map_err(|error| self.explain("asking for the offsets of a time", &error))?;
                answered(extents, &answer, |extent| extent.offsets.end)
            }
        };
        Ok(extents
            .iter()
            .zip(offsets)
            .map(|(extent, offset)| Offset::new(offset.clamp(extent.offsets.start, extent.offsets.end)))
            .collect())
    }

    /// What the group has on record for each of `extents`: the offset, and the text beside it. Blocks.
    ///
    /// # Errors
    /// When the cluster cannot be asked.
    pub fn committed(&self, extents: &[Extent]) -> Result<Vec<Option<(Offset, String)>>, ReadError> {
        let asked = self
            .client
            .committed_offsets(list_of(extents, |_| KafkaOffset::Invalid)?, ANSWER_TIMEOUT);
        let answer = asked.map_err(|error| self.explain("asking for the group's commits", &error))?;
        let committed = extents.iter().map(|extent| {
            let element = answer.find_partition(extent.partition.topic(), extent.partition.number())?;
            match element.offset() {
                KafkaOffset::Offset(offset) => Some((Offset::new(offset), element.metadata().to_owned())),
                _ => None,
            }
        });
        Ok(committed.collect())
    }

    /// Begins to read partitions at their offsets.
    ///
    /// # Errors
    /// When a client cannot be made.
    pub fn read(self, starts: &[(PartitionId, Offset)]) -> Result<LogRecords, ReadError> {
        let failed = |reason: String| ReadError::Failed {
            doing: "beginning to read",
            reason,
        };
        let (consumer, flow) = Consumer::connect(&self.config, BATCH_MAX).map_err(|error| failed(error.to_string()))?;
        let mut list = TopicPartitionList::with_capacity(starts.len());
        for (partition, offset) in starts {
            flow.forward(partition);
            list.add_partition_offset(partition.topic(), partition.number(), KafkaOffset::Offset(offset.get()))
                .map_err(|error| failed(error.to_string()))?;
        }
        consumer.assign(Some(&list)).map_err(failed)?;
        Ok(LogRecords {
            flow,
            consumer,
            messages: Vec::new(),
            notices: Vec::new(),
            reported: Reported::nothing(config::brokers_of(&self.config)),
            ready: VecDeque::new(),
        })
    }

    /// Whether it reads no record of a transaction that is open or was aborted.
    pub(crate) fn reads_committed_only(&self) -> bool {
        config::reads_committed_only(&self.config)
    }

    /// Asks about groups, and about many logs at once, through this client.
    pub(crate) fn admin(&self) -> Admin<'_, impl ClientContext> {
        Admin {
            client: self.client.client(),
            timeout: ANSWER_TIMEOUT,
        }
    }

    fn explain(&self, doing: &'static str, error: &KafkaError) -> ReadError {
        self.explain_code(doing, error.rdkafka_error_code(), error.to_string())
    }

    /// The client's error in our words. That no broker is reached it tells in an event of its own, with the reason.
    pub(crate) fn explain_code(
        &self,
        doing: &'static str,
        code: Option<RDKafkaErrorCode>,
        reason: String,
    ) -> ReadError {
        use RDKafkaErrorCode as Code;
        match code {
            Some(Code::BrokerTransportFailure | Code::OperationTimedOut | Code::AllBrokersDown | Code::Resolve) => {
                let _ = self.client.poll(REASON_TIMEOUT);
                ReadError::Unreachable {
                    reason: self.client.context().last_failure.text().unwrap_or(reason),
                }
            }
            Some(
                Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed | Code::ClusterAuthorizationFailed,
            ) => ReadError::Denied { reason },
            _ => ReadError::Failed { doing, reason },
        }
    }
}

/// Records as they come, and what else there is to say of their logs.
pub struct LogRecords {
    flow: FlowQueue,
    consumer: Arc<Consumer>,
    messages: Vec<KafkaMessage>,
    notices: Vec<Notice>,
    reported: Reported,
    ready: VecDeque<Read>,
}

/// What was read.
#[derive(Debug)]
pub enum Read {
    /// A record.
    Record(Record),
    /// The log ends here for now: nothing that may be read lies before this offset and was not delivered.
    End(PartitionId, Offset),
    /// Something is wrong and may pass.
    Trouble(SourceTrouble),
}

impl LogRecords {
    /// Waits up to `wait` for what comes next. A partition's records come in the order of their offsets.
    ///
    /// # Errors
    /// When a partition can be read no further.
    pub fn poll(&mut self, wait: Duration) -> Result<Option<Read>, ReadError> {
        if self.ready.is_empty() {
            self.fill(wait)?;
        }
        Ok(self.ready.pop_front())
    }

    fn fill(&mut self, wait: Duration) -> Result<(), ReadError> {
        self.flow.read(wait, &mut self.messages, &mut self.notices);
        // Copied, so that a record that is kept pins no buffer.
        let records = self
            .messages
            .drain(..)
            .map(|message| Read::Record(OwnedMessage::copied(&message).into()));
        self.ready.extend(records);
        while let Some(event) = self.consumer.next_event(Duration::ZERO) {
            if let ClientEvent::Noticed(notice) = event {
                self.notices.push(notice);
            }
        }
        for notice in std::mem::take(&mut self.notices) {
            self.take(notice)?;
        }
        Ok(())
    }

    fn take(&mut self, notice: Notice) -> Result<(), ReadError> {
        match (notice.code, &notice.partition) {
            (RDKafkaErrorCode::PartitionEOF, Some(partition)) => {
                let end = notice.offset.unwrap_or(Offset::ZERO);
                self.ready.push_back(Read::End(partition.clone(), end));
                return Ok(());
            }
            // The client looks for its group's coordinator, whether or not anybody asks for the group.
            (RDKafkaErrorCode::GroupAuthorizationFailed, _) => return Ok(()),
            _ => {}
        }
        let reason = match meaning_of(notice, self.reported.connection()) {
            Meaning::Trouble(trouble @ SourceTrouble::UnknownTopic(_)) => trouble.to_string(),
            Meaning::Trouble(trouble) => {
                if self.reported.is_news(&trouble, Instant::now()) {
                    self.ready.push_back(Read::Trouble(trouble));
                }
                return Ok(());
            }
            Meaning::Connection(text) => {
                self.reported.note_connection(text);
                return Ok(());
            }
            Meaning::Unauthenticated(text) => {
                self.reported.note_connection(text.clone());
                let trouble = SourceTrouble::Unauthenticated(text);
                if self.reported.is_news(&trouble, Instant::now()) {
                    self.ready.push_back(Read::Trouble(trouble));
                }
                return Ok(());
            }
            Meaning::OutOfRange(partition, Some(wanted), _) => {
                format!("offset {wanted} of {partition} is gone from the log")
            }
            Meaning::OutOfRange(partition, None, _) => format!("the next offset of {partition} is gone from the log"),
            Meaning::Undecodable(partition, at, text) => undecodable(partition, at, &text).to_string(),
            Meaning::Final(text) => text,
        };
        Err(ReadError::Failed {
            doing: "reading on",
            reason,
        })
    }
}

fn is_leader_moving(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::LeaderNotAvailable | Code::NotLeaderForPartition | Code::FencedLeaderEpoch | Code::UnknownLeaderEpoch
    )
}

fn unknown(topic: &str) -> ReadError {
    ReadError::UnknownTopic {
        topic: topic.to_owned(),
    }
}

fn list_of(extents: &[Extent], offset: impl Fn(&Extent) -> KafkaOffset) -> Result<TopicPartitionList, ReadError> {
    let mut list = TopicPartitionList::with_capacity(extents.len());
    for extent in extents {
        let (topic, number) = (extent.partition.topic(), extent.partition.number());
        list.add_partition_offset(topic, number, offset(extent))
            .map_err(|error| ReadError::Failed {
                doing: "naming a place",
                reason: error.to_string(),
            })?;
    }
    Ok(list)
}

/// The offsets in an answer; where it has none, what `otherwise` says.
fn answered(extents: &[Extent], answer: &TopicPartitionList, otherwise: impl Fn(&Extent) -> i64) -> Vec<i64> {
    extents
        .iter()
        .map(|extent| {
            let element = answer.find_partition(extent.partition.topic(), extent.partition.number());
            match element.map(|element| element.offset()) {
                Some(KafkaOffset::Offset(offset)) => offset,
                _ => otherwise(extent),
            }
        })
        .collect()
}

struct ReaderContext {
    last_failure: LastFailure,
}

impl ClientContext for ReaderContext {
    // What it logs it also reports as an error, and that is told by whoever asked.
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "librdkafka", facility, "{text}");
    }

    fn stats_raw(&self, _statistics: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        self.last_failure.note(&error, reason);
    }
}

impl ConsumerContext for ReaderContext {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_an_offset_leaves_the_choice() {
        let extent = |number, offsets| Extent {
            partition: PartitionId::new("chat", number),
            offsets,
        };
        let extents = [extent(0, 5..10), extent(1, 7..9), extent(2, 0..0)];
        let mut answer = TopicPartitionList::new();
        answer.add_partition_offset("chat", 0, KafkaOffset::Offset(6)).unwrap();
        answer.add_partition_offset("chat", 1, KafkaOffset::Invalid).unwrap();
        assert_eq!(answered(&extents, &answer, |extent| extent.offsets.start), [6, 7, 0]);
    }
}
