//! Where a record's session key is found.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use crate::message::Message;
use crate::record::Record;

/// Which part of a record names its session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SessionBy {
    /// The record's key. A null or empty key names no session.
    #[default]
    Key,
    /// The value of the last header of this name.
    Header(String),
    /// What a JSON pointer (RFC 6901) finds in the record's value: a text or a number.
    Json(String),
}

/// A record without a readable session key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionKeyError {
    /// The record's key is null or empty.
    #[error("the record has no key; name another place with `--session-by`, or set the key in the producer")]
    NoKey,
    /// There is no such header, or it is null or empty.
    #[error("the record has no header `{0}`")]
    NoHeader(String),
    /// The value is null or no JSON.
    #[error("the value is not JSON: {0}")]
    NotJson(String),
    /// The pointer finds nothing.
    #[error("the value has nothing at `{0}`")]
    NothingAt(String),
    /// The pointer finds something that names no session.
    #[error("the value at `{0}` is neither a text nor a number")]
    NotText(String),
}

/// What to do with a record without a readable session key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingSession {
    /// Dead-letter the record, and go on.
    #[default]
    DeadLetter,
    /// Stop the consumer with an error that names the record.
    Fail,
    /// Let the partition be the record's session: it keeps its place among the partition's other records without key.
    PartitionAsSession,
}

impl SessionBy {
    /// The header called `name`.
    pub fn header(name: impl Into<String>) -> Self {
        SessionBy::Header(name.into())
    }

    /// The place `pointer` (e.g. `/account/id`) in a JSON value.
    pub fn json(pointer: impl Into<String>) -> Self {
        SessionBy::Json(pointer.into())
    }

    /// The session key of `message`.
    ///
    /// # Errors
    /// When the message has none.
    #[inline]
    pub fn key_of<'a>(&self, message: &'a (impl Message + ?Sized)) -> Result<Cow<'a, [u8]>, SessionKeyError> {
        match self {
            SessionBy::Key => match message.key() {
                Some(key) if !key.is_empty() => Ok(Cow::Borrowed(key)),
                _ => Err(SessionKeyError::NoKey),
            },
            SessionBy::Header(name) => header_of(message, name),
            SessionBy::Json(pointer) => json_at(message.value(), pointer),
        }
    }
}

impl SessionBy {
    /// The session key of `record`, as bytes of its own.
    ///
    /// # Errors
    /// When the record has none.
    pub fn key_of_record(&self, record: &Record) -> Result<Vec<u8>, SessionKeyError> {
        self.key_of(record.message()).map(Cow::into_owned)
    }
}

fn header_of<'a>(message: &'a (impl Message + ?Sized), name: &str) -> Result<Cow<'a, [u8]>, SessionKeyError> {
    (0..)
        .map_while(|index| message.header(index))
        .filter(|header| header.name == name.as_bytes())
        .last()
        .and_then(|header| header.value)
        .filter(|value| !value.is_empty())
        .map(Cow::Borrowed)
        .ok_or_else(|| SessionKeyError::NoHeader(name.to_owned()))
}

fn json_at<'a>(value: Option<&[u8]>, pointer: &str) -> Result<Cow<'a, [u8]>, SessionKeyError> {
    let value: Value = serde_json::from_slice(value.unwrap_or_default())
        // The error's place is told, its text is not: it may quote the payload.
        .map_err(|error| SessionKeyError::NotJson(format!("column {} of line {}", error.column(), error.line())))?;
    match value.pointer(pointer) {
        None | Some(Value::Null) => Err(SessionKeyError::NothingAt(pointer.to_owned())),
        Some(Value::String(text)) if text.is_empty() => Err(SessionKeyError::NothingAt(pointer.to_owned())),
        Some(Value::String(text)) => Ok(Cow::Owned(text.clone().into_bytes())),
        Some(Value::Number(number)) => Ok(Cow::Owned(number.to_string().into_bytes())),
        Some(_) => Err(SessionKeyError::NotText(pointer.to_owned())),
    }
}

/// A `--session-by` that names no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no place for a session key; write `key`, `header:NAME` or `json:/pointer`")]
pub struct SessionByError(String);

/// As [`FromStr`] reads it.
impl fmt::Display for SessionBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionBy::Key => f.write_str("key"),
            SessionBy::Header(name) => write!(f, "header:{name}"),
            SessionBy::Json(pointer) => write!(f, "json:{pointer}"),
        }
    }
}

impl FromStr for SessionBy {
    type Err = SessionByError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "key" => Ok(SessionBy::Key),
            Some(("header", name)) if !name.is_empty() => Ok(SessionBy::header(name)),
            Some(("json", pointer)) if pointer.starts_with('/') => Ok(SessionBy::json(pointer)),
            _ => Err(SessionByError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Header, OwnedMessage, Timestamp};
    use seriatim_engine::record::Offset;

    fn message(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header<'_>]) -> OwnedMessage {
        OwnedMessage::build(
            "chat",
            0,
            Offset::ZERO,
            Timestamp::None,
            key,
            value,
            headers.iter().copied(),
        )
    }

    #[test]
    fn the_key_names_the_session_unless_it_is_null_or_empty() {
        let by = SessionBy::Key;
        assert_eq!(by.key_of(&message(Some(b"s1"), None, &[])).unwrap().as_ref(), b"s1");
        assert_eq!(by.key_of(&message(Some(b""), None, &[])), Err(SessionKeyError::NoKey));
        assert_eq!(by.key_of(&message(None, None, &[])), Err(SessionKeyError::NoKey));
    }

    #[test]
    fn the_last_header_of_a_name_counts() {
        let by = SessionBy::header("session-id");
        let headers = [
            Header {
                name: b"session-id",
                value: Some(b"first"),
            },
            Header {
                name: b"session-id",
                value: Some(b"last"),
            },
        ];
        assert_eq!(by.key_of(&message(None, None, &headers)).unwrap().as_ref(), b"last");
        assert!(by.key_of(&message(None, None, &[])).is_err());
    }

    #[test]
    fn a_pointer_finds_texts_and_numbers_only() {
        let by = SessionBy::json("/account/id");
        let key = |value: &str| {
            by.key_of(&message(None, Some(value.as_bytes()), &[]))
                .map(|key| String::from_utf8(key.into_owned()).unwrap())
        };
        assert_eq!(key(r#"{"account":{"id":"a1"}}"#), Ok("a1".into()));
        assert_eq!(key(r#"{"account":{"id":17}}"#), Ok("17".into()));
        assert_eq!(
            key(r#"{"account":{}}"#),
            Err(SessionKeyError::NothingAt("/account/id".into()))
        );
        assert_eq!(
            key(r#"{"account":{"id":[]}}"#),
            Err(SessionKeyError::NotText("/account/id".into()))
        );
        assert!(matches!(key("{secret"), Err(SessionKeyError::NotJson(text)) if !text.contains("secret")));
    }

    #[test]
    fn a_wrong_place_is_named_with_the_right_ones() {
        assert_eq!("key".parse(), Ok(SessionBy::Key));
        for text in ["key", "header:x", "json:/a/b"] {
            assert_eq!(text.parse::<SessionBy>().unwrap().to_string(), text);
        }
        assert_eq!("header:x".parse(), Ok(SessionBy::header("x")));
        assert_eq!("json:/a/0".parse(), Ok(SessionBy::json("/a/0")));
        for wrong in ["", "keys", "header:", "json:a", "value"] {
            assert!(
                wrong
                    .parse::<SessionBy>()
                    .unwrap_err()
                    .to_string()
                    .contains("header:NAME")
            );
        }
    }
}
