//! The dead letter sink against Kafka: what a letter says, byte by byte, and when it is not written.

use std::time::{Duration, SystemTime};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message, OwnedMessage};
use rdkafka::mocking::MockCluster;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use seriatim_engine::record::Offset as RecordOffset;
use seriatim_kafka::config::Properties;
use seriatim_kafka::dead_letters::KafkaDeadLetters;
use seriatim_kafka::producer::partition_of;
use seriatim_runtime::message::{self, Header, Timestamp};
use seriatim_runtime::ports::{DeadLetter, DeadLetterReason, DeadLetters};
use seriatim_runtime::record::Record;
use seriatim_testkit::broker;

const SOON: Duration = Duration::from_secs(60);

fn sink(brokers: &str) -> KafkaDeadLetters {
    KafkaDeadLetters::connect(brokers, "bookings", &Properties::default()).unwrap()
}

/// A record at `topic[3]@42`.
fn record(topic: &str, key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header<'_>]) -> Record {
    let created = Timestamp::Created(1_764_417_600_000);
    let (offset, headers) = (RecordOffset::new(42), headers.iter().copied());
    Record::from(message::OwnedMessage::build(
        topic, 3, offset, created, key, value, headers,
    ))
}

fn letter(record: Record) -> DeadLetter {
    DeadLetter {
        session: Some(b"s1".to_vec()),
        reason: DeadLetterReason::Exhausted,
        attempts: 5,
        error_class: "booking::Sold".to_owned(),
        error_text: "no seat is left".to_owned(),
        first_failure: SystemTime::UNIX_EPOCH + Duration::from_millis(1_764_417_601_250),
        last_failure: SystemTime::UNIX_EPOCH + Duration::from_millis(1_764_417_609_000),
        record,
    }
}

/// The one record of the topic, read by another client than the one under test.
fn read_one(brokers: &str, topic: &str, partition: i32) -> OwnedMessage {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "witness")
        .create()
        .unwrap();
    let mut assignment = TopicPartitionList::new();
    assignment
        .add_partition_offset(topic, partition, Offset::Beginning)
        .unwrap();
    consumer.assign(&assignment).unwrap();
    consumer.poll(SOON).expect("a record within a minute").unwrap().detach()
}

fn headers(message: &OwnedMessage) -> Vec<(&str, Option<&[u8]>)> {
    let headers = message.headers().into_iter().flat_map(Headers::iter);
    headers.map(|header| (header.key, header.value)).collect()
}

