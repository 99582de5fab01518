//! Topics that grow while they are read, on a real broker.

mod member;

use std::time::Duration;

use member::{Member, WAIT, brokers, for_a_while, named, produce, until};
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use seriatim_engine::record::Offset;
use seriatim_kafka::growth::Growth;
use seriatim_runtime::ports::{Commit, Source};
use tokio::runtime::Builder;

/// How soon a member sees that a topic has grown.
const SEES_IN_A_SECOND: &str = "topic.metadata.refresh.interval.ms=1000";

fn join(topic: &str, group: &str, growth: Growth) -> Member {
    Member::join_growing(topic, group, &[SEES_IN_A_SECOND], growth)
}

fn grow(topic: &str, partitions: usize) {
    let client: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", brokers())
        .create()
        .unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (grown, options) = ([NewPartitions::new(topic, partitions)], AdminOptions::new());
    for topic in runtime.block_on(client.create_partitions(&grown, &options)).unwrap() {
        topic.unwrap();
    }
}

fn commit(member: &mut Member, number: i32, watermark: i64) {
    let commit = Commit {
        epoch: member.epoch(number),
        watermark: Offset::new(watermark),
        metadata: String::new(),
    };
    member.source.commit(&[commit], WAIT).unwrap();
}

fn seen(member: &Member, number: i32) -> usize {
    member.seen.get(&number).map_or(0, Vec::len)
}

/// A member of two partitions with five records each, of which one is not settled, and the topic then grown to four.
fn grown_to_four(test: &str, growth: Growth) -> (String, String, Member) {
    let (topic, group) = named(test, 2);
    produce(&topic, [0, 1], 5);
    let mut member = join(&topic, &group, growth);
    until([&mut member], "10 records", |[member]| member.seen() == 10);
    commit(&mut member, 0, 5);
    commit(&mut member, 1, 4);
    assert_eq!(member.grown, []);
    grow(&topic, 4);
    until([&mut member], "the new partitions", |[member]| {
        member.owned() == [0, 1, 2, 3]
    });
    produce(&topic, [2, 3], 5);
    (topic, group, member)
}

#[test]
fn new_partitions_wait_until_all_that_the_old_ones_had_is_committed() {
    let (topic, _, mut member) = grown_to_four("grown-held", Growth::Hold);
    // The others go on.
    produce(&topic, [0], 3);
    until([&mut member], "the old partition's records", |[member]| {
        seen(member, 0) == 8
    });
    for_a_while(&mut member, Duration::from_secs(3));
    assert_eq!((seen(&member, 2), seen(&member, 3)), (0, 0));
    assert_eq!(member.grown, [(2, 4, true)]);

    // What came to partition 0 since is not waited for.
    commit(&mut member, 1, 5);
    until([&mut member], "the new partitions' records", |[member]| {
        seen(member, 2) == 5 && seen(member, 3) == 5
    });
    assert_eq!(member.grown.len(), 1, "it is told once");
    produce(&topic, [2], 2);
    until([&mut member], "what comes later", |[member]| seen(member, 2) == 7);
}

#[test]
fn new_partitions_are_started_at_once_unless_they_are_to_wait() {
    let (_, _, mut member) = grown_to_four("grown-warned", Growth::Warn);
    until([&mut member], "the new partitions' records", |[member]| {
        seen(member, 2) == 5 && seen(member, 3) == 5 && !member.grown.is_empty()
    });
    assert_eq!(member.grown, [(2, 4, false)]);
}

#[test]
fn new_partitions_wait_on_after_a_restart() {
    let (topic, group, mut member) = grown_to_four("grown-restarted", Growth::Hold);
    member.source.close();
    let mut next = join(&topic, &group, Growth::Hold);
    until([&mut next], "what is not settled", |[next]| {
        next.owned() == [0, 1, 2, 3] && seen(next, 1) == 1
    });
    for_a_while(&mut next, Duration::from_secs(3));
    assert_eq!((&next.seen[&1][..], next.seen()), (&[4][..], 1));
    assert_eq!(next.grown, [(2, 4, true)], "told again, since it waits");
    commit(&mut next, 1, 5);
    until([&mut next], "the new partitions' records", |[next]| {
        seen(next, 2) == 5 && seen(next, 3) == 5
    });
}

#[test]
fn each_member_sees_it_and_none_starts_what_waits_for_another() {
    let (topic, group) = named("grown-two", 2);
    produce(&topic, [0, 1], 5);
    let mut one = join(&topic, &group, Growth::Hold);
    until([&mut one], "10 records", |[one]| one.seen() == 10);
    commit(&mut one, 0, 5);
    commit(&mut one, 1, 4);
    let mut other = join(&topic, &group, Growth::Hold);
    until([&mut one, &mut other], "the share", |[one, _]| one.revoked.len() == 1);
    let moved = one.assignments.get(one.revoked[0]).unwrap().number();
    // Partition 1 stays as it is committed: one record of it is not settled, whoever has it.
    one.source.relinquish(&one.revoked);
    one.assignments.close(one.revoked[0]);
    until([&mut one, &mut other], "the move", |[_, other]| {
        other.owned() == [moved]
    });

    grow(&topic, 4);
    until([&mut one, &mut other], "the new partitions", |[one, other]| {
        let mut owned = [one.owned(), other.owned()].concat();
        owned.sort_unstable();
        owned == [0, 1, 2, 3] && !one.grown.is_empty() && !other.grown.is_empty()
    });
    produce(&topic, [2, 3], 5);
    for_a_while(&mut one, Duration::from_secs(1));
    for_a_while(&mut other, Duration::from_secs(1));
    for member in [&one, &other] {
        assert_eq!((seen(member, 2), seen(member, 3)), (0, 0));
        assert_eq!(member.grown, [(2, 4, true)]);
    }
    let holder = if moved == 1 { &mut other } else { &mut one };
    commit(holder, 1, 5);
    until([&mut one, &mut other], "the new partitions' records", |[one, other]| {
        let seen = |number| seen(one, number) + seen(other, number);
        (seen(2), seen(3)) == (5, 5)
    });
}

#[test]
fn they_wait_where_each_rebalance_takes_everything_too() {
    let (topic, group) = named("grown-eager", 2);
    produce(&topic, [0, 1], 5);
    let eager = [SEES_IN_A_SECOND, "partition.assignment.strategy=range"];
    let mut member = Member::join_growing(&topic, &group, &eager, Growth::Hold);
    until([&mut member], "10 records", |[member]| member.seen() == 10);
    commit(&mut member, 0, 5);
    commit(&mut member, 1, 4);
    grow(&topic, 4);
    until([&mut member], "the rebalance", |[member]| member.revoked.len() == 2);
    let revoked = std::mem::take(&mut member.revoked);
    member.source.relinquish(&revoked);
    for epoch in revoked {
        member.assignments.close(epoch);
    }
    member.seen.clear();
    until([&mut member], "what is not settled", |[member]| {
        member.owned() == [0, 1, 2, 3] && seen(member, 1) == 1
    });
    produce(&topic, [2, 3], 5);
    for_a_while(&mut member, Duration::from_secs(2));
    assert_eq!(member.seen(), 1);
    commit(&mut member, 1, 5);
    until([&mut member], "the new partitions' records", |[member]| {
        seen(member, 2) == 5 && seen(member, 3) == 5
    });
}
