//! Topics that grow while several members read them, or while each rebalance takes everything; what one member sees of it is
//! in the `suite`.

mod member;

use std::time::Duration;

use member::{Member, WAIT, for_a_while, grow, named, produce, until};
use seriatim_engine::record::Offset;
use seriatim_kafka::growth::Growth;
use seriatim_runtime::ports::{Commit, Source};

/// How soon a member sees that a topic has grown.
const SEES_IN_A_SECOND: &str = "topic.metadata.refresh.interval.ms=1000";

fn join(topic: &str, group: &str) -> Member {
    Member::join_growing(topic, group, &[SEES_IN_A_SECOND], Growth::Hold)
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

#[test]
fn each_member_sees_it_and_none_starts_what_waits_for_another() {
    let (topic, group) = named("grown-two", 2);
    produce(&topic, [0, 1], 5);
    let mut one = join(&topic, &group);
    until([&mut one], "10 records", |[one]| one.seen() == 10);
    commit(&mut one, 0, 5);
    commit(&mut one, 1, 4);
    let mut other = join(&topic, &group);
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

#[test]
fn who_begins_at_the_end_misses_nothing_of_a_partition_that_is_added() {
    for growth in [Growth::Warn, Growth::Hold] {
        let (topic, group) = named("grown-at-end", 2);
        produce(&topic, [0, 1], 5);
        let mut member = Member::join_at_end(&topic, &group, &[SEES_IN_A_SECOND], growth);
        until([&mut member], "the topic", |[member]| member.owned() == [0, 1]);
        // Where what is committed tells new partitions from old ones, nothing is before there is a record.
        let end = (growth == Growth::Warn).then_some(Offset::new(5));
        assert!(member.offered.iter().all(|granted| granted.begin == end));
        for_a_while(&mut member, Duration::from_secs(1));
        produce(&topic, [0, 1], 1);
        until([&mut member], "what comes after the end", |[member]| member.seen() == 2);
        commit(&mut member, 0, 6);
        commit(&mut member, 1, 6);

        // Before the member can know of it.
        grow(&topic, 3);
        produce(&topic, [2], 5);
        until([&mut member], "all that the new partition has", |[member]| {
            member.seen.get(&2).is_some_and(|offsets| *offsets == [0, 1, 2, 3, 4])
        });
        assert_eq!(member.seen(), 7, "nothing from before the end");
    }
}
