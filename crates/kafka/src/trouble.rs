//! librdkafka's errors in our words.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rdkafka::error::RDKafkaErrorCode as Code;
use seriatim_engine::record::{Offset, PartitionId};
use seriatim_runtime::ports::SourceTrouble;

use crate::native::event::Notice;

/// The same trouble is told again after this, if it goes on.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Troubles that are remembered as told: more at a time would not be read.
const TOLD_MAX: usize = 32;

/// What was reported lately.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    told: VecDeque<(SourceTrouble, Instant)>,
    connection: String,
}

impl Reported {
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

    /// How a connection last failed; empty when none has.
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
    /// The place to read from is gone from the log: librdkafka has stopped fetching the partition.
    OutOfRange(PartitionId, Option<Offset>),
    /// Records of the partition, from this offset on, cannot be decoded. librdkafka skips them and goes on; we must not.
    Undecodable(PartitionId, Option<Offset>, String),
    /// One connection has failed. Only the last one is news, and comes as an error of its own.
    Connection(String),
}

/// What `notice` means; `last_connection` is how a connection last failed.
pub(crate) fn meaning_of(notice: Notice, last_connection: &str) -> Meaning {
    let Notice {
        code,
        text,
        partition,
        offset,
        fatal,
    } = notice;
    if fatal || code == Code::Fatal {
        return Meaning::Final(text);
    }
    match (code, partition) {
        (Code::AutoOffsetReset, Some(partition)) => Meaning::OutOfRange(partition, offset),
        (Code::BadMessage | Code::BadCompression | Code::NotImplemented, Some(partition)) => {
            Meaning::Undecodable(partition, offset, text)
        }
        (Code::BrokerTransportFailure | Code::Resolve, _) => Meaning::Connection(text),
        (Code::AllBrokersDown, _) if last_connection.is_empty() => Meaning::Trouble(SourceTrouble::Unreachable(text)),
        (Code::AllBrokersDown, _) => Meaning::Trouble(SourceTrouble::Unreachable(format!(
            "{text}, the last one with: {last_connection}"
        ))),
        (Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition | Code::InvalidTopic, _) => {
            Meaning::Trouble(SourceTrouble::UnknownTopic(text))
        }
        (
            Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::Authentication,
            _,
        ) => Meaning::Trouble(SourceTrouble::Denied(text)),
        _ => Meaning::Trouble(SourceTrouble::Other(text)),
    }
}

/// What to report of a partition whose next offset, `wanted`, is not in its log, which is as `extent` says.
pub(crate) fn out_of_range(
    partition: PartitionId,
    wanted: Option<Offset>,
    extent: Option<(Offset, Offset)>,
) -> SourceTrouble {
    let wanted = wanted.map_or("the next offset".to_owned(), |wanted| {
        format!("the next offset, {wanted},")
    });
    let text = match extent {
        Some((begin, end)) => format!(
            "{wanted} is not in the log, which now begins at {begin} and ends at {end}; move the group's offset there to \
             go on, knowing that what lies between is not processed"
        ),
        None => format!("{wanted} is not in the log; compare the group's offset with where the log begins and ends"),
    };
    SourceTrouble::OutOfRange(partition, text)
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
        let (mut reported, now) = (Reported::default(), Instant::now());
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
        let lost = notice(Code::BrokerTransportFailure, "b1: disconnected");
        assert_eq!(meaning_of(lost, ""), Meaning::Connection("b1: disconnected".to_owned()));
    }

    #[test]
    fn a_place_that_is_gone_is_told_with_what_is_there() {
        let orders = PartitionId::new("orders", 3);
        let reset = notice(
            Code::AutoOffsetReset,
            "fetch failed due to requested offset not available",
        );
        assert_eq!(
            meaning_of(reset, ""),
            Meaning::OutOfRange(orders.clone(), Some(Offset::new(1042)))
        );

        let extent = Some((Offset::new(2000), Offset::new(5000)));
        let told = out_of_range(orders, Some(Offset::new(1042)), extent).to_string();
        assert!(
            told.starts_with("orders[3] stands still: the next offset, 1042, is not in the log"),
            "{told}"
        );
        assert!(told.contains("begins at 2000 and ends at 5000"), "{told}");
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
