//! A queue between two state machines, emptied in one go: one lock a batch, never one a record.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

/// Sends to, and is emptied by, the machine at the other end.
///
/// A mailbox has no limit of its own. What is put into it is limited by what makes it: the dispatcher counts the batches
/// before a worker and reads no more when there are enough; outcomes are at most the records admitted, and wakes at most
/// one a slot.
pub(crate) struct Mailbox<T> {
    inner: Arc<Mutex<Inner<T>>>,
}

struct Inner<T> {
    items: Vec<T>,
    /// Wakes the receiver, when it wants to be woken.
    receiver: Option<Waker>,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                items: Vec::new(),
                receiver: None,
            })),
        }
    }

    /// Appends `item`, and wakes the receiver if it waits.
    pub(crate) fn put(&self, item: T) {
        let receiver = {
            let mut inner = self.lock();
            inner.items.push(item);
            inner.receiver.take()
        };
        if let Some(receiver) = receiver {
            receiver.wake();
        }
    }

    /// Moves everything into `into`, which must be empty; its memory is used for what comes next.
    pub(crate) fn take(&self, into: &mut Vec<T>) {
        debug_assert!(into.is_empty(), "the receiver is done with the last lot");
        mem::swap(&mut self.lock().items, into);
    }

    /// Asks that `waker` be woken by the next [`put`](Self::put). Returns whether something has been put already: then
    /// look again instead of waiting.
    pub(crate) fn wake_by_next(&self, waker: &Waker) -> bool {
        let mut inner = self.lock();
        match &mut inner.receiver {
            Some(receiver) => receiver.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        !inner.items.is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner<T>> {
        // No code of ours or of users runs under the lock, so a poisoned one still holds a sound queue.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
