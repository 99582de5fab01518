//! A record in librdkafka's memory, and the count of those that are left.

use std::convert::Infallible;
use std::ffi::{CStr, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::types::RDKafkaRespErr;
use rdkafka_sys as sys;
use seriatim_engine::record::Offset;
use seriatim_runtime::message::{Header, Message, Timestamp};

/// See [`KafkaMessage::place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(usize, i32);

/// A fetched record, where librdkafka put it. It pins the buffer of the whole fetch that brought it.
///
/// It may outlive the source it came from: librdkafka's client is destroyed only when the last message is gone.
pub struct KafkaMessage {
    native: NonNull<sys::rd_kafka_message_t>,
    /// The lease of the read that brought it, in which it has a share.
    lease: NonNull<SharedLease>,
}

// SAFETY: librdkafka has no thread affinity for messages. `rd_kafka_message_destroy` may run on any thread: what a
// message shares with others (buffer, topic, partition) is counted atomically and locked inside.
unsafe impl Send for KafkaMessage {}
// SAFETY: once delivered, a message is read only, with one exception: `rd_kafka_message_headers` parses the headers at
// the first call and stores them in the message. That call is made under `lock_of`, the same lock for the same message.
unsafe impl Sync for KafkaMessage {}

impl Drop for KafkaMessage {
    fn drop(&mut self) {
        // SAFETY: the message is not used again, and gives its share back once.
        unsafe {
            self.destroy();
            SharedLease::give_back(self.lease, 1);
        }
    }
}

impl KafkaMessage {
    /// Takes ownership of `native`.
    ///
    /// # Safety
    /// `native` is a consumed record (not an error) that nothing else owns, of a client that is destroyed only after
    /// [`Remaining::wait`] has returned, which waits for the lease that `shares` are of.
    pub(super) unsafe fn own(native: NonNull<sys::rd_kafka_message_t>, shares: &mut Shares) -> Self {
        let message = Self {
            native,
            lease: shares.take(),
        };
        // The batch call has just written to it; its key is looked at soon.
        prefetch(message.native().key);
        message
    }

    /// # Safety
    /// Called once, and nothing but the share is used afterwards.
    unsafe fn destroy(&self) {
        // SAFETY: `native` is ours alone and was not destroyed before; the client it belongs to still lives, since
        // whoever destroys it first waits for the lease that the message has a share of.
        unsafe { sys::rd_kafka_message_destroy(self.native.as_ptr()) }
    }

    fn native(&self) -> &sys::rd_kafka_message_t {
        // SAFETY: `native` points to a message that lives as long as `self`, and no one writes the fields of its public
        // part after delivery.
        unsafe { self.native.as_ref() }
    }

    /// Bytes of its key and value.
    pub(super) fn len(&self) -> usize {
        self.native().key_len + self.native().len
    }

    /// What tells the partitions of one read's messages apart, without comparing names. Of no meaning once they are gone.
    pub(crate) fn place(&self) -> Place {
        Place(self.native().rkt.addr(), self.native().partition)
    }

    /// The offset, whatever it is: a broken broker may send a negative one.
    pub(crate) fn raw_offset(&self) -> i64 {
        self.native().offset
    }

    /// # Safety
    /// `start` and `len` describe memory that lives as long as the message, or `start` is null.
    unsafe fn part(&self, start: *const c_void, len: usize) -> Option<&[u8]> {
        // SAFETY: not null; the rest is the caller's promise.
        NonNull::new(start.cast_mut().cast::<u8>())
            .map(|start| unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }
}

/// How many messages ahead librdkafka's struct is fetched into the cache, and how many ahead then what it points to.
const STRUCTS_AHEAD: usize = 16;
const CONTENTS_AHEAD: usize = 8;

impl Message for KafkaMessage {
    fn prefetch(messages: &[Self], next: usize) {
        if let Some(message) = messages.get(next + STRUCTS_AHEAD) {
            prefetch(message.native.as_ptr());
        }
        if let Some(message) = messages.get(next + CONTENTS_AHEAD) {
            let native = message.native();
            prefetch(native.key);
            prefetch(native.payload);
        }
    }

    fn free(messages: Vec<Self>) {
        let messages: Vec<ManuallyDrop<Self>> = messages.into_iter().map(ManuallyDrop::new).collect();
        // Messages of one read follow each other, and give their shares back together.
        for read in messages.chunk_by(|one, next| one.lease == next.lease) {
            for (index, message) in read.iter().enumerate() {
                if let Some(ahead) = read.get(index + CONTENTS_AHEAD) {
                    // librdkafka keeps its own bookkeeping before the public part.
                    prefetch(ahead.native.as_ptr().cast::<u8>().wrapping_sub(128));
                    prefetch(ahead.native.as_ptr());
                }
                // SAFETY: it is ours, and its destructor does not run.
                unsafe { message.destroy() };
            }
            // SAFETY: one share of each message, which has no other use for it.
            unsafe { SharedLease::give_back(read[0].lease, read.len()) };
        }
    }

    fn partition(&self) -> (&str, i32) {
        // SAFETY: a record's `rkt` is set and counted by the message; the name is a C string of that topic.
        let topic = unsafe { CStr::from_ptr(sys::rd_kafka_topic_name(self.native().rkt)) };
        // Brokers allow letters, digits, '.', '_' and '-' only.
        (topic.to_str().unwrap_or_default(), self.native().partition)
    }

    fn offset(&self) -> Offset {
        Offset::new(self.raw_offset())
    }

    fn timestamp(&self) -> Timestamp {
        let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message is alive and `kind` is ours to write.
        let millis = unsafe { sys::rd_kafka_message_timestamp(self.native.as_ptr(), &mut kind) };
        match kind {
            sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_CREATE_TIME if millis >= 0 => Timestamp::Created(millis),
            sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME => Timestamp::Appended(millis),
            _ => Timestamp::None,
        }
    }

    fn key(&self) -> Option<&[u8]> {
        // SAFETY: key and value lie in the fetch buffer, which the message holds. librdkafka keeps null and empty apart.
        unsafe { self.part(self.native().key, self.native().key_len) }
    }

    fn value(&self) -> Option<&[u8]> {
        // SAFETY: as for the key.
        unsafe { self.part(self.native().payload, self.native().len) }
    }

    // A name that contains a NUL byte ends there: librdkafka hands names out as C strings.
    fn header(&self, index: usize) -> Option<Header<'_>> {
        let mut headers = ptr::null_mut();
        let found = {
            let _parsing = lock_of(self.native);
            // SAFETY: the message is alive; the lock keeps out whoever else may parse its headers now.
            unsafe { sys::rd_kafka_message_headers(self.native.as_ptr(), &mut headers) }
        };
        if found != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return None;
        }
        let (mut name, mut value, mut len) = (ptr::null(), ptr::null(), 0);
        // SAFETY: `headers` are the message's own. Parsed once, they neither move nor change until it is destroyed.
        let found = unsafe { sys::rd_kafka_header_get_all(headers, index, &mut name, &mut value, &mut len) };
        (found == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).then(|| Header {
            // SAFETY: `name` is a C string inside the header.
            name: unsafe { CStr::from_ptr(name) }.to_bytes(),
            // SAFETY: `value` is null, or `len` bytes inside the header.
            value: unsafe { self.part(value, len) },
        })
    }
}

