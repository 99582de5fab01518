//! Members of a group, on a real broker: what they are given, give back, lose, and have again.

mod member;

use std::time::{Duration, Instant};

use seriatim_engine::record::Offset;
use seriatim_runtime::ports::{Granted, Source};

use self::member::{Member, SOON, WAIT, brokers, for_a_while, named, produce, until};

#[test]
fn a_cooperative_member_takes_its_time_and_keeps_what_is_its_own() {
    let (topic, group) = named("cooperative", 4);
    produce(&topic, 0..4, 1_000);
    let mut first = Member::join(brokers(), &topic, &group, &[]);
    until([&mut first], "all there is", |[first]| first.seen() == 4_000);

    let mut second = Member::join(brokers(), &topic, &group, &[]);
    until([&mut first, &mut second], "a revocation", |[first, _]| {
        !first.revoked.is_empty()
    });
    assert_eq!(first.revoked.len(), 2);
    // The drain takes longer than the session timeout.
    let drained = Instant::now() + Duration::from_secs(8);
    until([&mut first, &mut second], "the drain", |_| Instant::now() > drained);
    assert!(
        second.owned().is_empty(),
        "nothing is another's before it was given back"
    );
    assert_eq!(first.lost, []);
    first.hand_over();

    until([&mut first, &mut second], "two for each", |[_, second]| {
        second.owned().len() == 2
    });
    assert_eq!(first.owned().len(), 2);
    let begin = |granted: &Granted| granted.committed == Some(Offset::new(1_000));
    assert!(
        second.offered.iter().all(begin),
        "the next owner begins where the last one ended: {:?}",
        second.offered
    );

    // What stayed goes on, what moved goes on, and the coming and going of partitions goes on.
    produce(&topic, 0..4, 500);
    until([&mut first, &mut second], "6,000 in all", |[first, second]| {
        first.seen() + second.seen() == 6_000
    });
    until([&mut first, &mut second], "nothing more", {
        let end = Instant::now() + Duration::from_millis(500);
        move |_| Instant::now() > end
    });
    check_shared(&first, &second, 1_500);

    second.source.close();
    until([&mut first], "all again", |[first]| first.owned() == [0, 1, 2, 3]);
    assert_eq!((first.lost.len(), first.troubles.len()), (0, 0), "{:?}", first.troubles);
}

#[test]
fn under_the_eager_protocol_all_is_given_back_and_given_anew() {
    let (topic, group) = named("eager", 4);
    produce(&topic, 0..4, 1_000);
    let eager = &["partition.assignment.strategy=range"];
    let mut first = Member::join(brokers(), &topic, &group, eager);
    until([&mut first], "all there is", |[first]| first.seen() == 4_000);

    let mut second = Member::join(brokers(), &topic, &group, eager);
    until([&mut first, &mut second], "a revocation", |[first, _]| {
        !first.revoked.is_empty()
    });
    assert_eq!(first.revoked.len(), 4, "all of them");
    let drained = Instant::now() + Duration::from_secs(2);
    until([&mut first, &mut second], "the drain", |_| Instant::now() > drained);
    assert!(second.owned().is_empty());
    first.hand_over();

    until([&mut first, &mut second], "two for each", |[first, second]| {
        (first.owned().len(), second.owned().len()) == (2, 2)
    });
    produce(&topic, 0..4, 500);
    until([&mut first, &mut second], "6,000 in all", |[first, second]| {
        first.seen() + second.seen() == 6_000
    });
    check_shared(&first, &second, 1_500);
    assert_eq!((first.lost.len(), first.troubles.len()), (0, 0), "{:?}", first.troubles);
}

/// Together they have seen each record once.
fn check_shared(first: &Member, second: &Member, count: i64) {
    check_from(0, first, second, count);
}

/// Together they have seen each record from this offset on once.
fn check_from(begin: i64, first: &Member, second: &Member, end: i64) {
    for number in 0..4 {
        let seen = |member: &Member| member.seen.get(&number).cloned().unwrap_or_default();
        let all = [seen(first), seen(second)].concat();
        assert_eq!(
            all,
            (begin..end).collect::<Vec<_>>(),
            "no gap and no repetition in partition {number}"
        );
    }
}

