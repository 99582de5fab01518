//! What an instance does, record by record.

use std::time::Duration;

use seriatim_testkit::story::{BACKOFF_MAX, DRAIN_TIMEOUT, Story};

#[test]
fn a_session_is_in_order_and_others_do_not_wait_for_it() {
    let mut story = Story::new();
    story
        .deliver("a1 a2 b1 b2")
        .running("a1 b1")
        .finish("b1")
        .running("a1 b2");
    story.finish("b2").settled("b1 b2").committed(0);
    story.expect("a1 a2").committed(4);
}

#[test]
fn a_record_that_fails_is_tried_again_before_its_session_goes_on() {
    Story::new()
        .deliver("a1 a2 b1")
        .running("a1 b1")
        .fail("a1")
        .expect("b1 a1 a2");
}

#[test]
fn a_record_that_keeps_failing_is_dead_lettered_and_its_session_goes_on() {
    let mut story = Story::new();
    story.deliver("a1 a2");
    for _ in 0..3 {
        story.wait(BACKOFF_MAX).running("a1").fail("a1");
    }
    story.running("a2").expect("a1! a2").committed(2);
}

#[test]
fn a_record_that_is_rejected_is_dead_lettered_at_once() {
    Story::new()
        .deliver("a1 a2")
        .reject("a1")
        .running("a2")
        .expect("a1! a2")
        .committed(2);
}

#[test]
fn a_panic_is_a_failure_of_its_record_alone() {
    Story::new().deliver("a1 a2 b1").panic("a1").expect("b1 a1 a2");
}

#[test]
fn a_record_without_a_session_is_dead_lettered_and_holds_nobody() {
    Story::new().deliver("_1").settled("_1!").committed(1);
    Story::new().deliver("a1 _2 a3").expect("_2! a1 a3").committed(3);
}

#[test]
fn nothing_settles_while_dead_letters_cannot_be_written() {
    let mut story = Story::new();
    story
        .deliver("a1 a2 b1")
        .dead_letters_down(true)
        .reject("a1")
        .wait(Duration::from_secs(1));
    story.running("b1").settled("").committed(0);
    story
        .dead_letters_down(false)
        .wait(BACKOFF_MAX)
        .expect("a1! b1 a2")
        .committed(3);
}

#[test]
fn a_drain_waits_for_what_runs_and_starts_nothing_more() {
    let mut story = Story::new();
    story.deliver("a1 a2 b1").rebalance().running("a1 b1");
    story.finish("a1").running("b1").settled("a1");
    // b1 is settled above the watermark; it is not repeated.
    story.finish("b1").running("a2").settled("b1").committed(1);
    story.expect("a2").committed(3);
}

#[test]
fn a_drain_cancels_at_its_deadline_what_still_runs() {
    let mut story = Story::new();
    story.deliver("a1 a2").rebalance().running("a1").wait(DRAIN_TIMEOUT);
    story.running("a1").settled("").expect("a1 a2").committed(2);
}

#[test]
fn a_back_off_is_cut_short_by_a_drain() {
    let mut story = Story::new();
    story.deliver("a1 a2").fail("a1").rebalance();
    // The new epoch counts on.
    for _ in 0..2 {
        story.wait(BACKOFF_MAX).running("a1").fail("a1");
    }
    story.expect("a1! a2").committed(2);
}

#[test]
fn attempts_go_on_after_a_crash() {
    let mut story = Story::new();
    story.deliver("a1 a2").fail("a1").wait(BACKOFF_MAX).crash();
    for _ in 0..2 {
        story.wait(BACKOFF_MAX).running("a1").fail("a1");
    }
    story.expect("a1! a2").committed(2);
}

