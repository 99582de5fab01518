//! What every [`Source`] must do: one suite for the in-memory log and for Kafka.
//!
//! An adapter's tests implement [`Harness`] and call [`port_suite`](crate::port_suite); each makes topics and groups of its own. Where a
//! group has two members, both are polled in turn by one thread.

mod client;
mod growth;

use std::task::Waker;
use std::time::{Duration, Instant};

use seriatim_engine::assignment::Assignments;
use seriatim_engine::budget::Flow;
use seriatim_engine::growth::Growth;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::message::Message;
use seriatim_runtime::ports::{Commit, CommitMode, Granted, Records, Source, SourceEvent, Start};

use client::{Client, TICK, both_until};
pub use growth::*;

/// A commit that is waited for.
const WAIT: CommitMode = CommitMode::Wait(Duration::from_secs(5));

/// What the suite needs to know of an adapter.
pub trait Harness {
    /// The adapter.
    type Source: Source;

    /// Creates a topic and returns its name: this one, or one made of it that no earlier run has used. The suite's groups
    /// are called like their topics.
    fn create_topic(&self, name: &str, partitions: i32) -> String;

    /// Appends a record to a partition and waits until it is there.
    fn produce(&self, partition: &PartitionId, key: &[u8], value: &[u8]) -> Offset;

    /// Joins a group with cooperative rebalances, whose members read what is not committed from the beginning.
    fn member(&self, group: &str, topic: &str) -> (Self::Source, Waker);

    /// Adds partitions to a topic, so that it has so many.
    fn grow_topic(&self, topic: &str, partitions: i32);

    /// As [`member`](Self::member), where this becomes of partitions that are added. It soon hears of them.
    fn member_of_growing(&self, group: &str, topic: &str, growth: Growth) -> (Self::Source, Waker);

    /// How long to wait for what must happen.
    fn patience(&self) -> Duration;

    /// How long to wait to see that nothing happens.
    fn silence(&self) -> Duration;
}

/// A test for each function of the suite. The expression makes, or names, a harness.
#[macro_export]
macro_rules! port_suite {
    ($harness:expr) => {
        $crate::port_suite! {
            $harness =>
            delivers_each_partition_in_offset_order
            delivers_under_the_epoch_that_was_started
            a_record_keeps_its_parts
            commit_with_metadata_comes_back
            a_background_commit_is_answered
            an_ended_epoch_commits_nothing
            hold_loses_and_reorders_nothing
            a_held_partition_holds_up_no_other
            no_room_reports_everything_but_records
            a_waker_ends_the_wait
            a_poll_waits_for_records
            a_revoked_partition_is_delivered_on_from_its_commit_and_only_after_relinquish
            the_last_commit_before_relinquish_is_where_the_next_owner_starts
            closing_hands_everything_over
            reports_the_end_of_the_log
            new_partitions_are_started_at_once_unless_they_are_to_wait
            new_partitions_wait_until_all_that_the_old_ones_had_is_committed
            new_partitions_wait_on_after_a_restart
            new_partitions_wait_for_what_has_come_when_the_topic_grows_again
        }
    };
    ($harness:expr => $($name:ident)+) => {
        $(
            #[test]
            fn $name() {
                $crate::suite::$name($harness);
            }
        )+
    };
}

fn fill(harness: &impl Harness, topic: &str, partition: i32, records: usize) -> PartitionId {
    let id = PartitionId::new(topic, partition);
    for n in 0..records {
        harness.produce(&id, b"key", format!("{partition}:{n}").as_bytes());
    }
    id
}

fn first(records: i64) -> Vec<i64> {
    (0..records).collect()
}

// --- delivery -----------------------------------------------------------------------------------------------------

/// Every record comes once, by rising offset in its partition.
pub fn delivers_each_partition_in_offset_order(harness: &impl Harness) {
    let topic = &harness.create_topic("suite-order", 3);
    let partitions = [0, 1, 2].map(|number| fill(harness, topic, number, 40));
    let mut client = Client::join(harness, topic, topic);
    client.until("all records", |client| client.count() == 120);
    for (number, partition) in partitions.iter().enumerate() {
        assert_eq!(client.offsets(partition), first(40), "{partition}");
        let values = client.received[partition]
            .iter()
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned());
        let expected: Vec<_> = (0..40).map(|n| format!("{number}:{n}")).collect();
        assert_eq!(values.collect::<Vec<_>>(), expected);
    }
    client.leave();
}

