//! The source against a real broker, beyond what the port's suite asks: what one member of a group reads, holds and commits.

mod member;
mod raw;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rdkafka::message::{Header as KafkaHeader, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer};
use seriatim_engine::budget::Flow;
use seriatim_engine::record::Offset;
use seriatim_runtime::message::{Header, Message, Timestamp};
use seriatim_runtime::ports::{Commit, CommitMode, Source, SourceEvent, SourceTrouble};
use seriatim_testkit::broker::Broker;

use self::member::{
    Member, SOON, WAIT, brokers, for_a_while, named, produce, produce_to, producer, producer_at, until,
};

#[test]
fn large_records_are_read_a_few_at_a_time() {
    const LARGE: usize = 900_000;
    let (topic, group) = named("large", 2);
    let value = vec![b'x'; LARGE];
    let producer = producer();
    for number in 0..60 {
        let record = BaseRecord::<str, [u8]>::to(&topic)
            .partition(number % 2)
            .payload(&value);
        producer.send(record).map_err(|(error, _)| error).unwrap();
        producer.flush(SOON).unwrap();
    }
    let mut member = Member::join(brokers(), &topic, &group, &[]);
    let mut reads = Vec::new();
    until([&mut member], "60 records", |[member]| {
        let before: usize = reads.iter().sum();
        if member.seen() > before {
            reads.push(member.seen() - before);
        }
        member.seen() == 60
    });
    // Only the first knows nothing of their size.
    let largest = reads[1..].iter().max().expect("more than one read");
    assert!(*largest <= 1 + (4 << 20) / LARGE, "{reads:?}");
    for offsets in member.seen.values() {
        assert!(offsets.iter().copied().eq(0..30), "each once, in order: {offsets:?}");
    }
}

#[test]
fn null_and_empty_are_kept_apart_and_headers_may_be_anything() {
    let (topic, group) = named("parts", 1);
    let producer = producer();
    let send = |key: Option<&str>, value: Option<&[u8]>, headers: OwnedHeaders| {
        let mut record = BaseRecord::<str, [u8]>::to(&topic)
            .partition(0)
            .timestamp(77)
            .headers(headers);
        record.key = key;
        record.payload = value;
        producer.send(record).map_err(|(error, _)| error).unwrap();
        producer.flush(SOON).unwrap();
    };
    let header = |key, value: Option<&'static str>| KafkaHeader { key, value };
    let repeated = OwnedHeaders::new()
        .insert(header("a", Some("1")))
        .insert(header("a", None))
        .insert(header("", Some("")));
    send(None, None, OwnedHeaders::new());
    send(Some(""), Some(b""), repeated);
    send(Some("k"), Some(b"\xff\x00\xfe"), OwnedHeaders::new());
    raw::produce(brokers(), &topic, b"\xff\xfe", b"\x80value");

    let mut member = Member::join(brokers(), &topic, &group, &[]);
    until([&mut member], "4 records", |[member]| member.seen() == 4);
    let headers = |index: usize| {
        let message = &member.messages[index];
        (0..).map_while(|index| message.header(index)).collect::<Vec<_>>()
    };
    let parts: Vec<_> = member
        .messages
        .iter()
        .map(|message| (message.key(), message.value()))
        .collect();
    assert_eq!(
        parts,
        [
            (None, None),
            (Some(&b""[..]), Some(&b""[..])),
            (Some(b"k"), Some(b"\xff\x00\xfe")),
            (None, Some(b"raw"))
        ]
    );
    assert_eq!(headers(0), []);
    let header = |name, value| Header { name, value };
    assert_eq!(
        headers(1),
        [
            header(b"a", Some(&b"1"[..])),
            header(b"a", None),
            header(b"", Some(b""))
        ]
    );
    assert_eq!(headers(3), [header(b"\xff\xfe", Some(b"\x80value"))]);
    assert_eq!(member.messages[0].timestamp(), Timestamp::Created(77));
}

