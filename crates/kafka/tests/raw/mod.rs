//! One record by Kafka's own protocol, with a header whose name is no UTF-8: no client library would write it.
//!
//! The messages: <https://kafka.apache.org/protocol>, Produce version 3; the record batch: version 2.

use std::io::{Read, Write};
use std::net::TcpStream;

/// Writes a record with the value `raw` and one header to partition 0.
pub(crate) fn produce(brokers: &str, topic: &str, header: &[u8], value: &[u8]) {
    let batch = record_batch(header, value);
    let mut request = Vec::new();
    request.extend([0, 0, 0, 3, 0, 0, 0, 1]); // Produce, version 3, correlation id 1
    request.extend((-1i16).to_be_bytes()); // no client id
    request.extend((-1i16).to_be_bytes()); // no transaction
    request.extend((-1i16).to_be_bytes()); // all replicas acknowledge
    request.extend(10_000i32.to_be_bytes());
    request.extend(1i32.to_be_bytes());
    request.extend((topic.len() as i16).to_be_bytes());
    request.extend(topic.as_bytes());
    request.extend(1i32.to_be_bytes());
    request.extend(0i32.to_be_bytes());
    request.extend((batch.len() as i32).to_be_bytes());
    request.extend(batch);

    let mut stream = TcpStream::connect(brokers.split(',').next().unwrap()).unwrap();
    stream.write_all(&(request.len() as i32).to_be_bytes()).unwrap();
    stream.write_all(&request).unwrap();
    let mut len = [0; 4];
    stream.read_exact(&mut len).unwrap();
    let mut answer = vec![0; i32::from_be_bytes(len) as usize];
    stream.read_exact(&mut answer).unwrap();
    // correlation id, topics, name, partitions, partition, then the error code
    let code = &answer[4 + 4 + 2 + topic.len() + 4 + 4..][..2];
    assert_eq!(code, [0, 0], "the broker refused the batch");
}

fn record_batch(header: &[u8], value: &[u8]) -> Vec<u8> {
    let mut record = vec![0, 0, 0]; // attributes, timestamp delta, offset delta
    record.extend(varint(-1)); // null key
    record.extend(varint(3));
    record.extend(b"raw");
    record.extend(varint(1));
    record.extend(varint(header.len() as i32));
    record.extend(header);
    record.extend(varint(value.len() as i32));
    record.extend(value);

    let mut body = Vec::new();
    body.extend([0, 0]); // attributes
    body.extend(0i32.to_be_bytes()); // last offset delta
    body.extend([77i64.to_be_bytes(), 77i64.to_be_bytes()].concat()); // timestamps
    body.extend((-1i64).to_be_bytes()); // no producer id,
    body.extend((-1i16).to_be_bytes()); // epoch
    body.extend((-1i32).to_be_bytes()); // or sequence
    body.extend(1i32.to_be_bytes());
    body.extend(varint(record.len() as i32));
    body.extend(record);

    let mut batch = vec![0; 8]; // base offset
    batch.extend((body.len() as i32 + 4 + 1 + 4).to_be_bytes());
    batch.extend((-1i32).to_be_bytes()); // leader epoch
    batch.push(2);
    batch.extend(crc32c(&body).to_be_bytes());
    batch.extend(body);
    batch
}

fn varint(number: i32) -> Vec<u8> {
    let mut rest = ((number << 1) ^ (number >> 31)) as u32;
    let mut bytes = Vec::new();
    while rest > 0x7f {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
        }
    }
    !crc
}
