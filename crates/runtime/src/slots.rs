//! Where handlers' futures are polled: slots that are reused from record to record, so that a record that is handled
//! without waiting costs no allocation, and one that waits costs no task.

use std::any::Any;
use std::future::Future;
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::Instant;

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::lane::LaneId;

use crate::context::{Context, Signals};
use crate::failure::Failure;
use crate::mailbox::Mailbox;
use crate::ports::DeadLetterError;

/// What a handler's future ends with.
pub(crate) type Handled = Result<(), Failure>;

/// A dead letter being written.
pub(crate) type Publication = Pin<Box<dyn Future<Output = Result<(), DeadLetterError>> + Send>>;

/// All slots of one worker.
pub(crate) struct Slots<F> {
    slots: Vec<Slot<F>>,
    free: Vec<u32>,
    /// The slots that were woken since the worker last looked, at most one entry a slot.
    woken: Mailbox<u32>,
}

/// Aligned to two cache lines, which processors fetch together.
#[repr(align(128))]
struct Slot<F> {
    handler: Pin<Box<Option<F>>>,
    waker: Waker,
    woken: Arc<SlotWaker>,
    signals: Arc<Signals>,
    tenant: Tenant,
}

/// Who holds a slot.
pub(crate) enum Tenant {
    /// Nobody.
    None,
    /// Nobody for the moment: what comes next for the last tenant's record is being decided.
    Vacated,
    /// A handler that is being waited for.
    Handler(Seat),
    /// A dead letter that is being written.
    Publication(Seat, Publication),
    /// A cancelled attempt, whose future is dropped but whose context something still holds: blocking work, or a task
    /// that the handler spawned. Its session waits until that is gone.
    Abandoned(Seat, Cancelled),
}

/// Why an attempt was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// It ran out of time: a transient failure.
    Overdue,
    /// Its partition leaves: the record is another owner's to handle.
    Leaving,
}

/// For whom a slot is held.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) lane: LaneId,
    pub(crate) epoch: AssignmentEpoch,
    /// When the attempt runs out of time.
    pub(crate) deadline: Option<Instant>,
}

/// What the tenant of a slot came to.
pub(crate) enum Progress {
    Handled(Seat, Handled),
    Published(Seat, Result<(), DeadLetterError>),
    /// A cancelled attempt is over for good.
    Released(Seat, Cancelled),
    /// A dead letter is no longer waited for.
    Withdrawn(Seat),
}

