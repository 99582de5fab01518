//! What a child may say about a record, and what it comes to.

use std::process::ExitStatus;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use seriatim_runtime::failure::Failure;

/// One line of a child's, as far as every answer has it.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    /// Which record it is about.
    pub(crate) id: String,
    #[serde(default)]
    outcome: Value,
    #[serde(default)]
    after_ms: Value,
    #[serde(default)]
    error: Value,
}

/// The child said that the attempt failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ChildError(String);

// Errors are named so that their names tell, alone in a dead letter, what went wrong.

/// The child's answer is none.
#[derive(Debug, thiserror::Error)]
#[expect(
    clippy::enum_variant_names,
    reason = "a variant's name stands alone as the error's class"
)]
pub(crate) enum BadAnswer {
    #[error(r#"the child answered without one of the outcomes "ok", "retry" and "dead""#)]
    BadOutcome,
    #[error("the child answered with an `after_ms` that is no number of milliseconds")]
    BadAfterMs,
    #[error("the child answered with an `error` that is no text")]
    BadError,
}

/// There is no answer, and none will come.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    #[error("the child ended ({0}) before it answered")]
    ChildDied(ExitStatus),
    #[error("the child was ended before it answered")]
    ChildEnded,
}

impl Answer {
    /// Reads a line.
    ///
    /// # Errors
    /// What is wrong with it, without what stands in it.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(line).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => r#"no object with the record's "id""#.to_owned(),
            _ => format!("no JSON, at column {}", error.column()),
        })
    }

    /// What the handler returns for the record.
    ///
    /// # Errors
    /// When the answer is none; the record is then tried again.
    pub(crate) fn outcome(&self) -> Result<Result<(), Failure>, BadAnswer> {
        let error = match &self.error {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            _ => return Err(BadAnswer::BadError),
        };
        let error = |otherwise: &str| ChildError(error.clone().unwrap_or_else(|| otherwise.to_owned()));
        match self.outcome.as_str() {
            Some("ok") => Ok(Ok(())),
            Some("retry") => {
                let failure = Failure::transient(error("the child asked for another attempt"));
                Ok(Err(match self.after()? {
                    Some(delay) => failure.retry_after(delay),
                    None => failure,
                }))
            }
            Some("dead") => Ok(Err(Failure::permanent(error("the child gave the record up")))),
            _ => Err(BadAnswer::BadOutcome),
        }
    }

    fn after(&self) -> Result<Option<Duration>, BadAnswer> {
        match &self.after_ms {
            Value::Null => Ok(None),
            Value::Number(number) => {
                let seconds = number.as_f64().ok_or(BadAnswer::BadAfterMs)? / 1e3;
                let delay = Duration::try_from_secs_f64(seconds).map_err(|_| BadAnswer::BadAfterMs)?;
                Ok(Some(delay))
            }
            _ => Err(BadAnswer::BadAfterMs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seriatim_runtime::failure::FailureClass::{Permanent, Transient};

    fn outcome(line: &str) -> Result<Result<(), Failure>, BadAnswer> {
        Answer::parse(line.as_bytes()).unwrap().outcome()
    }

    fn failure(line: &str) -> Failure {
        outcome(line).unwrap().unwrap_err()
    }

    #[test]
    fn there_are_three_outcomes() {
        assert!(outcome(r#"{"id":"chat/3/42","outcome":"ok"}"#).unwrap().is_ok());

        let retry = failure(r#"{"id":"a","outcome":"retry","after_ms":1500,"error":"try later"}"#);
        assert_eq!(
            (retry.class(), retry.delay()),
            (Transient, Some(Duration::from_millis(1500)))
        );
        assert_eq!(retry.to_string(), "try later");
        assert_eq!(failure(r#"{"id":"a","outcome":"retry"}"#).delay(), None);

        let dead = failure(r#"{"id":"a","outcome":"dead","error":"no such account"}"#);
        assert_eq!(
            (dead.class(), dead.to_string()),
            (Permanent, "no such account".to_owned())
        );
    }

    #[test]
    fn a_bad_answer_still_says_which_record_it_is_about() {
        for line in [
            r#"{"id":"a"}"#,
            r#"{"id":"a","outcome":"OK"}"#,
            r#"{"id":"a","outcome":true}"#,
            r#"{"id":"a","outcome":"retry","after_ms":-1}"#,
            r#"{"id":"a","outcome":"retry","after_ms":"soon"}"#,
            r#"{"id":"a","outcome":"dead","error":{}}"#,
        ] {
            assert_eq!(Answer::parse(line.as_bytes()).unwrap().id, "a");
            assert!(outcome(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_line_that_is_no_answer_is_not_repeated() {
        for line in ["", "hunter2", "{\"hunter2", "[]", r#"{"hunter2":1}"#, r#"{"id":17}"#] {
            let error = Answer::parse(line.as_bytes()).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
