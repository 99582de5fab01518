//! librdkafka's question about topics: which incarnation of its name each is, and how many partitions it has. To the broker
//! it is a request for metadata, as the client itself makes them; but what the client remembers of the answer it does not
//! tell.

use std::ffi::{CString, c_char};
use std::ptr::{self, NonNull};

use rdkafka::client::ClientContext;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka_sys as sys;

use super::admin::{Admin, array, c_text, notice_of};
use super::event::{Notice, text_of};

/// What a broker says of a topic that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicFacts {
    pub(crate) name: String,
    /// Tells the topic from others of its name; `None` from a broker that gives topics no ids (before Kafka 2.8).
    pub(crate) incarnation: Option<u64>,
    pub(crate) partitions: i32,
}

/// The answer to a question about topics. Of one that may not be shown, or is in doubt, it has nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct TopicsFound {
    pub(crate) known: Vec<TopicFacts>,
    /// Names of which there is no topic, as far as the broker knows.
    pub(crate) unknown: Vec<String>,
}

/// How often librdkafka tells of answers to it: there is one for a broker to ask, and one for the topics, and it tells of each
/// when it comes and when it is looked into (`rd_kafka_buf_callback`, `rd_kafka_buf_handle_op`).
pub(super) const ANSWERS_TOLD: u64 = 4;

/// A list of names in librdkafka's form, alive until it is dropped.
struct Names(NonNull<sys::rd_kafka_TopicCollection_t>);

impl Names {
    fn new(names: &[CString]) -> Self {
        let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        // SAFETY: the names are alive and are copied; the result is ours.
        let native = unsafe { sys::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len()) };
        Self(NonNull::new(native).expect("librdkafka aborts when memory is out"))
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        // SAFETY: it is ours and is destroyed once.
        unsafe { sys::rd_kafka_TopicCollection_destroy(self.0.as_ptr()) }
    }
}

impl<C: ClientContext> Admin<'_, C> {
    /// Asks a broker about these topics, which are not the same twice.
    pub(crate) fn topics(&self, names: &[String]) -> Result<TopicsFound, Notice> {
        let Some(first) = names.first() else {
            return Ok(TopicsFound::default());
        };
        let broker = self.broker_that_answers(first)?;
        let names: Vec<CString> = names.iter().map(|name| c_text(name)).collect::<Result<_, _>>()?;
        let names = Names::new(&names);
        let answer = self.ask(
            sys::RD_KAFKA_EVENT_DESCRIBETOPICS_RESULT,
            // SAFETY: all are alive; names and options are copied, the queue is counted. Without room, no text is written; a
            // broker's number is refused only when it is negative.
            |client, options, queue| unsafe {
                sys::rd_kafka_AdminOptions_set_broker(options, broker, ptr::null_mut(), 0);
                sys::rd_kafka_DescribeTopics(client, names.0.as_ptr(), options, queue);
            },
        )?;
        // SAFETY: the event is alive and of this type, so the result is, and so are the descriptions that it holds.
        unsafe {
            let result = sys::rd_kafka_event_DescribeTopics_result(answer.as_ptr());
            let topics = array(|len| sys::rd_kafka_DescribeTopics_result_topics(result, len));
            let mut found = TopicsFound::default();
            topics.iter().for_each(|topic| take_facts(*topic, &mut found));
            Ok(found)
        }
    }

    /// A broker that the question can be sent to: the topic's leader, or any. Left alone, librdkafka would wait for the
    /// controller, which has nothing to do with it, may be away, and on the mock cluster is none of its brokers.
    fn broker_that_answers(&self, topic: &str) -> Result<i32, Notice> {
        let metadata = self.client.fetch_metadata(Some(topic), self.timeout);
        let metadata = metadata.map_err(|error| {
            let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
            Notice::of_code(code, None)
        })?;
        let partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
        let leaders = partitions.map(|partition| partition.leader());
        let brokers = metadata.brokers().iter().map(|broker| broker.id());
        let known = leaders.chain(brokers).find(|id| *id >= 0);
        known.ok_or_else(|| Notice::of_code(RDKafkaErrorCode::AllBrokersDown, None))
    }
}

/// # Safety
/// `native` is null, or a description that is alive.
unsafe fn take_facts(native: *const sys::rd_kafka_TopicDescription_t, found: &mut TopicsFound) {
    if native.is_null() {
        return;
    }
    // SAFETY: the description is alive, and with it its error, its name, its id and its partitions.
    unsafe {
        let name = text_of(sys::rd_kafka_TopicDescription_name(native)).into_owned();
        match notice_of(sys::rd_kafka_TopicDescription_error(native)) {
            Some(notice) if notice.code == RDKafkaErrorCode::UnknownTopicOrPartition => found.unknown.push(name),
            Some(_) => {}
            None => found.known.push(TopicFacts {
                name,
                incarnation: incarnation_of(sys::rd_kafka_TopicDescription_topic_id(native)),
                partitions: {
                    let partitions = array(|len| sys::rd_kafka_TopicDescription_partitions(native, len));
                    i32::try_from(partitions.len()).unwrap_or(i32::MAX)
                },
            }),
        }
    }
}

/// A topic's id in half its length. Brokers draw ids at random, so that two topics that had one name in turn look alike
/// once in some 10^18 times.
///
/// # Safety
/// `id` is null or alive.
unsafe fn incarnation_of(id: *const sys::rd_kafka_Uuid_t) -> Option<u64> {
    if id.is_null() {
        return None;
    }
    // SAFETY: the id is alive.
    let (most, least) = unsafe {
        (
            sys::rd_kafka_Uuid_most_significant_bits(id).cast_unsigned(),
            sys::rd_kafka_Uuid_least_significant_bits(id).cast_unsigned(),
        )
    };
    // All zeros is no id.
    ((most, least) != (0, 0)).then_some(most ^ least)
}
