//! How often the client has heard from a broker which topics there are.
//!
//! It asks when a fetch is refused, among other reasons because the topic was deleted. If the topic was also created anew, the
//! client takes the new one for the old, goes on at the same offset, and tells nobody
//! (`rd_kafka_fetch_reply_handle_partition_error`, `rd_kafka_topic_metadata_update`). That it has asked is the only sign.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::error::KafkaError;
use rdkafka_sys as sys;
use sys::rd_kafka_resp_err_t as Code;

use super::queue::Bell;

/// Kafka's number for a question about topics.
const METADATA: i16 = 3;

const NAME: &CStr = c"seriatim";

/// Told by librdkafka for as long as the client lives, from any of its threads.
pub(super) struct TopicNews {
    heard: Mutex<Heard>,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct Heard {
    /// How often it was told of answers to the client's own questions.
    news: u64,
    /// How often of any since a question of ours has begun.
    meanwhile: Option<u64>,
}

impl TopicNews {
    pub(super) fn new(bell: Arc<Bell>) -> Self {
        let heard = Mutex::default();
        Self { heard, bell }
    }

    /// Lets clients of this configuration tell.
    ///
    /// # Safety
    /// `config` is alive and not in use by a client, and `self` lives until the client that is made of it is destroyed.
    pub(super) unsafe fn listen(&self, config: *mut sys::rd_kafka_conf_t) -> Result<(), KafkaError> {
        let news = (&raw const *self).cast_mut().cast::<c_void>();
        // SAFETY: the configuration is alive; the name is copied.
        match unsafe { sys::rd_kafka_conf_interceptor_add_on_new(config, NAME.as_ptr(), Some(on_new), news) } {
            Code::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
            error => Err(KafkaError::Global(error.into())),
        }
    }

    /// How often there was one to the client's own questions.
    pub(super) fn count(&self) -> u64 {
        self.lock().news
    }

    /// Asks a question of ours, one at a time. If it succeeds, it was told of `answers` times, which are no news.
    pub(super) fn ask<T, E>(&self, answers: u64, question: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.lock().meanwhile = Some(0);
        let result = question();
        let mut heard = self.lock();
        let expected = if result.is_ok() { answers } else { 0 };
        // Whose was whose is not known; but none that was the client's is taken for ours.
        heard.news += heard.meanwhile.take().unwrap_or(0).saturating_sub(expected);
        result
    }

    fn hear(&self) {
        {
            let mut heard = self.lock();
            let Heard { news, meanwhile } = &mut *heard;
            *meanwhile.as_mut().unwrap_or(news) += 1;
        }
        self.bell.ring();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// librdkafka calls this when the client is made.
///
/// # Safety
/// `client` is being made, and `news` points to a [`TopicNews`] that lives until it is destroyed.
unsafe extern "C" fn on_new(
    client: *mut sys::rd_kafka_t,
    _: *const sys::rd_kafka_conf_t,
    news: *mut c_void,
    _: *mut c_char,
    _: usize,
) -> Code {
    // SAFETY: the client is there, as far as this call is concerned; the name is copied.
    unsafe { sys::rd_kafka_interceptor_add_on_response_received(client, NAME.as_ptr(), Some(on_response), news) }
}

/// librdkafka calls this for each request that was answered, or will not be, before it looks into the answer
/// (`rd_kafka_buf_callback`). Without an answer there is no size.
///
/// # Safety
/// `news` points to a [`TopicNews`] that is alive.
unsafe extern "C" fn on_response(
    _client: *mut sys::rd_kafka_t,
    _socket: c_int,
    _broker: *const c_char,
    _broker_id: i32,
    api: i16,
    _version: i16,
    _correlation: i32,
    size: usize,
    _round_trip: i64,
    _error: Code,
    news: *mut c_void,
) -> Code {
    if api == METADATA && size > 0 {
        // SAFETY: the caller's promise.
        unsafe { &*news.cast::<TopicNews>() }.hear();
    }
    Code::RD_KAFKA_RESP_ERR_NO_ERROR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_answers_our_own_question_is_no_news() {
        let news = TopicNews::new(Arc::default());
        news.hear();
        assert_eq!(news.count(), 1);
        let ask = |answers, result: Result<(), ()>| {
            let _ = news.ask(2, || {
                (0..answers).for_each(|_| news.hear());
                assert_eq!(news.count(), 1, "not before it is known what was ours");
                result
            });
            news.count()
        };
        assert_eq!(ask(2, Ok(())), 1);
        assert_eq!(ask(3, Ok(())), 2);
    }

    #[test]
    fn a_question_that_fails_may_have_heard_others_answers() {
        let news = TopicNews::new(Arc::default());
        let failed: Result<(), ()> = news.ask(2, || {
            news.hear();
            Err(())
        });
        assert_eq!((failed, news.count()), (Err(()), 1));
    }
}
