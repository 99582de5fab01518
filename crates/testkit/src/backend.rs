//! The log as something that a consumer runs on, in place of a Kafka cluster.

use std::task::Waker;

use seriatim_engine::record::PartitionId;
use seriatim_runtime::backend::Backend;

use crate::log::{Log, LogDeadLetters, LogSource};

/// Why a consumer cannot run on a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The topic does not exist. Kafka's consumers wait for one; a test has forgotten it.
    #[error("there is no topic {0}: create it with `log.topic(\"{0}\", partitions)`")]
    NoTopic(String),
}

impl Backend for Log {
    type Source = LogSource;
    type DeadLetters = LogDeadLetters;
    type Error = LogError;

    fn dead_letters(&self, _group: &str) -> Result<LogDeadLetters, LogError> {
        Ok(LogDeadLetters::new(self))
    }

    fn join(self, group: &str, topics: &[String]) -> Result<(LogSource, Waker), LogError> {
        let exists = |topic: &str| self.end(&PartitionId::new(topic, 0)).is_some();
        if let Some(missing) = topics.iter().find(|topic| !exists(topic)) {
            return Err(LogError::NoTopic(missing.clone()));
        }
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        Ok(self.member(group, &topics))
    }
}
