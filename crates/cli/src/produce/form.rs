//! What a line of standard input says: the record to produce, and its session.

use std::borrow::Cow;

use seriatim_engine::record::Offset;
use seriatim_runtime::message::{Header, OwnedMessage, Timestamp};
use seriatim_runtime::session_by::{SessionBy, SessionKeyError};

use crate::json::{NewRecord, OwnedBytes};

/// How lines are to be read.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// The line is the value.
    Value,
    /// The key, this delimiter, the value.
    KeyValue(String),
    /// A JSON object.
    Json,
}

/// A line's record.
pub(crate) struct Parsed<'a> {
    pub(crate) session: Cow<'a, [u8]>,
    pub(crate) key: Option<Cow<'a, [u8]>>,
    pub(crate) value: Option<Cow<'a, [u8]>>,
    pub(crate) headers: Vec<(OwnedBytes, Option<OwnedBytes>)>,
    pub(crate) timestamp_ms: Option<i64>,
}

/// A line that is no record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    #[error("there is no `{0}` between key and value")]
    NoDelimiter(String),
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Session(#[from] SessionKeyError),
}

impl Form {
    /// Reads `line`, whose session `session_by` names.
    ///
    /// # Errors
    /// When it is no record, or names no session.
    pub(crate) fn parse<'a>(&self, line: &'a [u8], session_by: &SessionBy) -> Result<Parsed<'a>, LineError> {
        let mut parsed = self.record(line)?;
        parsed.session = match (session_by, &parsed.key) {
            (SessionBy::Key, Some(key)) if !key.is_empty() => key.clone(),
            (SessionBy::Key, _) => return Err(SessionKeyError::NoKey.into()),
            _ => Cow::Owned(session_by.key_of(&parsed.as_message())?.into_owned()),
        };
        Ok(parsed)
    }

    /// The record, with no session yet.
    fn record<'a>(&self, line: &'a [u8]) -> Result<Parsed<'a>, LineError> {
        let plain = |key: Option<&'a [u8]>, value: &'a [u8]| Parsed {
            session: Cow::Borrowed(&[]),
            key: key.map(Cow::Borrowed),
            value: Some(Cow::Borrowed(value)),
            headers: Vec::new(),
            timestamp_ms: None,
        };
        match self {
            Form::Value => Ok(plain(None, line)),
            Form::KeyValue(delimiter) => {
                let at = find(line, delimiter.as_bytes()).ok_or_else(|| LineError::NoDelimiter(delimiter.clone()))?;
                Ok(plain(Some(&line[..at]), &line[at + delimiter.len()..]))
            }
            Form::Json => {
                let read: NewRecord = serde_json::from_slice(line)?;
                Ok(Parsed {
                    session: Cow::Borrowed(&[]),
                    key: read.key.map(|key| Cow::Owned(key.0)),
                    value: read.value.map(|value| Cow::Owned(value.0)),
                    headers: read.headers,
                    timestamp_ms: read.timestamp,
                })
            }
        }
    }
}

impl Parsed<'_> {
    /// The headers, as the producer takes them.
    pub(crate) fn headers(&self) -> Vec<Header<'_>> {
        self.headers
            .iter()
            .map(|(name, value)| Header {
                name: &name.0,
                value: value.as_ref().map(|value| value.0.as_slice()),
            })
            .collect()
    }

    /// The record as a consumer would see it: the one form in which a session is looked for.
    fn as_message(&self) -> OwnedMessage {
        OwnedMessage::build(
            "",
            0,
            Offset::ZERO,
            Timestamp::None,
            self.key.as_deref(),
            self.value.as_deref(),
            self.headers().into_iter(),
        )
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    match part {
        [byte] => text.iter().position(|other| other == byte),
        _ => text.windows(part.len()).position(|window| window == part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(form: &Form, line: &str, session_by: &str) -> Result<(String, Option<String>, Option<String>), String> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        form.parse(line.as_bytes(), &session_by.parse().unwrap())
            .map(|parsed| {
                (
                    text(&parsed.session),
                    parsed.key.as_deref().map(text),
                    parsed.value.as_deref().map(text),
                )
            })
            .map_err(|error| error.to_string())
    }

    fn some(
        session: &str,
        key: Option<&str>,
        value: Option<&str>,
    ) -> Result<(String, Option<String>, Option<String>), String> {
        Ok((session.to_owned(), key.map(str::to_owned), value.map(str::to_owned)))
    }

    #[test]
    fn the_key_stands_before_the_first_delimiter() {
        let form = Form::KeyValue(":".to_owned());
        assert_eq!(parsed(&form, "s1:a:b", "key"), some("s1", Some("s1"), Some("a:b")));
        assert_eq!(parsed(&form, "s1:", "key"), some("s1", Some("s1"), Some("")));
        assert!(parsed(&form, ":a", "key").unwrap_err().contains("no key"));
        assert!(parsed(&form, "a", "key").unwrap_err().contains("`:`"));
        let form = Form::KeyValue("=>".to_owned());
        assert_eq!(parsed(&form, "s=1=>a", "key"), some("s=1", Some("s=1"), Some("a")));
    }

    #[test]
    fn a_session_may_stand_in_the_value() {
        let line = r#"{"account":{"id":17}}"#;
        assert_eq!(
            parsed(&Form::Value, line, "json:/account/id"),
            some("17", None, Some(line))
        );
        assert!(
            parsed(&Form::Value, "{}", "json:/account/id")
                .unwrap_err()
                .contains("/account/id")
        );
    }

    #[test]
    fn json_says_everything() {
        let line = r#"{"key":"k","value":null,"headers":[["session","a"],["session","s1"]],"timestamp":7}"#;
        assert_eq!(parsed(&Form::Json, line, "header:session"), some("s1", Some("k"), None));
        assert_eq!(parsed(&Form::Json, line, "key"), some("k", Some("k"), None));
        assert!(parsed(&Form::Json, "nonsense", "key").is_err());
    }
}
