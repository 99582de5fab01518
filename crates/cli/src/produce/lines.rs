//! Standard input, in chunks of whole lines.
//!
//! Reading it blocks, for as long as a person types or a program computes; so a thread of its own reads, and what it
//! reads is taken with everything else that the command waits for.

use std::io::{self, Read};
use std::thread;

use tokio::sync::mpsc;

/// One read, about.
const CHUNK_BYTES: usize = 256 * 1024;

/// Chunks read ahead: the next is ready when one is done, and no more than a megabyte waits.
const CHUNKS_AHEAD: usize = 3;

/// The longest line: more than a broker takes by default, and a bound for a stream that has no lines.
const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Whole lines, and the number of the first, from 1.
pub(crate) struct Chunk {
    first: u64,
    text: Vec<u8>,
}

impl Chunk {
    /// The lines with their numbers, without their line breaks.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let text = self.text.strip_suffix(b"\n").unwrap_or(&self.text);
        (self.first..).zip(text.split(|byte| *byte == b'\n'))
    }
}

/// Begins to read lines from `input`.
pub(crate) fn read_lines(input: impl Read + Send + 'static) -> mpsc::Receiver<io::Result<Chunk>> {
    let (chunks, received) = mpsc::channel(CHUNKS_AHEAD);
    thread::Builder::new()
        .name("seriatim-stdin".into())
        .spawn(move || {
            let result = cut(input, |chunk| chunks.blocking_send(Ok(chunk)).is_ok());
            if let Err(error) = result {
                let _ = chunks.blocking_send(Err(error));
            }
        })
        .expect("the system has room for another thread");
    received
}

/// Cuts `input` into chunks, until it ends or `take` wants no more.
fn cut(mut input: impl Read, mut take: impl FnMut(Chunk) -> bool) -> io::Result<()> {
    let mut first = 1;
    let mut text = Vec::new();
    loop {
        let from = text.len();
        text.resize(from + CHUNK_BYTES, 0);
        let read = match input.read(&mut text[from..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            read => match read? {
                0 => {
                    text.truncate(from);
                    break;
                }
                read => read,
            },
        };
        text.truncate(from + read);
        let Some(end) = text[from..].iter().rposition(|byte| *byte == b'\n') else {
            if text.len() > LINE_BYTES_MAX {
                return Err(io::Error::other(format!(
                    "line {first} is longer than {LINE_BYTES_MAX} bytes"
                )));
            }
            continue;
        };
        let rest = text.split_off(from + end + 1);
        let lines = text.iter().filter(|byte| **byte == b'\n').count() as u64;
        let text = std::mem::replace(&mut text, rest);
        if !take(Chunk { first, text }) {
            return Ok(());
        }
        first += lines;
    }
    if !text.is_empty() {
        take(Chunk { first, text });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives at most `step` bytes at a time.
    struct Slow<'a> {
        text: &'a [u8],
        step: usize,
    }

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let len = self.step.min(self.text.len());
            buffer[..len].copy_from_slice(&self.text[..len]);
            self.text = &self.text[len..];
            Ok(len)
        }
    }

    #[test]
    fn lines_are_whole_and_numbered_wherever_reads_end() {
        let text = b"one\n\nthree\nfour\r\nfive";
        for step in 1..=text.len() {
            let mut lines = Vec::new();
            cut(Slow { text, step }, |chunk| {
                lines.extend(chunk.lines().map(|(number, line)| (number, line.to_vec())));
                true
            })
            .unwrap();
            let expected = [(1, &b"one"[..]), (2, b""), (3, b"three"), (4, b"four\r"), (5, b"five")];
            assert_eq!(
                lines,
                expected.map(|(number, line)| (number, line.to_vec())),
                "step {step}"
            );
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused_in_time() {
        let error = cut(io::repeat(b'x'), |_| true).unwrap_err();
        assert!(error.to_string().starts_with("line 1 is longer"), "{error}");
    }
}
