//! Every promise holds, whatever the seed; and all seeds together have been through enough for that to mean something.
//!
//! `SERIATIM_SIM_SEED=17` replays one and prints its story; `SERIATIM_SIM_SEEDS=100000` runs more than the usual ones.

use std::panic::{AssertUnwindSafe, catch_unwind};

use seriatim_testkit::judge::Counts;
use seriatim_testkit::sim::{self, Run};

/// As many as take a few seconds.
const SEEDS: u64 = 200;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number, not {text}")),
    )
}

#[test]
fn every_promise_holds_whatever_the_seed() {
    if let Some(seed) = number("SERIATIM_SIM_SEED") {
        return sim::run(seed).judgement.assert_clean();
    }
    let seeds = number("SERIATIM_SIM_SEEDS").unwrap_or(SEEDS);
    let mut counts = Counts::default();
    let mut failed = Vec::new();
    for seed in 0..seeds {
        match catch_unwind(AssertUnwindSafe(|| sim::run(seed))) {
            Ok(run) => {
                counts += run.judgement.counts;
                failed.extend(complaint(&run));
            }
            Err(_) => failed.push(format!("SERIATIM_SIM_SEED={seed}: it panicked")),
        }
    }
    println!("{seeds} seeds: {counts:#?}");
    assert!(
        failed.is_empty(),
        "{} of {seeds} seeds failed, the first of them:\n{}",
        failed.len(),
        failed[..failed.len().min(20)].join("\n")
    );
    assert_not_vacuous(&counts, seeds);
}

fn complaint(run: &Run) -> Option<String> {
    let first = run.judgement.violations.first()?;
    Some(format!(
        "SERIATIM_SIM_SEED={}: {}: {}",
        run.seed, first.property, first.text
    ))
}

/// A run in which nothing happens proves nothing.
fn assert_not_vacuous(counts: &Counts, seeds: u64) {
    let enough = [
        ("starts", counts.starts, 200),
        ("retries", counts.retries, 10),
        ("panics", counts.panics, 2),
        ("cancelled attempts", counts.cancelled, 2),
        ("contexts kept", counts.kept_contexts, 2),
        ("dead letters", counts.dead_letters, 10),
        ("dead letters that failed", counts.failed_letters, 2),
        ("repeats", counts.repeats, 2),
        ("records skipped by an ack map", counts.skipped, 2),
        ("releases", counts.releases, 2),
        ("holds", counts.holds, 2),
    ];
    for (what, count, each) in enough {
        assert!(count >= each * seeds, "{count} {what} in {seeds} seeds");
    }
    let rarer = [
        ("losses", counts.losses),
        ("crashes", counts.crashes),
        ("dead letters of records that crashed their process", counts.poisoned),
        ("attempts that go on from an earlier period", counts.resumed),
        ("failed commits", counts.failed_commits),
        ("overlaps after a loss", counts.overlaps_after_loss),
        ("growths of the topic", counts.growths),
        // All of it is settled in the end, so the gates before them have opened.
        ("partitions that waited with records in them", counts.waits),
        ("sessions that went on in a new partition", counts.moved),
    ];
    for (what, count) in rarer {
        assert!(count >= seeds / 10, "{count} {what} in {seeds} seeds");
    }
}

#[test]
fn a_seed_means_the_same_run_every_time() {
    for seed in 0..5 {
        let [first, second] = [(); 2].map(|()| sim::run(seed).history);
        assert_eq!(first.len(), second.len(), "seed {seed}");
        for (first, second) in first.iter().zip(&second) {
            assert_eq!(first.to_string(), second.to_string(), "seed {seed}");
        }
    }
}
