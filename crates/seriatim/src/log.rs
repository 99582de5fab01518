//! What happens, written to the log.

use std::time::SystemTime;

use seriatim_engine::budget::Flow;
use seriatim_runtime::ports::{Event, Observer};

/// Writes what happens to the log, by way of `tracing`. It names partitions and offsets, never keys or payloads.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogEvents;

impl Observer for LogEvents {
    fn observe(&self, event: Event<'_>) {
        match event {
            Event::Assigned(partition, Some(offset)) => tracing::info!(%partition, %offset, "assigned"),
            Event::Assigned(partition, None) => tracing::info!(%partition, "assigned; nothing is committed yet"),
            Event::DrainBegan(partitions) => tracing::info!(partitions, "drain began"),
            Event::DrainEnded { took, cancelled: false } => tracing::info!(?took, "drain ended"),
            Event::DrainEnded { took, cancelled: true } => {
                tracing::warn!(?took, "drain ended at its deadline: handlers were cancelled");
            }
            Event::Released(partition) => tracing::info!(%partition, "released"),
            Event::Lost(partition) => {
                tracing::warn!(%partition, "lost: nothing more of it is committed, and another member may own it already")
            }
            Event::FlowChanged(partition, Flow::Held) => tracing::debug!(%partition, "intake held"),
            Event::FlowChanged(partition, Flow::Flowing) => tracing::debug!(%partition, "intake resumed"),
            Event::Committed(partition, watermark) => tracing::trace!(%partition, %watermark, "committed"),
            Event::AckMapIgnored(partition, error) => {
                tracing::warn!(%partition, %error, "records settled above the commit are handled again");
            }
            Event::AckMapTruncated(partition) => tracing::debug!(
                %partition,
                "more is settled above the watermark than a commit has room to say; after a crash it is handled again"
            ),
            Event::CommitFailed(error) => tracing::warn!(%error, "commit failed; it is made again"),
            Event::Retrying {
                record,
                attempt,
                delay,
                failure,
            } => tracing::debug!(record = %record.id(), attempt, ?delay, %failure, "attempt failed"),
            Event::DeadLettered(letter) => tracing::warn!(
                record = %letter.record.id(),
                reason = letter.reason.as_str(),
                attempts = letter.attempts,
                error = letter.error_text,
                "dead letter"
            ),
            Event::DeadLetterFailed(letter, error) => tracing::error!(
                record = %letter.record.id(),
                %error,
                "the record's session waits until its dead letter is written"
            ),
            Event::Standing(standing) => tracing::trace!(
                partition = %standing.partition,
                watermark = %standing.watermark,
                end = %standing.end,
                backlog = standing.backlog,
                unsettled = standing.unsettled,
                oldest_age = ?standing.oldest_age(SystemTime::now()),
                held = standing.flow == Flow::Held,
                stood = ?standing.stood,
                "standing"
            ),
            Event::LeaseEnded => tracing::warn!(
                "the group has not answered for its session timeout: nothing new is started until it does, since the \
                 partitions may be another's"
            ),
            Event::LeaseRenewed => tracing::info!("the group has answered: work goes on"),
            Event::Stuck(record, stood) => {
                tracing::warn!(%record, ?stood, "the commit watermark stands still: this record is not settled");
            }
            Event::TopicGrown {
                topic,
                before,
                after,
                held: false,
            } => tracing::warn!(
                "topic {topic} has grown from {before} to {after} partitions: records of a key may go to another partition \
                 from now on, and do not wait for those of the same key that lie in the one before, unless that is asked \
                 for by `--growth hold` (in a program: `Growth::Hold`)"
            ),
            Event::TopicGrown {
                topic,
                before,
                after,
                held: true,
            } => tracing::warn!(
                "topic {topic} has grown from {before} to {after} partitions: records of a key may go to another partition \
                 from now on; the new partitions wait until all that the others have now is settled and committed"
            ),
            Event::Trouble(trouble) => tracing::warn!("{trouble}"),
            Event::Violation(violation) => tracing::error!("order violated: {violation}"),
            _ => {}
        }
    }
}