#[tokio::test]
async fn a_letter_is_its_record_with_origin_and_cause() {
    let cluster = broker::shared();
    cluster.create_topic("origin.dlq", 4, &[]).unwrap();
    let theirs = [
        Header {
            name: b"twice",
            value: Some(b"1"),
        },
        Header {
            name: b"twice",
            value: None,
        },
        Header {
            name: b"binary",
            value: Some(b"\xff\x00"),
        },
        Header {
            name: b"traceparent",
            value: Some(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        },
    ];
    let dead = record("origin", Some(b"k\xff1"), Some(b"make it Paris"), &theirs);
    sink(cluster.bootstrap()).publish(letter(dead)).await.unwrap();

    let written = read_one(cluster.bootstrap(), "origin.dlq", partition_of(b"s1", 4));
    assert_eq!(
        (written.key(), written.payload()),
        (Some(&b"k\xff1"[..]), Some(&b"make it Paris"[..]))
    );
    assert_eq!(
        written.timestamp().to_millis(),
        Some(1_764_417_609_000),
        "when the last attempt failed"
    );
    let expected: [(&str, Option<&[u8]>); 16] = [
        ("twice", Some(b"1")),
        ("twice", None),
        ("binary", Some(b"\xff\x00")),
        (
            "traceparent",
            Some(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ),
        ("kafka_dlt-original-topic", Some(b"origin")),
        ("kafka_dlt-original-partition", Some(&[0, 0, 0, 3])),
        ("kafka_dlt-original-offset", Some(&[0, 0, 0, 0, 0, 0, 0, 42])),
        (
            "kafka_dlt-original-timestamp",
            Some(&1_764_417_600_000_i64.to_be_bytes()),
        ),
        ("kafka_dlt-original-timestamp-type", Some(b"CreateTime")),
        ("kafka_dlt-original-consumer-group", Some(b"bookings")),
        ("kafka_dlt-exception-fqcn", Some(b"booking::Sold")),
        ("kafka_dlt-exception-message", Some(b"no seat is left")),
        ("seriatim-session", Some(b"s1")),
        ("seriatim-attempts", Some(b"5")),
        ("seriatim-reason", Some(b"exhausted")),
        ("seriatim-first-failure", Some(b"2025-11-29T12:00:01.250Z")),
    ];
    assert_eq!(headers(&written)[..16], expected);
    assert_eq!(headers(&written)[16..], [("seriatim-redrives", Some(&b"0"[..]))]);
}

#[tokio::test]
async fn a_record_without_session_key_or_value_stays_without() {
    let cluster = broker::shared();
    cluster.create_topic("bare.dlq", 2, &[]).unwrap();
    let headers_of_it = [Header {
        name: b"caf\xe9",
        value: None,
    }];
    let dead = DeadLetter {
        session: None,
        reason: DeadLetterReason::Undecodable,
        ..letter(record("bare", None, None, &headers_of_it))
    };
    sink(cluster.bootstrap()).publish(dead).await.unwrap();

    let written = read_one(cluster.bootstrap(), "bare.dlq", 1);
    assert_eq!((written.key(), written.payload()), (None, None));
    let headers = headers(&written);
    assert_eq!(
        headers[0],
        ("caf\u{fffd}", None),
        "as near as the client gets to a name that is not UTF-8"
    );
    assert!(headers.contains(&("seriatim-reason", Some(b"undecodable"))));
    assert!(headers.iter().all(|(name, _)| *name != "seriatim-session"));
}

#[tokio::test]
async fn a_second_death_replaces_the_first_and_keeps_the_count_of_redrives() {
    let cluster = broker::shared();
    cluster.create_topic("again.dlq", 1, &[]).unwrap();
    let from_the_first = [
        Header {
            name: b"kafka_dlt-original-offset",
            value: Some(&[0; 8]),
        },
        Header {
            name: b"seriatim-reason",
            value: Some(b"permanent"),
        },
        Header {
            name: b"seriatim-redrives",
            value: Some(b"2"),
        },
        Header {
            name: b"seriatim-seq",
            value: Some(b"7"),
        },
    ];
    let dead = record("again", Some(b"s1"), Some(b"x"), &from_the_first);
    sink(cluster.bootstrap()).publish(letter(dead)).await.unwrap();

    let written = read_one(cluster.bootstrap(), "again.dlq", 0);
    let values = |name| {
        headers(&written)
            .iter()
            .filter(|(n, _)| *n == name)
            .map(|(_, v)| v.unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(values("kafka_dlt-original-offset"), [&42_i64.to_be_bytes()]);
    assert_eq!(values("seriatim-reason"), [b"exhausted"]);
    assert_eq!(values("seriatim-redrives"), [b"2"]);
    assert_eq!(values("seriatim-seq"), [b"7"], "no header of a dead letter's");
}

#[tokio::test]
async fn a_value_that_the_topic_cannot_hold_is_replaced_by_its_hash_and_origin() {
    let cluster = broker::shared();
    cluster
        .create_topic("big.dlq", 1, &[("max.message.bytes", "10000")])
        .unwrap();
    let sink = sink(cluster.bootstrap());
    let value = vec![b'x'; 20_000];
    sink.publish(letter(record("big", Some(b"s1"), Some(&value), &[])))
        .await
        .unwrap();

    let written = read_one(cluster.bootstrap(), "big.dlq", 0);
    assert_eq!(written.key(), Some(&b"s1"[..]));
    // As `head -c 20000 /dev/zero | tr '\0' x | sha256sum` says.
    let sha256 = "42e8bc96b8eec8c4e5d503483ba0cb843ce95243c8ca8575ffc69cd25d12c61c";
    assert_eq!(
        written.payload().map(String::from_utf8_lossy).unwrap(),
        format!(r#"{{"sha256":"{sha256}","bytes":20000,"topic":"big","partition":3,"offset":42}}"#)
    );
    let headers = headers(&written);
    assert!(headers.contains(&("seriatim-reason", Some(b"oversize"))));
    assert!(headers.contains(&("seriatim-cause", Some(b"exhausted"))));

    // Where even that is too much, the letter is not written.
    let key = vec![b'k'; 20_000];
    let error = sink
        .publish(letter(record("big", Some(&key), None, &[])))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("too large for topic big.dlq"), "{error}");
}

#[tokio::test]
async fn a_missing_topic_is_named_and_its_letters_go_on_when_it_is_created() {
    let cluster = broker::shared();
    let sink = sink(cluster.bootstrap());
    let letter = letter(record("forgotten", Some(b"s1"), Some(b"x"), &[]));
    let error = sink.publish(letter.clone()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "dead letter not written: topic forgotten.dlq does not exist; create it, or correct the name"
    );

    cluster.create_topic("forgotten.dlq", 1, &[]).unwrap();
    // The refusal is remembered for a second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    sink.publish(letter).await.unwrap();
}

#[tokio::test]
async fn letters_go_to_the_topic_that_is_configured() {
    let cluster = broker::shared();
    cluster.create_topic("graveyard", 1, &[]).unwrap();
    let sink = sink(cluster.bootstrap()).topic("graveyard");
    sink.publish(letter(record("any", Some(b"s1"), Some(b"x"), &[])))
        .await
        .unwrap();
    assert_eq!(read_one(cluster.bootstrap(), "graveyard", 0).payload(), Some(&b"x"[..]));
}

#[tokio::test]
async fn a_letter_is_published_when_it_is_acknowledged_and_not_before() {
    let mock = MockCluster::new(1).unwrap();
    mock.create_topic("chat.dlq", 1, 1).unwrap();
    let sink = sink(&mock.bootstrap_servers());
    sink.publish(letter(record("chat", Some(b"s1"), Some(b"1"), &[])))
        .await
        .unwrap();

    mock.broker_round_trip_time(1, Duration::from_millis(300)).unwrap();
    let publish = sink.publish(letter(record("chat", Some(b"s1"), Some(b"2"), &[])));
    assert!(tokio::time::timeout(Duration::from_millis(150), publish).await.is_err());
    // The future is dropped; what it sent is on its way all the same.
    sink.flush(SOON).await.unwrap();
}

#[tokio::test]
async fn a_producer_that_can_go_on_no_more_is_replaced() {
    let mock = MockCluster::new(1).unwrap();
    mock.create_topic("chat.dlq", 1, 1).unwrap();
    let sink = sink(&mock.bootstrap_servers());
    let letter = letter(record("chat", Some(b"s1"), Some(b"1"), &[]));
    sink.publish(letter.clone()).await.unwrap();

    // In the one request that is in flight, this tells an idempotent producer that its records are gone.
    let fatal = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
    mock.request_errors(RDKafkaApiKey::Produce, &[fatal]);
    sink.publish(letter.clone()).await.unwrap_err();
    sink.publish(letter).await.unwrap();
}
