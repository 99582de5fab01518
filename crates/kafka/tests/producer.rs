//! The session producer against a broker that errs at will (librdkafka's mock cluster) and one that is killed (Kafka).

use std::collections::HashMap;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message, OwnedMessage};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use seriatim_kafka::config::Properties;
use seriatim_kafka::producer::{
    PRODUCER_HEADER, ProduceError, SEQUENCE_HEADER, SessionProducer, SessionRecord, partition_of,
};
use seriatim_runtime::message::Header;
use seriatim_testkit::broker::{self, Broker};

const PARTITIONS: i32 = 3;
const SOON: Duration = Duration::from_secs(60);

fn producer(brokers: &str, properties: &[&str]) -> SessionProducer {
    let properties: Properties = properties.join("\n").parse().unwrap();
    SessionProducer::connect(brokers, &properties).unwrap()
}

fn record<'a>(session: &'a str, value: &'a str) -> SessionRecord<'a> {
    SessionRecord {
        value: Some(value.as_bytes()),
        ..SessionRecord::new("chat", session.as_bytes())
    }
}

/// All records of the topic, read by another client than the one under test.
fn read_all(brokers: &str, topic: &str, partitions: i32) -> Vec<OwnedMessage> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "witness")
        .set("fetch.wait.max.ms", "10")
        .create()
        .unwrap();
    let mut assignment = TopicPartitionList::new();
    let mut missing = 0;
    for partition in 0..partitions {
        let (start, end) = consumer.fetch_watermarks(topic, partition, SOON).unwrap();
        missing += end - start;
        assignment
            .add_partition_offset(topic, partition, Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&assignment).unwrap();
    (0..missing)
        .map(|_| consumer.poll(SOON).expect("a record within a minute").unwrap().detach())
        .collect()
}

