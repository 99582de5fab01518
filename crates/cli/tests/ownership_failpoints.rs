//! Ownership on a real broker, with real processes: one of a group of three kills itself at a step of its work, between two
//! entries of its recording, and the others take over.

mod arena;
mod command;

use std::time::Duration;

use arena::{Arena, Verdict, leave};
use command::{Running, until};
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_testkit::broker::shared;
use seriatim_testkit::history::{AckMap, EpochNumber, What};

/// After this time a member that has died is missed.
const SOON_MISSED: Duration = Duration::from_secs(3);

const RECORDS_A_SECOND: u32 = 1_000;

/// Members die at each step so often.
const ROUNDS: u64 = 3;

/// A group of two to which a third comes that dies, again and again.
struct Scene {
    arena: Arena,
    members: Vec<Running>,
}

/// What a member that has died has written.
struct Death {
    entries: Vec<(Duration, What)>,
}

impl Scene {
    fn begin(stem: &str) -> Self {
        let mut arena = Arena::new(stem, shared(), SOON_MISSED);
        let members = arena.assemble(2);
        arena.produce_until_settled(RECORDS_A_SECOND);
        Self { arena, members }
    }

    /// A third member comes and works until it dies at `step`, when it is there for the `nth` time.
    #[track_caller]
    fn death(&mut self, step: &str, nth: usize) -> Death {
        let entries = self.arena.join_mortal(step, nth).dies();
        Death { entries }
    }

    /// As [`Scene::death`], when the first of its partitions has to go because a fourth member comes; another leaves then.
    #[track_caller]
    fn death_in_a_drain(&mut self, step: &str) -> Death {
        let mortal = self.arena.join_mortal(step, 1);
        mortal.await_work();
        self.members.push(self.arena.join());
        let entries = mortal.dies();
        leave(self.members.remove(0));
        Death { entries }
    }

    /// What the group told the one who took `partition` over.
    #[track_caller]
    fn heir(&self, death: &Death, partition: &PartitionId) -> (Option<Offset>, AckMap) {
        let mut heir = None;
        until("another takes over", || {
            heir = self.arena.next_owner(partition, death.time());
            heir.is_some()
        });
        let heir = heir.expect("awaited above");
        (heir.committed, heir.settled)
    }

    /// That it died before the commit that it was about to send was. Returns the period of ownership.
    #[track_caller]
    fn assert_unsent(&self, death: &Death) -> EpochNumber {
        let What::CommitSent(epoch, watermark, settled) = death.last() else {
            panic!("it died after {:?}", death.last());
        };
        let heir = self.heir(death, death.partition(*epoch));
        let unsent = (Some(*watermark), settled.clone());
        // It may have nothing to say of what is settled: that its period is over, or how often a record has failed.
        if death.commits(*epoch).nth(1).as_ref() != Some(&unsent) {
            assert_ne!(heir, unsent, "the commit was sent");
        }
        *epoch
    }

    /// Lets everything settle, and has it judged.
    #[track_caller]
    fn end(mut self) -> Verdict {
        self.arena.settle();
        self.members.into_iter().for_each(leave);
        let verdict = self.arena.verdict();
        verdict
            .expect_faulty_handlers()
            .expect("crashes", ROUNDS..=ROUNDS)
            .expect("losses", ..=0);
        verdict
    }
}

impl Death {
    fn time(&self) -> Duration {
        self.entries.last().expect("it has recorded").0
    }

    /// The last thing that it wrote.
    fn last(&self) -> &What {
        &self.entries.last().expect("it has recorded").1
    }

    fn whats(&self) -> impl DoubleEndedIterator<Item = &What> {
        self.entries.iter().map(|(_, what)| what)
    }

    fn partition(&self, epoch: EpochNumber) -> &PartitionId {
        let mut begun = self.whats().filter_map(|what| match what {
            What::Assign {
                epoch: of, partition, ..
            } if *of == epoch => Some(partition),
            _ => None,
        });
        begun.next().expect("it was assigned")
    }

