//! Commits under way, and what their answers mean.

use std::collections::HashMap;
use std::time::Instant;

use rdkafka::error::RDKafkaErrorCode;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use seriatim_engine::record::PartitionId;
use seriatim_runtime::clock;
use seriatim_runtime::ports::{Commit, CommitError};

use crate::native::client::list_of;

/// A dispatcher has one commit in the background, and a drain one beside it. More are under way only when answers have
/// not come in time, and each takes the memory of its metadata: 4 KiB a partition.
const IN_FLIGHT_MAX: usize = 16;

/// Commits that were sent and not answered.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    tokens: usize,
    in_flight: HashMap<usize, Sent>,
}

#[derive(Debug)]
struct Sent {
    at: Instant,
    commits: Vec<(PartitionId, Commit)>,
}

/// What a commit's answer says, part by part: a broker may take some of its partitions and refuse others.
#[derive(Debug)]
pub(crate) struct Answer {
    /// When the commit was sent, on the clock of leases.
    pub(crate) sent_at: Instant,
    pub(crate) accepted: Vec<Commit>,
    pub(crate) refused: Vec<Refusal>,
}

/// One partition's commit that was refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    partition: PartitionId,
    commit: Commit,
    code: RDKafkaErrorCode,
}

impl Answer {
    /// The error that stands for all that was refused; `None` when nothing was.
    pub(crate) fn error(&self) -> Option<CommitError> {
        // One that may not be tried again says more than one that may.
        let worst = self.refused.iter().min_by_key(|refusal| is_retriable(refusal.code))?;
        Some(worst.error(self.refused.len() - 1))
    }

    /// Whether it was refused only because the group is rebalancing. If the group goes on without this member, the
    /// partitions are reported as lost soon.
    pub(crate) fn awaits_rebalance(&self) -> bool {
        let rebalance = [
            RDKafkaErrorCode::RebalanceInProgress,
            RDKafkaErrorCode::IllegalGeneration,
        ];
        self.refused.iter().all(|refusal| rebalance.contains(&refusal.code))
    }
}

impl Commits {
    /// Notes `commits` as sent. Returns the token of their answer, and what to send.
    ///
    /// # Errors
    /// When too many are unanswered.
    pub(crate) fn open(
        &mut self,
        commits: Vec<(PartitionId, Commit)>,
    ) -> Result<(usize, TopicPartitionList), CommitError> {
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return Err(CommitError {
                reason: format!(
                    "{IN_FLIGHT_MAX} earlier commits were not answered; the coordinator may be out of reach"
                ),
                retriable: true,
                metadata_too_long: false,
            });
        }
        self.tokens += 1;
        let list = list(&commits);
        let sent = Sent {
            at: clock::now(),
            commits,
        };
        self.in_flight.insert(self.tokens, sent);
        Ok((self.tokens, list))
    }

    /// Forgets a commit that could not be sent, or whose answer nobody waits for.
    pub(crate) fn forget(&mut self, token: usize) {
        self.in_flight.remove(&token);
    }

    /// The answer to a commit; `None` when it was forgotten.
    pub(crate) fn answer(
        &mut self,
        token: usize,
        answers: Vec<(PartitionId, Result<(), RDKafkaErrorCode>)>,
    ) -> Option<Answer> {
        let mut answers: HashMap<PartitionId, Result<(), RDKafkaErrorCode>> = answers.into_iter().collect();
        let sent = self.in_flight.remove(&token)?;
        let mut answer = Answer {
            sent_at: sent.at,
            accepted: Vec::new(),
            refused: Vec::new(),
        };
        for (partition, commit) in sent.commits {
            // A partition that is missing from the answer was not committed.
            match answers.remove(&partition).unwrap_or(Err(RDKafkaErrorCode::NoOffset)) {
                Ok(()) => answer.accepted.push(commit),
                Err(code) => answer.refused.push(Refusal {
                    partition,
                    commit,
                    code,
                }),
            }
        }
        Some(answer)
    }
}

impl Refusal {
    fn error(&self, others: usize) -> CommitError {
        let Refusal {
            partition,
            commit,
            code,
        } = self;
        let others = if others > 0 {
            format!(", and {others} more")
        } else {
            String::new()
        };
        let means = meaning(*code).map_or_else(|| code.to_string(), str::to_owned);
        CommitError {
            reason: format!("{partition} at {}{others}: {means}", commit.watermark),
            retriable: is_retriable(*code),
            metadata_too_long: *code == RDKafkaErrorCode::OffsetMetadataTooLarge,
        }
    }
}

/// The error of a commit that could not be sent.
pub(crate) fn unsent(code: RDKafkaErrorCode) -> CommitError {
    CommitError {
        reason: code.to_string(),
        retriable: is_retriable(code),
        metadata_too_long: false,
    }
}

fn list(commits: &[(PartitionId, Commit)]) -> TopicPartitionList {
    let list = list_of(commits.iter().map(|(partition, _)| partition));
    for ((_, commit), mut element) in commits.iter().zip(list.elements()) {
        element
            .set_offset(Offset::Offset(commit.watermark.get()))
            .expect("an offset of ours is not negative");
        if !commit.metadata.is_empty() {
            element.set_metadata(&commit.metadata);
        }
    }
    list
}

