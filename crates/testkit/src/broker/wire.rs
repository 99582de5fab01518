//! As much of Kafka's protocol as a fixture needs: is a node a member yet, create a topic, who leads it, who coordinates
//! a group. Asking a node takes a millisecond, where a tool takes a JVM.
//!
//! The messages: <https://kafka.apache.org/protocol>. All versions here precede the flexible encoding.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::Replicas;

/// A frozen node takes connections and never answers. The controller's own limit is shorter.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const CREATE_TIMEOUT_MS: i32 = 8_000;
/// An answer names the nodes and one topic's partitions: 10,000 partitions are 400 kB.
const ANSWER_BYTES_MAX: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Metadata {
    /// Ids of the brokers that are up, as this node knows them.
    pub(super) members: Vec<u32>,
    /// The partitions of the topic, by their numbers; `None` for one without a leader.
    pub(super) partitions: Vec<Option<Replicas>>,
}

/// What a node knows of its cluster and of one topic.
pub(super) fn metadata(address: &str, topic: Option<&str>) -> io::Result<Metadata> {
    let mut request = Request::new(3, 4);
    request.array(topic, |request, topic| request.string(topic));
    request.bool(false); // Create no topic.
    let mut answer = request.send(address)?;

    let _throttle_ms = answer.i32()?;
    let members = answer.array(|answer| {
        let id = answer.i32()?;
        let (_host, _port, _rack) = (answer.string()?, answer.i32()?, answer.string()?);
        Ok(id as u32)
    })?;
    let (_cluster, _controller) = (answer.string()?, answer.i32()?);
    let topics = answer.array(|answer| {
        let (_error, _name, _internal) = (answer.i16()?, answer.string()?, answer.u8()?);
        answer.array(|answer| {
            let (error, index, leader) = (answer.i16()?, answer.i32()?, answer.i32()?);
            let (_replicas, in_sync) = (answer.array(Answer::i32)?, answer.array(Answer::i32)?);
            let led = error == 0 && leader >= 0;
            let replicas = led.then(|| Replicas {
                leader: leader as u32,
                in_sync: in_sync.into_iter().map(|id| id as u32).collect(),
            });
            Ok((index, replicas))
        })
    })?;
    let mut partitions: Vec<_> = topics.into_iter().flatten().collect();
    partitions.sort_by_key(|(index, _)| *index);
    let partitions = partitions.into_iter().map(|(_, replicas)| replicas).collect();
    Ok(Metadata { members, partitions })
}

/// The node that coordinates a group, as this node knows it; `None` while it knows of none.
pub(super) fn coordinator(address: &str, group: &str) -> io::Result<Option<u32>> {
    let mut request = Request::new(10, 0);
    request.string(group);
    let mut answer = request.send(address)?;

    let (error, node) = (answer.i16()?, answer.i32()?);
    Ok((error == 0).then_some(node as u32))
}

/// The inner error is the broker's refusal.
pub(super) fn create_topic(
    address: &str,
    topic: &str,
    partitions: u32,
    configs: &[(&str, &str)],
) -> io::Result<Result<(), String>> {
    let mut request = Request::new(19, 4);
    request.array([topic], |request, topic| {
        request.string(topic);
        request.i32(partitions as i32);
        request.i16(-1); // As many replicas as the broker's default.
        request.i32(0); // No assignment by hand.
        request.array(configs, |request, (key, value)| {
            request.string(key);
            request.string(value);
        });
    });
    request.i32(CREATE_TIMEOUT_MS);
    request.bool(false); // Not just a validation.
    let mut answer = request.send(address)?;

    let _throttle_ms = answer.i32()?;
    let results = answer.array(|answer| {
        let (_name, code, message) = (answer.string()?, answer.i16()?, answer.string()?);
        Ok((code, message))
    })?;
    match results.into_iter().next() {
        Some((0, _)) => Ok(Ok(())),
        Some((code, message)) => Ok(Err(format!("error {code}, {}", message.unwrap_or_default()))),
        None => Err(cut_short()),
    }
}

struct Request(Vec<u8>);

impl Request {
    fn new(api: i16, version: i16) -> Self {
        let mut request = Self(Vec::new());
        request.i16(api);
        request.i16(version);
        request.i32(1); // The correlation id: each connection carries one request.
        request.string("seriatim-testkit");
        request
    }

    fn bool(&mut self, value: bool) {
        self.0.push(value.into());
    }

    fn i16(&mut self, value: i16) {
        self.0.extend(value.to_be_bytes());
    }

    fn i32(&mut self, value: i32) {
        self.0.extend(value.to_be_bytes());
    }

    fn string(&mut self, value: &str) {
        self.i16(value.len() as i16);
        self.0.extend(value.as_bytes());
    }

    fn array<T>(&mut self, items: impl IntoIterator<Item = T>, mut item: impl FnMut(&mut Self, T)) {
        let length_at = self.0.len();
        self.i32(0);
        let mut length = 0_i32;
        for value in items {
            item(self, value);
            length += 1;
        }
        self.0[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
    }

    fn send(self, address: &str) -> io::Result<Answer> {
        let resolved = address
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::other("no such address"))?;
        let mut stream = TcpStream::connect_timeout(&resolved, ANSWER_TIMEOUT)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;

        let mut frame = (self.0.len() as u32).to_be_bytes().to_vec();
        frame.extend(self.0);
        stream.write_all(&frame)?;

        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > ANSWER_BYTES_MAX {
            return Err(io::Error::other(format!("an answer of {length} bytes")));
        }
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes)?;

        let mut answer = Answer { bytes, read: 0 };
        let _correlation = answer.i32()?;
        Ok(answer)
    }
}

struct Answer {
    bytes: Vec<u8>,
    read: usize,
}

impl Answer {
    fn take(&mut self, length: usize) -> io::Result<&[u8]> {
        let taken = self.bytes.get(self.read..self.read + length).ok_or_else(cut_short)?;
        self.read += length;
        Ok(taken)
    }

    fn u8(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn i16(&mut self) -> io::Result<i16> {
        Ok(i16::from_be_bytes(self.take(2)?.try_into().expect("two bytes")))
    }

    fn i32(&mut self) -> io::Result<i32> {
        Ok(i32::from_be_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn string(&mut self) -> io::Result<Option<String>> {
        match usize::try_from(self.i16()?) {
            Ok(length) => Ok(Some(String::from_utf8_lossy(self.take(length)?).into_owned())),
            Err(_) => Ok(None),
        }
    }

    fn array<T>(&mut self, mut item: impl FnMut(&mut Self) -> io::Result<T>) -> io::Result<Vec<T>> {
        let length = self.i32()?.max(0);
        (0..length).map(|_| item(self)).collect()
    }
}

fn cut_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the answer is cut short")
}