#[test]
fn headers_may_be_read_by_many_threads_at_once() {
    let (topic, group) = named("threads", 1);
    let producer = producer();
    let headers = OwnedHeaders::new().insert(KafkaHeader {
        key: "session",
        value: Some("s1"),
    });
    for _ in 0..2_000 {
        let record = BaseRecord::<str, str>::to(&topic)
            .partition(0)
            .payload("x")
            .headers(headers.clone());
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(SOON).unwrap();
    let mut member = Member::join(brokers(), &topic, &group, &[]);
    until([&mut member], "2,000 records", |[member]| member.seen() == 2_000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for message in &member.messages {
                    assert_eq!(message.header(0).unwrap().value, Some(&b"s1"[..]));
                    assert!(message.header(1).is_none());
                }
            });
        }
    });
}

#[test]
fn a_held_partition_stands_still_and_goes_on_where_it_stood() {
    let (topic, group) = named("hold", 2);
    produce(&topic, 0..2, 20_000);
    let mut member = Member::join(
        brokers(),
        &topic,
        &group,
        &["queued.min.messages=2000", "max.partition.fetch.bytes=16384"],
    );
    until([&mut member], "the first records of both", |[member]| {
        member.seen.len() == 2
    });

    let held = member.epoch(0);
    member.source.set_flow(held, Flow::Held);
    let stood = member.seen[&0].len();
    until([&mut member], "all of the other", |[member]| {
        member.seen[&1].len() == 20_000
    });
    for_a_while(&mut member, Duration::from_millis(500));
    assert_eq!(member.seen[&0].len(), stood, "not one record of the held partition");

    // Its end is asked of the broker, since nothing is fetched of it.
    produce(&topic, [0], 10);
    member.ends.clear();
    until([&mut member], "its end", |[member]| {
        member.ends.get(&held) == Some(&Offset::new(20_010))
    });

    // Released and held again before its stash is out, and so on.
    for _ in 0..5 {
        member.source.set_flow(held, Flow::Flowing);
        member.poll();
        member.source.set_flow(held, Flow::Held);
        member.poll();
    }
    member.source.set_flow(held, Flow::Flowing);
    until([&mut member], "all of both", |[member]| member.seen() == 40_010);
    assert_eq!(
        member.seen[&0],
        (0..20_010).collect::<Vec<_>>(),
        "nothing lost, repeated or reordered"
    );
    assert_eq!(member.troubles, []);
}

#[test]
fn an_event_ends_a_wait_for_records() {
    let (topic, group) = named("event", 1);
    produce(&topic, [0], 1);
    let mut member = Member::join(brokers(), &topic, &group, &[]);
    until([&mut member], "a record", |[member]| member.seen() == 1);
    let begun = Instant::now();
    for answered in 1..=3 {
        let commit = member.commit_of(0, "");
        member.source.commit(&[commit], CommitMode::Background).unwrap();
        while member.committed.len() < answered {
            member.poll_for(SOON, true);
        }
    }
    // The ends of the logs, every five seconds, end the wait as well.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn metadata_may_fill_what_the_broker_allows_and_more_is_refused_with_the_way_out() {
    let (topic, group) = named("metadata", 1);
    produce(&topic, [0], 10);
    let mut member = Member::join(brokers(), &topic, &group, &[]);
    until([&mut member], "10 records", |[member]| member.seen() == 10);
    let longest = member.commit_of(0, &"x".repeat(4096));
    member.source.commit(&[longest], WAIT).unwrap();
    let too_large = member.commit_of(0, &"x".repeat(4097));
    let error = member.source.commit(&[too_large], WAIT).unwrap_err();
    assert!(error.to_string().contains("offset.metadata.max.bytes"), "{error}");
    assert!(error.metadata_too_long && !error.retriable);
    member.source.close();

    let mut next = Member::join(brokers(), &topic, &group, &[]);
    until([&mut next], "the partition", |[next]| next.offered.len() == 1);
    assert_eq!(next.offered[0].committed, Some(Offset::new(10)));
    assert_eq!(next.offered[0].metadata.len(), 4096);
}

