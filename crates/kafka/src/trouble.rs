//! librdkafka's errors in our words.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::ports::SourceTrouble;

use crate::native::event::Notice;

/// The same trouble is told again after this, if it goes on.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Troubles that are remembered as told: more at a time would not be read.
const TOLD_MAX: usize = 32;

/// What a client has reported lately.
#[derive(Debug)]
pub(crate) struct Reported {
    told: VecDeque<(SourceTrouble, Instant)>,
    connection: String,
}

impl Reported {
    /// Nothing yet, by a client of these brokers.
    pub(crate) fn nothing(brokers: &str) -> Self {
        Self {
            told: VecDeque::new(),
            connection: silence_of(brokers),
        }
    }

    /// Whether `trouble` is to be told; notes that it is.
    pub(crate) fn is_news(&mut self, trouble: &SourceTrouble, now: Instant) -> bool {
        self.told.retain(|(_, at)| now < *at + TOLD_AGAIN_AFTER);
        if self.told.iter().any(|(told, _)| told == trouble) {
            return false;
        }
        self.told.truncate(TOLD_MAX - 1);
        self.told.push_front((trouble.clone(), now));
        true
    }

    /// How a connection last failed.
    pub(crate) fn connection(&self) -> &str {
        &self.connection
    }

    pub(crate) fn note_connection(&mut self, text: String) {
        self.connection = text;
    }
}

/// What an error means for the source.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The client can never go on.
    Final(String),
    /// Something to report, and to live with.
    Trouble(SourceTrouble),
    /// The place to read from is gone from the log: librdkafka has stopped fetching the partition, whose last record before may
    /// have been read just now.
    OutOfRange(PartitionId, Option<Offset>, Option<Offset>),
    /// Records of the partition, from this offset on, cannot be decoded. librdkafka skips them and goes on; we must not.
    Undecodable(PartitionId, Option<Offset>, String),
    /// One connection has failed. Only the last one is news, and comes as an error of its own.
    Connection(String),
    /// One connection has failed, and will again, until one side's idea of who the other is has changed.
    Unauthenticated(String),
}

/// What `notice` means; `last_connection` is how a connection last failed.
pub(crate) fn meaning_of(notice: Notice, last_connection: &str) -> Meaning {
    let Notice {
        code,
        text,
        partition,
        offset,
        follows,
        fatal,
    } = notice;
    if fatal || code == Code::Fatal {
        return Meaning::Final(text);
    }
    match (code, partition) {
        (Code::AutoOffsetReset, Some(partition)) => Meaning::OutOfRange(partition, offset, follows),
        (Code::BadMessage | Code::BadCompression | Code::NotImplemented, Some(partition)) => {
            Meaning::Undecodable(partition, offset, text)
        }
        (Code::AllBrokersDown, _) => Meaning::Trouble(SourceTrouble::Unreachable(format!(
            "{text}, the last one with: {last_connection}"
        ))),
        (code, _) if is_of_connection(code) => {
            let text = with_advice(code, &text);
            match advice(code, &text) {
                Some(Advice { may_pass: false, .. }) => Meaning::Unauthenticated(text),
                _ => Meaning::Connection(text),
            }
        }
        (Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition | Code::InvalidTopic, _) => {
            Meaning::Trouble(SourceTrouble::UnknownTopic(text))
        }
        (Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed | Code::ClusterAuthorizationFailed, _) => {
            Meaning::Trouble(SourceTrouble::Denied(text))
        }
        _ => Meaning::Trouble(SourceTrouble::Other(text)),
    }
}

/// Why no broker answers a client of rdkafka's own, which is told just that none does: its context keeps the reason.
#[derive(Debug)]
pub(crate) struct LastFailure {
    brokers: String,
    text: Mutex<Option<String>>,
}

impl LastFailure {
    /// None yet, of a client of these brokers.
    pub(crate) fn none(brokers: &str) -> Self {
        Self {
            brokers: brokers.to_owned(),
            text: Mutex::new(None),
        }
    }

    /// Takes note of an error that the client reports.
    pub(crate) fn note(&self, error: &KafkaError, text: &str) {
        let mut last = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        match error.rdkafka_error_code() {
            Some(code) if is_of_connection(code) => {
                *last = Some(with_advice(code, text));
            }
            // That all are down says less than why the last one is.
            Some(Code::AllBrokersDown) => {
                last.get_or_insert_with(|| silence_of(&self.brokers));
            }
            _ => {}
        }
    }

