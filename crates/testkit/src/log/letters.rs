//! Dead letters that are kept in the log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use seriatim_runtime::ports::{DeadLetter, DeadLetterError, DeadLetters};

use super::{Log, NewRecord};

/// What becomes of a dead letter on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterFault {
    /// It is not written.
    Refused,
    /// It is written, but the acknowledgement does not arrive.
    AnswerLost,
}

/// Writes each dead letter to `<topic>.dlq` of a log, into the partition it came from. Key, value and headers stay as they
/// are; headers that tell of the failure are added behind them, by the names that the Kafka adapter uses.
#[derive(Clone, Debug)]
pub struct LogDeadLetters {
    log: Log,
    faults: Arc<Mutex<VecDeque<LetterFault>>>,
}

impl LogDeadLetters {
    /// Keeps dead letters in `log`.
    pub fn new(log: &Log) -> Self {
        Self {
            log: log.clone(),
            faults: Arc::default(),
        }
    }

    /// What becomes of the next letters; after these, they are written again.
    pub fn fail(&self, faults: impl IntoIterator<Item = LetterFault>) {
        self.faults
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(faults);
    }

    /// As [`publish`](DeadLetters::publish), which does not wait here.
    ///
    /// # Errors
    /// When the test asked for it.
    pub fn keep(&self, letter: &DeadLetter) -> Result<(), DeadLetterError> {
        let fault = self.faults.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        if fault == Some(LetterFault::Refused) {
            return Err(DeadLetterError("the test refuses dead letters".into()));
        }
        let topic = format!("{}.dlq", letter.record.topic());
        // As many partitions as the origin has, as far as is seen.
        self.log.grow(&topic, letter.record.partition() + 1);
        self.log.append_record(&topic, record_of(letter));
        match fault {
            Some(_) => Err(DeadLetterError("the acknowledgement did not come".into())),
            None => Ok(()),
        }
    }
}

impl DeadLetters for LogDeadLetters {
    async fn publish(&self, letter: DeadLetter) -> Result<(), DeadLetterError> {
        self.keep(&letter)
    }
}

fn record_of(letter: &DeadLetter) -> NewRecord {
    let origin = &letter.record;
    let unchanged = NewRecord::from_parts(origin.key(), origin.value()).partition(origin.partition());
    let unchanged = origin
        .headers()
        .fold(unchanged, |record, header| record.raw_header(header.name, header.value));
    let record = unchanged
        .header("kafka_dlt-original-topic", origin.topic())
        .header("kafka_dlt-original-partition", origin.partition().to_be_bytes())
        .header("kafka_dlt-original-offset", origin.offset().to_be_bytes())
        .header("kafka_dlt-exception-fqcn", &letter.error_class)
        .header("kafka_dlt-exception-message", &letter.error_text)
        .header("seriatim-attempts", letter.attempts.to_string())
        .header("seriatim-reason", letter.reason.as_str());
    match &letter.session {
        Some(session) => record.header("seriatim-session", session),
        None => record,
    }
}