#[test]
fn a_background_commit_of_an_ended_epoch_is_answered_with_nothing() {
    let (topic, group) = named("stale", 1);
    produce(&topic, [0], 1);
    let mut member = Member::join(brokers(), &topic, &group, &[]);
    until([&mut member], "a record", |[member]| member.seen() == 1);
    let stale = [member.commit_of(0, "stale")];
    member.source.relinquish(&[stale[0].epoch]);
    member.assignments.close(stale[0].epoch);
    member.source.commit(&stale, CommitMode::Background).unwrap();
    let answer = loop {
        if let Some(SourceEvent::Committed(answer)) = member.source.poll(SOON, None).unwrap() {
            break answer.unwrap();
        }
    };
    assert_eq!(answer, []);
}

#[test]
fn a_missing_topic_is_told() {
    let (_, group) = named("unknown", 1);
    let mut member = Member::join(brokers(), "no-such-topic", &group, &[]);
    let unknown = |trouble: &SourceTrouble| matches!(trouble, SourceTrouble::UnknownTopic(text) if text.contains("no-such-topic"));
    until([&mut member], "the trouble", |[member]| {
        member.troubles.iter().any(unknown)
    });
}

#[test]
fn a_broker_out_of_reach_is_told_within_seconds() {
    let begun = Instant::now();
    let mut member = Member::join("127.0.0.1:1", "any", "any", &[]);
    let unreachable = |trouble: &SourceTrouble| matches!(trouble, SourceTrouble::Unreachable(text) if text.contains("127.0.0.1:1") && text.contains("refused"));
    until([&mut member], "the trouble", |[member]| {
        member.troubles.iter().any(unreachable)
    });
    assert!(begun.elapsed() < Duration::from_secs(10));

    let begun = Instant::now();
    member.source.close();
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "there is no one to say goodbye to"
    );
}

#[test]
fn an_offset_that_is_gone_stops_its_partition_and_no_other() {
    let (topic, group) = named("range", 2);
    produce(&topic, 0..2, 10);
    let mut member = Member::join(brokers(), &topic, &group, &[]);
    until([&mut member], "20 records", |[member]| member.seen() == 20);
    let beyond = Commit {
        watermark: Offset::new(1_042),
        ..member.commit_of(0, "")
    };
    member.source.commit(&[beyond, member.commit_of(1, "")], WAIT).unwrap();
    member.source.close();

    let mut next = Member::join(brokers(), &topic, &group, &[]);
    until([&mut next], "the trouble", |[next]| !next.troubles.is_empty());
    let SourceTrouble::OutOfRange(partition, text) = &next.troubles[0] else {
        panic!("{:?}", next.troubles)
    };
    assert_eq!(partition.number(), 0);
    assert!(
        text.contains("1042") && text.contains("begins at 0 and ends at 10"),
        "{text}"
    );

    produce(&topic, 0..2, 5);
    until([&mut next], "the other's records", |[next]| next.seen() == 5);
    assert_eq!(next.seen[&1], [10, 11, 12, 13, 14]);
}

