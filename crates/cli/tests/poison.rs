//! A record that kills whatever process handles it.

mod command;

use std::fs;

use command::{Journal, Running, consumed, file, produce, seriatim, topic, unique, until};
use serde_json::Value;
use seriatim_testkit::broker::shared;

#[test]
fn a_record_that_kills_its_process_three_times_in_a_row_is_dead_lettered_and_all_else_is_handled() {
    let (topic, group, journal, tape) = (topic("poison", 3), unique("group"), Journal::new(), file("tape"));
    shared().create_topic(&format!("{topic}.dlq"), 1, &[]).unwrap();
    let round = |round: usize| -> String { (0..60).map(|session| format!("s{session}:{round}\n")).collect() };
    let before: String = (0..10).map(round).collect();
    let after: String = (10..20).map(round).collect();
    produce(&topic, &format!("{before}s7:kill\n{after}"));
    let command = journal.command("");
    let recording = tape.display().to_string();
    let args = [
        "run", "-t", &topic, "-g", &group, "--check", "--record", &recording, "--exec", &command,
    ];
    // Soon missed, so that its successor need not wait long.
    let args = [
        &args[..],
        &["-X", "session.timeout.ms=3000", "-X", "heartbeat.interval.ms=500"],
    ]
    .concat();
    for crash in 1..=3 {
        let done = Running::start(&args).finish();
        assert_eq!(done.code, -1, "crash {crash}: {}", done.err);
    }
    let survivor = Running::start(&args);
    let all_begun = || {
        let mut offsets: Vec<_> = journal
            .entries()
            .into_iter()
            .map(|entry| (entry.session, entry.offset))
            .collect();
        offsets.sort_unstable();
        offsets.dedup();
        offsets.len() == 60 * 20 + 1
    };
    until("each record has begun", all_begun);
    survivor.signal("TERM");
    survivor.finish().fine();
    let letters = consumed(&format!("{topic}.dlq"), "%k %s %h");
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert!(letters[0].starts_with("s7 kill "), "{}", letters[0]);
    assert!(letters[0].contains("seriatim-reason=exhausted"), "{}", letters[0]);
    assert!(letters[0].contains("seriatim-attempts=3"), "{}", letters[0]);
    let told = seriatim(&["verify", &recording, "--format", "json"]);
    assert_eq!(told.code, 0, "{}{}", told.out, told.err);
    let verdict: Value = serde_json::from_str(&told.out).expect("JSON");
    assert_eq!(
        (&verdict["crashes"], &verdict["poisoned"]),
        (&3.into(), &1.into()),
        "{verdict}"
    );
    fs::remove_file(tape).unwrap();
}
