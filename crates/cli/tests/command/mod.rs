//! The `seriatim` command as its users run it, against the broker that the tests share.

// Each test binary uses its part of this.
#![allow(dead_code)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use seriatim_testkit::broker::shared;

/// Longer than anything takes on a machine that compiles beside the tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A name that no other test has, of this run or another.
pub(crate) fn unique(stem: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("cli-{stem}-{}-{count}", std::process::id())
}

/// A new topic.
pub(crate) fn topic(stem: &str, partitions: u32) -> String {
    let name = unique(stem);
    shared()
        .create_topic(&name, partitions, &[])
        .expect("the broker creates a topic");
    name
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Done {
    /// Its exit code; -1 when a signal ended it.
    pub(crate) code: i32,
    /// All of its standard output.
    pub(crate) out: String,
    /// All of its standard error.
    pub(crate) err: String,
}

impl Done {
    /// Its output, when it went well.
    #[track_caller]
    pub(crate) fn fine(self) -> String {
        assert_eq!(self.code, 0, "{}", self.err);
        self.out
    }
}

/// Runs `seriatim ARGS -b BROKERS` with `input` on its standard input, to its end.
pub(crate) fn seriatim_with(input: &[u8], args: &[&str]) -> Done {
    let mut running = Running::start(args);
    running.write(input);
    running.finish()
}

/// Runs `seriatim ARGS -b BROKERS` to its end.
pub(crate) fn seriatim(args: &[&str]) -> Done {
    seriatim_with(b"", args)
}

/// Runs `seriatim ARGS`, with no broker named, to its end.
pub(crate) fn seriatim_alone(args: &[&str]) -> Done {
    Running::start_alone(args).finish()
}

/// Writes `key:value` lines to `topic`.
#[track_caller]
pub(crate) fn produce(topic: &str, lines: &str) {
    seriatim_with(lines.as_bytes(), &["produce", topic, "-K", ":", "-q"]).fine();
}

/// What `topic` holds, by `consume` with a format. What is printed of a record may have line ends of its own: the bytes of a
/// time, in a header.
#[track_caller]
pub(crate) fn consumed(topic: &str, format: &str) -> Vec<String> {
    const END: &str = "<end of record>";
    let out = seriatim(&["consume", topic, "-e", "-f", &format!("{format}{END}")]).fine();
    out.split_terminator(END).map(str::to_owned).collect()
}

/// A command that runs.
pub(crate) struct Running {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    said: Arc<Mutex<String>>,
    stderr: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts `seriatim ARGS -b BROKERS`.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_alone(&[args, &["-b", shared().bootstrap()]].concat())
    }

    /// Starts `seriatim ARGS`.
    pub(crate) fn start_alone(args: &[&str]) -> Self {
        Self::start_in(&[], args)
    }

    /// Starts `seriatim ARGS` with these variables in its environment.
    pub(crate) fn start_in(variables: &[(&str, &str)], args: &[&str]) -> Self {
        Self::start_program(Path::new(env!("CARGO_BIN_EXE_seriatim")), variables, args)
    }

    /// Starts another program.
    pub(crate) fn start_program(program: &Path, variables: &[(&str, &str)], args: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(args)
            .env_remove("RUST_LOG")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let said = Arc::new(Mutex::new(String::new()));
        let saying = Arc::clone(&said);
        let stderr = thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                *saying.lock().unwrap() += &(line + "\n");
            }
        });
        Self {
            said,
            stdout: child.stdout.take().map(BufReader::new),
            stderr: Some(stderr),
            child,
        }
    }

    /// Writes to its standard input, and ends that.
    pub(crate) fn write(&mut self, input: &[u8]) {
        let mut stdin = self.child.stdin.take().expect("its input is written once");
        let input = input.to_vec();
        // Apart, since it may answer before it has read all.
        thread::spawn(move || {
            let _ = stdin.write_all(&input);
        });
    }

    /// Writes to its standard input, which stays open.
    pub(crate) fn write_and_hold(&mut self, input: &[u8]) {
        let stdin = self.child.stdin.as_mut().expect("its input is open");
        stdin.write_all(input).and_then(|()| stdin.flush()).expect("it reads");
    }

    /// The next line of its standard output, waited for.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        let stdout = self.stdout.as_mut().expect("its output is open");
        stdout.read_line(&mut line).expect("its output can be read");
        assert!(!line.is_empty(), "its output has ended: {}", self.said());
        line.trim_end_matches('\n').to_owned()
    }

    /// What it has said on its standard error so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Closes its standard output, as `head` does.
    pub(crate) fn close_output(&mut self) {
        self.stdout = None;
    }

    /// Reads on what it prints, and forgets it: a full pipe would stop it.
    pub(crate) fn read_on(&mut self) {
        let mut stdout = self.stdout.take().expect("its output is open");
        thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    }

    /// Sends it a signal, e.g. `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("sh").args(["-c", "kill -$0 $1", name, &pid]).status();
        assert!(status.expect("a shell runs").success());
    }

    /// Waits for its end. Its input ends now, if it has not before.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Done {
        drop(self.child.stdin.take());
        let stdout = self.stdout.take();
        let out = thread::spawn(move || {
            let mut text = Vec::new();
            stdout.map(|mut stdout| stdout.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        });
        let code = self.wait().code().unwrap_or(-1);
        if let Some(stderr) = self.stderr.take() {
            stderr.join().expect("no panic");
        }
        Done {
            code,
            out: out.join().expect("no panic"),
            err: self.said(),
        }
    }

    #[track_caller]
    fn wait(&mut self) -> std::process::ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return status;
            }
            if Instant::now() > deadline {
                panic!("it has not ended after {PATIENCE:?}: {}", self.said());
            }
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file of this test's.
pub(crate) fn file(stem: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique(stem))
}

