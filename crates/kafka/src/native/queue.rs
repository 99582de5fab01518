//! The queue that all partitions deliver to, and the bell that ends a wait on it.

use std::ffi::CString;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;
use std::time::Duration;

use rdkafka_sys as sys;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::message::Message;

use super::client::Consumer;
use super::event::Notice;
use super::message::{KafkaMessage, Lease, Shares};

/// A reference to one of librdkafka's queues.
pub(super) struct Queue(NonNull<sys::rd_kafka_queue_t>);

// SAFETY: librdkafka locks its queues inside; every function on them may be called from any thread.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    /// # Safety
    /// `native` is null, or a reference to a queue that nothing else gives back.
    pub(super) unsafe fn own(native: *mut sys::rd_kafka_queue_t) -> Option<Self> {
        NonNull::new(native).map(Self)
    }

    pub(super) fn as_ptr(&self) -> *mut sys::rd_kafka_queue_t {
        self.0.as_ptr()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the reference is ours and is given back once. A queue is counted apart from its client; destroyed
        // after it, it must be empty, and all of ours are dropped before.
        unsafe { sys::rd_kafka_queue_destroy(self.as_ptr()) }
    }
}

/// Ends a wait on the [`FlowQueue`], from any thread, also before the wait has begun. Without a queue it rings in vain,
/// so whoever keeps it keeps nothing of librdkafka.
#[derive(Default)]
pub(crate) struct Bell(Mutex<Vec<Arc<Queue>>>);

