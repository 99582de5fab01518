//! Records as JSON, one object a line: the form in which children get them, and in which they are printed and produced.
//!
//! Kafka's bytes are texts here when they are UTF-8, `{"base64":"…"}` when they are not, and null when they are null.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq, SerializeTuple, Serializer};
use serde::{Deserialize, Serialize};
use seriatim_runtime::message::Header;
use seriatim_runtime::record::Record;

/// A record to write as JSON.
#[derive(Serialize)]
pub(crate) struct JsonRecord<'a> {
    /// `topic/partition/offset`: the same on every attempt.
    id: &'a str,
    topic: &'a str,
    partition: i32,
    offset: i64,
    session: Option<Bytes<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    timestamp: Option<i64>,
    key: Option<Bytes<'a>>,
    value: Option<Bytes<'a>>,
    headers: Headers<'a>,
}

/// The id that stands for a record on the wire: see [`JsonRecord`].
pub(crate) fn wire_id(record: &Record) -> String {
    format!("{}/{}/{}", record.topic(), record.partition(), record.offset())
}

impl<'a> JsonRecord<'a> {
    /// `record`, whose [`wire_id`] is `id`.
    pub(crate) fn new(id: &'a str, record: &'a Record, session: Option<&'a [u8]>, attempt: Option<u32>) -> Self {
        Self {
            id,
            topic: record.topic(),
            partition: record.partition(),
            offset: record.offset(),
            session: session.map(Bytes),
            attempt,
            timestamp: record.timestamp().millis(),
            key: record.key().map(Bytes),
            value: record.value().map(Bytes),
            headers: Headers(record),
        }
    }

    /// Appends the object and a line break.
    pub(crate) fn write_line(&self, line: &mut Vec<u8>) {
        serde_json::to_writer(&mut *line, self).expect("a record's form has no case that JSON lacks");
        line.push(b'\n');
    }
}

/// Bytes to write.
struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut object = serializer.serialize_map(Some(1))?;
                object.serialize_entry("base64", &STANDARD.encode(self.0))?;
                object.end()
            }
        }
    }
}

struct Headers<'a>(&'a Record);

impl Serialize for Headers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for header in self.0.headers() {
            list.serialize_element(&Pair(header))?;
        }
        list.end()
    }
}

struct Pair<'a>(Header<'a>);

impl Serialize for Pair<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut pair = serializer.serialize_tuple(2)?;
        pair.serialize_element(&Bytes(self.0.name))?;
        pair.serialize_element(&self.0.value.map(Bytes))?;
        pair.end()
    }
}

/// A record to produce, read from JSON. What only a log can say of a record, its place and its attempt, is passed over,
/// so that what was consumed can be produced again.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewRecord {
    /// The key; null when it is not there.
    #[serde(default)]
    pub(crate) key: Option<OwnedBytes>,
    /// The value. It must be there: a misspelt one would write a tombstone.
    #[serde(deserialize_with = "Option::deserialize")]
    pub(crate) value: Option<OwnedBytes>,
    /// The headers, in order.
    #[serde(default)]
    pub(crate) headers: Vec<(OwnedBytes, Option<OwnedBytes>)>,
    /// Milliseconds since the Unix epoch.
    #[serde(default)]
    pub(crate) timestamp: Option<i64>,
    #[serde(default, rename = "id")]
    _id: de::IgnoredAny,
    #[serde(default, rename = "topic")]
    _topic: de::IgnoredAny,
    #[serde(default, rename = "partition")]
    _partition: de::IgnoredAny,
    #[serde(default, rename = "offset")]
    _offset: de::IgnoredAny,
    #[serde(default, rename = "session")]
    _session: de::IgnoredAny,
    #[serde(default, rename = "attempt")]
    _attempt: de::IgnoredAny,
}

/// Bytes that are kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OwnedBytes(pub(crate) Vec<u8>);