/// A helper of `examples/`, which cargo builds with the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_seriatim"))
        .parent()
        .expect("it is in a folder");
    let helper = beside.join("examples").join(name);
    assert!(
        helper.is_file(),
        "build the helper: cargo build -p seriatim-cli --example {name}"
    );
    helper
}

/// Waits until `is_so`.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not after {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(20));
    }
}

/// What the helper in `examples/exec-child.rs` wrote down of its work.
pub(crate) struct Journal {
    path: PathBuf,
}

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) begins: bool,
    pub(crate) session: String,
    pub(crate) offset: i64,
    pub(crate) attempt: u32,
}

impl Journal {
    pub(crate) fn new() -> Self {
        Self { path: file("journal") }
    }

    /// The command that runs the helper with this journal.
    pub(crate) fn command(&self, options: &str) -> String {
        let helper = example("exec-child");
        format!("exec '{}' '{}' {options}", helper.display(), self.path.display())
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let entry = |line: &str| {
            let parts: Vec<&str> = line.split(' ').collect();
            Entry {
                begins: parts[0] == "begin",
                session: parts[1].to_owned(),
                offset: parts[2].parse().expect("an offset"),
                attempt: parts[3].parse().expect("an attempt"),
            }
        };
        text.lines().map(entry).collect()
    }

    /// Begun attempts in all.
    pub(crate) fn begun(&self) -> usize {
        self.entries().iter().filter(|entry| entry.begins).count()
    }

    /// Fails unless, within each session, attempts follow one another and offsets never fall. The journal of a child
    /// that died lacks the ends of what it worked on.
    #[track_caller]
    pub(crate) fn assert_ordered(&self) {
        let mut last: std::collections::HashMap<String, Entry> = std::collections::HashMap::new();
        for entry in self.entries() {
            if let Some(last) = last.get(&entry.session) {
                let follows = match (last.begins, entry.begins) {
                    (true, false) => (last.offset, last.attempt) == (entry.offset, entry.attempt),
                    (_, true) if last.offset == entry.offset => entry.attempt > last.attempt,
                    (_, true) => entry.offset > last.offset,
                    (false, false) => false,
                };
                assert!(follows, "{last:?}, then {entry:?}");
            }
            last.insert(entry.session.clone(), entry);
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
