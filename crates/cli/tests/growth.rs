//! `seriatim run` while its topic grows.

mod command;

use std::fs;
use std::path::Path;

use command::{Running, file, produce, seriatim, topic, unique, until};
use serde_json::Value;
use seriatim_testkit::broker::shared;

/// A child that writes each record it is given to `journal`, and keeps those whose value is `slow` until `go` exists.
fn child(journal: &Path, go: &Path) -> String {
    format!(
        r#"while IFS= read -r line; do
    printf '%s\n' "$line" >>'{journal}'
    id=${{line#*'"id":"'}}
    done="{{\"id\":\"${{id%%'"'*}}\",\"outcome\":\"ok\"}}"
    case $line in
        *'"value":"slow"'*) (while [ ! -e '{go}' ]; do sleep 0.05; done; echo "$done") & ;;
        *) echo "$done" ;;
    esac
done
wait"#,
        journal = journal.display(),
        go = go.display(),
    )
}

/// From which partitions the child was given records, in order.
fn given(journal: &Path) -> Vec<i64> {
    let text = fs::read_to_string(journal).unwrap_or_default();
    let partition = |line: &str| {
        let record: Value = serde_json::from_str(line).expect("a record");
        record["partition"].as_i64().expect("a partition")
    };
    // The last line may be under way.
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    whole.lines().map(partition).collect()
}

fn of_new(journal: &Path) -> usize {
    given(journal).iter().filter(|partition| **partition >= 2).count()
}

/// Records of many sessions, so that each partition has some.
fn lines(value: &str) -> String {
    (0..40).map(|session| format!("s{session}:{value}\n")).collect()
}

struct Files([std::path::PathBuf; 2]);

impl Drop for Files {
    fn drop(&mut self) {
        for file in &self.0 {
            let _ = fs::remove_file(file);
        }
    }
}

/// A run under `policy` whose topic grows from two to four partitions while a record is being handled.
fn grown(policy: &str) -> (Running, Files) {
    let (topic, group) = (topic("growth", 2), unique("group"));
    produce(&topic, &format!("{}s0:slow\n", lines("1")));
    let files = Files([file("journal"), file("go")]);
    let running = Running::start(&[
        "run",
        "-t",
        &topic,
        "-g",
        &group,
        "--check",
        "--growth",
        policy,
        "-n",
        "81",
        "-X",
        "topic.metadata.refresh.interval.ms=1000",
        "--exec",
        &child(&files.0[0], &files.0[1]),
    ]);
    until("both partitions are committed", || {
        let described = seriatim(&["group", "describe", &group, "--format", "json"]);
        let described: Value = serde_json::from_str(&described.out).unwrap_or_default();
        let settled = described["partitions"].as_array().map_or(0, |partitions| {
            partitions
                .iter()
                .filter_map(|partition| partition["watermark"].as_i64())
                .sum()
        });
        settled >= 40
    });
    let class = "org.apache.kafka.tools.TopicCommand";
    let args = ["--alter", "--topic", &topic, "--partitions", "4"];
    shared().tool(class, &args).unwrap();
    until("it is told", || {
        running.said().contains("has grown from 2 to 4 partitions")
    });
    produce(&topic, &lines("2"));
    (running, files)
}

#[test]
fn new_partitions_wait_for_the_record_that_is_being_handled() {
    let (running, files) = grown("hold");
    let [journal, go] = &files.0;
    assert!(
        running
            .said()
            .contains("wait until all that the others have now is settled"),
        "{}",
        running.said()
    );
    until("the old partitions go on", || given(journal).len() > 41);
    assert_eq!(of_new(journal), 0, "one record is not settled");
    fs::write(go, "").unwrap();
    let done = running.finish();
    assert!(done.err.contains("0 violations"), "{}", done.err);
    done.fine();
    assert_eq!(given(journal).len(), 81);
    assert!(of_new(journal) > 0);
}

#[test]
fn new_partitions_are_started_at_once_unless_it_is_said() {
    let (running, files) = grown("warn");
    let [journal, go] = &files.0;
    assert!(running.said().contains("`--growth hold`"), "{}", running.said());
    until("the new partitions are read", || of_new(journal) > 0);
    fs::write(go, "").unwrap();
    running.finish().fine();
    assert_eq!(given(journal).len(), 81);
}
