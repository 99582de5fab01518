//! One child: started, fed, listened to, and started again when it dies.

use std::collections::HashMap;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use seriatim_runtime::context::Context;
use seriatim_runtime::failure::Failure;
use seriatim_runtime::record::Record;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::answer::{Answer, Unanswered};
use crate::json::{JsonRecord, wire_id};

/// A record for the child.
pub(crate) struct Task {
    pub(crate) record: Record,
    pub(crate) session: Option<Vec<u8>>,
    pub(crate) cx: Context,
    pub(crate) reply: oneshot::Sender<Result<(), Failure>>,
}

/// The wait before a child that died is started again, and the bound that its doubling does not pass.
const RESTART_BASE: Duration = Duration::from_millis(100);
const RESTART_CAP: Duration = Duration::from_secs(10);

/// A child that died before it answered anything is given one record, and this time to die on it, before it is given
/// more: so a broken program uses up the attempts of few records and not of all.
const TRIAL: Duration = Duration::from_secs(1);

/// How long the rest of what a child said is read once it has exited: a grandchild may hold its output open for ever.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How often it is looked whether the child works on what is another instance's by now: sooner than the group can tell that
/// instance.
const FORSAKEN_LOOK: Duration = Duration::from_millis(10);

/// A write to the child, about: a pipe holds 64 KiB.
const WRITE_BYTES: usize = 64 * 1024;

/// A line that is longer is no answer: room for an error text of any use.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Exit statuses by which a shell says that there is no such command, or that it may not be run.
const NOT_RUNNABLE: [i32; 2] = [126, 127];

/// Keeps one child running.
pub(crate) struct Supervisor {
    /// The child's number, from 0, for the log.
    pub(crate) number: usize,
    /// What `sh -c` is given.
    pub(crate) command: String,
    /// Records for it.
    pub(crate) tasks: mpsc::Receiver<Task>,
    /// Becomes true when its input is to end.
    pub(crate) closing: watch::Receiver<bool>,
    /// Is told when the command cannot be run.
    pub(crate) unusable: watch::Sender<Option<String>>,
}

/// How a child's life went.
struct Life {
    ended: Result<ExitStatus, io::Error>,
    /// Whether it answered anything.
    answered: bool,
}

impl Supervisor {
    /// Runs the child until its input is to end and it has exited.
    pub(crate) async fn run(mut self) {
        let mut wait = RESTART_BASE;
        let mut on_trial = false;
        loop {
            let life = self.live(on_trial).await;
            if *self.closing.borrow() {
                return self.tell_exit(&life.ended);
            }
            if life.answered {
                wait = RESTART_BASE;
            }
            self.tell_death(&life, wait);
            tokio::select! {
                () = sleep(wait) => {}
                _ = self.closing.wait_for(|closing| *closing) => return,
            }
            wait = (wait * 2).min(RESTART_CAP);
            on_trial = !life.answered;
        }
    }

    /// One life of the child, from its start to its end. What it had not answered by then has failed.
    async fn live(&mut self, on_trial: bool) -> Life {
        let mut process = match Process::start(&self.command) {
            Ok(process) => process,
            Err(error) => {
                return Life {
                    ended: Err(error),
                    answered: false,
                };
            }
        };
        tracing::debug!(child = self.number, pid = process.child.id(), "child started");
        let open = Open::default();
        let ended = process.converse(self, &open, on_trial).await;
        let answered = open.fail_all(&ended);
        Life { ended, answered }
    }

    fn tell_exit(&self, ended: &io::Result<ExitStatus>) {
        match ended {
            Ok(status) if status.success() => tracing::debug!(child = self.number, "child finished"),
            Ok(status) => tracing::warn!(child = self.number, "child ended: {status}"),
            Err(error) => tracing::warn!(child = self.number, %error, "child lost"),
        }
    }

