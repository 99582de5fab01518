//! Ownership on a real broker, with real processes: members come and go, and crash.

mod arena;
mod command;

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use arena::{Arena, at, kill, leave};
use seriatim_testkit::broker::shared;

/// Longer than a busy machine keeps a member from its heartbeats.
const UNHURRIED: Duration = Duration::from_secs(10);

/// After this time a member that was killed is missed.
const SOON_MISSED: Duration = Duration::from_secs(3);

#[test]
fn a_storm_of_joins_and_leaves_repeats_nothing() {
    let mut arena = Arena::new("storm", shared(), UNHURRIED);
    let mut members = VecDeque::from(arena.assemble(3));
    arena.produce(15, Duration::from_secs(14));
    let mut leaving = Vec::new();
    let began = Instant::now();
    for round in 1..=24 {
        at(began, Duration::from_millis(500) * round);
        let leaves = members.len() > 4 || (members.len() > 1 && arena.draw(2) == 0);
        match leaves.then(|| members.pop_front()).flatten() {
            // Its drain goes on beside the next joins and leaves.
            Some(member) => leaving.push(thread::spawn(move || leave(member))),
            None => members.push_back(arena.join()),
        }
    }
    for leaving in leaving {
        leaving.join().expect("it has left in good order");
    }
    arena.settle();
    members.into_iter().for_each(leave);
    arena
        .verdict()
        .expect_faulty_handlers()
        .expect("releases", 40..)
        .expect("crashes", ..=0)
        .expect("losses", ..=0)
        .expect("expiries", ..=0)
        .expect_repeats_only_after_failed_commits();
}

#[test]
fn a_rolling_restart_repeats_nothing() {
    let mut arena = Arena::new("rolling", shared(), UNHURRIED);
    let mut members = VecDeque::from(arena.assemble(3));
    arena.produce(10, Duration::from_secs(12));
    let began = Instant::now();
    for round in 1..=6 {
        at(began, Duration::from_secs(2) * round);
        leave(members.pop_front().expect("there are three"));
        members.push_back(if round == 3 {
            arena.join_printing()
        } else {
            arena.join()
        });
    }
    arena.settle();
    members.into_iter().for_each(leave);
    arena
        .verdict()
        .expect_faulty_handlers()
        .expect("releases", 24..)
        .expect("crashes", ..=0)
        .expect("losses", ..=0)
        .expect("repeats", ..=0);
}

#[test]
fn after_crashes_only_what_was_not_committed_is_repeated() {
    let mut arena = Arena::new("crashes", shared(), SOON_MISSED);
    let mut members = arena.assemble(3);
    arena.produce(15, Duration::from_secs(20));
    let began = Instant::now();
    for round in 1..=5 {
        let a_while = Duration::from_millis(arena.draw(2_000) as u64);
        at(began, Duration::from_secs(4) * round - a_while);
        // Who has not begun yet does not crash: on a busy machine, the newest may wait long for the one killed before.
        arena.await_ownership();
        let victim = arena.draw(members.len());
        kill(std::mem::replace(&mut members[victim], arena.join()));
    }
    arena.settle();
    members.into_iter().for_each(leave);
    arena
        .verdict()
        .expect_faulty_handlers()
        .expect("crashes", 5..=5)
        .expect("repeats", 1..)
        .expect("skipped", 1..);
}
