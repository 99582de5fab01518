//! Topics that grow while they are read.

use seriatim_engine::growth::Growth;
use seriatim_engine::record::PartitionId;
use seriatim_runtime::ports::Source;

use super::client::Client;
use super::{Harness, WAIT, fill, first};

/// Of a topic that has two partitions, and grows.
struct Grown<H: Harness> {
    topic: String,
    ids: Vec<PartitionId>,
    member: Client<H::Source>,
}

/// A member that has read five records of each of two partitions and not settled one of them, when there come to be four.
fn grown_to_four<H: Harness>(harness: &H, name: &str, growth: Growth) -> Grown<H> {
    let topic = harness.create_topic(name, 2);
    let ids: Vec<_> = (0..8).map(|number| PartitionId::new(topic.as_str(), number)).collect();
    (0..2).for_each(|number| drop(fill(harness, &topic, number, 5)));
    let mut member = join(harness, &topic, growth);
    member.until("10 records", |member| member.count() == 10);
    member.commit(&ids[0], 5, "", WAIT).expect("it is ours");
    member.commit(&ids[1], 4, "", WAIT).expect("it is ours");
    assert_eq!(member.grown, []);
    harness.grow_topic(&topic, 4);
    member.until("the new partitions", |member| {
        member.owned.len() == 4 && !member.grown.is_empty()
    });
    (2..4).for_each(|number| drop(fill(harness, &topic, number, 5)));
    Grown { topic, ids, member }
}

fn join<H: Harness>(harness: &H, topic: &str, growth: Growth) -> Client<H::Source> {
    let (source, _) = harness.member_of_growing(topic, topic, growth);
    Client::new(source, harness.patience())
}

fn has_read<S: Source>(member: &Client<S>, ids: &[PartitionId], records: i64) -> bool {
    ids.iter().all(|id| member.offsets(id) == first(records))
}

/// That a topic has grown is told, and its new partitions are read.
pub fn new_partitions_are_started_at_once_unless_they_are_to_wait<H: Harness>(harness: &H) {
    let Grown { ids, mut member, .. } = grown_to_four(harness, "suite-grown-warned", Growth::Warn);
    member.until("the new partitions' records", |member| has_read(member, &ids[2..4], 5));
    assert_eq!(member.grown, [(2, 4, false)]);
    member.leave();
}

/// Held new partitions are owned, and deliver nothing before the group has committed what the old ones had.
pub fn new_partitions_wait_until_all_that_the_old_ones_had_is_committed<H: Harness>(harness: &H) {
    let Grown { topic, ids, mut member } = grown_to_four(harness, "suite-grown-held", Growth::Hold);
    for n in 0..3 {
        harness.produce(&ids[0], b"key", format!("later {n}").as_bytes());
    }
    member.until("what the old ones get", |member| has_read(member, &ids[..1], 8));
    member.listen(3 * harness.silence());
    assert!(has_read(&member, &ids[2..4], 0), "they wait for partition 1");
    assert_eq!(member.grown, [(2, 4, true)]);

    // What came to partition 0 since is not waited for.
    member.commit(&ids[1], 5, "", WAIT).expect("it is ours");
    member.until("the new partitions' records", |member| has_read(member, &ids[2..4], 5));
    fill(harness, &topic, 2, 2);
    member.until("what comes later", |member| has_read(member, &ids[2..3], 7));
    assert_eq!(member.grown.len(), 1, "it is told once");
    member.leave();
}

/// Whoever owns them next has them wait on, and knows why from what is committed.
pub fn new_partitions_wait_on_after_a_restart<H: Harness>(harness: &H) {
    let Grown { topic, ids, member } = grown_to_four(harness, "suite-grown-restarted", Growth::Hold);
    member.leave();
    let mut next = join(harness, &topic, Growth::Hold);
    next.until("what is not settled", |next| {
        next.owned.len() == 4 && next.offsets(&ids[1]) == [4]
    });
    next.listen(3 * harness.silence());
    assert_eq!(next.count(), 1);
    assert_eq!(next.grown, [(2, 4, true)], "told again, since it waits");
    next.commit(&ids[1], 5, "", WAIT).expect("it is ours");
    next.until("the new partitions' records", |next| has_read(next, &ids[2..4], 5));
    next.leave();
}

/// A key that had stayed may move now, and what it has had since the first growth comes before the new partition too.
pub fn new_partitions_wait_for_what_has_come_when_the_topic_grows_again<H: Harness>(harness: &H) {
    let Grown { topic, ids, mut member } = grown_to_four(harness, "suite-grown-twice", Growth::Hold);
    harness.produce(&ids[1], b"key", b"that moves to partition 5");
    member.until("it", |member| has_read(member, &ids[1..2], 6));
    harness.grow_topic(&topic, 8);
    member.until("the newer partitions", |member| member.owned.len() == 8);
    (4..8).for_each(|number| drop(fill(harness, &topic, number, 5)));
    member.commit(&ids[1], 5, "", WAIT).expect("it is ours");
    member.listen(3 * harness.silence());
    assert!(
        has_read(&member, &ids[4..], 0),
        "they wait for what came to partition 1"
    );
    member.commit(&ids[1], 6, "", WAIT).expect("it is ours");
    member.until("all records", |member| has_read(member, &ids[2..], 5));
    member.leave();
}