impl<F: Future<Output = Handled>> Slots<F> {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            woken: Mailbox::new(),
        }
    }

    /// A slot that nobody holds. The same one is returned until it is [occupied](Self::occupy).
    #[inline]
    pub(crate) fn vacant(&mut self) -> u32 {
        match self.free.last() {
            Some(slot) => *slot,
            None => self.add(),
        }
    }

    #[cold]
    fn add(&mut self) -> u32 {
        let slot = u32::try_from(self.slots.len()).expect("fewer than 2^32 handlers run");
        let woken = Arc::new(SlotWaker {
            slot,
            queued: AtomicBool::new(false),
            list: self.woken.clone(),
        });
        self.slots.push(Slot {
            handler: Box::pin(None),
            waker: Waker::from(Arc::clone(&woken)),
            woken,
            signals: Arc::new(Signals::new()),
            tenant: Tenant::None,
        });
        self.free.push(slot);
        slot
    }

    /// How many slots are held.
    pub(crate) fn held(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A context for the next attempt in the vacant `slot`.
    #[inline]
    pub(crate) fn context(&mut self, slot: u32, attempt: u32, deadline: Option<Instant>) -> Context {
        let slot = &mut self.slots[slot as usize];
        // A count of one is ours, and stays: only who holds a context can clone it. This look is cheaper than `get_mut`,
        // which locks the count.
        if Arc::strong_count(&slot.signals) == 1 {
            slot.signals.reset();
        } else {
            // Something still holds a context of the last attempt: leave it its signals.
            slot.signals = Arc::new(Signals::new());
        }
        Context::new(Arc::clone(&slot.signals), attempt, deadline)
    }

    /// Calls a handler in the vacant `slot` and polls its future once. `None`: it waits, and the slot must now be
    /// occupied.
    #[inline]
    pub(crate) fn start(&mut self, slot: u32, call: impl FnOnce() -> F) -> Option<Handled> {
        let slot = &mut self.slots[slot as usize];
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(future) => slot.handler.set(Some(future)),
            Err(panic) => return Some(Err(panicked(panic))),
        }
        slot.poll_handler()
    }

    /// Gives the vacant `slot` to a tenant.
    // Made in its place: a copy that is read in other widths than it was written waits for all stores before it.
    #[inline(always)]
    pub(crate) fn occupy(&mut self, slot: u32, tenant: Tenant) {
        let free = self.free.pop();
        assert_eq!(free, Some(slot), "only the vacant slot is given away");
        self.slots[slot as usize].tenant = tenant;
    }

    /// Gives a slot whose tenant has left to the next one, without its becoming vacant between.
    pub(crate) fn publish(&mut self, slot: u32, seat: Seat, publication: Publication) {
        self.slots[slot as usize].tenant = Tenant::Publication(seat, publication);
        self.slots[slot as usize].woken.wake_by_ref();
    }

    /// Frees a slot whose tenant has left.
    #[inline]
    pub(crate) fn vacate(&mut self, slot: u32) {
        self.slots[slot as usize].tenant = Tenant::None;
        self.free.push(slot);
    }

    /// Moves the slots that were woken into `into`.
    pub(crate) fn take_woken(&mut self, into: &mut Vec<u32>) {
        self.woken.take(into);
        for slot in into.iter() {
            // Before the poll, so that a wake during it queues the slot again.
            self.slots[*slot as usize].woken.queued.store(false, Ordering::Release);
        }
    }

    /// Reads what [`poll`](Self::poll) will want of a slot, and tells its lane: see [`Lanes::touch`].
    ///
    /// [`Lanes::touch`]: seriatim_engine::lanes::Lanes::touch
    #[inline]
    pub(crate) fn touch(&self, slot: u32) -> Option<LaneId> {
        let slot = &self.slots[slot as usize];
        black_box((slot.handler.is_some(), Arc::strong_count(&slot.signals)));
        match &slot.tenant {
            Tenant::Handler(seat) => Some(seat.lane),
            _ => None,
        }
    }

    /// Asks to be woken with the first slot. Returns whether one is already.
    pub(crate) fn wake_by_next(&self, waker: &Waker) -> bool {
        self.woken.wake_by_next(waker)
    }

    /// Polls what is in the slot. A wake may come late, for a slot that has been vacated since: then there is no
    /// progress.
    pub(crate) fn poll(&mut self, slot: u32) -> Option<Progress> {
        let slot = &mut self.slots[slot as usize];
        match &mut slot.tenant {
            Tenant::None | Tenant::Vacated => None,
            Tenant::Handler(seat) => {
                let seat = *seat;
                slot.poll_handler().map(|handled| Progress::Handled(seat, handled))
            }
            Tenant::Publication(seat, publication) => {
                let mut cx = std::task::Context::from_waker(&slot.waker);
                match catch_unwind(AssertUnwindSafe(|| publication.as_mut().poll(&mut cx))) {
                    Ok(Poll::Ready(result)) => Some(Progress::Published(*seat, result)),
                    Ok(Poll::Pending) => None,
                    Err(panic) => {
                        let error = DeadLetterError(panic_text(panic).into());
                        Some(Progress::Published(*seat, Err(error)))
                    }
                }
            }
            Tenant::Abandoned(seat, cancelled) => {
                let (seat, cancelled) = (*seat, *cancelled);
                Arc::get_mut(&mut slot.signals).map(|_| Progress::Released(seat, cancelled))
            }
        }
    }

    /// Tells the handler in `slot` that a newer record of its session waits.
    pub(crate) fn newer_waits(&self, slot: u32) {
        self.slots[slot as usize].signals.newer_waits();
    }

    /// Tells whoever holds the context of the attempt in `slot` that its partition leaves for good: before it is cancelled, so that
    /// who hears of that sees both.
    pub(crate) fn leave(&self, slot: u32) {
        self.slots[slot as usize].signals.leave();
    }

    /// Cancels what is in the slot by dropping it. Without progress, something still holds the attempt's context, and
    /// [`poll`](Self::poll) finds when nothing does.
    pub(crate) fn cancel(&mut self, slot: u32, why: Cancelled) -> Option<Progress> {
        let held = &mut self.slots[slot as usize];
        match std::mem::replace(&mut held.tenant, Tenant::Vacated) {
            Tenant::Handler(seat) => {
                held.signals.cancel();
                // A destructor of the user's that panics must not take the worker with it.
                let _ = catch_unwind(AssertUnwindSafe(|| held.handler.set(None)));
                held.tenant = Tenant::Abandoned(seat, why);
                self.poll(slot)
            }
            Tenant::Publication(seat, _) => Some(Progress::Withdrawn(seat)),
            // An attempt that ran out of time is not made again once its partition leaves.
            Tenant::Abandoned(seat, _) => {
                held.tenant = Tenant::Abandoned(seat, why);
                None
            }
            vacant @ (Tenant::None | Tenant::Vacated) => {
                held.tenant = vacant;
                None
            }
        }
    }

    /// All held slots with their seats, and whether their tenants still run (rather than being abandoned).
    pub(crate) fn seats(&self) -> impl Iterator<Item = (u32, Seat, bool)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(slot, held)| match &held.tenant {
                Tenant::None | Tenant::Vacated => None,
                Tenant::Handler(seat) | Tenant::Publication(seat, _) => Some((slot as u32, *seat, true)),
                Tenant::Abandoned(seat, _) => Some((slot as u32, *seat, false)),
            })
    }

    /// Whether a cancelled attempt is waited for in `slot`.
    pub(crate) fn is_abandoned(&self, slot: u32) -> bool {
        matches!(self.slots[slot as usize].tenant, Tenant::Abandoned(..))
    }

    /// The handler in `slot`, if its attempt has run out of time.
    pub(crate) fn is_overdue(&self, slot: u32, now: Instant) -> bool {
        match &self.slots[slot as usize].tenant {
            Tenant::Handler(seat) => seat.deadline.is_some_and(|deadline| deadline <= now),
            _ => false,
        }
    }
}

