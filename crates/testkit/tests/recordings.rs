//! Recordings: written by one process, read by another, and several made one history.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use seriatim_engine::record::{Offset, PartitionId, RecordId};
use seriatim_testkit::history::merge::{MergeError, Merged, merge};
use seriatim_testkit::history::recording::{self, Consumes, Header, Limits, Recorder, Recording, RecordingError};
use seriatim_testkit::history::{Ended, Entry, EpochNumber, History, What};
use tempfile::TempDir;

fn chat() -> PartitionId {
    PartitionId::new("chat", 0)
}

fn record(offset: i64) -> RecordId {
    RecordId {
        partition: chat(),
        offset: Offset::new(offset),
    }
}

fn consumes(group: &str) -> Consumes {
    Consumes {
        group: group.to_owned(),
        topics: vec!["chat".to_owned(), "audit".to_owned()],
        session_by: "key".to_owned(),
        keyless_are_a_session: false,
        begins_at_end: false,
        limits: Limits {
            attempts_max: 3,
            in_flight_max: 10,
            unsettled_max: 100,
            partition_unsettled_max: 50,
            drain_max_ms: 1_000,
            starts_per_look: 32,
        },
    }
}

/// A folder with recordings.
struct Shelf(TempDir);

impl Shelf {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A recording with the entries of these lines, all in the form that is written.
    fn put(&self, name: &str, header: &Header, lines: &[&str]) -> PathBuf {
        let mut text = serde_json::to_string(header).unwrap() + "\n";
        lines.iter().for_each(|line| text += &format!("{line}\n"));
        let file = self.file(name);
        fs::write(&file, text).unwrap();
        file
    }
}

fn record_into(file: &Path, what: &[What]) {
    let recorder = Recorder::append(file, &Header::now(consumes("g")), |error| panic!("{error}")).unwrap();
    let history = History::recorded(recorder);
    what.iter().for_each(|what| history.note(7, what.clone()));
}

fn append(file: &Path, text: &str) {
    let before = fs::read_to_string(file).unwrap();
    fs::write(file, before + text).unwrap();
}

fn whats(recording: &Recording) -> Vec<&What> {
    recording.entries.iter().map(|(_, what)| what).collect()
}

fn some_work() -> [What; 3] {
    [
        What::Assign {
            epoch: EpochNumber(0),
            partition: chat(),
            committed: None,
            settled: Vec::new(),
            attempts: Vec::new(),
        },
        What::Start {
            record: record(0),
            attempt: 1,
            fingerprint: 7,
        },
        What::End(record(0), 1, Ended::Handled),
    ]
}

#[test]
fn what_is_recorded_is_read() {
    let shelf = Shelf::new();
    let file = shelf.file("one");
    let work = [&some_work()[..], &[What::Left, What::Lost(EpochNumber(0))]].concat();
    record_into(&file, &work);
    let read = recording::read(&file).unwrap();
    assert_eq!(read.len(), 1);
    // Nothing is written behind the end.
    assert_eq!(whats(&read[0]), work[..4].iter().collect::<Vec<_>>());
    assert_eq!(read[0].header.topics, ["audit", "chat"]);
    let times: Vec<Duration> = read[0].entries.iter().map(|(at, _)| *at).collect();
    assert!(times.is_sorted());
    assert!(times[0].as_nanos() >= u128::from(read[0].header.clock.monotonic_ns));
}

#[test]
fn whoever_watches_is_told_of_each_entry_when_it_is_the_last() {
    let shelf = Shelf::new();
    let file = shelf.file("watched");
    let (told, telling) = mpsc::sync_channel(some_work().len());
    let recorder = Recorder::append(&file, &Header::now(consumes("g")), |error| panic!("{error}")).unwrap();
    let watched = file.clone();
    let history = History::recorded(recorder.watched(move |what| {
        let recordings = recording::read(&watched).unwrap();
        let last = whats(&recordings[0]).last().copied().cloned();
        told.send((what.clone(), last)).unwrap();
    }));
    some_work().into_iter().for_each(|what| history.note(7, what));
    drop(history);
    let seen: Vec<_> = telling.iter().collect();
    assert_eq!(seen, some_work().map(|what| (what.clone(), Some(what))));
}

#[test]
fn a_recording_can_be_cut_at_a_moment() {
    let shelf = Shelf::new();
    let mut header = Header::now(consumes("g"));
    let file = shelf.put("cut", &header, &["10 paused", "20 resumed", "30 left"]);
    let recording = recording::read(&file).unwrap().remove(0);
    header.clock.monotonic_ns = 20;
    assert_eq!(recording.clone().up_to(&header.clock).entries.len(), 2);
    // The time of another machine says nothing.
    header.clock.boot += "another";
    assert_eq!(recording.up_to(&header.clock).entries.len(), 3);
}

