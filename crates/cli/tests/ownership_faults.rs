//! Ownership on real brokers, with real processes: zombies, brokers that die, a network that loses answers.

mod arena;
mod command;

use std::time::{Duration, Instant};

use arena::{Arena, at, leave};
use command::until;
use seriatim_testkit::broker::{Broker, BrokerOptions, Replicas, shared};
use seriatim_testkit::proxy::{Direction, Proxy};

/// After this time a member that stands still is missed.
const SOON_MISSED: Duration = Duration::from_secs(3);

/// Longer than a broker takes to come back on a busy machine, so that it finds its members still there.
const PATIENT: Duration = Duration::from_secs(45);

#[test]
fn a_zombie_takes_nothing_back() {
    let mut arena = Arena::new("zombie", shared(), SOON_MISSED);
    let members = arena.assemble(3);
    arena.produce(15, Duration::from_secs(18));
    commits_go_on(&arena);
    let began = Instant::now();
    for (round, victim) in [0, 1].into_iter().enumerate() {
        at(began, Duration::from_secs(3 + 8 * round as u64));
        members[victim].signal("STOP");
        at(began, Duration::from_secs(9 + 8 * round as u64));
        members[victim].signal("CONT");
    }
    arena.settle();
    members.into_iter().for_each(leave);
    arena
        .verdict()
        .expect_faulty_handlers()
        .expect("expiries", 2..)
        .expect("losses", 6..)
        .expect("repeats", 1..);
}

#[test]
fn a_broker_that_dies_and_comes_back_finds_everything_in_order() {
    let broker = Broker::start().expect("a broker");
    let mut arena = Arena::new("broker", &broker, PATIENT);
    let members = arena.assemble(3);
    arena.produce(10, Duration::from_secs(12));
    commits_go_on(&arena);
    broker.node(1).restart().expect("it is killed, and comes back");
    arena.settle();
    members.into_iter().for_each(leave);
    let late_answers = arena.answers_later_than(Duration::from_secs(1));
    assert!(late_answers >= 3, "{late_answers} commits waited for the broker");
    arena.verdict().expect_faulty_handlers().expect("crashes", ..=0);
}

#[test]
fn a_coordinator_that_dies_is_followed_to_the_next_and_again() {
    let options = BrokerOptions {
        nodes: 3,
        heap_mib: 192,
        short_lived: true,
        // A dead node is missed soon.
        properties: [
            ("broker.session.timeout.ms", "3000"),
            ("broker.heartbeat.interval.ms", "500"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec(),
        ..BrokerOptions::default()
    };
    let broker = Broker::start_with(&options).expect("three brokers");
    let mut arena = Arena::new("coordinator", &broker, PATIENT);
    let members = arena.assemble(3);
    arena.produce_until_settled(800);
    let (topic, group) = (arena.topic.clone(), arena.group.clone());
    for _ in 0..2 {
        commits_go_on(&arena);
        until("all is on three nodes", || {
            [&*topic, &format!("{topic}.dlq"), "__consumer_offsets"]
                .iter()
                .all(|topic| is_whole(&broker.replicas(topic)))
        });
        let old = broker.coordinator(&group).expect("somebody coordinates the group");
        assert_ne!(led_by(old, &broker.replicas(&topic)), 0, "it leads partitions too");
        broker.node(old).kill().expect("it is killed");
        until("another node coordinates the group, and others lead", || {
            let new = broker.coordinator(&group);
            new.is_some_and(|new| new != old) && led_by(old, &broker.replicas(&topic)) == 0
        });
        commits_go_on(&arena);
        broker.node(old).restart().expect("it comes back");
        let new = broker.coordinator(&group).expect("somebody coordinates the group");
        assert_ne!(new, old, "it has moved, and not back");
    }
    arena.settle();
    members.into_iter().for_each(leave);
    let late_answers = arena.answers_later_than(Duration::from_secs(1));
    assert!(late_answers >= 6, "{late_answers} commits waited for a coordinator");
    // The group outlives its coordinator: nobody has to join again, so no partition changes hands.
    arena
        .verdict()
        .expect_faulty_handlers()
        .expect("crashes", ..=0)
        .expect("losses", ..=0)
        .expect("repeats", ..=0);
}

/// A fault that comes before there is work on the way shows nothing.
#[track_caller]
fn commits_go_on(arena: &Arena) {
    let taken = arena.commits_taken();
    until("commits are taken", || arena.commits_taken() >= taken + 50);
}

fn is_whole(replicas: &[Option<Replicas>]) -> bool {
    let on_three = |replicas: &Option<Replicas>| replicas.as_ref().is_some_and(|replicas| replicas.in_sync.len() == 3);
    !replicas.is_empty() && replicas.iter().all(on_three)
}

fn led_by(node: u32, replicas: &[Option<Replicas>]) -> usize {
    let led = replicas.iter().flatten().filter(|replicas| replicas.leader == node);
    led.count()
}

#[test]
fn answers_that_are_lost_and_links_that_are_half_open_lose_nothing() {
    let proxy = Proxy::start().expect("a proxy");
    let options = BrokerOptions {
        properties: proxy.broker_properties(),
        ..BrokerOptions::default()
    };
    let broker = Broker::start_with(&options).expect("a broker");
    let mut arena = Arena::new("network", &broker, SOON_MISSED);
    let mut members = vec![arena.join()];
    members.extend((0..2).map(|_| arena.join_by(&proxy.bootstrap())));
    arena.await_ownership();
    arena.produce(15, Duration::from_secs(24));
    commits_go_on(&arena);
    let began = Instant::now();
    // Commits take effect, and nobody is told: the client asks again over a new connection.
    for round in 0..3 {
        at(began, Duration::from_millis(2_000 + 3_000 * round));
        proxy.hold(Direction::Answers);
        at(began, Duration::from_millis(3_500 + 3_000 * round));
        proxy.reset();
        proxy.release();
    }
    // What is sent is lost.
    at(began, Duration::from_secs(12));
    proxy.cut(Direction::Requests);
    at(began, Duration::from_secs(13));
    proxy.reset();
    proxy.release();
    // Both ends believe in the other, until the group does not.
    at(began, Duration::from_secs(18));
    proxy.hold(Direction::Requests);
    proxy.hold(Direction::Answers);
    at(began, Duration::from_secs(25));
    proxy.release();
    arena.settle();
    members.into_iter().for_each(leave);
    let late_answers = arena.answers_later_than(Duration::from_secs(1));
    assert!(late_answers >= 3, "{late_answers} commits were answered late");
    arena
        .verdict()
        .expect_faulty_handlers()
        .expect("crashes", ..=0)
        .expect("losses", 2..)
        .expect("repeats", 1..);
}
