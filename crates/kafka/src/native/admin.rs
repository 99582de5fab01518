//! librdkafka's admin calls about groups, which rust-rdkafka does not wrap: which groups there are, who is in one, what it
//! has committed, and a commit for a group that nobody is in. And one about logs: where many of them begin or end, each
//! with an answer of its own, so that a leader that is away hides only what it leads.
//!
//! All of them have one form: a request with options is sent to a queue of its own, and its answer is an event there. What
//! an answer holds lives as long as its event, so it is read out before that is dropped.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int};
use std::ptr::{self, NonNull};
use std::slice;
use std::time::Duration;

use rdkafka::client::{Client, ClientContext};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::topic_partition_list::{Offset as Place, TopicPartitionList};
use rdkafka::types::RDKafkaRespErr;
use rdkafka_sys as sys;
use rdkafka_sys::rd_kafka_IsolationLevel_t as IsolationLevel;
use rdkafka_sys::rd_kafka_consumer_group_state_t as State;
use rdkafka_sys::rd_kafka_consumer_group_type_t as Type;
use seriatim_engine::record::{Offset, PartitionId};

use super::client::list_of;
use super::event::{Element, Event, Notice, code_of, place, text_of};
use super::queue::{Queue, millis};
use crate::groups::{Group, GroupCommit, GroupKind, GroupState, Member};
use crate::range::Extent;

/// Partitions that are asked about at a time. librdkafka looks each answer up among all questions
/// (`rd_kafka_ListOffsets_response_merge`).
const OFFSETS_AT_A_TIME: usize = 1_000;

/// Room for librdkafka's words on an option that it does not take.
const ERROR_TEXT_LEN: usize = 256;

/// Asks about groups, through any client. Each call blocks, at most `timeout` a step: to find the coordinator, to hear
/// from it, and once more when a broker must be asked in an older version's way.
pub(crate) struct Admin<'a, C: ClientContext> {
    pub(crate) client: &'a Client<C>,
    pub(crate) timeout: Duration,
}