/// Brings a line of memory into the processor's cache, where the processor can be told so.
fn prefetch<T>(at: *const T) {
    // SAFETY: a prefetch reads nothing, and takes any address.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

// Neither key nor payload: messages end up in logs.
impl fmt::Debug for KafkaMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (topic, partition) = self.partition();
        write!(f, "KafkaMessage({topic}[{partition}]@{})", self.raw_offset())
    }
}

/// Parsing headers writes to the message, and a record may be read on several threads. One lock for all would be
/// contended where sessions are named by a header, and one in each message would cost records whose headers nobody
/// reads; 64 are more than there are workers.
static HEADER_LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

fn lock_of(native: NonNull<sys::rd_kafka_message_t>) -> MutexGuard<'static, ()> {
    // Messages are some 350 bytes apart at least.
    let lock = &HEADER_LOCKS[(native.addr().get() >> 8) % HEADER_LOCKS.len()];
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held for the messages: while one lives, librdkafka's client is not destroyed.
///
/// librdkafka itself only half waits. `rd_kafka_destroy` joins the broker threads, each of which lives as long as a
/// fetch buffer of its broker does, and so hangs while a message is kept (rust-rdkafka#830). But
/// `rd_kafka_op_destroy` lets go of the buffer *before* the partition, whose destructor locks the client: with the last
/// message the client could be freed in between.
pub(super) type Lease = Arc<SyncSender<Infallible>>;

