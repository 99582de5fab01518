//! The member of the group: its events, its assignment, its commits.

use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{iter, ptr};

use rdkafka::client::{Client, DefaultClientContext};
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as Place, TopicPartitionList};
use rdkafka::types::{RDKafkaRespErr, RDKafkaType};
use rdkafka_sys as sys;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::ports::Granted;

use super::admin::Admin;
use super::event::{ClientEvent, Element, Event, Notice, place, text_of};
use super::message::{Remaining, lease};
use super::news::TopicNews;
use super::queue::{Bell, FlowQueue, Queue, millis};
use super::topics::{ANSWERS_TOLD, TopicsFound};
use crate::config::reads_committed_only;
use crate::range::Extent;

/// librdkafka's consumer: everything but the records, which the [`FlowQueue`] reads.
///
/// Dropping it blocks: until the last message is gone, for however long a handler keeps one, and then until librdkafka
/// has stopped its threads.
pub(crate) struct Consumer {
    /// Rebalances, answers to commits, errors and log lines; also records, if a partition is not forwarded.
    events: Queue,
    client: Client,
    bell: Arc<Bell>,
    /// Whether no record is read of a transaction that is open.
    committed_only: bool,
    /// Told by the client, and therefore dropped after it.
    news: Arc<TopicNews>,
    /// For the destructor alone, which needs no lock; the lock lets threads share the rest.
    remaining: Mutex<Remaining>,
}

/// How the group moves partitions between members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// All are taken from everyone, and given anew.
    Eager,
    /// Only those that move are taken.
    Cooperative,
}

impl Consumer {
    /// Makes the client and the queue of its records, which is read in batches of at most `batch_max`. Nothing is sent
    /// before [`subscribe`](Self::subscribe) but what it takes to know the brokers.
    pub(crate) fn connect(config: &ClientConfig, batch_max: usize) -> Result<(Arc<Self>, FlowQueue), KafkaError> {
        let native_config = config.create_native_config()?;
        let events = sys::RD_KAFKA_EVENT_REBALANCE | sys::RD_KAFKA_EVENT_ERROR;
        // SAFETY: the configuration is alive and not in use by a client yet.
        unsafe { sys::rd_kafka_conf_set_events(native_config.ptr(), events) };
        let bell = Arc::<Bell>::default();
        let news = Arc::new(TopicNews::new(Arc::clone(&bell)));
        // SAFETY: the configuration is as before; what is told is dropped after the client, here and by the consumer.
        unsafe { news.listen(native_config.ptr())? };
        let client = Client::new(
            config,
            native_config,
            RDKafkaType::RD_KAFKA_CONSUMER,
            DefaultClientContext,
        )?;
        // SAFETY: the client is alive. The first call leads its events to the queue that the second returns.
        let events = unsafe {
            match sys::rd_kafka_poll_set_consumer(client.native_ptr()) {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => {}
                error => return Err(KafkaError::Global(error.into())),
            }
            Queue::own(sys::rd_kafka_queue_get_consumer(client.native_ptr()))
        };
        let (lease, remaining) = lease();
        let consumer = Arc::new(Self {
            events: events.ok_or_else(|| KafkaError::ClientCreation("it has no group".to_owned()))?,
            client,
            bell,
            committed_only: reads_committed_only(config),
            news,
            remaining: Mutex::new(remaining),
        });
        // SAFETY: the bell lives as long as the consumer, whose destructor takes the callback away again.
        unsafe {
            let bell = Arc::as_ptr(&consumer.bell).cast_mut().cast::<c_void>();
            sys::rd_kafka_queue_cb_event_enable(consumer.events.as_ptr(), Some(ring), bell);
        }
        let flow = FlowQueue::new(Arc::clone(&consumer), batch_max, lease);
        Ok((consumer, flow))
    }

    pub(crate) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    pub(super) fn native(&self) -> *mut sys::rd_kafka_t {
        self.client.native_ptr()
    }