impl<C: ClientContext> Admin<'_, C> {
    /// The names of all groups, and what kept brokers from telling theirs.
    pub(crate) fn groups(&self) -> Result<(Vec<String>, Vec<Notice>), Notice> {
        let answer = self.ask(
            sys::RD_KAFKA_EVENT_LISTCONSUMERGROUPS_RESULT,
            |client, options, queue| {
                // SAFETY: all three are alive; the options are copied, the queue is counted.
                unsafe { sys::rd_kafka_ListConsumerGroups(client, options, queue) }
            },
        )?;
        // SAFETY: the event is alive and of this type, so the result is, and so are what its arrays hold.
        unsafe {
            let result = sys::rd_kafka_event_ListConsumerGroups_result(answer.as_ptr());
            let groups = array(|len| sys::rd_kafka_ListConsumerGroups_result_valid(result, len));
            let errors = array(|len| sys::rd_kafka_ListConsumerGroups_result_errors(result, len));
            let name = |group: &*const _| text_of(sys::rd_kafka_ConsumerGroupListing_group_id(*group)).into_owned();
            let notices = errors.iter().filter_map(|error| notice_of(*error));
            Ok((groups.iter().map(name).collect(), notices.collect()))
        }
    }

    /// Each of the groups, which are not the same twice; `None` for one that does not exist.
    pub(crate) fn describe(&self, names: &[String]) -> Result<Vec<Result<Option<Group>, Notice>>, Notice> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<CString> = names.iter().map(|name| c_text(name)).collect::<Result<_, _>>()?;
        let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let answer = self.ask(
            sys::RD_KAFKA_EVENT_DESCRIBECONSUMERGROUPS_RESULT,
            |client, options, queue| {
                let (first, len) = (pointers.as_mut_ptr(), pointers.len());
                // SAFETY: all are alive; names and options are copied, the queue is counted.
                unsafe { sys::rd_kafka_DescribeConsumerGroups(client, first, len, options, queue) }
            },
        )?;
        // SAFETY: the event is alive and of this type, so the result is, and so are the descriptions that it holds.
        unsafe {
            let result = sys::rd_kafka_event_DescribeConsumerGroups_result(answer.as_ptr());
            let groups = array(|len| sys::rd_kafka_DescribeConsumerGroups_result_groups(result, len));
            Ok(groups.iter().map(|group| group_of(*group)).collect())
        }
    }

    /// What the group has committed, for all partitions; those for which the answer is an error are told apart.
    pub(crate) fn commits(&self, group: &str) -> Result<(Vec<GroupCommit>, Vec<Notice>), Notice> {
        let group = c_text(group)?;
        let answer = self.ask(
            sys::RD_KAFKA_EVENT_LISTCONSUMERGROUPOFFSETS_RESULT,
            // SAFETY: all are alive. The list of partitions is null, which stands for all. The request is ours, is copied
            // by the call and then destroyed.
            |client, options, queue| unsafe {
                let mut request = sys::rd_kafka_ListConsumerGroupOffsets_new(group.as_ptr(), ptr::null());
                sys::rd_kafka_ListConsumerGroupOffsets(client, &mut request, 1, options, queue);
                sys::rd_kafka_ListConsumerGroupOffsets_destroy(request);
            },
        )?;
        let (mut commits, mut notices) = (Vec::new(), Vec::new());
        // SAFETY: the event is alive and of this type, so the result is, and so are the groups that it holds.
        let elements = unsafe {
            let result = sys::rd_kafka_event_ListConsumerGroupOffsets_result(answer.as_ptr());
            elements_of(array(|len| {
                sys::rd_kafka_ListConsumerGroupOffsets_result_groups(result, len)
            }))?
        };
        for element in elements {
            match (element.error(), place(element.offset())) {
                (Err(code), _) => notices.push(Notice::of_code(code, Some(element.partition()))),
                (Ok(()), Some(offset)) => commits.push(GroupCommit {
                    partition: element.partition(),
                    offset,
                    metadata: element.metadata(),
                }),
                // Nothing is committed for it.
                (Ok(()), None) => {}
            }
        }
        Ok((commits, notices))
    }

    /// Commits `offsets` for the group, as no member of it: a broker takes that only while there is none. Returns the
    /// partitions for which it was refused.
    pub(crate) fn commit(
        &self,
        group: &str,
        offsets: &TopicPartitionList,
    ) -> Result<Vec<(PartitionId, RDKafkaErrorCode)>, Notice> {
        let group = c_text(group)?;
        let answer = self.ask(
            sys::RD_KAFKA_EVENT_ALTERCONSUMERGROUPOFFSETS_RESULT,
            // SAFETY: all are alive. The request is ours, is copied by the call and then destroyed.
            |client, options, queue| unsafe {
                let mut request = sys::rd_kafka_AlterConsumerGroupOffsets_new(group.as_ptr(), offsets.ptr());
                sys::rd_kafka_AlterConsumerGroupOffsets(client, &mut request, 1, options, queue);
                sys::rd_kafka_AlterConsumerGroupOffsets_destroy(request);
            },
        )?;
        // SAFETY: the event is alive and of this type, so the result is, and so are the groups that it holds.
        let elements = unsafe {
            let result = sys::rd_kafka_event_AlterConsumerGroupOffsets_result(answer.as_ptr());
            elements_of(array(|len| {
                sys::rd_kafka_AlterConsumerGroupOffsets_result_groups(result, len)
            }))?
        };
        let refused = elements.filter_map(|element| Some((element.partition(), element.error().err()?)));
        Ok(refused.collect())
    }

    /// Where the logs of these partitions begin and end, in their order.
    pub(crate) fn extents(
        &self,
        partitions: &[PartitionId],
        committed_only: bool,
    ) -> Result<Vec<Result<Extent, RDKafkaErrorCode>>, Notice> {
        let begins = self.offsets(partitions, Place::Beginning, committed_only)?;
        let ends = self.offsets(partitions, Place::End, committed_only)?;
        let extents = begins.into_iter().zip(ends);
        Ok(extents.map(|(begin, end)| Ok((begin?, end?))).collect())
    }

    /// The offsets that `at` stands for in the logs of these partitions, in their order: one question a broker for many of
    /// them. With `committed_only` a log ends before the first transaction that is still open.
    pub(crate) fn offsets(
        &self,
        partitions: &[PartitionId],
        at: Place,
        committed_only: bool,
    ) -> Result<Vec<Result<Offset, RDKafkaErrorCode>>, Notice> {
        let mut offsets = Vec::with_capacity(partitions.len());
        for partitions in partitions.chunks(OFFSETS_AT_A_TIME) {
            offsets.extend(self.some_offsets(partitions, at, committed_only)?);
        }
        Ok(offsets)
    }

    fn some_offsets(
        &self,
        partitions: &[PartitionId],
        at: Place,
        committed_only: bool,
    ) -> Result<Vec<Result<Offset, RDKafkaErrorCode>>, Notice> {
        let places = list_of(partitions);
        for mut element in places.elements() {
            element.set_offset(at).expect("a place that librdkafka knows");
        }
        let isolation = match committed_only {
            true => IsolationLevel::RD_KAFKA_ISOLATION_LEVEL_READ_COMMITTED,
            false => IsolationLevel::RD_KAFKA_ISOLATION_LEVEL_READ_UNCOMMITTED,
        };
        let answer = self.ask(
            sys::RD_KAFKA_EVENT_LISTOFFSETS_RESULT,
            // SAFETY: all are alive; list and options are copied, the queue is counted. The error, which there is not for
            // an isolation level that exists, would be ours.
            |client, options, queue| unsafe {
                let error = sys::rd_kafka_AdminOptions_set_isolation_level(options, isolation);
                debug_assert!(error.is_null());
                sys::rd_kafka_ListOffsets(client, places.ptr(), options, queue);
            },
        )?;
        // SAFETY: the event is alive and of this type, so the result is, and so are the partitions that it holds.
        let mut offsets: HashMap<_, _> = unsafe {
            let result = sys::rd_kafka_event_ListOffsets_result(answer.as_ptr());
            let infos = array(|len| sys::rd_kafka_ListOffsets_result_infos(result, len));
            let offset = |info: &*const _| {
                let element = Element::at(sys::rd_kafka_ListOffsetsResultInfo_topic_partition(*info))?;
                let unanswered = RDKafkaErrorCode::OperationTimedOut;
                let offset = element.error().and_then(|()| place(element.offset()).ok_or(unanswered));
                Some((element.partition(), offset))
            };
            infos.iter().filter_map(offset).collect()
        };
        let unknown = Err(RDKafkaErrorCode::UnknownPartition);
        let told = |partition| offsets.remove(partition).unwrap_or(unknown);
        Ok(partitions.iter().map(told).collect())
    }

    /// Sends a request and waits for its answer, an event of this type.
    pub(super) fn ask(
        &self,
        event_type: i32,
        send: impl FnOnce(*mut sys::rd_kafka_t, *mut sys::rd_kafka_AdminOptions_t, *mut sys::rd_kafka_queue_t),
    ) -> Result<Event, Notice> {
        let client = self.client.native_ptr();
        // SAFETY: the client is alive, and the call returns a new queue, of which this is the only reference.
        let queue =
            unsafe { Queue::own(sys::rd_kafka_queue_new(client)) }.expect("librdkafka aborts when memory is out");
        let options = Options::new(client, self.timeout)?;
        send(client, options.0.as_ptr(), queue.as_ptr());
        // SAFETY: the queue is alive; the event, if there is one, is ours. librdkafka answers each request, at the latest
        // when its time is over; the wait is longer than all the steps of one, so that it ends in any case.
        let answer = unsafe { Event::own(sys::rd_kafka_queue_poll(queue.as_ptr(), millis(self.timeout * 4))) };
        let answer = answer.ok_or_else(|| Notice::of_code(RDKafkaErrorCode::OperationTimedOut, None))?;
        match answer.error() {
            RDKafkaErrorCode::NoError if answer.is_of(event_type) => Ok(answer),
            RDKafkaErrorCode::NoError => Err(Notice::of_code(RDKafkaErrorCode::Fail, None)),
            _ => Err(answer.notice()),
        }
    }
}