#[test]
fn a_batch_that_cannot_be_read_stops_its_partition_and_is_not_passed_over() {
    let broker = Broker::start().unwrap();
    let topic = "corrupted";
    broker.create_topic(topic, 2, &[]).unwrap();
    for value in ["before", "CORRUPTED", "after"] {
        let producer = producer_at(broker.bootstrap());
        for partition in 0..2 {
            let record = BaseRecord::<str, str>::to(topic).partition(partition).payload(value);
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(SOON).unwrap();
    }
    // The broker sends what lies in the log as it lies there.
    let log = find(broker.node(1).dir(), &format!("{topic}-0/00000000000000000000.log"));
    let mut bytes = std::fs::read(&log).unwrap();
    let place = bytes.windows(9).position(|bytes| bytes == b"CORRUPTED").unwrap();
    bytes[place] ^= 1;
    std::fs::write(&log, bytes).unwrap();

    let mut member = Member::join(broker.bootstrap(), topic, "group", &["check.crcs=true"]);
    until([&mut member], "the trouble", |[member]| !member.troubles.is_empty());
    let SourceTrouble::OutOfRange(partition, text) = &member.troubles[0] else {
        panic!("{:?}", member.troubles)
    };
    assert_eq!(partition.number(), 0);
    assert!(text.contains("its records at 1 cannot be decoded"), "{text}");
    until([&mut member], "the other partition", |[member]| {
        member.seen.get(&1).is_some_and(|seen| seen.len() == 3)
    });
    for_a_while(&mut member, Duration::from_secs(1));
    assert_eq!(member.seen[&0], [0]);
}

/// The file in or below `dir` whose path ends like this.
fn find(dir: &Path, end: &str) -> PathBuf {
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with(end) {
                return path;
            }
            if path.is_dir() {
                dirs.push(path);
            }
        }
    }
    panic!("no {end}")
}

#[test]
fn a_broker_that_goes_and_comes_back_interrupts_but_changes_nothing() {
    let broker = Broker::start().unwrap();
    let topic = "restarted";
    broker.create_topic(topic, 2, &[]).unwrap();
    produce_to(broker.bootstrap(), topic, 0..2, 1_000);
    let mut member = Member::join(broker.bootstrap(), topic, "group", &["session.timeout.ms=300000"]);
    until([&mut member], "2,000 records", |[member]| member.seen() == 2_000);
    let before = [member.epoch(0), member.epoch(1)];

    broker.node(1).kill().unwrap();
    let unreachable = |trouble: &SourceTrouble| matches!(trouble, SourceTrouble::Unreachable(_));
    until([&mut member], "the trouble", |[member]| {
        member.troubles.iter().any(unreachable)
    });
    let error = member.source.commit(&[member.commit_of(0, "")], WAIT).unwrap_err();
    assert!(error.retriable, "{error}");

    broker.node(1).restart().unwrap();
    produce_to(broker.bootstrap(), topic, 0..2, 1_000);
    until([&mut member], "2,000 more", |[member]| member.seen() == 4_000);
    let commits = [member.commit_of(0, "late"), member.commit_of(1, "late")];
    // The connection to the coordinator is tried again at lengthening intervals, up to ten seconds.
    while let Err(error) = member.source.commit(&commits, WAIT) {
        assert!(error.retriable, "{error}");
    }
    assert_eq!(
        [member.epoch(0), member.epoch(1)],
        before,
        "still a member: it was away for less than its session"
    );
    for number in 0..2 {
        assert_eq!(member.seen[&number], (0..2_000).collect::<Vec<_>>());
    }
}

#[test]
fn a_record_that_is_kept_holds_up_nothing() {
    let (topic, group) = named("kept", 1);
    produce(&topic, [0], 100);
    let mut member = Member::join(brokers(), &topic, &group, &[]);
    until([&mut member], "100 records", |[member]| member.seen() == 100);
    let kept = std::mem::take(&mut member.messages);
    member.source.commit(&[member.commit_of(0, "")], WAIT).unwrap();
    let begun = Instant::now();
    drop(member);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());

    // The group was left all the same: the next member does not wait for a session to time out.
    let begun = Instant::now();
    let mut next = Member::join(brokers(), &topic, &group, &["session.timeout.ms=45000"]);
    until([&mut next], "the partition", |[next]| next.owned() == [0]);
    assert!(begun.elapsed() < Duration::from_secs(20));

    assert_eq!(kept[99].value(), Some(&b"0:99"[..]));
    assert_eq!(kept[99].partition(), (topic.as_str(), 0));
    std::thread::spawn(move || drop(kept)).join().unwrap();
}
