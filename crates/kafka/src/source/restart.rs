//! The end of the client's consumption of a partition that stays this member's, and its begin elsewhere.

use std::time::Duration;

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::ports::Start;

use super::KafkaSource;
use crate::native::client::Protocol;
use crate::native::event::ClientEvent;

impl KafkaSource {
    /// Lets the client begin a partition again at `place`, if its period goes on. Returns whether it does.
    pub(super) fn restart(&mut self, epoch: AssignmentEpoch, partition: &PartitionId, place: Offset) -> bool {
        self.interrupt(partition);
        self.holdings.resume(Start {
            partition: partition.clone(),
            epoch,
            from: Some(place),
        })
    }

    /// Ends the client's consumption of a partition that the group has not asked for. It begins again with the next
    /// [`consume_started`](Self::consume_started): to seek is refused once a partition has stopped
    /// (`rd_kafka_offset_reset`, `rd_kafka_toppar_seek`).
    pub(super) fn interrupt(&mut self, partition: &PartitionId) {
        match self.protocol {
            Protocol::Cooperative => self.interrupt_one(partition),
            Protocol::Eager => self.interrupt_all(),
        }
    }

    /// Eager members change what they consume only as a whole: all else goes on where it was. What is searched for would
    /// only stop again, and stays out until it is decided.
    fn interrupt_all(&mut self) {
        let consumed = self.holdings.consumed();
        let starts: Vec<_> = consumed
            .map(|(epoch, partition)| Start {
                partition: partition.clone(),
                epoch,
                // Without a place it begins again as it began, as it would with its next owner: nothing has come of it.
                from: self.deliveries.position(partition),
            })
            .collect();
        if starts.is_empty() {
            return;
        }
        for start in starts {
            self.holdings.interrupt(&start.partition);
            if !self.questions.is_searching(start.epoch) {
                self.holdings.resume(start);
            }
        }
        let Some(client) = &self.client else { return };
        let interrupted = client.consumer.interrupt_all();
        self.note_answered(interrupted);
    }

    fn interrupt_one(&mut self, partition: &PartitionId) {
        self.holdings.interrupt(partition);
        let Some(client) = &self.client else { return };
        let interrupted = client.consumer.interrupt(partition);
        self.note_answered(interrupted);
        // A revocation that was on its way has taken this for its answer, and the group goes on: what it takes may be
        // another's before it could be drained.
        while let Some(event) = self
            .client
            .as_ref()
            .and_then(|client| client.consumer.next_event(Duration::ZERO))
        {
            match event {
                ClientEvent::Revoked { partitions, .. } => self.lost(partitions),
                event => self.take_event(event),
            }
        }
    }
}