impl Serialize for OwnedBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Bytes(&self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for OwnedBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BytesVisitor;

        impl<'de> Visitor<'de> for BytesVisitor {
            type Value = OwnedBytes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(r#"a text or {"base64":"…"}"#)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<OwnedBytes, E> {
                Ok(OwnedBytes(text.as_bytes().to_vec()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<OwnedBytes, E> {
                Ok(OwnedBytes(text.into_bytes()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<OwnedBytes, A::Error> {
                let entry: Option<(String, String)> = object.next_entry()?;
                match (entry, object.next_key::<String>()?) {
                    (Some((name, text)), None) if name == "base64" => {
                        STANDARD.decode(text).map(OwnedBytes).map_err(de::Error::custom)
                    }
                    _ => Err(de::Error::custom(
                        r#"an object stands for bytes only as {"base64":"…"}"#,
                    )),
                }
            }
        }

        deserializer.deserialize_any(BytesVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seriatim_engine::record::Offset;
    use seriatim_runtime::message::{OwnedMessage, Timestamp};

    fn record(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[(&[u8], Option<&[u8]>)]) -> Record {
        let headers = headers.iter().map(|&(name, value)| Header { name, value });
        OwnedMessage::build(
            "chat",
            3,
            Offset::new(42),
            Timestamp::Created(1_764_417_600_000),
            key,
            value,
            headers,
        )
        .into()
    }

    fn line(record: &Record, session: Option<&[u8]>, attempt: Option<u32>) -> String {
        let mut line = Vec::new();
        JsonRecord::new(&wire_id(record), record, session, attempt).write_line(&mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn a_record_has_the_fields_of_the_contract_in_their_order() {
        let record = record(Some(b"s1"), Some("né".as_bytes()), &[(b"name", Some(b"value"))]);
        assert_eq!(
            line(&record, Some(b"s1"), Some(1)),
            concat!(
                r#"{"id":"chat/3/42","topic":"chat","partition":3,"offset":42,"session":"s1","attempt":1,"#,
                r#""timestamp":1764417600000,"key":"s1","value":"né","headers":[["name","value"]]}"#,
                "\n"
            )
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_base64_and_null_is_null() {
        let record = record(None, Some(b"\xff\x00"), &[(b"\xfe", None)]);
        assert_eq!(
            line(&record, None, None),
            concat!(
                r#"{"id":"chat/3/42","topic":"chat","partition":3,"offset":42,"session":null,"#,
                r#""timestamp":1764417600000,"key":null,"value":{"base64":"/wA="},"headers":[[{"base64":"/g=="},null]]}"#,
                "\n"
            )
        );
    }

    #[test]
    fn what_was_written_can_be_read() {
        let written = line(
            &record(Some(b"s1"), None, &[(b"a", Some(b"\xff")), (b"a", None)]),
            None,
            Some(2),
        );
        let read: NewRecord = serde_json::from_str(&written).unwrap();
        assert_eq!(read.key, Some(OwnedBytes(b"s1".to_vec())));
        assert_eq!(read.value, None);
        let name = || OwnedBytes(b"a".to_vec());
        assert_eq!(read.headers, [(name(), Some(OwnedBytes(vec![0xff]))), (name(), None)]);
        assert_eq!(read.timestamp, Some(1_764_417_600_000));
    }

    #[test]
    fn what_is_no_record_is_refused_with_the_reason() {
        let error = |text: &str| serde_json::from_str::<NewRecord>(text).unwrap_err().to_string();
        assert!(error(r#"{"key":"a"}"#).contains("value"));
        assert!(error(r#"{"value":"a","vlaue":"b"}"#).contains("vlaue"));
        assert!(error(r#"{"value":17}"#).contains("a text or"));
        assert!(error(r#"{"value":{"hex":"00"}}"#).contains("base64"));
        assert!(error(r#"{"value":{"base64":"%"}}"#).contains("symbol"));
    }
}
