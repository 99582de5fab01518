//! The judge on histories that are written by hand: what is good is found good, and each broken promise is found.

mod tale;

use tale::Tale;

#[test]
fn a_good_history_is_good() {
    Tale::of("a0 b1 a2 _3 c6")
        .tell("1 assign; 1 start b1; 1 start a0; 1 ok b1; 1 retry a0 5; 1 fail a0; 1 wait 5; 1 start a0 2; 1 ok a0 2")
        .tell("1 letter _3 undecodable 0; 1 letter-ok _3; 1 commit 2; 1 start a2; 1 revoke; 1 ok a2; 1 commit 4; 1 give-back")
        .tell("2 assign 4; 2 start c6; 2 reject c6; 2 letter c6 permanent 1; 2 letter-ok c6; 2 commit 7")
        .assert_good();
}

#[test]
fn what_a_crash_repeats_is_good() {
    Tale::of("a0 a1")
        .tell("1 assign; 1 start a0; 1 ok a0; 1 start a1; 1 crash; 2 assign; 2 start a0; 2 ok a0; 2 start a1; 2 ok a1; 2 commit 2")
        .assert_good();
}

#[test]
fn what_the_ack_map_tells_of_is_not_repeated() {
    let crashed = "1 assign; 1 start a0; 1 start b1; 1 ok b1; 1 commit 0 1-1; 1 crash";
    Tale::of("a0 b1 b2")
        .tell(crashed)
        .tell("2 assign 0 1-1; 2 start a0; 2 start b2; 2 ok b2; 2 ok a0; 2 commit 3")
        .assert_good();
    Tale::of("a0 b1")
        .tell(crashed)
        .tell("2 assign 0 1-1; 2 start b1")
        .assert_breaks("P6");
    // What no ack map tells of may be.
    Tale::of("a0 b1")
        .tell("1 assign; 1 start a0; 1 start b1; 1 ok b1; 1 commit 0; 1 crash")
        .tell("2 assign 0; 2 start b1; 2 start a0; 2 ok b1; 2 ok a0; 2 commit 2")
        .assert_good();
}

#[test]
fn p9_attempts_go_on_from_what_the_commit_tells() {
    let failed = "1 assign; 1 start a0; 1 fail a0; 1 commit 0; 1 revoke; 1 give-back";
    Tale::of("a0")
        .tell(failed)
        .tell("2 assign 0 0x1; 2 start a0 2; 2 ok a0 2; 2 commit 1")
        .assert_good();
    Tale::of("a0").tell(failed).tell("2 assign 0").assert_breaks("P9");
    Tale::of("a0")
        .tell(failed)
        .tell("2 assign 0 0x1; 2 start a0 1")
        .assert_breaks("P9");
    Tale::of("a0")
        .tell("1 assign; 1 crash; 2 assign 0 0x1; 2 start a0 3")
        .assert_breaks("P9");
}

#[test]
fn p8_a_record_in_flight_at_three_crashes_in_a_row() {
    let crash = |n: u32| format!("{n} assign; {n} deliver 1; {n} start a0; {n} crash");
    let letter = "9 assign; 9 letter a0 exhausted 3; 9 letter-ok a0; 9 commit 1";
    let twice = Tale::of("a0").tell(&crash(1)).tell(&crash(2));
    twice.tell(letter).assert_breaks("P8");
    let thrice = Tale::of("a0").tell(&crash(1)).tell(&crash(2)).tell(&crash(3));
    thrice.tell(letter).assert_good();
}

#[test]
fn p0_a_record_that_does_not_exist() {
    Tale::of("a0 a2").tell("1 assign; 1 start a1").assert_breaks("P0");
}

#[test]
fn p1_a_record_before_its_predecessor_is_settled() {
    Tale::of("a0 a1").tell("1 assign; 1 start a1").assert_breaks("P1");
    Tale::of("a0 a1")
        .tell("1 assign; 1 start a0; 1 fail a0; 1 start a1")
        .assert_breaks("P1");
    Tale::of("a0 a1")
        .tell("1 assign; 1 start a0; 1 reject a0; 1 letter a0 permanent 1; 1 start a1")
        .assert_breaks("P1");
}

