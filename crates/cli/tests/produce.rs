//! `seriatim produce` against a real broker.

mod command;

use command::{Running, consumed, produce, seriatim_alone, seriatim_with, topic, unique};

#[test]
fn lines_arrive_in_the_order_of_their_session_with_their_numbers() {
    let topic = topic("produce", 4);
    let input: String = (0..3000).map(|number| format!("s{}:{number}\n", number % 30)).collect();
    let done = seriatim_with(input.as_bytes(), &["produce", &topic, "-K", ":"]);
    assert!(
        done.err.contains("wrote 3,000 records of 30 sessions in "),
        "{}",
        done.err
    );
    done.fine();
    let records = consumed(&topic, "%k %s %h");
    assert_eq!(records.len(), 3000);
    for session in 0..30 {
        let prefix = format!("s{session} ");
        let of_session = records.iter().filter_map(|record| record.strip_prefix(&prefix));
        for (index, record) in of_session.enumerate() {
            let start = format!("{} seriatim-seq={},", session + 30 * index, index + 1);
            assert!(record.starts_with(&start), "{record}");
        }
    }
}

#[test]
fn json_lines_say_key_value_headers_and_time() {
    let topic = topic("json", 1);
    let input = concat!(
        r#"{"key":"a","value":"1","headers":[["h","x"],["h",null]],"timestamp":1764417600000}"#,
        "\n\n",
        r#"{"key":"b","value":{"base64":"AP8="}}"#,
        "\n",
        r#"{"key":"c","value":null}"#,
    );
    seriatim_with(input.as_bytes(), &["produce", &topic, "-J"]).fine();
    let records = consumed(&topic, "%k %S %T %h");
    assert!(
        records[0].starts_with("a 1 1764417600000 h=x,h=NULL,seriatim-seq=1,"),
        "{}",
        records[0]
    );
    assert!(records[1].starts_with("b 2 "), "{}", records[1]);
    assert!(records[2].starts_with("c -1 "), "{}", records[2]);
}

#[test]
fn a_session_may_stand_in_the_value() {
    let topic = topic("pointer", 8);
    let input: String = (0..40)
        .map(|number| format!("{{\"id\":{},\"n\":{number}}}\n", number % 4))
        .collect();
    let done = seriatim_with(input.as_bytes(), &["produce", &topic, "--session-by", "json:/id"]);
    assert!(done.err.contains("of 4 sessions"), "{}", done.err);
    done.fine();
    // All records of a session lie in one partition, though none has a key.
    let mut places: Vec<_> = consumed(&topic, "%p %K %s")
        .iter()
        .map(|record| {
            let (place, rest) = record.split_once(" -1 ").expect("no key");
            let id = rest.split(['{', ':', ',']).nth(2).expect("an id").to_owned();
            (id, place.to_owned())
        })
        .collect();
    places.sort();
    places.dedup();
    assert_eq!(places.len(), 4, "{places:?}");
}

#[test]
fn lines_that_are_no_records_are_told_by_number_and_the_others_written() {
    let topic = topic("bad", 1);
    let done = seriatim_with(b"a:1\nnonsense\n:2\n\na:3", &["produce", &topic, "-K", ":"]);
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(done.err.contains("line 2: there is no `:`"), "{}", done.err);
    assert!(done.err.contains("line 3: the record has no key"), "{}", done.err);
    assert!(done.err.contains("wrote 2 records of 1 session"), "{}", done.err);
    assert!(done.err.contains("2 failed"), "{}", done.err);
    assert_eq!(consumed(&topic, "%s"), ["1", "3"]);
}

#[test]
fn a_record_that_the_broker_refuses_is_told_by_its_line_and_halts_its_session() {
    let topic = unique("large");
    let limit = [("max.message.bytes", "2000")];
    seriatim_testkit::broker::shared()
        .create_topic(&topic, 1, &limit)
        .unwrap();
    produce(&topic, "a:1\n");
    let input = format!("b:{}\n", "x".repeat(10_000));
    let done = seriatim_with(input.as_bytes(), &["produce", &topic, "-K", ":"]);
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(done.err.contains("line 1: too large for topic"), "{}", done.err);
    assert_eq!(consumed(&topic, "%s"), ["1"]);
}

#[test]
fn an_unknown_topic_ends_it() {
    let topic = unique("nowhere");
    let done = seriatim_with(b"a:1\na:2\na:3\n", &["produce", &topic, "-K", ":"]);
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(
        done.err.contains(&format!("topic {topic} does not exist")),
        "{}",
        done.err
    );
}

#[test]
fn a_signal_ends_the_input_and_what_was_read_is_written() {
    let topic = topic("signal", 1);
    let mut running = Running::start(&["produce", &topic, "-K", ":"]);
    running.write_and_hold(b"a:1\na:2\n");
    command::until("both are written", || consumed(&topic, "%s").len() == 2);
    running.signal("INT");
    let done = running.finish();
    assert!(done.err.contains("wrote 2 records"), "{}", done.err);
    done.fine();
}

#[test]
fn lines_that_name_no_session_are_refused_with_the_ways_out() {
    let refused = |args: &[&str], part: &str| {
        let done = seriatim_alone(&[&["produce", "t", "-b", "127.0.0.1:1"], args].concat());
        assert_eq!(done.code, 2, "{}", done.err);
        assert!(done.err.contains(part), "{}", done.err);
    };
    refused(&[], "-K :");
    refused(&["--session-by", "header:s"], "-J");
    refused(&["-K", ""], "delimiter");
    refused(&["-K", ":", "-J"], "cannot be used with");
}
