//! What librdkafka says outside the flow of records, read out of its memory.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::ptr::{self, NonNull};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::types::RDKafkaRespErr;
use rdkafka_sys as sys;
use seriatim_engine::record::{Offset, PartitionId};

use super::client::Consumer;

/// An event of the client.
#[derive(Debug)]
pub(crate) enum ClientEvent {
    /// The group gives partitions. Without an answer, an assignment of whatever size, the group waits.
    Assigned(Vec<PartitionId>),
    /// The group takes partitions. Without an answer, the end of their assignment in one call, the group waits.
    Revoked {
        partitions: Vec<PartitionId>,
        /// Taken without asking: another may own them already.
        lost: bool,
    },
    /// The answer to a commit, partition by partition.
    Committed {
        token: usize,
        answers: Vec<(PartitionId, Result<(), RDKafkaErrorCode>)>,
    },
    /// Something is wrong.
    Noticed(Notice),
    /// A record came on this road, which no record may take: the partition, and the offset.
    Stray(PartitionId, i64),
}

/// An error that librdkafka reports.
#[derive(Clone, Debug)]
pub(crate) struct Notice {
    pub(crate) code: RDKafkaErrorCode,
    pub(crate) text: String,
    pub(crate) partition: Option<PartitionId>,
    /// The place in the log that it is about, if it is about one.
    pub(crate) offset: Option<Offset>,
    /// The last record of the partition that was read together with it, and before it.
    pub(crate) follows: Option<Offset>,
    /// The client can never go on.
    pub(crate) fatal: bool,
}

/// An event, alive until it is dropped.
pub(super) struct Event(NonNull<sys::rd_kafka_event_t>);

impl Event {
    /// # Safety
    /// `native` is null, or an event that nothing else owns.
    pub(super) unsafe fn own(native: *mut sys::rd_kafka_event_t) -> Option<Self> {
        NonNull::new(native).map(Self)
    }

    pub(super) fn as_ptr(&self) -> *mut sys::rd_kafka_event_t {
        self.0.as_ptr()
    }

    pub(super) fn read(&self, consumer: &Consumer) -> Option<ClientEvent> {
        // SAFETY: the event is alive.
        match unsafe { sys::rd_kafka_event_type(self.as_ptr()) } {
            sys::RD_KAFKA_EVENT_REBALANCE => self.rebalance(consumer),
            sys::RD_KAFKA_EVENT_OFFSET_COMMIT => Some(self.commit()),
            sys::RD_KAFKA_EVENT_ERROR => Some(ClientEvent::Noticed(self.notice())),
            sys::RD_KAFKA_EVENT_FETCH => self.stray(),
            sys::RD_KAFKA_EVENT_LOG => {
                self.log();
                None
            }
            _ => None,
        }
    }

    pub(super) fn is_of(&self, event_type: i32) -> bool {
        // SAFETY: the event is alive.
        unsafe { sys::rd_kafka_event_type(self.as_ptr()) == event_type }
    }

    pub(super) fn error(&self) -> RDKafkaErrorCode {
        // SAFETY: the event is alive.
        unsafe { sys::rd_kafka_event_error(self.as_ptr()) }.into()
    }

    fn elements(&self) -> impl Iterator<Item = Element> {
        // SAFETY: the event is alive, and so is the list that it holds, if it holds one.
        unsafe { Element::all(sys::rd_kafka_event_topic_partition_list(self.as_ptr())) }
    }

    fn rebalance(&self, consumer: &Consumer) -> Option<ClientEvent> {
        let partitions = self.elements().map(|element| element.partition()).collect();
        match self.error() {
            RDKafkaErrorCode::AssignPartitions => Some(ClientEvent::Assigned(partitions)),
            RDKafkaErrorCode::RevokePartitions => Some(ClientEvent::Revoked {
                partitions,
                // Asked before anything else: an assignment would take it away.
                lost: consumer.has_lost(),
            }),
            _ => None,
        }
    }