/// One read's hold of the lease, shared by its messages.
///
/// A count that the reading thread raises and the workers lower, record by record, would pass between their processors
/// all the time. So it is raised once a read, and lowered once a freed batch.
struct SharedLease {
    shares: AtomicUsize,
    _lease: Lease,
}

impl SharedLease {
    /// # Safety
    /// `shares` of this lease were taken or kept back, and are given back once.
    unsafe fn give_back(lease: NonNull<SharedLease>, shares: usize) {
        // SAFETY: it is alive while a share is out, as those given back here are until now. Released, so that whatever
        // was done with a share happens before the last one ends the lease.
        let left = unsafe { lease.as_ref() }.shares.fetch_sub(shares, Ordering::Release);
        if left == shares {
            fence(Ordering::Acquire);
            // SAFETY: it came from a box, and the last share was given back: nothing refers to it.
            drop(unsafe { Box::from_raw(lease.as_ptr()) });
        }
    }
}

/// The shares of one read, from which its messages take theirs. What is not taken is given back at the end.
pub(super) struct Shares {
    lease: NonNull<SharedLease>,
    left: usize,
}

impl Shares {
    /// At most `count` messages will take a share.
    pub(super) fn new(lease: &Lease, count: usize) -> Self {
        let shared = Box::new(SharedLease {
            // And one that keeps it until the last message has taken its share.
            shares: AtomicUsize::new(count + 1),
            _lease: Arc::clone(lease),
        });
        Self {
            lease: NonNull::from(Box::leak(shared)),
            left: count,
        }
    }

    fn take(&mut self) -> NonNull<SharedLease> {
        self.left = self.left.checked_sub(1).expect("no more messages than were read");
        self.lease
    }
}

impl Drop for Shares {
    fn drop(&mut self) {
        // SAFETY: those that no message took, and the one that was kept back; `self` is not used again.
        unsafe { SharedLease::give_back(self.lease, self.left + 1) }
    }
}

/// Tells when the last message is gone.
pub(super) struct Remaining(Receiver<Infallible>);

pub(super) fn lease() -> (Lease, Remaining) {
    // Nothing is ever sent: what tells is that the last sender goes.
    let (lease, remaining) = sync_channel(0);
    (Arc::new(lease), Remaining(remaining))
}

impl Remaining {
    /// Returns when no message is left.
    pub(super) fn wait(&self) {
        match self.0.recv() {
            Ok(never) => match never {},
            Err(_all_dropped) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::TryRecvError;

    use super::*;

    #[test]
    fn the_lease_of_a_read_ends_with_its_last_share() {
        let (lease, remaining) = lease();
        let mut shares = Shares::new(&lease, 3);
        let taken = [shares.take(), shares.take()];
        drop((shares, lease));
        assert_eq!(remaining.0.try_recv(), Err(TryRecvError::Empty));
        // SAFETY: both were taken above.
        unsafe { SharedLease::give_back(taken[0], taken.len()) };
        remaining.wait();
    }

    #[test]
    fn the_last_lease_ends_the_wait() {
        let (lease, remaining) = lease();
        let another = Arc::clone(&lease);
        drop(lease);
        assert_eq!(remaining.0.try_recv(), Err(TryRecvError::Empty));
        std::thread::spawn(move || drop(another));
        remaining.wait();
    }
}