    /// The reason, as far as one is known.
    pub(crate) fn text(&self) -> Option<String> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Whether an error is about one connection.
fn is_of_connection(code: Code) -> bool {
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::Resolve
            | Code::SSL
            | Code::Authentication
            | Code::SaslAuthenticationFailed
    )
}

/// What is said while no connection has failed with a reason: the one failure of which librdkafka reports none.
fn silence_of(brokers: &str) -> String {
    format!("{brokers} closed the connection without a reason; {IF_NEVER_BETTER}")
}

/// A broker that is spoken to in the wrong protocol closes the connection as one that ends does.
const IF_NEVER_BETTER: &str = "if it was never any better, check `security.protocol`";

const IF_NEVER_BETTER_BY_TLS: &str = "if it was never any better, check `security.protocol`, and whether the broker asks \
                                      for a certificate (`ssl.certificate.location`)";

/// What to check when a connection fails.
#[derive(Clone, Copy)]
struct Advice {
    check: &'static str,
    /// Whether time may mend it.
    may_pass: bool,
}

/// Without its end, in which librdkafka tells how long the connection was in which state: that differs each time, and the
/// same trouble would be told again.
fn with_advice(code: Code, text: &str) -> String {
    let text = match text.rfind(" (after ") {
        Some(end) if text.ends_with(')') => &text[..end],
        _ => text,
    };
    match advice(code, text) {
        Some(Advice { check, .. }) => format!("{text}; {check}"),
        None => text.to_owned(),
    }
}

fn advice(code: Code, text: &str) -> Option<Advice> {
    let certain = |check| Some(Advice { check, may_pass: false });
    match code {
        Code::Authentication | Code::SaslAuthenticationFailed if text.contains("handshake") => {
            certain("check `sasl.mechanism`, and whether `security.protocol` is what this listener asks for")
        }
        Code::Authentication | Code::SaslAuthenticationFailed => {
            certain("check `sasl.username` and `sasl.password`, and that the user may log in by `sasl.mechanism`")
        }
        Code::SSL if text.contains("certificate") => certain(
            "check that `ssl.ca.location` has the authority of the broker's certificate, and that the certificate is for \
             the name by which the broker is called here",
        ),
        Code::SSL => certain("check `security.protocol`, and which versions of TLS the broker takes"),
        // The broker's words when it does not take ours, in TLS's names for alerts.
        Code::BrokerTransportFailure if text.contains("alert") && text.contains("certificate") => certain(
            "the broker asks for a certificate that it trusts: check `ssl.certificate.location` and `ssl.key.location`",
        ),
        Code::BrokerTransportFailure if text.contains("PLAINTEXT broker listener") => {
            certain("check `security.protocol`: the listener seems to speak no TLS")
        }
        // It was there, and is gone: an alert may have been lost with it.
        Code::BrokerTransportFailure if !text.contains("Connect to") => Some(Advice {
            check: if text.contains("ssl://") {
                IF_NEVER_BETTER_BY_TLS
            } else {
                IF_NEVER_BETTER
            },
            may_pass: true,
        }),
        _ => None,
    }
}