impl<F: Future<Output = Handled>> Slot<F> {
    #[inline]
    fn poll_handler(&mut self) -> Option<Handled> {
        let future = self.handler.as_mut().as_pin_mut()?;
        let mut cx = std::task::Context::from_waker(&self.waker);
        let handled = match catch_unwind(AssertUnwindSafe(|| future.poll(&mut cx))) {
            Ok(Poll::Pending) => return None,
            Ok(Poll::Ready(handled)) => handled,
            Err(panic) => Err(panicked(panic)),
        };
        match catch_unwind(AssertUnwindSafe(|| self.handler.set(None))) {
            Ok(()) => Some(handled),
            Err(panic) => Some(Err(panicked(panic))),
        }
    }
}

/// A handler's panic. It is a transient failure of its record, with the panic's message.
#[derive(Debug, thiserror::Error)]
#[error("the handler panicked: {0}")]
pub(crate) struct HandlerPanic(String);

fn panicked(panic: Box<dyn Any + Send>) -> Failure {
    Failure::transient(HandlerPanic(panic_text(panic)))
}

fn panic_text(panic: Box<dyn Any + Send>) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "without a message".to_owned(),
    }
}

struct SlotWaker {
    slot: u32,
    queued: AtomicBool,
    list: Mailbox<u32>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.list.put(self.slot);
        }
    }
}