    fn last_commit(&self, epoch: EpochNumber) -> (Option<Offset>, AckMap) {
        self.commits(epoch).next().expect("it has committed")
    }

    /// What it has said of what is settled, the last first.
    fn commits(&self, epoch: EpochNumber) -> impl Iterator<Item = (Option<Offset>, AckMap)> {
        self.whats().rev().filter_map(move |what| match what {
            What::CommitSent(of, watermark, settled) if *of == epoch => Some((Some(*watermark), settled.clone())),
            _ => None,
        })
    }

    fn was_draining(&self, epoch: EpochNumber) -> bool {
        self.whats().any(|what| *what == What::RevokeBegin(epoch))
    }

    fn has_started(&self, partition: &PartitionId) -> bool {
        let mut starts = self.whats().filter_map(|what| match what {
            What::Start { record, .. } => Some(record),
            _ => None,
        });
        starts.any(|record| record.partition == *partition)
    }
}

#[test]
fn after_the_grant_and_before_the_first_record() {
    let mut scene = Scene::begin("granted");
    for _ in 0..ROUNDS {
        let nth = 1 + scene.arena.draw(3);
        let death = scene.death("granted", nth);
        let What::Assign {
            partition,
            committed,
            settled,
            ..
        } = death.last()
        else {
            panic!("it died after {:?}", death.last());
        };
        assert!(!death.has_started(partition));
        assert_eq!(scene.heir(&death, partition), (*committed, settled.clone()));
    }
    // Those that it took its partitions from had given them back, and it has done nothing.
    scene.end().expect("repeats", ..=0);
}

#[test]
fn between_settling_and_the_commit() {
    let mut scene = Scene::begin("settled");
    for _ in 0..ROUNDS {
        let nth = 20 + scene.arena.draw(40);
        let death = scene.death("settled", nth);
        let epoch = scene.assert_unsent(&death);
        assert!(!death.was_draining(epoch));
    }
    scene.end().expect("repeats", 1..);
}

#[test]
fn between_a_dead_letter_and_the_commit() {
    let mut scene = Scene::begin("lettered");
    for _ in 0..ROUNDS {
        let nth = 1 + scene.arena.draw(3);
        let death = scene.death("lettered", nth);
        let What::LetterAcked(record) = death.last() else {
            panic!("it died after {:?}", death.last());
        };
        until("there is a second letter", || {
            scene.arena.has_letter(record, death.time())
        });
    }
    scene.end().expect("repeats", 1..);
}

#[test]
fn before_a_drain() {
    let mut scene = Scene::begin("revoked");
    for _ in 0..ROUNDS {
        let death = scene.death_in_a_drain("revoked");
        let What::RevokeBegin(epoch) = death.last() else {
            panic!("it died after {:?}", death.last());
        };
        scene.heir(&death, death.partition(*epoch));
    }
    scene.end().expect("repeats", 1..);
}

#[test]
fn between_a_drain_and_its_commit() {
    let mut scene = Scene::begin("drained");
    for _ in 0..ROUNDS {
        let death = scene.death_in_a_drain("drained");
        let epoch = scene.assert_unsent(&death);
        assert!(death.was_draining(epoch));
    }
    scene.end().expect("repeats", 1..);
}

#[test]
fn between_the_commit_of_a_drain_and_the_release() {
    let mut scene = Scene::begin("committed");
    for _ in 0..ROUNDS {
        let death = scene.death_in_a_drain("committed");
        let What::RevokeEnd(epoch) = death.last() else {
            panic!("it died after {:?}", death.last());
        };
        assert!(death.was_draining(*epoch));
        // Of this partition nothing is repeated, as the judge demands of what was given back.
        let heir = scene.heir(&death, death.partition(*epoch));
        assert_eq!(heir, death.last_commit(*epoch));
    }
    scene.end();
}
