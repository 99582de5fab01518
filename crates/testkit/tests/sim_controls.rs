//! Negative controls: the judge must say no to an engine that is broken.

use std::panic::{AssertUnwindSafe, catch_unwind};

use seriatim_testkit::sim::{self, Sabotage};

/// Seeds that are tried for a sabotage to show: not every run gives it an occasion.
const SEEDS: u64 = 40;

/// Whether some seed convicts the saboteur of one of these, and of which.
fn convicted(sabotage: Sabotage, of: &[&str]) {
    let mut seen = Vec::new();
    for seed in 0..SEEDS {
        // A broken engine may trip over its own assertions, which is being caught too, but proves nothing here.
        let Ok(run) = catch_unwind(AssertUnwindSafe(|| sim::run_with(seed, sabotage))) else {
            seen.push((seed, "panic"));
            continue;
        };
        let found: Vec<_> = run
            .judgement
            .violations
            .iter()
            .map(|violation| violation.property)
            .collect();
        if found.iter().any(|property| of.contains(property)) {
            return;
        }
        seen.extend(found.into_iter().map(|property| (seed, property)));
    }
    panic!("{sabotage:?} was not convicted of any of {of:?}, but of {seen:?}");
}

macro_rules! controls {
    ($($name:ident: $sabotage:ident => [$($property:literal),+];)+) => {
        $(
            #[test]
            fn $name() {
                convicted(Sabotage::$sabotage, &[$($property),+]);
            }
        )+
    };
}

controls! {
    committing_the_highest_seen: CommitHighestSeen => ["P3"];
    not_committing_the_ack_map: DropAckMap => ["P6"];
    not_committing_attempts: DropAttempts => ["P9"];
    committing_an_untrue_ack_map: ClaimAllSettled => ["P3"];
    committing_an_older_watermark_again: CommitAgainOlder => ["P4"];
    committing_past_the_end: CommitPastEnd => ["P3"];
    not_committing_at_the_end_of_a_drain: SwallowDrainCommit => ["P6"];
    giving_back_without_a_drain: HideRevoke => ["P2"];
    starting_what_was_given_back: HideRevoke => ["P7"];
    starting_what_was_lost: HideLoss => ["P7"];
    starting_without_a_word_of_the_group: IgnoreLease => ["P7"];
    dropping_a_record_at_a_gap: DropAtGap => ["P3"];
    reading_offset_0_as_none: SkipOffsetZero => ["P3"];
    delivering_two_records_in_the_wrong_order: Reorder => ["P1"];
    starting_below_the_commit: ForgetCommitted => ["P6"];
    delivering_another_value: SwapValues => ["P0"];
    reading_on_while_held: IgnoreHold => ["P10"];
    acknowledging_a_dead_letter_that_is_not_written: AcknowledgeLetterFirst => ["P8"];
    changing_a_dead_letter: StripLetters => ["P8"];
    writing_a_dead_letter_twice: PublishTwice => ["P8"];
    starting_a_record_twice_at_a_time: StartTwice => ["P2"];
    returning_before_the_work_is_done: ReturnEarly => ["P2"];
    trying_once_too_often: OneAttemptMore => ["P9"];
    retrying_too_early: RetryEarly => ["P9"];
    taking_in_too_much: NoLimits => ["P10"];
    running_too_many_handlers: CrowdedWorkers => ["P10"];
    draining_for_ever: EndlessDrain => ["P12"];
    starting_what_is_to_wait: OpenGates => ["P14"];
}