#[test]
fn p2_two_handlers_of_a_session() {
    Tale::of("a0 a1")
        .tell("1 assign; 1 start a0; 1 lost; 1 assign; 1 start a0")
        .assert_breaks("P2");
    Tale::of("a0")
        .tell("1 assign; 1 start a0; 1 revoke; 1 give-back")
        .assert_breaks("P2");
    Tale::of("a0 a1")
        .tell("1 assign; 1 start a0; 1 keep a0; 1 drop a0; 1 lost; 1 assign; 1 start a0")
        .assert_breaks("P2");
}

#[test]
fn p2_two_instances_may_overlap_only_after_a_loss() {
    let overlap = "2 assign; 2 start a0; 1 ok a0; 2 ok a0; 2 commit 1";
    Tale::of("a0")
        .tell("1 assign; 1 start a0; 1 expire")
        .tell(overlap)
        .assert_good();
    Tale::of("a0")
        .tell("1 assign; 1 start a0")
        .tell(overlap)
        .assert_breaks("P2");
}

#[test]
fn p3_a_commit_past_what_is_settled() {
    Tale::of("a0 b1")
        .tell("1 assign; 1 start b1; 1 ok b1; 1 commit 2")
        .assert_breaks("P3");
    Tale::of("a0")
        .tell("1 assign; 1 start a0; 1 ok a0; 1 commit 2")
        .assert_breaks("P3");
    Tale::of("a0")
        .tell("1 assign; 1 start a0; 1 reject a0; 1 letter a0 permanent 1; 1 commit 1")
        .assert_breaks("P3");
    Tale::of("a0 b1")
        .tell("1 assign; 1 start b1; 1 commit 0 1-1")
        .assert_breaks("P3");
    // What a zombie has settled is not settled for the owner.
    Tale::of("a0")
        .tell("1 assign; 1 start a0; 1 expire; 2 assign; 1 ok a0; 2 commit 1")
        .assert_breaks("P3");
}

#[test]
fn p3_a_record_that_is_never_settled() {
    Tale::of("a0 b1")
        .tell("1 assign; 1 start a0; 1 ok a0; 1 commit 1")
        .assert_breaks("P3");
}

#[test]
fn p4_commits_that_fall_or_are_not_the_owners() {
    Tale::of("a0 a1")
        .tell("1 assign; 1 start a0; 1 ok a0; 1 start a1; 1 ok a1; 1 commit 2; 1 commit 1; 1 commit 2")
        .assert_breaks("P4");
    Tale::of("a0")
        .tell("1 assign; 1 start a0; 1 ok a0; 1 commit 1; 1 revoke; 1 give-back; 1 commit 1")
        .assert_breaks("P4");
}

#[test]
fn p4_a_period_that_does_not_begin_where_the_last_was_committed() {
    let crashed = "1 assign; 1 start a0; 1 ok a0; 1 start b1; 1 ok b1; 1 commit 1 1-1; 1 crash";
    for begin in ["2 assign", "2 assign 0", "2 assign 1", "2 assign 2"] {
        Tale::of("a0 b1 b2").tell(crashed).tell(begin).assert_breaks("P4");
    }
    // Whether a commit that was not answered took effect, only the group knows.
    let unanswered = "1 assign; 1 start a0; 1 ok a0; 1 commit 1; 1 start b1; 1 ok b1; 1 send 2; 1 crash";
    let goes_on = ["2 assign 1; 2 start b1; 2 ok b1; 2 start b2", "2 assign 2; 2 start b2"];
    for goes_on in goes_on {
        Tale::of("a0 b1 b2")
            .tell(unanswered)
            .tell(goes_on)
            .tell("2 ok b2; 2 commit 3")
            .assert_good();
    }
}

#[test]
fn p4_a_commit_of_a_period_that_another_has_followed() {
    let overtaken = "1 assign; 1 start a0; 1 ok a0; 1 expire; 2 assign; 2 start a0; 2 ok a0";
    Tale::of("a0")
        .tell(overtaken)
        .tell("1 commit 1; 2 commit 1")
        .assert_breaks("P4");
    Tale::of("a0")
        .tell(overtaken)
        .tell("1 send 1; 1 refused; 1 lost; 2 commit 1")
        .assert_good();
}