#[test]
fn a_record_that_crashes_its_instance_three_times_is_dead_lettered_and_its_session_goes_on() {
    let mut story = Story::new();
    story.deliver("a1 a2 b1").running("a1 b1");
    story.crash().running("a1 b1");
    // What may be to blame goes one at a time.
    story.crash().running("a1").settled("");
    story.crash().wait(BACKOFF_MAX).running("a2 b1").settled("a1!");
    story.finish("b1").expect("b1 a2").committed(3);
    // Once.
    story.crash().expect("").committed(3);
}

#[test]
fn nothing_else_starts_before_the_dead_letter_of_what_crashed_is_written() {
    let mut story = Story::new();
    story.deliver("a1 b1").crash().crash().running("a1");
    // Else the next crash, of another's doing, would come before it each time.
    story.dead_letters_down(true).crash().running("").settled("");
    story.crash().running("").dead_letters_down(false);
    story.wait(DRAIN_TIMEOUT).running("b1").settled("a1!");
    story.expect("b1").committed(2);
}

#[test]
fn an_innocent_that_was_in_flight_with_it_is_handled() {
    let mut story = Story::new();
    story.deliver("a1 b1 c1").crash().crash();
    story.running("a1").finish("a1").running("b1").settled("a1");
    story.crash().wait(BACKOFF_MAX).running("c1").settled("b1!");
    story.expect("c1").committed(3);
}

#[test]
fn an_instance_that_loses_its_partitions_and_lives_has_not_crashed() {
    let mut story = Story::new();
    story.deliver("a1 b1");
    for _ in 0..4 {
        story.running("a1 b1").lose().wait(BACKOFF_MAX);
    }
    story.running("a1 b1").expect("a1 b1").committed(2);
}

#[test]
fn when_the_suspects_are_settled_all_goes_on_as_before() {
    let mut story = Story::new();
    story.deliver("a1 b1").crash().crash().deliver("c1 d1").running("a1");
    story.finish("a1").running("b1").finish("b1").running("c1 d1");
    // A crash is the first again.
    story.crash().running("c1 d1").expect("a1 b1 c1 d1").committed(4);
}

#[test]
fn a_clean_handover_counts_no_crash_and_acquits_nobody() {
    let mut story = Story::new();
    story.deliver("a1 b1").crash();
    for _ in 0..4 {
        story.rebalance().wait(DRAIN_TIMEOUT).wait(BACKOFF_MAX).running("a1 b1");
    }
    story.crash().running("a1");
    story.rebalance().wait(DRAIN_TIMEOUT).wait(BACKOFF_MAX).running("a1");
    story
        .crash()
        .wait(BACKOFF_MAX)
        .running("b1")
        .expect("a1! b1")
        .committed(2);
}

#[test]
fn what_a_cancelled_handler_has_left_behind_keeps_its_sessions_place() {
    let mut story = Story::new();
    story
        .keep("a1")
        .deliver("a1 a2 b1")
        .rebalance()
        .finish("b1")
        .wait(DRAIN_TIMEOUT);
    story.running("").settled("b1");
    story.let_go("a1").running("a1").expect("a1 a2").committed(3);
}

#[test]
fn what_is_lost_is_not_committed_and_begins_anew() {
    let mut story = Story::new();
    story.deliver("a1 a2 b1").lose().running("a1 b1").settled("");
    story.expect("a1 b1 a2").committed(3);
}

#[test]
fn a_stop_finishes_what_runs_and_the_next_instance_goes_on_from_there() {
    let mut story = Story::new();
    story.deliver("a1 a2 b1").stop().running("a1 b1").stopped(false);
    story.finish("a1 b1").stopped(true).settled("a1 b1").committed(1);
    story.start_again().running("a2").expect("a2").committed(3);
}

#[test]
fn offset_0_is_a_record_like_any_other() {
    let mut story = Story::new();
    story
        .committed(0)
        .deliver("a1")
        .stop()
        .finish("a1")
        .stopped(true)
        .committed(1);
    story
        .start_again()
        .running("")
        .deliver("a2")
        .running("a2")
        .settled("a1");
}