impl Bell {
    fn hang(&self, queues: Vec<Arc<Queue>>) {
        let former = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), queues);
        drop(former); // After the lock was let go: destroying a queue takes locks of librdkafka.
    }

    /// Called by librdkafka too, with its queue of events locked: the only lock that is taken below is that of the
    /// queues of this bell, and nothing that holds it ever takes another.
    pub(super) fn ring(&self) {
        for queue in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // SAFETY: the queue is alive while the bell holds it. The call sets a flag and wakes who waits.
            unsafe { sys::rd_kafka_queue_yield(queue.as_ptr()) }
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

/// Bytes of keys and values that a read is to bring at most, as far as records are as large as those before. What the
/// dispatcher has no room for waits outside of all accounts, so it is little beside its budget; and of ordinary records it
/// is more than a batch.
const READ_BYTES: usize = 4 << 20;

/// The queue that partitions are forwarded to, and from which records are read in batches.
///
/// librdkafka keeps each partition's records in the partition's own queue, and a queue can be forwarded to another. Two
/// limits, `queued.min.messages` and `queued.max.messages.kbytes`, stop a partition's fetches; they are compared with
/// the queue at the end of the forwarding (`rd_kafka_toppar_fetch_decide`). So all flowing partitions together have one
/// such allowance, and each [held](Self::hold) one has another. Only values are counted in the latter: a record costs
/// some 350 bytes beside its key and value.
pub(crate) struct FlowQueue {
    flow: Arc<Queue>,
    /// Nothing is ever forwarded here: waiting on it is waiting for the bell.
    idle: Arc<Queue>,
    /// Where librdkafka puts a batch; nothing is left in it between two reads.
    batch: Vec<*mut sys::rd_kafka_message_t>,
    /// How many records the next read takes, by the size of those of the last.
    read_max: usize,
    lease: Lease,
    // The last field, so that it is dropped last: the consumer's destructor waits for all leases.
    consumer: Arc<Consumer>,
}

impl FlowQueue {
    pub(super) fn new(consumer: Arc<Consumer>, batch_max: usize, lease: Lease) -> Self {
        let new_queue = || {
            // SAFETY: the client is alive, and the call returns a new queue, of which this is the only reference.
            let queue = unsafe { Queue::own(sys::rd_kafka_queue_new(consumer.native())) };
            Arc::new(queue.expect("librdkafka aborts when memory is out"))
        };
        let (flow, idle) = (new_queue(), new_queue());
        consumer.bell().hang(vec![Arc::clone(&flow), Arc::clone(&idle)]);
        Self {
            flow,
            idle,
            batch: vec![ptr::null_mut(); batch_max.max(1)],
            read_max: batch_max.max(1),
            lease,
            consumer,
        }
    }

    /// Lets a partition deliver here. What its queue holds is appended, in order and in one step: librdkafka's broker
    /// thread and this call take the same lock (`rd_kafka_q_fwd_set0`, `rd_kafka_q_concat0`).
    ///
    /// Needed before each assignment of the partition: ending one takes the forwarding away, and once forwarded by an
    /// application a queue is never again forwarded by librdkafka itself, so the partition would go silent.
    pub(crate) fn forward(&self, partition: &PartitionId) {
        self.redirect(partition, self.flow.as_ptr());
    }

    /// Lets the partition's queue keep its records to itself. When it is full, librdkafka fetches no more of it. What it
    /// has delivered here before stays here.
    pub(crate) fn hold(&self, partition: &PartitionId) {
        self.redirect(partition, ptr::null_mut());
    }

    fn redirect(&self, partition: &PartitionId, to: *mut sys::rd_kafka_queue_t) {
        // librdkafka told us the name, as a C string.
        let Ok(topic) = CString::new(partition.topic()) else {
            return;
        };
        // SAFETY: the client and the name are alive. The result is null, or a new reference that is ours.
        let queue = unsafe {
            let native = self.consumer.native();
            Queue::own(sys::rd_kafka_queue_get_partition(
                native,
                topic.as_ptr(),
                partition.number(),
            ))
        };
        if let Some(queue) = queue {
            // SAFETY: `to` is null or the flow queue, which is alive and which librdkafka counts a reference to.
            unsafe { sys::rd_kafka_queue_forward(queue.as_ptr(), to) }
        }
    }

    /// Waits up to `wait` for a record or the bell, then takes what is there. Records are appended to `records`, what
    /// librdkafka says about a partition to `notices`.
    pub(crate) fn read(&mut self, wait: Duration, records: &mut Vec<KafkaMessage>, notices: &mut Vec<Notice>) {
        // The call returns when its array is full or the time is over, not when the queue is empty: so the wait is for
        // one record. This order, since a call without wait would use up a ring that came before it.
        let flow = Arc::clone(&self.flow);
        let mut len = self.take(&flow, wait, 0..1);
        if len == 1 && self.read_max > 1 {
            len += self.take(&flow, Duration::ZERO, 1..self.read_max);
        }
        if len == 0 {
            return;
        }
        let before = records.len();
        let mut shares = Shares::new(&self.lease, len);
        for native in &self.batch[..len] {
            unpack(*native, &mut shares, records, notices);
        }
        let bytes: usize = records[before..].iter().map(KafkaMessage::len).sum();
        self.read_max = (READ_BYTES * len / bytes.max(1)).clamp(1, self.batch.len());
    }

    /// Waits up to `wait` for the bell. The group goes on to count us among the living, as in [`read`](Self::read).
    pub(crate) fn wait(&mut self, wait: Duration) {
        let idle = Arc::clone(&self.idle);
        let none = self.take(&idle, wait, 0..1);
        debug_assert_eq!(none, 0, "nothing is forwarded to the idle queue");
    }

    fn take(&mut self, queue: &Queue, wait: Duration, into: std::ops::Range<usize>) -> usize {
        let room = &mut self.batch[into];
        // SAFETY: the queue is alive; `room` has as many places as the call is told.
        let taken =
            unsafe { sys::rd_kafka_consume_batch_queue(queue.as_ptr(), millis(wait), room.as_mut_ptr(), room.len()) };
        usize::try_from(taken).unwrap_or(0)
    }
}

fn unpack(
    native: *mut sys::rd_kafka_message_t,
    shares: &mut Shares,
    records: &mut Vec<KafkaMessage>,
    notices: &mut Vec<Notice>,
) {
    let Some(native) = NonNull::new(native) else { return };
    // SAFETY: the batch call has given us this message, which is alive.
    match unsafe { Notice::of_message(native) } {
        // SAFETY: it is a record, and nothing else owns it. The consumer's destructor waits for the lease.
        None => records.push(unsafe { KafkaMessage::own(native, shares) }),
        Some(mut notice) => {
            notice.follows = notice
                .partition
                .as_ref()
                .and_then(|partition| last_of(partition, records));
            notices.push(notice);
            // SAFETY: it is ours, read, and not used again.
            unsafe { sys::rd_kafka_message_destroy(native.as_ptr()) }
        }
    }
}

/// The offset of a partition's last record.
fn last_of(partition: &PartitionId, records: &[KafkaMessage]) -> Option<Offset> {
    let partition = (partition.topic(), partition.number());
    let last = records.iter().rfind(|record| record.partition() == partition);
    last.map(KafkaMessage::offset)
}

impl Drop for FlowQueue {
    fn drop(&mut self) {
        // A waker may outlive us; the queues must not.
        self.consumer.bell().hang(Vec::new());
    }
}

/// Rounded up, so that a short wait does not become none.
pub(super) fn millis(wait: Duration) -> i32 {
    i32::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_wait_stays_a_wait() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_millis(100)), 100);
        assert_eq!(millis(Duration::MAX), i32::MAX);
    }

    #[test]
    fn a_bell_without_a_queue_rings_in_vain() {
        let bell = Arc::new(Bell::default());
        std::task::Waker::from(bell).wake();
    }
}