#[test]
fn what_was_settled_before_the_history_begins_is_not_judged() {
    Tale::of("a0 b1 a2 c3")
        .tell("1 assign 1 3-3; 1 start b1; 1 start a2; 1 ok b1; 1 ok a2; 1 commit 4")
        .assert_good();
    Tale::of("a0 b1 a2 c3")
        .tell("1 assign 1 3-3; 1 start b1; 1 ok b1; 1 commit 2 3-3; 1 revoke; 1 give-back")
        .assert_breaks("P3");
}

#[test]
fn what_an_ack_map_had_no_room_for_may_be_repeated() {
    let settled = "1 assign; 1 start b1; 1 ok b1; 1 start c2; 1 ok c2";
    let handed_over =
        "1 commit 0 1-1; 1 revoke; 1 give-back; 2 assign 0 1-1; 2 start c2; 2 ok c2; 2 start a0; 2 ok a0; 2 commit 3";
    Tale::of("a0 b1 c2")
        .tell(settled)
        .tell("1 map-cut")
        .tell(handed_over)
        .assert_good();
    Tale::of("a0 b1 c2").tell(settled).tell(handed_over).assert_breaks("P6");
}

#[test]
fn a_worker_may_hear_of_a_loss_a_moment_later() {
    let lost = "1 assign; 1 start a0; 1 lost; 2 assign; 2 start a0; 1 wait 20; 1 start b1; 1 drop b1; 1 drop a0";
    let goes_on = "2 ok a0; 2 start b1; 2 ok b1; 2 commit 2";
    Tale::of("a0 b1").slack(25).tell(lost).tell(goes_on).assert_good();
    Tale::of("a0 b1").slack(15).tell(lost).tell(goes_on).assert_breaks("P7");
    Tale::of("a0 b1").tell(lost).tell(goes_on).assert_breaks("P7");
}

#[test]
fn of_a_run_that_goes_on_not_all_is_demanded() {
    Tale::of("a0 b1")
        .unfinished()
        .tell("1 assign; 1 start a0; 1 ok a0; 1 commit 1")
        .assert_good();
    Tale::of("a0 b1")
        .unfinished()
        .tell("1 assign; 1 start a0; 1 commit 1")
        .assert_breaks("P3");
}

#[test]
fn p3_what_the_group_has_on_record_in_the_end_was_settled() {
    // Nobody tells of the commit.
    for on_record in ["1 recorded 2", "1 recorded 1 1-1"] {
        Tale::of("a0 b1 c2")
            .unfinished()
            .tell("1 assign; 1 start a0; 1 ok a0; 1 commit 1")
            .tell(on_record)
            .assert_breaks("P3");
    }
    Tale::of("a0 b1 c2")
        .unfinished()
        .tell("1 assign; 1 start a0; 1 ok a0; 1 start c2; 1 ok c2; 1 commit 1; 1 recorded 1 2-2")
        .assert_good();
}

#[test]
fn p6_a_settled_record_again() {
    Tale::of("a0")
        .tell("1 assign; 1 start a0; 1 ok a0; 1 start a0")
        .assert_breaks("P6");
    Tale::of("a0 a1")
        .tell("1 assign; 1 start a0; 1 ok a0; 1 commit 1; 1 crash; 2 assign 1; 2 start a0")
        .assert_breaks("P6");
    // Released in good order, but not committed.
    Tale::of("a0 a1")
        .tell("1 assign; 1 start a0; 1 ok a0; 1 revoke; 1 give-back; 2 assign; 2 start a0")
        .assert_breaks("P6");
}

#[test]
fn p6_what_was_settled_above_the_watermark_at_a_clean_release() {
    Tale::of("a0 b1")
        .tell("1 assign; 1 start b1; 1 ok b1; 1 commit 0; 1 revoke; 1 give-back; 2 assign 0")
        .assert_breaks("P6");
}

#[test]
fn p7_a_start_outside_of_ownership() {
    for end in ["1 revoke; 1 give-back", "1 lost"] {
        Tale::of("a0")
            .tell("1 assign")
            .tell(end)
            .tell("1 start a0")
            .assert_breaks("P7");
    }
    Tale::of("a0").tell("1 assign; 2 start a0").assert_breaks("P7");
    Tale::of("a0")
        .leased()
        .tell("1 assign; 1 expire; 1 start a0")
        .assert_breaks("P7");
}