    fn tell_death(&self, life: &Life, wait: Duration) {
        match &life.ended {
            Ok(status) => {
                if status.code().is_some_and(|code| NOT_RUNNABLE.contains(&code)) && !life.answered {
                    self.unusable
                        .send_replace(Some(format!("`{}` cannot be run ({status})", self.command)));
                }
                tracing::error!(child = self.number, restart_in = ?wait, "child ended: {status}");
            }
            Err(error) => tracing::error!(child = self.number, restart_in = ?wait, %error, "child not started"),
        }
    }
}

/// A child process and its streams. Its errors are its own business: they go where ours go.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Process {
    fn start(command: &str) -> io::Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", command])
            // Away from the terminal's Ctrl-C: what it works on is finished first.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            stdin: child.stdin.take(),
            stdout: child.stdout.take().map(BufReader::new),
            child,
        })
    }

    /// Feeds the child and takes its answers until it ends, or, once its input is to end, until it has finished.
    async fn converse(&mut self, supervisor: &mut Supervisor, open: &Open, on_trial: bool) -> io::Result<ExitStatus> {
        let stdin = self.stdin.take().expect("piped, and taken once");
        let stdout = self.stdout.take().expect("piped, and taken once");
        let number = supervisor.number;
        let feeding = async {
            let fed = feed(stdin, supervisor, open, on_trial).await;
            match fed {
                // What it was given it may still answer: whoever ended its input says for how long.
                Ok(()) => std::future::pending().await,
                Err(error) => tracing::warn!(child = number, %error, "the child reads no more"),
            }
            sleep(LAST_WORDS).await;
        };
        let mut listening = std::pin::pin!(listen(stdout, open, number));
        tokio::select! {
            () = feeding => {}
            () = &mut listening => {}
            status = self.child.wait() => {
                let _ = timeout(LAST_WORDS, listening).await;
                return status;
            }
            id = open.forsaken() => {
                tracing::warn!(
                    child = number,
                    "the child is killed: it works on {id} still, whose partition has left at the drain's deadline or was lost, and \
                     which its next owner may start"
                );
                self.kill();
                let status = self.child.wait().await;
                // What it has answered already counts.
                let _ = timeout(LAST_WORDS, listening).await;
                return status;
            }
        }
        // It reads or answers no more, so it is of no use. Most often it is just about to exit.
        match timeout(LAST_WORDS, self.child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                self.kill();
                self.child.wait().await
            }
        }
    }

    /// Kills the shell and what it started.
    fn kill(&mut self) {
        // Without an id it was waited for, and its id may be another's by now.
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid as i32));
        if let Some(pid) = pid {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Writes tasks to the child. Returns when its input is to end.
async fn feed(mut stdin: ChildStdin, supervisor: &mut Supervisor, open: &Open, on_trial: bool) -> io::Result<()> {
    let Supervisor { tasks, closing, .. } = supervisor;
    let feeding = async {
        let mut lines = Vec::new();
        let mut on_trial = on_trial;
        while let Some(task) = tasks.recv().await {
            open.enter(task, &mut lines);
            while !on_trial && lines.len() < WRITE_BYTES {
                let Ok(task) = tasks.try_recv() else { break };
                open.enter(task, &mut lines);
            }
            // The pipe is the bound: while the child does not read, nothing more is taken.
            stdin.write_all(&lines).await?;
            if on_trial && !lines.is_empty() {
                let _ = timeout(TRIAL, open.any_answer()).await;
                on_trial = false;
            }
            lines.clear();
        }
        Ok(())
    };
    tokio::select! {
        fed = feeding => fed,
        _ = closing.wait_for(|closing| *closing) => Ok(()),
    }
}

/// Takes the child's answers until its output ends.
async fn listen(mut stdout: BufReader<ChildStdout>, open: &Open, number: usize) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match read_line(&mut stdout, &mut line).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return tracing::error!(child = number, %error, "the child's output cannot be read"),
        }
        if let Err(wrong) = open.answer(&line) {
            tracing::error!(child = number, "a line of the child's is no answer: {wrong}");
        }
    }
}