#[test]
fn a_torn_last_line_is_passed_over_and_the_next_process_goes_on() {
    let shelf = Shelf::new();
    let file = shelf.file("torn");
    record_into(&file, &some_work());
    append(&file, "99999999999999999 start chat/0/1");
    assert_eq!(recording::read(&file).unwrap()[0].entries.len(), 3);
    record_into(&file, &some_work());
    let read = recording::read(&file).unwrap();
    assert_eq!(
        read.iter().map(|recording| recording.entries.len()).collect::<Vec<_>>(),
        [3, 3]
    );
}

#[test]
fn a_process_that_was_killed_before_its_first_word_left_nothing() {
    let shelf = Shelf::new();
    let file = shelf.file("empty");
    fs::write(&file, "").unwrap();
    assert_eq!(recording::read(&file).unwrap().len(), 0);
    fs::write(&file, "{\"seriatim_rec").unwrap();
    assert_eq!(recording::read(&file).unwrap().len(), 0);
    record_into(&file, &some_work());
    assert_eq!(recording::read(&file).unwrap().len(), 1);
}

#[test]
fn two_processes_cannot_record_into_one_file() {
    let shelf = Shelf::new();
    let file = shelf.file("shared");
    let header = Header::now(consumes("g"));
    let first = Recorder::append(&file, &header, |error| panic!("{error}")).unwrap();
    let second = Recorder::append(&file, &header, |error| panic!("{error}"));
    assert!(second.err().unwrap().to_string().contains("another process"));
    drop(first);
    Recorder::append(&file, &header, |error| panic!("{error}")).unwrap();
}

#[test]
fn a_file_without_room_is_told_at_once() {
    let full = Recorder::append(Path::new("/dev/full"), &Header::now(consumes("g")), |_| {});
    assert_eq!(full.err().unwrap().kind(), std::io::ErrorKind::StorageFull);
}

#[test]
fn what_is_damaged_is_told_with_its_line() {
    let shelf = Shelf::new();
    let header = Header::now(consumes("g"));
    let damaged = |lines: &[&str], at: usize, why: &str| {
        let error = recording::read(&shelf.put("damaged", &header, lines)).unwrap_err();
        match &error {
            RecordingError::Damaged { line, reason, .. } => {
                assert_eq!((*line, reason.contains(why)), (at, true), "{error}");
            }
            other => panic!("{other}"),
        }
    };
    damaged(&["1 assign 0 chat/0 - - -", "2 start chat/0/", "3 left"], 3, "no entry");
    damaged(&["2 assign 0 chat/0 - - -", "1 left"], 3, "time");
    damaged(&["1 assign 1 chat/0 - - -"], 2, "missing");
    damaged(&["1 lost 0"], 2, "not begun");
    damaged(&["1 left", "2 paused"], 3, "header");
    damaged(&["1 paused", "{\"seriatim"], 3, "no header");
    damaged(&["1 pau!torn", "2 paused"], 3, "header");

    let foreign = shelf.file("foreign");
    fs::write(&foreign, "to whom it may concern\n").unwrap();
    assert!(matches!(recording::read(&foreign), Err(RecordingError::Foreign { .. })));
    fs::write(&foreign, "{\"seriatim_recording\":2}\n").unwrap();
    assert!(matches!(
        recording::read(&foreign),
        Err(RecordingError::Version { version: 2, .. })
    ));
    let missing = recording::read(&shelf.file("missing"));
    assert!(matches!(missing, Err(RecordingError::Unreadable { .. })));
}

/// The history of two recordings with these lines.
fn merged(one: &[&str], other: &[&str]) -> Merged {
    let shelf = Shelf::new();
    let header = Header::now(consumes("g"));
    let files = [shelf.put("one", &header, one), shelf.put("other", &header, other)];
    let read = files.map(|file| recording::read(&file).unwrap());
    merge(read.concat()).unwrap()
}

fn told(merged: &Merged) -> Vec<String> {
    let told = |entry: &Entry| format!("{} #{} {}", entry.at.as_nanos(), entry.instance, entry.what);
    merged.entries.iter().map(told).collect()
}