    /// Joins the group.
    pub(crate) fn subscribe(&self, topics: &[String]) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::with_capacity(topics.len());
        for topic in topics {
            // The list would panic.
            CString::new(topic.as_str())?;
            list.add_topic_unassigned(topic);
        }
        // SAFETY: client and list are alive; the list is copied.
        match unsafe { sys::rd_kafka_subscribe(self.native(), list.ptr()) } {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
            error => Err(KafkaError::Subscription(RDKafkaErrorCode::from(error).to_string())),
        }
    }

    /// The next event, waited for up to `wait`. Log lines are passed on by the way.
    pub(crate) fn next_event(&self, wait: Duration) -> Option<ClientEvent> {
        let deadline = Instant::now() + wait;
        let mut wait = wait;
        loop {
            // SAFETY: the queue is alive; the event, if there is one, is ours.
            let event = unsafe { Event::own(sys::rd_kafka_queue_poll(self.events.as_ptr(), millis(wait)))? };
            if let Some(event) = event.read(self) {
                return Some(event);
            }
            wait = deadline.saturating_duration_since(Instant::now());
        }
    }

    /// How the group moves partitions; known once it has given some.
    pub(crate) fn protocol(&self) -> Protocol {
        // SAFETY: the client is alive; the result is a constant C string, or null.
        let protocol = unsafe { text_of(sys::rd_kafka_rebalance_protocol(self.native())) };
        if protocol == "COOPERATIVE" {
            Protocol::Cooperative
        } else {
            Protocol::Eager
        }
    }

    /// Adds to what is consumed. Only with [`Protocol::Cooperative`].
    pub(crate) fn assign_more(&self, starts: &TopicPartitionList) -> Result<(), String> {
        // SAFETY: client and list are alive; the list is copied, the result is ours.
        unsafe { outcome(sys::rd_kafka_incremental_assign(self.native(), starts.ptr())) }
    }

    /// Ends the consumption of some. Only with [`Protocol::Cooperative`].
    pub(crate) fn unassign(&self, partitions: &TopicPartitionList) -> Result<(), String> {
        // SAFETY: as above.
        unsafe { outcome(sys::rd_kafka_incremental_unassign(self.native(), partitions.ptr())) }
    }

    /// Ends the consumption of one that the group has not asked for. Only with [`Protocol::Cooperative`]; a revocation
    /// that is under way takes it for its answer.
    ///
    /// When it returns, the partition's queue is led nowhere, and may be forwarded for its next assignment.
    pub(crate) fn interrupt(&self, partition: &PartitionId) -> Result<(), String> {
        self.unassign(&list_of([partition]))?;
        self.await_stops();
        Ok(())
    }

    /// As [`interrupt`](Self::interrupt), of all that is consumed. Only with [`Protocol::Eager`]; no revocation takes it for
    /// its answer: that is [`assign`](Self::assign) without a list (`rd_kafka_cgrp_assign`, `rd_kafka_cgrp_unassign`).
    pub(crate) fn interrupt_all(&self) -> Result<(), String> {
        self.assign(Some(&list_of([])))?;
        self.await_stops();
        Ok(())
    }

    /// Waits until what was unassigned is led nowhere: what stops its fetches takes the forwarding away, and stands in the
    /// same queue before the question that is asked here (`rd_kafka_cgrp_handle_assign_op`, `rd_kafka_toppar_fetch_stop`).
    fn await_stops(&self) {
        let mut assigned = ptr::null_mut();
        // SAFETY: the client is alive; the list, if there is one, is ours and is destroyed.
        unsafe {
            sys::rd_kafka_assignment(self.native(), &mut assigned);
            if !assigned.is_null() {
                sys::rd_kafka_topic_partition_list_destroy(assigned);
            }
        }
    }

    /// Consumes exactly these; `None` ends all consumption. Only with [`Protocol::Eager`].
    pub(crate) fn assign(&self, starts: Option<&TopicPartitionList>) -> Result<(), String> {
        let starts = starts.map_or(ptr::null(), |starts| starts.ptr().cast_const());
        // SAFETY: client and list are alive; the list is copied.
        match unsafe { sys::rd_kafka_assign(self.native(), starts) } {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
            error => Err(RDKafkaErrorCode::from(error).to_string()),
        }
    }

    /// Whether what is taken now is taken without asking.
    ///
    /// librdkafka's own flag is taken away by the next assignment, also by one that was on its way when it was set; so
    /// it counts as well whether the membership has ended: each loss but a fatal one resets the member's id, or its
    /// generation (`rd_kafka_cgrp_handle_Heartbeat`, `rd_kafka_cgrp_session_timeout_check`).
    pub(super) fn has_lost(&self) -> bool {
        // SAFETY: the client is alive.
        if unsafe { sys::rd_kafka_assignment_lost(self.native()) } == 1 {
            return true;
        }
        // SAFETY: the client is alive; the metadata is ours, is read and then destroyed.
        unsafe {
            let metadata = sys::rd_kafka_consumer_group_metadata(self.native());
            if metadata.is_null() {
                return false;
            }
            let member = text_of(sys::rd_kafka_consumer_group_metadata_member_id(metadata));
            let ended = member.is_empty() || sys::rd_kafka_consumer_group_metadata_generation_id(metadata) < 0;
            sys::rd_kafka_consumer_group_metadata_destroy(metadata);
            ended
        }
    }

    /// What the group has committed. Blocks up to `timeout`.
    pub(crate) fn committed(&self, partitions: &[PartitionId], timeout: Duration) -> Result<Vec<Granted>, Notice> {
        let list = list_of(partitions);
        // SAFETY: client and list are alive; the answer is written to the list.
        let error = unsafe { sys::rd_kafka_committed(self.native(), list.ptr(), millis(timeout)) };
        if error != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Err(Notice::of_code(error.into(), None));
        }
        // SAFETY: the list is alive.
        unsafe { Element::all(list.ptr()) }
            .map(|element| match element.error() {
                Ok(()) => Ok(Granted {
                    committed: place(element.offset()),
                    metadata: element.metadata(),
                    partition: element.partition(),
                    begin: None,
                    end: None,
                    incarnation: None,
                }),
                Err(code) => Err(Notice::of_code(code, Some(element.partition()))),
            })
            .collect()
    }

    /// What there is to know about topics, which are not the same twice. Blocks up to `timeout` a step. To be asked by one
    /// thread at a time.
    pub(crate) fn topics(&self, names: &[String], timeout: Duration) -> Result<TopicsFound, Notice> {
        if names.is_empty() {
            return Ok(TopicsFound::default());
        }
        self.news.ask(ANSWERS_TOLD, || self.admin(timeout).topics(names))
    }

    /// How often the client has heard of topics by itself: that may be since one was deleted, and perhaps created anew.
    pub(crate) fn topic_news(&self) -> u64 {
        self.news.count()
    }

    /// Sends a commit of `offsets`; the answer comes as an event with this `token`.
    pub(crate) fn commit(&self, offsets: &TopicPartitionList, token: usize) -> Result<(), RDKafkaErrorCode> {
        // SAFETY: client, list and queue are alive; the list is copied. The token is only a number in a pointer's place.
        let error = unsafe {
            let token = ptr::without_provenance_mut::<c_void>(token);
            sys::rd_kafka_commit_queue(self.native(), offsets.ptr(), self.events.as_ptr(), None, token)
        };
        match error {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
            error => Err(error.into()),
        }
    }

    /// The log's end as the last fetch told it; `None` before the first.
    pub(crate) fn known_end(&self, partition: &PartitionId) -> Option<Offset> {
        let topic = CString::new(partition.topic()).ok()?;
        let (mut low, mut high) = (-1, -1);
        // SAFETY: client and name are alive, the numbers are ours to write.
        let error = unsafe {
            let number = partition.number();
            sys::rd_kafka_get_watermark_offsets(self.native(), topic.as_ptr(), number, &mut low, &mut high)
        };
        (error == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).then(|| place(high))?
    }

    /// Where these logs begin and end, in their order, asked of their brokers; `None` where there is no answer. Blocks up to
    /// `timeout` a step.
    pub(crate) fn extents(&self, partitions: &[PartitionId], timeout: Duration) -> Vec<Option<Extent>> {
        let extents = self.admin(timeout).extents(partitions, self.committed_only);
        answers(extents, partitions.len())
    }

    /// As [`extents`](Self::extents), one of both places.
    pub(crate) fn offsets(&self, partitions: &[PartitionId], at: Place, timeout: Duration) -> Vec<Option<Offset>> {
        let offsets = self.admin(timeout).offsets(partitions, at, self.committed_only);
        answers(offsets, partitions.len())
    }

    fn admin(&self, timeout: Duration) -> Admin<'_, DefaultClientContext> {
        let client = &self.client;
        Admin { client, timeout }
    }

    /// Begins to leave the group; what is still assigned will be revoked.
    pub(crate) fn begin_close(&self) {
        // SAFETY: client and queue are alive. A refusal says that it is closed already, or can never be.
        let _ = unsafe { outcome(sys::rd_kafka_consumer_close_queue(self.native(), self.events.as_ptr())) };
    }

    /// Whether the group was left, and the coordinator has said so.
    pub(crate) fn is_closed(&self) -> bool {
        // SAFETY: the client is alive.
        unsafe { sys::rd_kafka_consumer_closed(self.native()) == 1 }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // SAFETY: the queue is alive. The callback is called and exchanged under the queue's lock: afterwards it neither
        // runs nor will.
        unsafe { sys::rd_kafka_queue_cb_event_enable(self.events.as_ptr(), None, ptr::null_mut()) }
        // The flow queue is gone, since it holds this consumer. What still holds a lease is a message.
        self.remaining.get_mut().unwrap_or_else(PoisonError::into_inner).wait();
    }
}

/// What was answered of each; nothing, when the question failed as a whole.
fn answers<T, E, F>(answers: Result<Vec<Result<T, E>>, F>, questions: usize) -> Vec<Option<T>> {
    let answers = answers.unwrap_or_default().into_iter().map(Result::ok);
    answers.chain(iter::repeat_with(|| None)).take(questions).collect()
}

/// librdkafka calls this when an event comes to the empty queue of events: the wait on the flow queue is over.
///
/// # Safety
/// `bell` points to a [`Bell`] that is alive.
unsafe extern "C" fn ring(_: *mut sys::rd_kafka_t, bell: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { &*bell.cast::<Bell>() }.ring();
}

/// # Safety
/// `error` is null, or an error that nothing else owns.
unsafe fn outcome(error: *mut sys::rd_kafka_error_t) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the error is alive, is read and then destroyed.
    unsafe {
        let text = text_of(sys::rd_kafka_error_string(error)).into_owned();
        sys::rd_kafka_error_destroy(error);
        Err(text)
    }
}

/// A list of partitions without offsets.
pub(crate) fn list_of<'a>(partitions: impl IntoIterator<Item = &'a PartitionId>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition(partition.topic(), partition.number());
    }
    list
}