/// Reads a line, without its end. Of one that is too long only the beginning is kept. False at the end of the output.
async fn read_line(from: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        let available = from.fill_buf().await?;
        if available.is_empty() {
            return Ok(!line.is_empty());
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        line.extend_from_slice(&part[..part.len().min(LINE_BYTES_MAX - line.len())]);
        let used = part.len() + usize::from(end.is_some());
        from.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

/// What the child was given and has not answered, by id. At most one record of a session is among it.
#[derive(Default)]
struct Open {
    records: Mutex<HashMap<String, Asked>>,
    answered: Notify,
    answered_any: AtomicBool,
}

struct Asked {
    reply: oneshot::Sender<Result<(), Failure>>,
    /// Held until the child answers or dies, also when the attempt is cancelled meanwhile: as long as the child may work
    /// on the record, its session starts nothing.
    cx: Context,
}

impl Open {
    /// Appends the task's line to `lines`. A task that was cancelled while it waited is dropped: the child never sees it.
    fn enter(&self, task: Task, lines: &mut Vec<u8>) {
        let Task {
            record,
            session,
            cx,
            reply,
        } = task;
        if reply.is_closed() {
            return;
        }
        let id = wire_id(&record);
        JsonRecord::new(&id, &record, session.as_deref(), Some(cx.attempt())).write_line(lines);
        let before = self.records().insert(id, Asked { reply, cx });
        assert!(before.is_none(), "a record was given to a child that still had it");
    }

    /// Takes a line of the child's.
    fn answer(&self, line: &[u8]) -> Result<(), String> {
        let answer = Answer::parse(line)?;
        let asked = self.records().remove(&answer.id);
        let asked = asked.ok_or_else(|| "it has no such record".to_owned())?;
        self.answered_any.store(true, Ordering::Release);
        self.answered.notify_one();
        match answer.outcome() {
            // Nobody waits for the answer to an attempt that was cancelled.
            Ok(outcome) => drop(asked.reply.send(outcome)),
            Err(bad) => {
                let wrong = bad.to_string();
                let _ = asked.reply.send(Err(bad.into()));
                return Err(wrong);
            }
        }
        Ok(())
    }

    /// Returns, with the id, when a record is another instance's to start.
    async fn forsaken(&self) -> String {
        loop {
            sleep(FORSAKEN_LOOK).await;
            let forsaken = self
                .records()
                .iter()
                .find(|(_, asked)| asked.cx.is_leaving())
                .map(|(id, _)| id.clone());
            if let Some(id) = forsaken {
                return id;
            }
        }
    }

    async fn any_answer(&self) {
        self.answered.notified().await;
    }

    /// The child is gone: what it had is to be tried again. Returns whether it had answered anything.
    fn fail_all(&self, ended: &io::Result<ExitStatus>) -> bool {
        for (_, asked) in self.records().drain() {
            let why = match ended {
                Ok(status) => Unanswered::ChildDied(*status),
                Err(_) => Unanswered::ChildEnded,
            };
            let _ = asked.reply.send(Err(why.into()));
        }
        self.answered_any.load(Ordering::Acquire)
    }

    fn records(&self) -> MutexGuard<'_, HashMap<String, Asked>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_read_whole_up_to_a_limit() {
        let long = "x".repeat(LINE_BYTES_MAX + 10);
        let text = format!("a\n\n{long}\nb");
        let mut from = BufReader::with_capacity(7, text.as_bytes());
        let mut lines = Vec::new();
        let mut line = Vec::new();
        while read_line(&mut from, &mut line).await.unwrap() {
            lines.push(String::from_utf8(std::mem::take(&mut line)).unwrap());
        }
        assert_eq!(lines, ["a", "", &long[..LINE_BYTES_MAX], "b"]);
    }
}