/// Options of a request, alive until they are dropped.
struct Options(NonNull<sys::rd_kafka_AdminOptions_t>);

impl Options {
    fn new(client: *mut sys::rd_kafka_t, timeout: Duration) -> Result<Self, Notice> {
        // SAFETY: the client is alive; the result is ours.
        let options =
            unsafe { sys::rd_kafka_AdminOptions_new(client, sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_ANY) };
        let options = Self(NonNull::new(options).expect("librdkafka aborts when memory is out"));
        let mut text: [c_char; ERROR_TEXT_LEN] = [0; ERROR_TEXT_LEN];
        // SAFETY: the options are alive; the text is ours to write, of the length that is told.
        let error = unsafe {
            let (options, text) = (options.0.as_ptr(), text.as_mut_ptr());
            sys::rd_kafka_AdminOptions_set_request_timeout(options, millis(timeout), text, ERROR_TEXT_LEN)
        };
        match error {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(options),
            error => Err(Notice::of_code(error.into(), None)),
        }
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: they are ours and are destroyed once.
        unsafe { sys::rd_kafka_AdminOptions_destroy(self.0.as_ptr()) }
    }
}

/// # Safety
/// `native` is a description that is alive.
unsafe fn group_of(native: *const sys::rd_kafka_ConsumerGroupDescription_t) -> Result<Option<Group>, Notice> {
    // SAFETY: the description is alive, and with it all that it holds. State and type are librdkafka's own numbers, looked
    // up by the names that the broker sends; those that it does not know have a number too.
    unsafe {
        match notice_of(sys::rd_kafka_ConsumerGroupDescription_error(native)) {
            Some(notice) if notice.code == RDKafkaErrorCode::GroupIdNotFound => return Ok(None),
            Some(notice) => return Err(notice),
            None => {}
        }
        let state = match sys::rd_kafka_ConsumerGroupDescription_state(native) {
            // What brokers say of a group that there is not.
            State::RD_KAFKA_CONSUMER_GROUP_STATE_DEAD => return Ok(None),
            State::RD_KAFKA_CONSUMER_GROUP_STATE_EMPTY => GroupState::Empty,
            State::RD_KAFKA_CONSUMER_GROUP_STATE_STABLE => GroupState::Stable,
            State::RD_KAFKA_CONSUMER_GROUP_STATE_PREPARING_REBALANCE => GroupState::PreparingRebalance,
            State::RD_KAFKA_CONSUMER_GROUP_STATE_COMPLETING_REBALANCE => GroupState::CompletingRebalance,
            _ => GroupState::Unknown,
        };
        let kind = match sys::rd_kafka_ConsumerGroupDescription_type(native) {
            Type::RD_KAFKA_CONSUMER_GROUP_TYPE_CONSUMER => GroupKind::Consumer,
            _ => GroupKind::Classic,
        };
        let members = 0..sys::rd_kafka_ConsumerGroupDescription_member_count(native);
        let member = |index| NonNull::new(sys::rd_kafka_ConsumerGroupDescription_member(native, index).cast_mut());
        Ok(Some(Group {
            name: text_of(sys::rd_kafka_ConsumerGroupDescription_group_id(native)).into_owned(),
            state,
            kind,
            assignor: text_of(sys::rd_kafka_ConsumerGroupDescription_partition_assignor(native)).into_owned(),
            members: members.filter_map(member).map(|member| member_of(member)).collect(),
        }))
    }
}