fn header(message: &OwnedMessage, name: &str) -> Option<String> {
    let header = message.headers()?.iter().find(|header| header.key == name)?;
    header.value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

/// The values of each session, in the order of the log; with the proof that numbers have no gap and no repetition.
fn in_sequence(messages: &[OwnedMessage]) -> HashMap<Vec<u8>, Vec<u32>> {
    let mut sessions: HashMap<Vec<u8>, Vec<u32>> = HashMap::new();
    for message in messages {
        let values = sessions.entry(message.key().unwrap().to_vec()).or_default();
        values.push(
            std::str::from_utf8(message.payload().unwrap())
                .unwrap()
                .parse()
                .unwrap(),
        );
        assert_eq!(
            header(message, SEQUENCE_HEADER),
            Some(values.len().to_string()),
            "at {}",
            message.offset()
        );
    }
    sessions
}

/// A broker that does as it is told.
struct Mock(MockCluster<'static, DefaultProducerContext>);

impl Mock {
    fn start() -> Self {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("chat", PARTITIONS, 1).unwrap();
        Self(cluster)
    }

    fn brokers(&self) -> String {
        self.0.bootstrap_servers()
    }

    /// The next produce requests are answered with these.
    fn fail_next(&self, errors: &[RDKafkaRespErr]) {
        self.0.request_errors(RDKafkaApiKey::Produce, errors);
    }

    fn read_all(&self) -> Vec<OwnedMessage> {
        read_all(&self.brokers(), "chat", PARTITIONS)
    }
}

#[tokio::test]
async fn a_record_is_written_where_java_would_and_carries_its_number() {
    let cluster = broker::shared();
    let topic = "producer-placement";
    cluster.create_topic(topic, 12, &[]).unwrap();
    let producer = producer(cluster.bootstrap(), &[]);

    // As `Utils.toPositive(Utils.murmur2(key)) % 12` says.
    for (session, partition) in [("a", 4), ("21", 0), ("session-17", 7), ("книга", 11)] {
        let record = SessionRecord {
            topic,
            ..record(session, "1")
        };
        let delivered = producer.send(record).await.unwrap().await.unwrap();
        assert_eq!(delivered.partition, partition, "{session}");
        assert_eq!(delivered.offset.unwrap().get(), 0);
    }
    let elsewhere = SessionRecord {
        key: None,
        topic,
        ..record("a", "2")
    };
    assert_eq!(
        producer.send(elsewhere).await.unwrap().await.unwrap().partition,
        4,
        "by session, whatever the key"
    );

    let messages = read_all(cluster.bootstrap(), topic, 12);
    assert_eq!(messages.len(), 5);
    let numbers: Vec<_> = messages
        .iter()
        .map(|message| header(message, SEQUENCE_HEADER).unwrap())
        .collect();
    assert_eq!(numbers.iter().filter(|number| *number == "1").count(), 4);
    assert_eq!(numbers.iter().filter(|number| *number == "2").count(), 1);
    let name = header(&messages[0], PRODUCER_HEADER).unwrap();
    assert!(name.len() == 18 && name.ends_with("/1"), "{name}");
    assert!(
        messages
            .iter()
            .all(|message| header(message, PRODUCER_HEADER).as_ref() == Some(&name))
    );
}

#[tokio::test]
async fn key_value_and_headers_are_written_as_they_are() {
    let mock = Mock::start();
    let producer = producer(&mock.brokers(), &[]);
    let headers = [
        Header {
            name: b"twice",
            value: Some(b"1"),
        },
        Header {
            name: b"twice",
            value: None,
        },
        Header {
            name: SEQUENCE_HEADER.as_bytes(),
            value: Some(b"99"),
        },
        Header {
            name: b"empty",
            value: Some(b""),
        },
    ];
    let record = SessionRecord {
        key: Some(b""),
        value: None,
        headers: &headers,
        timestamp_ms: Some(1_764_417_600_000),
        ..SessionRecord::new("chat", b"s1")
    };
    producer.send(record).await.unwrap().await.unwrap();

    let written = &mock.read_all()[0];
    assert_eq!((written.key(), written.payload()), (Some(&b""[..]), None));
    assert_eq!(written.timestamp().to_millis(), Some(1_764_417_600_000));
    let headers: Vec<_> = written
        .headers()
        .unwrap()
        .iter()
        .map(|header| (header.key, header.value))
        .collect();
    let expected: [(&str, Option<&[u8]>); 4] = [
        ("twice", Some(b"1")),
        ("twice", None),
        ("empty", Some(b"")),
        (SEQUENCE_HEADER, Some(b"1")),
    ];
    assert_eq!(headers[..4], expected, "another producer's number is not passed on");
    assert_eq!(headers.len(), 5);
}

#[tokio::test]
async fn a_session_keeps_its_order_through_retries() {
    use RDKafkaRespErr::{
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS as FEW_REPLICAS,
        RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION as NOT_LEADER, RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT as TIMED_OUT,
    };
    const RECORDS: u32 = 20_000;
    const SESSIONS: u32 = 50;
    let mock = Mock::start();
    // Small batches, so that several are in flight when one of them fails.
    let producer = producer(
        &mock.brokers(),
        &[
            "batch.num.messages=100",
            "retry.backoff.ms=10",
            "retry.backoff.max.ms=20",
        ],
    );

    for number in 0..RECORDS {
        if number % 1_000 == 500 {
            mock.fail_next(&[NOT_LEADER, TIMED_OUT, FEW_REPLICAS]);
        }
        let (session, value) = ((number % SESSIONS).to_string(), (number / SESSIONS).to_string());
        producer.send(record(&session, &value)).await.unwrap();
    }
    producer.flush(SOON).await.unwrap();

    let sessions = in_sequence(&mock.read_all());
    assert_eq!(sessions.len() as u32, SESSIONS);
    let all: Vec<u32> = (0..RECORDS / SESSIONS).collect();
    assert!(sessions.values().all(|values| *values == all));
}

#[tokio::test]
async fn a_session_keeps_its_order_through_the_crash_of_its_broker() {
    const RECORDS: u32 = 30_000;
    const SESSIONS: u32 = 100;
    let broker = Broker::start().unwrap();
    broker.create_topic("chat", PARTITIONS as u32, &[]).unwrap();
    let producer = producer(
        broker.bootstrap(),
        &["batch.num.messages=100", "reconnect.backoff.max.ms=500"],
    );

    for number in 0..RECORDS {
        if number == RECORDS / 2 {
            broker.node(1).kill().unwrap();
        }
        let (session, value) = ((number % SESSIONS).to_string(), (number / SESSIONS).to_string());
        producer.send(record(&session, &value)).await.unwrap();
    }
    assert!(
        producer
            .flush(Duration::from_millis(200))
            .await
            .unwrap_err()
            .outstanding
            > 0
    );
    broker.node(1).restart().unwrap();
    producer.flush(SOON).await.unwrap();

    let sessions = in_sequence(&read_all(broker.bootstrap(), "chat", PARTITIONS));
    let all: Vec<u32> = (0..RECORDS / SESSIONS).collect();
    assert_eq!(sessions.len() as u32, SESSIONS);
    assert!(sessions.values().all(|values| *values == all));
}

#[tokio::test]
async fn a_record_that_is_refused_halts_its_session_and_no_other() {
    let mock = Mock::start();
    let producer = producer(&mock.brokers(), &[]);
    let (a, b) = ("a", "b");
    assert_ne!(
        partition_of(b"a", PARTITIONS),
        partition_of(b"b", PARTITIONS),
        "in batches of their own"
    );
    producer.send(record(a, "1")).await.unwrap().await.unwrap();

    mock.fail_next(&[RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD]);
    let refused = producer.send(record(a, "2")).await.unwrap().await.unwrap_err();
    assert!(
        matches!(&refused, ProduceError::Refused { topic, .. } if topic == "chat"),
        "{refused}"
    );

    let halted = producer.send(record(a, "3")).await.unwrap_err();
    assert_eq!(halted, ProduceError::SessionHalted);
    producer.send(record(b, "1")).await.unwrap().await.unwrap();

    producer.resume("chat", b"a");
    producer.send(record(a, "2")).await.unwrap().await.unwrap();

    let log: Vec<_> = mock
        .read_all()
        .iter()
        .filter(|message| message.key() == Some(b"a"))
        .map(|message| {
            let name = header(message, PRODUCER_HEADER).unwrap();
            let epoch = name.rsplit_once('/').unwrap().1.to_owned();
            (
                message.payload().unwrap().to_vec(),
                epoch,
                header(message, SEQUENCE_HEADER).unwrap(),
            )
        })
        .collect();
    let expected = [
        (b"1".to_vec(), "1".into(), "1".into()),
        (b"2".to_vec(), "2".into(), "1".into()),
    ];
    assert_eq!(log, expected, "the number of the lost record is a gap in no epoch");
}

#[tokio::test]
async fn what_was_on_its_way_behind_a_refused_record_says_so() {
    let mock = Mock::start();
    mock.0.broker_round_trip_time(1, Duration::from_millis(300)).unwrap();
    // Each record in a batch of its own: the second is refused while the third is in flight behind it.
    let producer = producer(&mock.brokers(), &["batch.num.messages=1", "linger.ms=0"]);
    let first = producer.send(record("a", "1")).await.unwrap();
    first.await.unwrap();
    mock.fail_next(&[RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD]);
    let second = producer.send(record("a", "2")).await.unwrap();
    let third = producer.send(record("a", "3")).await.unwrap();

    second.await.unwrap_err();
    assert_eq!(
        producer.send(record("a", "4")).await.unwrap_err(),
        ProduceError::SessionHalted
    );
    assert_eq!(third.await.unwrap().offset.unwrap().get(), 1);
}

#[tokio::test]
async fn a_full_queue_makes_callers_wait() {
    let mock = Mock::start();
    mock.0.broker_round_trip_time(1, Duration::from_millis(50)).unwrap();
    let producer = producer(&mock.brokers(), &["queue.buffering.max.kbytes=8"]);

    let value = "x".repeat(1_000);
    let mut deliveries = Vec::new();
    for _ in 0..50 {
        deliveries.push(producer.send(record("a", &value)).await.unwrap());
        assert!(producer.outstanding() <= 5, "8 KiB hold five records of 1,000 bytes");
    }
    // Larger than the queue: let in alone.
    let huge = "x".repeat(100_000);
    deliveries.push(producer.send(record("a", &huge)).await.unwrap());
    for (offset, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset.unwrap().get(), offset as i64);
    }
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_with_its_cause() {
    let mock = Mock::start();
    let producer = producer(&mock.brokers(), &["message.max.bytes=10000"]);
    assert_eq!(
        producer.send(record("", "1")).await.unwrap_err(),
        ProduceError::NoSession
    );

    let headers = [Header {
        name: b"\xff",
        value: None,
    }];
    let record_with_headers = SessionRecord {
        headers: &headers,
        ..record("a", "1")
    };
    assert_eq!(
        producer.send(record_with_headers).await.unwrap_err(),
        ProduceError::HeaderName
    );

    let huge = "x".repeat(20_000);
    let error = producer.send(record("a", &huge)).await.unwrap_err();
    assert!(error.to_string().contains("too large for topic chat"), "{error}");

    mock.0
        .topic_error("absent", RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
        .unwrap();
    let record_to_nowhere = SessionRecord {
        topic: "absent",
        ..record("a", "1")
    };
    let error = producer.send(record_to_nowhere).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "topic absent does not exist; create it, or correct the name"
    );

    // None of them took a number, or keeps room in the queue.
    producer.flush(SOON).await.unwrap();
    producer.send(record("a", "1")).await.unwrap().await.unwrap();
    assert_eq!(header(&mock.read_all()[0], SEQUENCE_HEADER), Some("1".into()));
}

#[tokio::test]
async fn an_unreachable_cluster_is_named() {
    let producer = producer("127.0.0.1:1", &[]);
    let error = producer.send(record("a", "1")).await.unwrap_err();
    assert!(matches!(error, ProduceError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_dropped_producer_answers_for_what_it_held() {
    let mock = Mock::start();
    let producer = producer(&mock.brokers(), &["linger.ms=60000"]);
    let delivery = producer.send(record("a", "1")).await.unwrap();
    drop(producer);
    assert_eq!(delivery.await.unwrap_err(), ProduceError::Dropped);
}