    fn commit(&self) -> ClientEvent {
        let whole = self.error();
        let answer = |element: Element| match (element.error(), whole) {
            (Ok(()), RDKafkaErrorCode::NoError) => (element.partition(), Ok(())),
            (Ok(()), code) | (Err(code), _) => (element.partition(), Err(code)),
        };
        ClientEvent::Committed {
            // SAFETY: the event is alive.
            token: unsafe { sys::rd_kafka_event_opaque(self.as_ptr()) }.addr(),
            answers: self.elements().map(answer).collect(),
        }
    }

    pub(super) fn notice(&self) -> Notice {
        let mut notice = Notice::of_code(self.error(), None);
        // SAFETY: the event is alive, and with it its text. The partition is null or ours, is read and then destroyed.
        unsafe {
            notice.text = text_of(sys::rd_kafka_event_error_string(self.as_ptr())).into_owned();
            notice.fatal = sys::rd_kafka_event_error_is_fatal(self.as_ptr()) != 0;
            if let Some(native) = NonNull::new(sys::rd_kafka_event_topic_partition(self.as_ptr())) {
                let element = Element(native);
                notice.partition = Some(element.partition());
                notice.offset = place(element.offset());
                sys::rd_kafka_topic_partition_destroy(native.as_ptr());
            }
        }
        notice
    }

    fn stray(&self) -> Option<ClientEvent> {
        // SAFETY: the event is alive and owns its message, which is a record.
        unsafe {
            let message = sys::rd_kafka_event_message_next(self.as_ptr()).as_ref()?;
            let partition = partition_of(sys::rd_kafka_topic_name(message.rkt), message.partition);
            Some(ClientEvent::Stray(partition, message.offset))
        }
    }

    fn log(&self) {
        let (mut facility, mut text, mut level) = (ptr::null(), ptr::null(), 0);
        // SAFETY: the event is alive, and with it both texts; the places are ours to write.
        unsafe {
            if sys::rd_kafka_event_log(self.as_ptr(), &mut facility, &mut text, &mut level) == 0 {
                crate::config::log(log_level(level), &text_of(facility), &text_of(text));
            }
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it is ours and is destroyed once.
        unsafe { sys::rd_kafka_event_destroy(self.as_ptr()) }
    }
}

impl Notice {
    pub(crate) fn of_code(code: RDKafkaErrorCode, partition: Option<PartitionId>) -> Self {
        Self {
            code,
            text: code.to_string(),
            partition,
            offset: None,
            follows: None,
            fatal: false,
        }
    }

    /// The error that `native` is; `None` when it is a record.
    ///
    /// # Safety
    /// `native` is alive.
    pub(super) unsafe fn of_message(native: NonNull<sys::rd_kafka_message_t>) -> Option<Self> {
        let native = native.as_ptr();
        // SAFETY: the message is alive. Its topic is set or null, and its payload, if there is one, is the text.
        unsafe {
            // As the number that it is, since this is done for each record.
            if (&raw const (*native).err).cast::<i32>().read() == RDKafkaErrorCode::NoError as i32 {
                return None;
            }
            let topic = NonNull::new((*native).rkt);
            let mut notice = Self::of_code(
                code_at(&raw const (*native).err),
                topic.map(|topic| partition_of(sys::rd_kafka_topic_name(topic.as_ptr()), (*native).partition)),
            );
            if let Some(text) = NonNull::new((*native).payload) {
                let text = std::slice::from_raw_parts(text.as_ptr().cast::<u8>(), (*native).len);
                notice.text = String::from_utf8_lossy(text).into_owned();
            }
            notice.offset = place((*native).offset);
            Some(notice)
        }
    }
}

/// One element of a list of partitions, alive as long as the list is.
pub(super) struct Element(NonNull<sys::rd_kafka_topic_partition_t>);

impl Element {
    /// # Safety
    /// `list` is null, or alive for as long as the elements are used.
    pub(super) unsafe fn all(list: *const sys::rd_kafka_topic_partition_list_t) -> impl Iterator<Item = Element> {
        // SAFETY: the list is alive; it has `cnt` elements.
        let (first, len) = unsafe { list.as_ref() }.map_or((ptr::null_mut(), 0), |list| (list.elems, list.cnt));
        let len = usize::try_from(len).unwrap_or(0);
        // SAFETY: within the list.
        (0..len).filter_map(move |index| NonNull::new(unsafe { first.add(index) }).map(Element))
    }