#[test]
fn what_happened_is_told_in_order_and_a_recording_without_an_end_has_crashed() {
    let one = [
        "10 assign 0 chat/0 - - -",
        "13 retry chat/0/0 1 25",
        "20 revoke 0",
        "21 release 0",
        "22 left",
    ];
    let merged = merged(&one, &["12 paused", "30 assign 0 chat/0 1 - -"]);
    assert_eq!(
        told(&merged),
        [
            "0 #0 epoch 0 of chat[0] begins, nothing committed",
            "2 #1 stands still",
            "3 #0 chat[0]@0 will retry after attempt 1, not before 0.000000 s",
            "10 #0 epoch 0: revoked",
            "11 #0 epoch 0: given back",
            "12 #0 has ended",
            "20 #1 epoch 1 of chat[0] begins at 1",
            "20 #1 has crashed",
        ]
    );
    assert_eq!(
        merged.entries[2].what,
        What::Retry(record(0), 1, Duration::from_nanos(15))
    );
    let ended: Vec<bool> = merged.instances.iter().map(|instance| instance.ended).collect();
    assert_eq!(ended, [true, false]);
}

/// Whether the first owner counts as dropped when the second is given its partition at 20.
fn is_dropped(before_and_after: &[&str]) -> bool {
    let one = [&["10 assign 0 chat/0 - - -", "11 delivered 0 9 0"], before_and_after].concat();
    let merged = merged(&one, &["20 assign 0 chat/0 - - -", "90 left"]);
    let expired = merged.entries.iter().find(|entry| entry.what == What::Expired);
    assert!(expired.is_none_or(|entry| entry.instance == 0 && entry.at.as_nanos() == 10));
    expired.is_some()
}

#[test]
fn an_owner_counts_as_dropped_only_if_it_found_out() {
    assert!(is_dropped(&["30 lost 0", "31 left"]));
    assert!(is_dropped(&[
        "30 commit 0 1 -",
        "31 answer 0 no",
        "32 revoke 0",
        "33 release 0",
        "34 left"
    ]));
    assert!(is_dropped(&["30 paused"]), "it was killed before it could find out");
    assert!(!is_dropped(&["30 release 0", "31 left"]));
    assert!(!is_dropped(&[
        "30 commit 0 1 -",
        "31 answer 0 yes",
        "40 lost 0",
        "41 left"
    ]));
    // The answer to a commit that was sent before tells nothing.
    assert!(is_dropped(&[
        "19 commit 0 1 -",
        "31 answer 0 yes",
        "40 lost 0",
        "41 left"
    ]));
    // Gone before, so that there was nobody to drop.
    assert!(!is_dropped(&["15 paused"]));
}

#[test]
fn a_period_that_was_over_before_it_began_is_not_told() {
    let late = [
        "25 assign 0 chat/0 - - -",
        "26 lost 0",
        "27 assign 1 chat/1 - - -",
        "28 left",
    ];
    let merged = merged(&["10 assign 0 chat/0 - - -", "90 left"], &late);
    assert!(
        told(&merged).contains(&"17 #1 epoch 1 of chat[1] begins, nothing committed".to_owned()),
        "{:#?}",
        told(&merged)
    );
    assert_eq!(merged.entries.len(), 4);
}

#[test]
fn where_a_log_was_begun_at_its_end_is_where_its_first_record_came_from() {
    let shelf = Shelf::new();
    let mut consumes = consumes("g");
    consumes.begins_at_end = true;
    let lines = ["1 assign 0 chat/0 - - -", "2 delivered 0 3 40", "3 left"];
    let read = recording::read(&shelf.put("late", &Header::now(consumes), &lines)).unwrap();
    assert_eq!(told(&merge(read).unwrap())[0], "0 #0 epoch 0 of chat[0] begins at 40");
}

#[test]
fn what_does_not_belong_together_is_told() {
    let shelf = Shelf::new();
    let one = shelf.put("one", &Header::now(consumes("g")), &["1 left"]);
    let apart = |change: fn(&mut Header), what: &str| {
        let mut header = Header::now(consumes("g"));
        change(&mut header);
        let other = shelf.put("other", &header, &["1 left"]);
        let read = [&one, &other].map(|file| recording::read(file).unwrap());
        match merge(read.concat()) {
            Err(error @ MergeError::Different { .. }) => assert!(error.to_string().contains(what), "{error}"),
            other => panic!("{other:?}"),
        }
    };
    apart(|header| header.group = "h".to_owned(), "different groups: g and h");
    apart(|header| header.topics = vec!["chat".to_owned()], "topics");
    apart(|header| header.session_by = "header:x".to_owned(), "sessions");
    apart(|header| header.clock.boot += "anew", "machines");
    assert!(matches!(merge(Vec::new()), Err(MergeError::Empty)));
}