/// Nothing is delivered before `start`, and then under the epoch given there.
pub fn delivers_under_the_epoch_that_was_started(harness: &impl Harness) {
    let topic = &harness.create_topic("suite-start", 1);
    fill(harness, topic, 0, 3);
    let mut client = Client::join(harness, topic, topic);
    let granted = loop {
        let mut records = Records::default();
        match client
            .source
            .poll(harness.patience(), Some(&mut records))
            .expect("the source can deliver")
        {
            Some(SourceEvent::Assigned(granted)) => break granted,
            Some(SourceEvent::Records) => panic!("records came before they were asked for"),
            _ => {}
        }
    };
    client.listen(harness.silence());
    assert_eq!(client.count(), 0, "nothing comes before it is started");
    client.start(granted);
    client.until("the records", |client| client.count() == 3);
    client.leave();
}

/// Key and value arrive as they were sent.
pub fn a_record_keeps_its_parts(harness: &impl Harness) {
    let topic = &harness.create_topic("suite-parts", 1);
    let id = PartitionId::new(topic.as_str(), 0);
    harness.produce(&id, b"\xff\x00key", b"");
    let (mut source, _) = harness.member(topic, topic);
    let mut epochs = Assignments::default();
    let deadline = Instant::now() + harness.patience();
    let mut records = Records::default();
    while records.messages.is_empty() {
        assert!(Instant::now() < deadline, "the record does not come");
        if let Some(SourceEvent::Assigned(granted)) = source.poll(TICK, Some(&mut records)).expect("it can deliver") {
            let start = |granted: Granted| Start {
                epoch: epochs.open(()),
                from: granted.first_wanted(),
                partition: granted.partition,
            };
            source.start(&granted.into_iter().map(start).collect::<Vec<_>>());
        }
    }
    let message = &records.messages[0];
    assert_eq!(
        (message.key(), message.value()),
        (Some(&b"\xff\x00key"[..]), Some(&b""[..]))
    );
    drop(records);
    source.close();
}

/// What is appended while a poll waits ends the wait.
pub fn a_poll_waits_for_records(harness: &impl Harness) {
    let topic = &harness.create_topic("suite-wait", 1);
    let mut client = Client::join(harness, topic, topic);
    client.until("the assignment", |client| !client.owned.is_empty());
    let id = fill(harness, topic, 0, 1);
    client.until("the new record", |client| client.offsets(&id) == [0]);
    client.leave();
}

/// Without room for records, everything else is still reported, and no record is lost.
pub fn no_room_reports_everything_but_records(harness: &impl Harness) {
    let topic = &harness.create_topic("suite-no-room", 1);
    let id = fill(harness, topic, 0, 5);
    let mut client = Client::join(harness, topic, topic);
    let deadline = Instant::now() + harness.patience();
    while client.owned.is_empty() {
        assert!(Instant::now() < deadline, "the assignment is reported without room");
        client.poll(TICK, false);
    }
    client.commit(&id, 0, "", CommitMode::Background).expect("it is sent");
    while client.committed.is_empty() {
        assert!(
            Instant::now() < deadline,
            "the commit's answer is reported without room"
        );
        client.poll(TICK, false);
    }
    assert_eq!(client.count(), 0, "records come only with room for them");
    client.until("all records", |client| client.offsets(&id) == first(5));
    client.leave();
}

/// A waker ends the wait of a poll, also one that comes before it, with and without room for records. After the end it
/// does nothing.
pub fn a_waker_ends_the_wait(harness: &impl Harness) {
    // A source may end a wait for reasons of its own, but not so often.
    const ROUNDS: usize = 30;
    let topic = &harness.create_topic("suite-waker", 1);
    let (source, waker) = harness.member(topic, topic);
    let mut client = Client::new(source, harness.patience());
    client.until("the assignment", |client| !client.owned.is_empty());
    client.listen(harness.silence());
    let began = Instant::now();
    for round in 0..ROUNDS {
        let has_room = round % 2 == 0;
        waker.wake_by_ref();
        client.poll(harness.patience(), has_room);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(TICK);
                waker.wake_by_ref();
            });
            client.poll(harness.patience(), has_room);
        });
    }
    assert!(began.elapsed() < harness.patience(), "the waker does not end the wait");
    client.leave();
    waker.wake();
}