/// # Safety
/// `native` is alive.
unsafe fn member_of(native: NonNull<sys::rd_kafka_MemberDescription_t>) -> Member {
    let native = native.as_ptr();
    // SAFETY: the member is alive, and with it its texts and its assignment, which may be null.
    unsafe {
        let instance = sys::rd_kafka_MemberDescription_group_instance_id(native);
        let assignment = sys::rd_kafka_MemberDescription_assignment(native);
        let partitions = match assignment.is_null() {
            true => ptr::null(),
            false => sys::rd_kafka_MemberAssignment_partitions(assignment),
        };
        let mut partitions: Vec<_> = Element::all(partitions).map(|element| element.partition()).collect();
        partitions.sort();
        Member {
            id: text_of(sys::rd_kafka_MemberDescription_consumer_id(native)).into_owned(),
            client_id: text_of(sys::rd_kafka_MemberDescription_client_id(native)).into_owned(),
            host: text_of(sys::rd_kafka_MemberDescription_host(native)).into_owned(),
            instance_id: (!instance.is_null()).then(|| text_of(instance).into_owned()),
            partitions,
        }
    }
}

/// The partitions in the answer to a request that was about one group.
///
/// # Safety
/// The groups are alive for as long as the elements are used.
unsafe fn elements_of(groups: &[*const sys::rd_kafka_group_result_t]) -> Result<impl Iterator<Item = Element>, Notice> {
    let group = groups
        .first()
        .ok_or_else(|| Notice::of_code(RDKafkaErrorCode::Fail, None))?;
    // SAFETY: the group is alive, and with it its error and its list, either of which may be null.
    unsafe {
        match notice_of(sys::rd_kafka_group_result_error(*group)) {
            Some(notice) => Err(notice),
            None => Ok(Element::all(sys::rd_kafka_group_result_partitions(*group))),
        }
    }
}

/// An array of pointers that librdkafka returns together with its length.
///
/// # Safety
/// `get` returns null, or as many valid pointers as it tells, alive for as long as the result is used.
pub(super) unsafe fn array<'a, T>(get: impl FnOnce(*mut usize) -> *mut *const T) -> &'a [*const T] {
    let mut len = 0;
    match NonNull::new(get(&mut len)) {
        // SAFETY: the caller's promise.
        Some(first) if len > 0 => unsafe { slice::from_raw_parts(first.as_ptr(), len) },
        _ => &[],
    }
}

/// What `error` says; `None` when it is none.
///
/// # Safety
/// `error` is null or alive.
pub(super) unsafe fn notice_of(error: *const sys::rd_kafka_error_t) -> Option<Notice> {
    // The binding's result is an enumeration, which must not hold a newer broker's code: see `code_of`.
    unsafe extern "C" {
        fn rd_kafka_error_code(error: *const sys::rd_kafka_error_t) -> c_int;
    }
    if error.is_null() {
        return None;
    }
    // SAFETY: the error is alive. In C the enumeration is an `int`.
    unsafe {
        // Its text may be the request's name and nothing more: what a broker adds is often empty.
        Some(Notice::of_code(code_of(rd_kafka_error_code(error)), None))
    }
}

pub(super) fn c_text(text: &str) -> Result<CString, Notice> {
    CString::new(text).map_err(|_| Notice::of_code(RDKafkaErrorCode::InvalidArgument, None))
}