    /// # Safety
    /// `native` is null, or alive for as long as the element is used.
    pub(super) unsafe fn at(native: *const sys::rd_kafka_topic_partition_t) -> Option<Self> {
        NonNull::new(native.cast_mut()).map(Element)
    }

    pub(super) fn partition(&self) -> PartitionId {
        // SAFETY: alive, see `all`; the topic is a C string of the list.
        unsafe { partition_of((*self.0.as_ptr()).topic, (*self.0.as_ptr()).partition) }
    }

    pub(super) fn offset(&self) -> i64 {
        // SAFETY: alive, see `all`.
        unsafe { (*self.0.as_ptr()).offset }
    }

    /// What stands beside the offset. Any client of the group may have written it, in any encoding.
    pub(super) fn metadata(&self) -> String {
        // SAFETY: alive, see `all`; the metadata is null, or that many bytes.
        unsafe {
            let native = self.0.as_ptr();
            NonNull::new((*native).metadata).map_or(String::new(), |start| {
                let bytes = std::slice::from_raw_parts(start.as_ptr().cast::<u8>(), (*native).metadata_size);
                String::from_utf8_lossy(bytes).into_owned()
            })
        }
    }

    pub(super) fn error(&self) -> Result<(), RDKafkaErrorCode> {
        // SAFETY: alive, see `all`.
        match unsafe { code_at(&raw const (*self.0.as_ptr()).err) } {
            RDKafkaErrorCode::NoError => Ok(()),
            code => Err(code),
        }
    }
}

/// Reads an error code as the number that it is: a newer broker's code may be one that the enumeration lacks.
///
/// # Safety
/// `code` may be read.
unsafe fn code_at(code: *const RDKafkaRespErr) -> RDKafkaErrorCode {
    // SAFETY: the enumeration is represented as `i32`, and every `i32` is one.
    code_of(unsafe { code.cast::<i32>().read() })
}

/// The error that a number stands for.
pub(super) fn code_of(number: i32) -> RDKafkaErrorCode {
    RDKafkaRespErr::try_from(number).map_or(RDKafkaErrorCode::Unknown, RDKafkaErrorCode::from)
}

/// # Safety
/// `text` is null, or a C string that lives as long as the result is used.
pub(super) unsafe fn text_of<'a>(text: *const c_char) -> Cow<'a, str> {
    // SAFETY: the caller's promise.
    NonNull::new(text.cast_mut()).map_or(Cow::Borrowed(""), |text| unsafe {
        CStr::from_ptr(text.as_ptr()).to_string_lossy()
    })
}

/// # Safety
/// `topic` is null or a C string.
unsafe fn partition_of(topic: *const c_char, number: i32) -> PartitionId {
    // SAFETY: the caller's promise.
    PartitionId::new(&*unsafe { text_of(topic) }, number)
}

/// A place in a log; `None` for librdkafka's logical offsets.
pub(super) fn place(offset: i64) -> Option<Offset> {
    (offset >= 0).then(|| Offset::new(offset))
}

/// syslog's levels.
fn log_level(level: i32) -> RDKafkaLogLevel {
    match level {
        ..=3 => RDKafkaLogLevel::Error,
        4 => RDKafkaLogLevel::Warning,
        5 | 6 => RDKafkaLogLevel::Info,
        7.. => RDKafkaLogLevel::Debug,
    }
}