/// The end of the log is reported.
pub fn reports_the_end_of_the_log(harness: &impl Harness) {
    let topic = &harness.create_topic("suite-ends", 1);
    let id = fill(harness, topic, 0, 4);
    let mut client = Client::join(harness, topic, topic);
    client.until("the end", |client| client.ends.get(&id) == Some(&Offset::new(4)));
    client.leave();
}

// --- flow ---------------------------------------------------------------------------------------------------------

/// A partition that is held delivers nothing; resumed, it goes on where it was.
pub fn hold_loses_and_reorders_nothing(harness: &impl Harness) {
    let topic = &harness.create_topic("suite-hold", 1);
    let id = fill(harness, topic, 0, 10);
    let mut client = Client::join(harness, topic, topic);
    client.until("the first records", |client| client.count() == 10);
    for round in 1..4 {
        client.source.set_flow(client.owned[&id], Flow::Held);
        fill(harness, topic, 0, 10);
        client.listen(harness.silence());
        assert_eq!(client.count(), round * 10, "a held partition delivers nothing");
        client.source.set_flow(client.owned[&id], Flow::Flowing);
        client.until("what was held back", |client| client.count() == (round + 1) * 10);
    }
    assert_eq!(client.offsets(&id), first(40));
    client.leave();
}

/// While one partition is held, the others are delivered.
pub fn a_held_partition_holds_up_no_other(harness: &impl Harness) {
    let topic = &harness.create_topic("suite-hold-one", 2);
    let mut client = Client::join(harness, topic, topic);
    client.until("the assignment", |client| client.owned.len() == 2);
    let (held, free) = (PartitionId::new(topic.as_str(), 0), PartitionId::new(topic.as_str(), 1));
    client.source.set_flow(client.owned[&held], Flow::Held);
    fill(harness, topic, 0, 50);
    fill(harness, topic, 1, 50);
    client.until("the other partition", |client| client.offsets(&free) == first(50));
    assert!(client.offsets(&held).is_empty(), "a held partition delivers nothing");
    client.source.set_flow(client.owned[&held], Flow::Flowing);
    client.until("the held partition", |client| client.offsets(&held) == first(50));
    client.leave();
}

// --- commits ------------------------------------------------------------------------------------------------------

/// A committed offset and its metadata come back with the next assignment.
pub fn commit_with_metadata_comes_back(harness: &impl Harness) {
    let topic = &harness.create_topic("suite-commit", 1);
    let id = fill(harness, topic, 0, 10);
    let mut client = Client::join(harness, topic, topic);
    client.until("the records", |client| client.count() == 10);
    assert_eq!(client.granted[&id].committed, None, "nothing was committed before");
    assert_eq!(client.granted[&id].metadata, "");
    client
        .commit(&id, 4, "s1:some-metadata", WAIT)
        .expect("the commit is accepted");
    client.leave();

    let mut client = Client::join(harness, topic, topic);
    client.until("the rest", |client| client.count() == 6);
    assert_eq!(client.granted[&id].committed, Some(Offset::new(4)));
    assert_eq!(client.granted[&id].metadata, "s1:some-metadata");
    assert_eq!(
        client.granted[&id].end,
        Some(Offset::new(10)),
        "with metadata comes the end of the log"
    );
    assert_eq!(client.offsets(&id), (4..10).collect::<Vec<_>>());
    client.leave();
}

/// A background commit is answered with what was committed.
pub fn a_background_commit_is_answered(harness: &impl Harness) {
    let topic = &harness.create_topic("suite-background", 1);
    let id = fill(harness, topic, 0, 3);
    let mut client = Client::join(harness, topic, topic);
    client.until("the records", |client| client.count() == 3);
    client.commit(&id, 2, "m", CommitMode::Background).expect("it is sent");
    client.until("the answer", |client| !client.committed.is_empty());
    let commits = client.committed.remove(0).expect("the commit is accepted");
    let answered: Vec<_> = commits.iter().map(|commit| (commit.epoch, commit.watermark)).collect();
    assert_eq!(answered, [(client.owned[&id], Offset::new(2))]);
    client.leave();
}