/// What to report of a partition whose records cannot be decoded.
pub(crate) fn undecodable(partition: PartitionId, at: Option<Offset>, text: &str) -> SourceTrouble {
    let at = at.map_or(String::new(), |at| format!(" at {at}"));
    let text = format!("its records{at} cannot be decoded ({text}), and going on would skip them");
    SourceTrouble::OutOfRange(partition, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(code: Code, text: &str) -> Notice {
        Notice {
            code,
            text: text.to_owned(),
            partition: Some(PartitionId::new("orders", 3)),
            offset: Some(Offset::new(1042)),
            follows: None,
            fatal: false,
        }
    }

    fn trouble(code: Code, text: &str) -> String {
        match meaning_of(notice(code, text), "connection refused") {
            Meaning::Trouble(trouble) => trouble.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_error_is_told_with_the_way_out() {
        assert_eq!(
            trouble(Code::AllBrokersDown, "3/3 brokers are down"),
            "no broker can be reached: 3/3 brokers are down, the last one with: connection refused; still trying"
        );
        assert!(trouble(Code::UnknownTopicOrPartition, "orders").contains("create it, or correct the name"));
        assert!(trouble(Code::GroupAuthorizationFailed, "g").contains("ACLs"));
    }

    #[test]
    fn the_same_trouble_is_told_again_only_after_a_while() {
        let (mut reported, now) = (Reported::nothing("b:9092"), Instant::now());
        let (down, unknown) = (
            SourceTrouble::Unreachable("b".into()),
            SourceTrouble::UnknownTopic("t".into()),
        );
        assert!(reported.is_news(&down, now));
        assert!(!reported.is_news(&down, now + Duration::from_secs(1)));
        assert!(reported.is_news(&unknown, now + Duration::from_secs(1)));
        assert!(!reported.is_news(&down, now + Duration::from_secs(2)));
        assert!(reported.is_news(&down, now + Duration::from_secs(30)));
    }

    #[test]
    fn one_lost_connection_is_no_news() {
        let refused = "b1:9092/1: Connect to ipv4#10.0.0.1:9092 failed: refused";
        let lost = notice(Code::BrokerTransportFailure, refused);
        assert_eq!(meaning_of(lost, ""), Meaning::Connection(refused.to_owned()));
        // What a broker that ends does, one of another protocol does too.
        for closed in ["b1:9092/1: Send failed: Broken pipe", "ssl://b1:9093/1: Disconnected"] {
            let closed = notice(Code::BrokerTransportFailure, closed);
            assert!(
                matches!(meaning_of(closed, ""), Meaning::Connection(text) if text.contains("`security.protocol`"))
            );
        }
    }

    #[test]
    fn who_is_not_let_in_is_told_what_to_check() {
        let told = |code, text| match meaning_of(notice(code, text), "") {
            Meaning::Unauthenticated(text) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            told(
                Code::Authentication,
                "sasl_ssl://b1:9093/1: SASL authentication error: Invalid username or password (after 304ms in state AUTH_REQ)"
            ),
            "sasl_ssl://b1:9093/1: SASL authentication error: Invalid username or password; check `sasl.username` and \
             `sasl.password`, and that the user may log in by `sasl.mechanism`"
        );
        assert!(told(Code::Authentication, "SASL PLAIN mechanism handshake failed").contains("`sasl.mechanism`"));
        assert!(told(Code::SSL, "certificate verify failed").contains("`ssl.ca.location`"));
        assert!(
            told(Code::BrokerTransportFailure, "tlsv13 alert certificate required")
                .contains("`ssl.certificate.location`")
        );
        assert!(
            told(
                Code::BrokerTransportFailure,
                "connecting to a PLAINTEXT broker listener?"
            )
            .contains("no TLS")
        );
    }

    #[test]
    fn the_last_failure_is_the_last_with_a_reason() {
        let down = || KafkaError::Global(Code::AllBrokersDown);
        let last = LastFailure::none("b:9092");
        assert_eq!(last.text(), None);
        last.note(&down(), "1/1 brokers are down");
        let silent = last.text().unwrap();
        assert!(
            silent.contains("b:9092 closed the connection") && silent.contains("`security.protocol`"),
            "{silent}"
        );
        let refused = KafkaError::Global(Code::BrokerTransportFailure);
        last.note(
            &refused,
            "b:9092/1: Connect to b:9092 failed (after 1ms in state CONNECT)",
        );
        last.note(&down(), "1/1 brokers are down");
        assert_eq!(last.text().as_deref(), Some("b:9092/1: Connect to b:9092 failed"));
    }

    #[test]
    fn a_place_that_is_gone_is_known_by_its_error() {
        let reset = notice(
            Code::AutoOffsetReset,
            "fetch failed due to requested offset not available",
        );
        assert_eq!(
            meaning_of(reset, ""),
            Meaning::OutOfRange(PartitionId::new("orders", 3), Some(Offset::new(1042)), None)
        );
    }

    #[test]
    fn what_librdkafka_would_skip_stops_the_partition() {
        let bad = notice(Code::BadMessage, "failed CRC32C check");
        assert!(matches!(meaning_of(bad, ""), Meaning::Undecodable(_, Some(_), text) if text.contains("CRC32C")));
    }

    #[test]
    fn a_fatal_error_is_final_whatever_its_code() {
        let mut fenced = notice(Code::FencedInstanceId, "fenced");
        fenced.fatal = true;
        assert_eq!(meaning_of(fenced, ""), Meaning::Final("fenced".to_owned()));
    }
}
