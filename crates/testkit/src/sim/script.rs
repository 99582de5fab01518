//! What handlers do: a short list of acts for each attempt.

use std::future::{pending, poll_fn};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use seriatim_engine::record::RecordId;
use seriatim_runtime::context::Context;
use seriatim_runtime::failure::Failure;
use seriatim_runtime::ports::Handler;
use seriatim_runtime::record::Record;

use super::clock::Clock;
use crate::history::{History, What};
use crate::rng::Rng;

/// The value of a record that kills its process.
pub(crate) const POISON: &str = "poison";

/// One thing that a handler does. After the last one it returns `Ok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Sleep(Duration),
    /// Leaves its context to work that goes on for so long, whatever becomes of the handler; the work may wake the
    /// handler's task as its last deed.
    Leave(Duration, bool),
    Fail(Option<Duration>),
    Reject,
    Panic,
    /// Waits until it is dropped.
    Hang,
    /// Kills the process.
    Kill,
}

/// Chooses the acts of an attempt by the record and the seed alone, so that they are the same in every instance.
#[derive(Clone)]
pub(crate) struct Temper {
    pub(crate) seed: u64,
    /// Whether an attempt that hangs will be cut short.
    pub(crate) may_hang: bool,
}

impl Temper {
    pub(crate) fn acts(&self, record: &Record, attempt: u32) -> Vec<Act> {
        if record.value() == Some(POISON.as_bytes()) {
            return vec![Act::Kill];
        }
        let place = [record.partition() as u64, record.offset() as u64];
        let kind = Rng::of(&[self.seed, place[0], place[1]]).below(100);
        let mut rng = Rng::of(&[self.seed, place[0], place[1], u64::from(attempt)]);
        let mut acts = Vec::new();
        if rng.percent(40) {
            acts.push(Act::Sleep(rng.millis(0..12)));
        }
        match kind {
            0..60 => {}
            60..75 if rng.percent(50) => acts.push(Act::Fail(rng.percent(20).then(|| rng.millis(0..40)))),
            75..80 => acts.push(Act::Reject),
            80..84 => acts.push(Act::Fail(None)),
            84..88 if attempt == 1 => acts.push(Act::Panic),
            88..94 if attempt == 1 && self.may_hang => {
                if rng.percent(60) {
                    acts.push(Act::Leave(rng.millis(0..400), rng.percent(50)));
                }
                acts.push(Act::Hang);
            }
            94..97 => acts.push(Act::Leave(rng.millis(0..60), rng.percent(50))),
            97..99 => acts.push(Act::Sleep(rng.millis(30..150))),
            _ => {}
        }
        acts
    }
}

/// Work that handlers have left behind in one instance.
#[derive(Clone, Default)]
pub(crate) struct Leftovers(Arc<Mutex<Vec<Leftover>>>);

struct Leftover {
    due: Duration,
    note: What,
    _cx: Context,
    waker: Option<Waker>,
}

impl Leftovers {
    pub(crate) fn add(&self, due: Duration, note: What, cx: Context, waker: Option<Waker>) {
        let leftover = Leftover {
            due,
            note,
            _cx: cx,
            waker,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(leftover);
    }

    pub(crate) fn next_due(&self) -> Option<Duration> {
        let leftovers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        leftovers.iter().map(|leftover| leftover.due).min()
    }

    /// Ends the work that is due, and notes it.
    pub(crate) fn end_due(&self, now: Duration, history: &History, instance: u32) {
        let mut leftovers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (due, later) = std::mem::take(&mut *leftovers)
            .into_iter()
            .partition(|leftover| leftover.due <= now);
        *leftovers = later;
        drop(leftovers);
        let due: Vec<Leftover> = due;
        for leftover in due {
            history.note(instance, leftover.note);
            if let Some(waker) = leftover.waker {
                waker.wake();
            }
        }
    }

    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A handler that does what its temper says.
pub(crate) struct Scripted {
    pub(crate) temper: Temper,
    pub(crate) clock: Clock,
    pub(crate) history: History,
    pub(crate) instance: u32,
    pub(crate) leftovers: Leftovers,
    pub(crate) killed: Killed,
}

/// The instances that a record has killed, until they are taken down.
#[derive(Clone, Default)]
pub(crate) struct Killed(Arc<Mutex<Vec<u32>>>);

impl Killed {
    fn add(&self, instance: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(instance);
    }

    pub(crate) fn take(&self) -> Vec<u32> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Handler for Scripted {
    async fn handle(&self, record: Record, cx: Context) -> Result<(), Failure> {
        for act in self.temper.acts(&record, cx.attempt()) {
            match act {
                Act::Sleep(duration) => self.clock.sleep(duration).await,
                Act::Leave(duration, wakes) => self.leave(record.id(), &cx, duration, wakes).await,
                Act::Fail(None) => return Err(Failure::transient("it may work later")),
                Act::Fail(Some(delay)) => return Err(Failure::transient("not now").retry_after(delay)),
                Act::Reject => return Err(Failure::permanent("it will never work")),
                // Without the panic hook, which would print hundreds of them.
                Act::Panic => resume_unwind(Box::new("the script says so")),
                Act::Hang => pending().await,
                Act::Kill => {
                    self.killed.add(self.instance);
                    pending().await
                }
            }
        }
        Ok(())
    }
}

impl Scripted {
    async fn leave(&self, record: RecordId, cx: &Context, duration: Duration, wakes: bool) {
        let waker = poll_fn(|task| Poll::Ready(task.waker().clone())).await;
        let attempt = cx.attempt();
        self.history.note(self.instance, What::Kept(record.clone(), attempt));
        let due = self.clock.now() + duration;
        let over = What::Freed(record, attempt);
        self.leftovers.add(due, over, cx.clone(), wakes.then_some(waker));
    }
}