/// Once a partition is given back, its period commits nothing any more.
pub fn an_ended_epoch_commits_nothing(harness: &impl Harness) {
    let topic = &harness.create_topic("suite-ended", 1);
    let id = fill(harness, topic, 0, 3);
    let mut client = Client::join(harness, topic, topic);
    client.until("the records", |client| client.count() == 3);
    client.commit(&id, 1, "", WAIT).expect("it is ours");
    let stale = [Commit {
        epoch: client.owned[&id],
        watermark: Offset::new(3),
        metadata: String::new(),
    }];
    client.revoked.push(stale[0].epoch);
    client.relinquish();
    let refused = client.source.commit(&stale, WAIT);
    assert!(refused.is_err_and(|error| !error.retriable), "it is ours no more");
    // This one may be refused, or answered with nothing.
    let _ = client.source.commit(&stale, CommitMode::Background);
    client.leave();

    let mut client = Client::join(harness, topic, topic);
    client.until("what was not committed", |client| client.offsets(&id) == [1, 2]);
    client.leave();
}

// --- rebalances ---------------------------------------------------------------------------------------------------

/// A partition that moves stays with its owner until it is given back, and then goes on from what is committed.
pub fn a_revoked_partition_is_delivered_on_from_its_commit_and_only_after_relinquish(harness: &impl Harness) {
    let topic = &harness.create_topic("suite-revoke", 2);
    fill(harness, topic, 0, 10);
    fill(harness, topic, 1, 10);
    let mut old = Client::join(harness, topic, topic);
    old.until("all records", |client| client.count() == 20);

    let mut new = Client::join(harness, topic, topic);
    both_until((&mut old, &mut new), "a revoke", |old, _| !old.revoked.is_empty());
    let leaving = old.epochs.get(old.revoked[0]).expect("it is ours").clone();
    old.commit(&leaving, 6, "", WAIT).expect("it is still ours");
    let quiet = Instant::now() + harness.silence();
    while Instant::now() < quiet {
        old.poll(TICK, true);
        new.poll(TICK, true);
    }
    assert!(
        !new.owned.contains_key(&leaving),
        "it is not given on before it is given back"
    );

    assert_eq!(old.relinquish(), std::slice::from_ref(&leaving));
    let arrived = |client: &Client<_>| client.offsets(&leaving) == (6..10).collect::<Vec<_>>();
    both_until((&mut old, &mut new), "the rest at its new owner", |_, new| arrived(new));
    assert_eq!(old.owned.len(), 1, "what does not move stays");
    old.leave();
    new.leave();
}

/// The last commit counts, also when a background commit went before it.
pub fn the_last_commit_before_relinquish_is_where_the_next_owner_starts(harness: &impl Harness) {
    let topic = &harness.create_topic("suite-last-commit", 1);
    let id = fill(harness, topic, 0, 10);
    let mut client = Client::join(harness, topic, topic);
    client.until("the records", |client| client.count() == 10);
    client.commit(&id, 3, "", CommitMode::Background).expect("it is sent");
    client.commit(&id, 8, "", WAIT).expect("it is accepted");
    client.leave();
    let mut client = Client::join(harness, topic, topic);
    client.until("the rest", |client| client.offsets(&id) == [8, 9]);
    client.leave();
}

/// A member that leaves hands over at once.
pub fn closing_hands_everything_over(harness: &impl Harness) {
    let topic = &harness.create_topic("suite-close", 2);
    let mut old = Client::join(harness, topic, topic);
    old.until("the assignment", |client| client.owned.len() == 2);
    let mut new = Client::join(harness, topic, topic);
    old.leave();
    new.until("everything", |client| client.owned.len() == 2);
    fill(harness, topic, 0, 1);
    fill(harness, topic, 1, 1);
    new.until("the records", |client| client.count() == 2);
    new.leave();
}
