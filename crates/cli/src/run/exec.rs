//! Handing records to children: programs of the user's that read records as JSON lines and answer each, in any order.
//!
//! A session stays with one child, chosen by a hash of its key, so that a child may keep what it knows of a session in
//! memory. How one child is run stands in [`child`], what it may answer in [`answer`].

mod answer;
mod child;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use seriatim_runtime::context::Context;
use seriatim_runtime::failure::Failure;
use seriatim_runtime::ports::Handler;
use seriatim_runtime::record::Record;
use seriatim_runtime::session_by::SessionBy;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use self::answer::Unanswered;
use self::child::Task;

/// Records that wait for their child to read them: enough to fill a pipe in one write, whatever their size.
const WAITING_MAX: usize = 256;

/// The children. Dropping them kills them.
pub(crate) struct Children {
    running: JoinSet<()>,
    closing: watch::Sender<bool>,
    unusable: watch::Receiver<Option<String>>,
    handler: Exec,
}

/// The handler that hands records to the children.
#[derive(Clone)]
pub(crate) struct Exec(Arc<Shared>);

struct Shared {
    session_by: SessionBy,
    random: RandomState,
    /// The way to each child.
    children: Vec<mpsc::Sender<Task>>,
}

impl Children {
    /// Starts `count` children, each by `sh -c command`. Within a tokio runtime.
    pub(crate) fn start(command: &str, count: NonZeroUsize, session_by: SessionBy) -> Self {
        let (closing, close) = watch::channel(false);
        let (report, unusable) = watch::channel(None);
        let mut running = JoinSet::new();
        let children = (0..count.get())
            .map(|number| {
                let (to_child, tasks) = mpsc::channel(WAITING_MAX);
                let supervisor = child::Supervisor {
                    number,
                    command: command.to_owned(),
                    tasks,
                    closing: close.clone(),
                    unusable: report.clone(),
                };
                running.spawn(supervisor.run());
                to_child
            })
            .collect();
        let handler = Exec(Arc::new(Shared {
            session_by,
            random: RandomState::new(),
            children,
        }));
        Self {
            running,
            closing,
            unusable,
            handler,
        }
    }

    /// The handler for the run.
    pub(crate) fn handler(&self) -> Exec {
        self.handler.clone()
    }

    /// Returns, with the reason, when the command turns out to be one that cannot be run.
    pub(crate) async fn unusable(&self) -> String {
        match self.unusable.clone().wait_for(Option::is_some).await.as_deref() {
            Ok(Some(reason)) => reason.clone(),
            _ => std::future::pending().await,
        }
    }

    /// Ends the input of all children and waits for them to exit; those that have not `within` this time are killed.
    /// Returns whether all exited by themselves.
    pub(crate) async fn finish(mut self, within: Duration) -> bool {
        self.closing.send_replace(true);
        let exited = async { while self.running.join_next().await.is_some() {} };
        tokio::time::timeout(within, exited).await.is_ok()
    }
}

impl Handler for Exec {
    async fn handle(&self, record: Record, cx: Context) -> Result<(), Failure> {
        let session = self.0.session_by.key_of_record(&record).ok();
        let to_child = self.0.child_of(&record, session.as_deref());
        let (reply, answer) = oneshot::channel();
        let task = Task {
            record,
            session,
            cx,
            reply,
        };
        to_child.send(task).await.map_err(|_| Unanswered::ChildEnded)?;
        answer.await.unwrap_or_else(|_| Err(Unanswered::ChildEnded.into()))
    }
}

impl Shared {
    fn child_of(&self, record: &Record, session: Option<&[u8]>) -> &mpsc::Sender<Task> {
        let mut hasher = self.random.build_hasher();
        match session {
            Some(session) => hasher.write(session),
            // The partition is its session.
            None => hasher.write_i32(record.partition()),
        }
        &self.children[(hasher.finish() % self.children.len() as u64) as usize]
    }
}
