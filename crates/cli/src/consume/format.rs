//! How a record is printed: kcat's format strings.

use std::io::{self, Write};
use std::str::FromStr;

use seriatim_runtime::record::Record;

/// A format string, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Field(Field),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Value,
    ValueLen,
    Key,
    KeyLen,
    Topic,
    Partition,
    Offset,
    Timestamp,
    Headers,
}

/// A format string that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error(
        "`%{0}` is no field; there are %s value, %S its length, %k key, %K its length, %t topic, %p partition, \
         %o offset, %T timestamp, %h headers, and %% for a percent sign"
    )]
    Field(char),
    #[error("`\\{0}` is no escape; there are \\n, \\r, \\t, \\0, \\\\ and \\xNN")]
    Escape(char),
    #[error("the format ends within `{0}`")]
    Unfinished(&'static str),
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let mut template = Template(Vec::new());
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            match c {
                '%' => match chars.next().ok_or(TemplateError::Unfinished("%"))? {
                    '%' => template.push_text(b"%"),
                    letter => template.0.push(Part::Field(Field::of(letter)?)),
                },
                '\\' => template.push_text(&[escaped(&mut chars)?]),
                c => template.push_text(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        Ok(template)
    }
}

impl Field {
    fn of(letter: char) -> Result<Self, TemplateError> {
        Ok(match letter {
            's' => Field::Value,
            'S' => Field::ValueLen,
            'k' => Field::Key,
            'K' => Field::KeyLen,
            't' => Field::Topic,
            'p' => Field::Partition,
            'o' => Field::Offset,
            'T' => Field::Timestamp,
            'h' | 'H' => Field::Headers,
            other => return Err(TemplateError::Field(other)),
        })
    }

    fn write(self, record: &Record, out: &mut impl Write) -> io::Result<()> {
        match self {
            Field::Value => out.write_all(record.payload()),
            Field::ValueLen => write!(out, "{}", len(record.value())),
            Field::Key => out.write_all(record.key().unwrap_or_default()),
            Field::KeyLen => write!(out, "{}", len(record.key())),
            Field::Topic => out.write_all(record.topic().as_bytes()),
            Field::Partition => write!(out, "{}", record.partition()),
            Field::Offset => write!(out, "{}", record.offset()),
            Field::Timestamp => write!(out, "{}", record.timestamp().millis().unwrap_or(-1)),
            Field::Headers => write_headers(record, out),
        }
    }
}

/// A length, with -1 for null, which is how kcat tells it from empty.
fn len(part: Option<&[u8]>) -> i64 {
    part.map_or(-1, |part| part.len() as i64)
}

/// `name=value,name=value`, with `NULL` for null.
fn write_headers(record: &Record, out: &mut impl Write) -> io::Result<()> {
    for (index, header) in record.headers().enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        out.write_all(header.name)?;
        out.write_all(b"=")?;
        out.write_all(header.value.unwrap_or(b"NULL"))?;
    }
    Ok(())
}

/// What stands behind a backslash.
fn escaped(chars: &mut std::str::Chars<'_>) -> Result<u8, TemplateError> {
    Ok(match chars.next().ok_or(TemplateError::Unfinished("\\"))? {
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        '0' => 0,
        '\\' => b'\\',
        'x' => {
            let mut digit = || {
                let digit = chars.next().and_then(|c| c.to_digit(16));
                digit.ok_or(TemplateError::Unfinished("\\xNN"))
            };
            (digit()? << 4 | digit()?) as u8
        }
        other => return Err(TemplateError::Escape(other)),
    })
}

impl Template {
    fn push_text(&mut self, text: &[u8]) {
        match self.0.last_mut() {
            Some(Part::Text(last)) => last.extend_from_slice(text),
            _ => self.0.push(Part::Text(text.to_vec())),
        }
    }

    /// Writes `record`.
    ///
    /// # Errors
    /// What `out` says.
    pub(crate) fn write(&self, record: &Record, out: &mut impl Write) -> io::Result<()> {
        self.0.iter().try_for_each(|part| match part {
            Part::Text(text) => out.write_all(text),
            Part::Field(field) => field.write(record, out),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seriatim_engine::record::Offset;
    use seriatim_runtime::message::{Header, OwnedMessage, Timestamp};

    fn written(format: &str, key: Option<&[u8]>, value: Option<&[u8]>) -> String {
        let headers = [("a", Some(&b"1"[..])), ("b", None)];
        let headers = headers.map(|(name, value)| Header {
            name: name.as_bytes(),
            value,
        });
        let timestamp = Timestamp::Created(7);
        let record = OwnedMessage::build("chat", 3, Offset::new(42), timestamp, key, value, headers.into_iter());
        let mut out = Vec::new();
        format
            .parse::<Template>()
            .unwrap()
            .write(&record.into(), &mut out)
            .unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn kcats_fields_and_escapes_are_known() {
        let all = r"%t[%p]@%o %T %k(%K)=%s(%S) %h 100%%\t\x41\\\n";
        assert_eq!(
            written(all, Some(b"s1"), Some(b"abc")),
            "chat[3]@42 7 s1(2)=abc(3) a=1,b=NULL 100%\tA\\\n"
        );
        assert_eq!(written("%k %K %s %S", None, None), " -1  -1");
        assert_eq!(written("né", None, None), "né");
    }

    #[test]
    fn what_is_unknown_is_answered_with_what_is_known() {
        let error = |format: &str| format.parse::<Template>().unwrap_err().to_string();
        assert!(error("%z").starts_with("`%z` is no field; there are %s value"));
        assert!(error(r"\q").starts_with(r"`\q` is no escape"));
        assert!(error("100%").contains("ends within `%`"));
        assert!(error(r"\x4").contains(r"\xNN"));
    }
}