#[test]
fn p7_what_was_about_to_start_when_its_process_was_frozen() {
    let frozen = |records: &str, delivered: &str| {
        Tale::of(records)
            .leased()
            .slack(20)
            .unfinished()
            .tell("1 assign")
            .tell(delivered)
            .tell("1 expire; 1 wait 1000")
    };
    let all = "1 deliver 3";
    // Two are started without a look at the clock.
    frozen("a0 b1 c2", all).tell("1 start a0; 1 start b1").assert_good();
    frozen("a0 b1 c2", all)
        .tell("1 start a0; 1 start b1; 1 start c2")
        .assert_breaks("P7");
    // It has long been back.
    frozen("a0 b1 c2", all)
        .tell("1 start a0; 1 wait 30; 1 start b1")
        .assert_breaks("P7");
    // It was not there before.
    frozen("a0 b1 c2", "1 deliver 1")
        .tell("1 deliver 1; 1 start b1")
        .assert_breaks("P7");
    // It was not frozen.
    Tale::of("a0")
        .leased()
        .slack(20)
        .unfinished()
        .tell("1 assign; 1 deliver 1; 1 wait 999; 1 expire; 1 start a0")
        .assert_breaks("P7");
}

#[test]
fn p8_dead_letters_without_cause_twice_or_lost() {
    let rejected = "1 assign; 1 start a0; 1 reject a0; 1 letter a0 permanent 1";
    Tale::of("a0")
        .tell("1 assign; 1 letter a0 permanent 0")
        .assert_breaks("P8");
    Tale::of("a0")
        .tell("1 assign; 1 letter a0 undecodable 0")
        .assert_breaks("P8");
    Tale::of("a0")
        .tell("1 assign; 1 start a0; 1 fail a0; 1 letter a0 exhausted 1")
        .assert_breaks("P8");
    Tale::of("a0")
        .tell(rejected)
        .tell("1 letter-ok a0; 1 letter a0 permanent 1")
        .assert_breaks("P8");
    Tale::of("a0")
        .tell(rejected)
        .tell("1 letter-lost a0; 1 commit 1")
        .assert_breaks("P8");
    Tale::of("a0")
        .tell(rejected)
        .tell("1 letter-garbled a0; 1 commit 1")
        .assert_breaks("P8");
}

#[test]
fn p9_attempts_that_do_not_count_up() {
    let failed = "1 assign; 1 start a0; 1 fail a0";
    Tale::of("a0").tell("1 assign; 1 start a0 2").assert_breaks("P9");
    Tale::of("a0").tell(failed).tell("1 start a0 3").assert_breaks("P9");
    Tale::of("a0")
        .tell(failed)
        .tell("1 start a0 2; 1 fail a0 2; 1 start a0 3; 1 fail a0 3; 1 start a0 4")
        .assert_breaks("P9");
    Tale::of("a0")
        .tell(failed)
        .tell("1 retry a0 5; 1 wait 4; 1 start a0 2")
        .assert_breaks("P9");
    Tale::of("a0")
        .tell("1 assign; 1 start a0; 1 reject a0; 1 start a0 2")
        .assert_breaks("P9");
}

#[test]
fn p10_more_than_the_limits_allow() {
    Tale::of("a0 b1 c2 d3")
        .tell("1 assign; 1 start a0; 1 start b1; 1 start c2; 1 start d3")
        .assert_breaks("P10");
    Tale::of("a0").tell("1 assign; 1 deliver 11").assert_breaks("P10");
    Tale::of("a0")
        .tell("1 assign; 1 hold; 1 deliver 1")
        .assert_breaks("P10");
}

#[test]
fn p12_a_drain_past_its_deadline() {
    Tale::of("")
        .tell("1 assign; 1 revoke; 1 wait 99; 1 give-back")
        .assert_good();
    Tale::of("")
        .tell("1 assign; 1 revoke; 1 wait 101; 1 give-back")
        .assert_breaks("P12");
    // It stood still meanwhile.
    Tale::of("")
        .tell("1 assign; 1 revoke; 1 pause; 1 wait 500; 1 resume; 1 give-back")
        .assert_good();
}