/// Whether the same member, with the same commit, may succeed later.
pub(crate) fn is_retriable(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::RebalanceInProgress
            | Code::NotCoordinator
            | Code::CoordinatorNotAvailable
            | Code::CoordinatorLoadInProgress
            | Code::WaitingForCoordinator
            | Code::InProgress
            | Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::OperationTimedOut
            | Code::MessageTimedOut
            | Code::RequestTimedOut
            | Code::NetworkException
            | Code::NotEnoughReplicas
            | Code::NotEnoughReplicasAfterAppend
            | Code::KafkaStorageError
            | Code::ThrottlingQuotaExceeded
            | Code::UnknownTopicOrPartition
            | Code::StaleMemberEpoch
            // The principal may be permitted meanwhile.
            | Code::GroupAuthorizationFailed
            | Code::TopicAuthorizationFailed
    )
}

/// What has happened, and the way out, where librdkafka's words leave that open.
fn meaning(code: RDKafkaErrorCode) -> Option<&'static str> {
    use RDKafkaErrorCode as Code;
    Some(match code {
        Code::UnknownMemberId => {
            "the group has gone on without this member, and its partitions may be another's; it joins again"
        }
        Code::IllegalGeneration => "the group has rebalanced meanwhile; the partition may belong to another member",
        Code::FencedInstanceId => "another process has joined with the same group.instance.id; give each its own",
        Code::OffsetMetadataTooLarge => {
            "its metadata is larger than the broker's offset.metadata.max.bytes; raise it there, or commit less beside it"
        }
        Code::RebalanceInProgress => "the group is rebalancing; it is committed again",
        Code::GroupAuthorizationFailed => "the principal may not commit for this group; grant it Read on the group",
        Code::TopicAuthorizationFailed => "the principal may not commit for this topic; grant it Read on the topic",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use seriatim_engine::assignment::Assignments;
    use seriatim_engine::record::Offset as Place;

    use super::*;

    fn orders(number: i32) -> PartitionId {
        PartitionId::new("orders", number)
    }

    fn commits() -> Vec<(PartitionId, Commit)> {
        let mut assignments = Assignments::default();
        let mut commit = |number: i32, watermark, metadata: &str| {
            let epoch = assignments.open(());
            let commit = Commit {
                epoch,
                watermark: Place::new(watermark),
                metadata: metadata.to_owned(),
            };
            (orders(number), commit)
        };
        vec![commit(0, 7, ""), commit(3, 1042, "v1:abc")]
    }

    #[test]
    fn a_commit_carries_offsets_and_metadata() {
        let (_, list) = Commits::default().open(commits()).unwrap();
        let elements = list.elements();
        assert_eq!(elements[0].offset(), Offset::Offset(7));
        assert_eq!(elements[0].metadata(), "");
        assert_eq!(elements[1].offset(), Offset::Offset(1042));
        assert_eq!(elements[1].metadata(), "v1:abc");
    }

    #[test]
    fn an_answer_is_taken_apart_by_partition() {
        let mut commits_sent = Commits::default();
        let (first, _) = commits_sent.open(commits()).unwrap();
        let (second, _) = commits_sent.open(commits()).unwrap();
        let accepted = vec![(orders(0), Ok(())), (orders(3), Ok(()))];
        let answer = commits_sent.answer(second, accepted).unwrap();
        assert_eq!((answer.accepted.len(), answer.refused.len()), (2, 0));
        assert!(answer.error().is_none());

        let too_large = vec![
            (orders(3), Err(RDKafkaErrorCode::OffsetMetadataTooLarge)),
            (orders(0), Ok(())),
        ];
        let answer = commits_sent.answer(first, too_large).unwrap();
        assert_eq!(answer.accepted[0].watermark, Place::new(7));
        let error = answer.error().unwrap();
        assert!(
            error.reason.starts_with("orders[3] at 1042: its metadata is larger"),
            "{error}"
        );
        assert!(!error.retriable);
        assert!(commits_sent.answer(first, Vec::new()).is_none(), "answered once");
    }

    #[test]
    fn of_several_refusals_the_final_one_is_told() {
        let mut commits_sent = Commits::default();
        let (token, _) = commits_sent.open(commits()).unwrap();
        let answers = vec![
            (orders(0), Err(RDKafkaErrorCode::RebalanceInProgress)),
            (orders(3), Err(RDKafkaErrorCode::IllegalGeneration)),
        ];
        let error = commits_sent.answer(token, answers).unwrap().error().unwrap();
        assert_eq!(
            error.to_string(),
            "commit refused: orders[3] at 1042, and 1 more: the group has rebalanced meanwhile; the partition may belong \
             to another member"
        );
        assert!(!error.retriable);
    }

    #[test]
    fn unanswered_commits_are_bounded() {
        let mut commits_sent = Commits::default();
        for _ in 0..IN_FLIGHT_MAX {
            commits_sent.open(commits()).unwrap();
        }
        assert!(commits_sent.open(commits()).unwrap_err().retriable);
        commits_sent.forget(1);
        assert!(commits_sent.open(commits()).is_ok());
    }
}