#[test]
fn a_static_member_that_comes_back_in_time_has_its_partitions_again_and_disturbs_nobody() {
    let (topic, group) = named("static", 4);
    produce(&topic, 0..4, 100);
    let join = |name| join_as(name, &topic, &group);
    let mut first = join("first");
    until([&mut first], "all there is", |[first]| first.seen() == 400);
    let mut second = join("second");
    until([&mut first, &mut second], "a revocation", |[first, _]| {
        !first.revoked.is_empty()
    });
    first.hand_over();
    produce(&topic, 0..4, 50);
    until([&mut first, &mut second], "600 in all", |[first, second]| {
        first.seen() + second.seen() == 600
    });
    assert_eq!((first.owned().len(), second.owned().len()), (2, 2));

    // Each in its turn, so also the one that deals out the partitions.
    second = restart_beside(&mut first, second, || join("second"));
    first = restart_beside(&mut second, first, || join("first"));

    produce(&topic, 0..4, 50);
    until([&mut first, &mut second], "the new records", |[first, second]| {
        first.seen() + second.seen() == 200
    });
    check_from(150, &first, &second, 200);
}

fn join_as(name: &str, topic: &str, group: &str) -> Member {
    let name = format!("group.instance.id={name}");
    Member::join(brokers(), topic, group, &["session.timeout.ms=30000", &name])
}

/// Commits, ends and starts a static member, which must have its partitions again, and the other one notice nothing.
fn restart_beside(other: &mut Member, mut member: Member, join: impl Fn() -> Member) -> Member {
    let owned = member.owned();
    let commits: Vec<_> = owned.iter().map(|number| member.commit_of(*number, "")).collect();
    member.source.commit(&commits, WAIT).unwrap();
    member.source.close();

    let (before, offers) = (other.owned(), other.offered.len());
    let mut again = join();
    until([&mut again, other], "its partitions", |[again, _]| {
        again.owned() == owned
    });
    // A rebalance would reach it with a heartbeat or two.
    for_a_while(other, Duration::from_secs(2));
    assert_eq!((other.owned(), other.offered.len()), (before, offers));
    assert_eq!((other.revoked.len(), other.lost.len()), (0, 0));
    again
}

#[test]
fn a_static_member_whose_name_another_takes_ends_and_says_so() {
    let (topic, group) = named("fenced", 1);
    let mut member = join_as("one", &topic, &group);
    until([&mut member], "its partition", |[member]| member.owned() == [0]);
    let mut usurper = join_as("one", &topic, &group);
    let deadline = Instant::now() + SOON;
    let end = loop {
        assert!(Instant::now() < deadline, "it goes on");
        usurper.poll();
        if let Err(end) = member.source.poll(Duration::from_millis(10), None) {
            break end.to_string();
        }
    };
    assert!(end.contains("group.instance.id"), "{end}");
    until([&mut usurper], "the partition", |[usurper]| usurper.owned() == [0]);
}

#[test]
fn an_offer_that_was_taken_back_cannot_be_started() {
    let (topic, group) = named("offer", 2);
    produce(&topic, 0..2, 10);
    let mut first = Member::join(brokers(), &topic, &group, &[]);
    first.starts = false;
    until([&mut first], "an offer", |[first]| first.offered.len() == 2);
    let mut second = Member::join(brokers(), &topic, &group, &[]);
    until([&mut first, &mut second], "one for the other", |[_, second]| {
        second.seen() == 10
    });
    assert_eq!(first.revoked, [], "there is nothing to drain");

    let granted = std::mem::take(&mut first.offered);
    first.start(&granted);
    until([&mut first, &mut second], "the rest", |[first, _]| first.seen() == 10);
    assert_eq!(first.lost.len(), 1, "told at the attempt to start it");
    assert_eq!(first.owned().len(), 1);
    assert_ne!(first.owned(), second.owned());
}

#[test]
fn a_member_that_was_silent_too_long_loses_all_and_comes_back() {
    let (topic, group) = named("lost", 2);
    produce(&topic, 0..2, 10);
    let mut member = Member::join(brokers(), &topic, &group, &["max.poll.interval.ms=6000"]);
    until([&mut member], "20 records", |[member]| member.seen() == 20);
    let commits = [member.commit_of(0, ""), member.commit_of(1, "")];
    member.source.commit(&commits, WAIT).unwrap();
    let before = [member.epoch(0), member.epoch(1)];

    std::thread::sleep(Duration::from_secs(8));
    until([&mut member], "the loss", |[member]| member.lost.len() == 2);
    assert!(before.iter().all(|epoch| member.lost.contains(epoch)));
    assert_eq!(member.revoked, [], "not asked, but taken");

    until([&mut member], "its return", |[member]| member.owned() == [0, 1]);
    produce(&topic, 0..2, 5);
    until([&mut member], "10 more", |[member]| member.seen() == 30);
}
