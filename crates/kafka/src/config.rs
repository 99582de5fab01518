//! librdkafka's properties: our defaults with their reasons, what the user sets over them, and what nobody may change.
//!
//! [`Properties`] holds what the user wrote. When a client is made, it is laid over our defaults: librdkafka accepts the
//! result, or [`ConfigError`] says what to write instead.

mod login;
mod names;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;

use self::value::Value;

/// Every client of ours.
const COMMON_DEFAULTS: &[(&str, &str)] = &[
    // What the broker's logs and quotas call us; librdkafka's own default is its wrapper's name.
    ("client.id", "seriatim"),
    // Load balancers and NAT drop connections that are idle for minutes, without a word; keep-alives hold them open.
    ("socket.keepalive.enable", "true"),
    // A request goes out as it is written: librdkafka batches records itself.
    ("socket.nagle.disable", "true"),
    // Brokers close idle connections every ten minutes. That is no news.
    ("log.connection.close", "false"),
];

const CONSUMER_DEFAULTS: &[(&str, &str)] = &[
    // Commits are the dispatcher's: a watermark that passes no unsettled record.
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    // The batch call moves the position on an end-of-partition event (librdkafka#4844).
    ("enable.partition.eof", "false"),
    // Starts are explicit. An offset that is gone from the log is trouble to report, never a silent jump.
    ("auto.offset.reset", "error"),
    // librdkafka calls KIP-848 ready since 2.12, but its members are reported to stall for minutes during rebalances, without
    // an error, until 2.15 (Blizzard/node-rdkafka#1146). The source passes its suite with it, and stood minutes of joins and
    // leaves; what is missing is the trust. A test tells when the bundled librdkafka has the fixes.
    ("group.protocol", "classic"),
    // A rebalance leaves the partitions alone that stay where they are.
    ("partition.assignment.strategy", "cooperative-sticky"),
    // A consumer that is faster than its prefetch stalls this long at a time: at the default, 1,000, a measured batch
    // loop fell from 1.6 M records/s to 0.23 M.
    ("fetch.queue.backoff.ms", "10"),
    // Fetches to one broker go one at a time, so a fetch of partitions that are all empty keeps a full one waiting. At
    // the default, 500, one busy partition among idle ones crawls.
    ("fetch.wait.max.ms", "50"),
    // What is prefetched and not yet ours to count: some 16 fetches of a partition (`fetch.message.max.bytes`), so that
    // the next ones travel while these are worked on.
    ("queued.max.messages.kbytes", "16384"),
    // A record that was damaged on its way or on a disk stops its partition, and is not handled.
    ("check.crcs", "true"),
    // A coordinator that comes back is found soon, not after the ten seconds that back-offs may grow to.
    ("reconnect.backoff.max.ms", "2000"),
    // Nobody reads them, and making them costs.
    ("statistics.interval.ms", "0"),
];

const PRODUCER_DEFAULTS: &[(&str, &str)] = &[
    // Without it a retry overtakes: the order of a session, and each record once, through every retry.
    ("enable.idempotence", "true"),
    // Acknowledged means on all replicas in sync. Idempotence asks for it; said here since settling relies on it.
    ("acks", "all"),
    // Java's partitioner: producers of one session must agree. (librdkafka's own is CRC32.)
    ("partitioner", "murmur2_random"),
    // Batches fill within this time; it is what a lone record waits. Compression is left to the user: what pays depends
    // on the payload.
    ("linger.ms", "5"),
    // The queue is bounded by bytes, which memory is made of. Our own gate counts them and makes callers wait in turn.
    ("queue.buffering.max.messages", "0"),
    ("queue.buffering.max.kbytes", "65536"),
    ("statistics.interval.ms", "0"),
];

/// What the user sets of librdkafka's properties. A later value replaces an earlier one, under whichever alias.
///
/// A value may refer to a file (`file:/run/secrets/kafka`) or to an environment variable (`env:KAFKA_PASSWORD`); it is
/// read whenever a client is made, or once by [`read_references`](Self::read_references). [`Debug`](fmt::Debug) shows no
/// secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Properties {
    values: BTreeMap<String, Value>,
}

/// A configuration that cannot work.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// What should be a `name=value` is none. It is not shown: it may be a secret that slipped.
    #[error("{place} is no `name=value`")]
    NotAPair {
        /// Where it stands, e.g. `line 4 of the properties`.
        place: String,
    },
    /// The property is Seriatim's.
    #[error("`{name}` is set by Seriatim: {why}")]
    Owned {
        /// The property.
        name: String,
        /// Why it is not the user's, and what to do.
        why: &'static str,
    },
    /// librdkafka knows no such property.
    #[error("librdkafka has no property `{name}`{}", .hint.as_ref().map_or(String::new(), |hint| format!("; {hint}")))]
    Unknown {
        /// The name.
        name: String,
        /// What was perhaps meant.
        hint: Option<String>,
    },
    /// librdkafka does not take this value.
    #[error("`{name}` is wrong: {reason}")]
    Invalid {
        /// The property.
        name: String,
        /// librdkafka's words.
        reason: String,
    },
    /// A value refers to a file or a variable that cannot be read.
    #[error("the value of `{name}` cannot be read from {reference}")]
    Unreadable {
        /// The property.
        name: String,
        /// The reference, e.g. `file:/run/secrets/kafka`.
        reference: String,
        /// What the operating system said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The properties contradict each other, or need what this build lacks.
    #[error("librdkafka refuses the configuration: {0}")]
    Refused(String),
}

/// What a consumer of `group` runs on: our defaults, and `properties` over them.
///
/// With `brokers` or `group` empty, `bootstrap.servers` or `group.id` of the properties counts.
///
/// # Errors
/// When a property is Seriatim's own, is unknown to librdkafka or has a wrong value, or when a value cannot be read.
pub(crate) fn consumer_config(
    brokers: &str,
    group: &str,
    properties: &Properties,
) -> Result<ClientConfig, ConfigError> {
    let given = [("bootstrap.servers", brokers), ("group.id", group)];
    client_config(CONSUMER_DEFAULTS, names::PRODUCER, properties, &given)
}

/// What a producer runs on: our defaults, and `properties` over them. As [`consumer_config`] in all else.
///
/// # Errors
/// As [`consumer_config`].
pub(crate) fn producer_config(brokers: &str, properties: &Properties) -> Result<ClientConfig, ConfigError> {
    producer_config_for(&[], brokers, properties)
}

/// As [`producer_config`], with the defaults of one kind of producer over those of all.
pub(crate) fn producer_config_for(
    defaults: &[(&str, &str)],
    brokers: &str,
    properties: &Properties,
) -> Result<ClientConfig, ConfigError> {
    let defaults = [PRODUCER_DEFAULTS, defaults].concat();
    client_config(
        &defaults,
        names::CONSUMER,
        properties,
        &[("bootstrap.servers", brokers)],
    )
}

fn client_config(
    defaults: &[(&str, &str)],
    foreign: &str,
    properties: &Properties,
    given: &[(&str, &str)],
) -> Result<ClientConfig, ConfigError> {
    // No client is made before. It asks OpenSSL not to clean up when the process ends, which it would do under the hands of the
    // clients' threads: a program that has done its work would be killed at its very end.
    openssl_sys::init();
    let mut config = ClientConfig::new();
    for (name, value) in COMMON_DEFAULTS.iter().chain(defaults) {
        config.set(*name, *value);
    }
    for (name, value) in &properties.values {
        if let Some(why) = owned(name) {
            return Err(ConfigError::Owned {
                name: name.clone(),
                why,
            });
        }
        if !names::is_in(foreign, name) {
            config.set(name, value.resolve(name)?);
        }
    }
    for (name, value) in given.iter().filter(|(_, value)| !value.is_empty()) {
        config.set(*name, *value);
    }
    config.set_log_level(match config.get("debug") {
        Some(_) => RDKafkaLogLevel::Debug,
        None => RDKafkaLogLevel::Info,
    });
    let native = config
        .create_native_config()
        .map_err(|error| refused(error, properties))?;
    let features = native.get("builtin.features").unwrap_or_default();
    login::check(&config, &features)?;
    Ok(config)
}

/// The brokers that a client is told to begin with.
pub(crate) fn brokers_of(config: &ClientConfig) -> &str {
    config.get("bootstrap.servers").unwrap_or_default()
}

/// Whether a client reads no record of a transaction that is open or was aborted.
pub(crate) fn reads_committed_only(config: &ClientConfig) -> bool {
    config.get("isolation.level") != Some("read_uncommitted")
}

/// Why a property is not the user's, and what to do instead; `None` when it is.
fn owned(name: &str) -> Option<&'static str> {
    Some(match name {
        "acks" => "a record is settled when all replicas in sync have it; remove it",
        "auto.commit.interval.ms" => "set Seriatim's commit interval instead",
        "auto.offset.reset" => "a start is never a silent jump; set Seriatim's start policy instead",
        "delivery.report.only.error" => "an acknowledgement is what settles; remove it",
        "enable.auto.commit" | "enable.auto.offset.store" | "offset.store.method" => {
            "it commits what is settled and nothing else; remove it"
        }
        "enable.gapless.guarantee" => "one refused record would end the producer of all sessions; remove it",
        "enable.idempotence" => "without it retries reorder records; remove it",
        "enable.partition.eof" => "the events would move the position; remove it",
        "enabled_events" | "log.queue" => "it is the client's own wiring; remove it",
        "group.protocol" => {
            "members by the consumer protocol (KIP-848) may stall in silence with a librdkafka before 2.15; remove it"
        }
        "log_level" => "librdkafka logs through Seriatim; set the log filter of target `librdkafka` instead",
        "partitioner" => "producers of one session must agree, on Java's murmur2; remove it",
        "queue.buffering.max.messages" => "the queue is bounded by bytes; set `queue.buffering.max.kbytes` instead",
        "queuing.strategy" => "only first in, first out keeps the order; remove it",
        "statistics.interval.ms" => "nobody would read them; use Seriatim's metrics instead",
        "transactional.id" => "its producers run no transactions; remove it",
        _ => return None,
    })
}

/// Said in place of librdkafka's own words where these would show a secret.
const NOT_TAKEN: &str = "librdkafka does not take this value";

/// librdkafka's refusal in our words. Its own text quotes the value.
fn refused(error: KafkaError, properties: &Properties) -> ConfigError {
    use rdkafka::types::RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN;
    match error {
        KafkaError::ClientConfig(RD_KAFKA_CONF_UNKNOWN, _, name, _) => ConfigError::Unknown {
            hint: hint(&name),
            name,
        },
        KafkaError::ClientConfig(_, reason, name, _) => {
            let shown = properties
                .values
                .get(&name)
                .is_none_or(|value| may_be_shown(&name, value));
            let reason = if shown { reason } else { NOT_TAKEN.to_owned() };
            ConfigError::Invalid { name, reason }
        }
        other => client_refused(other),
    }
}

/// librdkafka's refusal to make a client of a configuration that it had taken. These words quote no value.
pub(crate) fn client_refused(error: KafkaError) -> ConfigError {
    match error {
        KafkaError::ClientCreation(reason) => ConfigError::Refused(reason),
        KafkaError::ClientConfig(_, _, name, _) => ConfigError::Invalid {
            name,
            reason: NOT_TAKEN.to_owned(),
        },
        other => ConfigError::Refused(other.to_string()),
    }
}

/// What the writer of an unknown name perhaps meant.
fn hint(name: &str) -> Option<String> {
    if let Some(instead) = names::instead_of_java(name) {
        return Some(instead.to_owned());
    }
    names::all()
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .min()
        // A third of the letters wrong is another word.
        .filter(|(distance, known)| distance * 3 <= known.len())
        .map(|(_, known)| format!("did you mean `{known}`?"))
}

/// Whether a value may appear in logs and errors. Only of a name that is known, so that a misspelt password stays hidden.
fn may_be_shown(name: &str, value: &Value) -> bool {
    let secret = [
        "password",
        "secret",
        "sasl.oauthbearer.",
        "sasl.kerberos.kinit.cmd",
        ".pem",
    ];
    !value.refers() && !secret.iter().any(|part| name.contains(part)) && names::all().any(|known| known == name)
}

impl Properties {
    /// Sets a property.
    pub fn insert(&mut self, name: &str, value: impl Into<String>) {
        let value = Value::new(value.into());
        self.values.insert(names::canonical(name).to_owned(), value);
    }

    /// Reads the files and variables that values refer to, now and once: every client that is made of these properties
    /// has the same.
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`].
    pub fn read_references(&mut self) -> Result<(), ConfigError> {
        self.values.iter_mut().try_for_each(|(name, value)| value.read(name))
    }

    /// Sets what `pair` says, e.g. `fetch.min.bytes=1000`.
    ///
    /// # Errors
    /// When it is no `name=value`.
    pub fn insert_pair(&mut self, pair: &str) -> Result<(), ConfigError> {
        match pair.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                self.insert(name.trim(), value.trim());
                Ok(())
            }
            _ => Err(ConfigError::NotAPair {
                place: "a property".to_owned(),
            }),
        }
    }
}

/// Reads a properties file: a `name=value` a line; empty lines and lines that start with `#` are passed over.
impl FromStr for Properties {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut properties = Properties::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                properties.insert_pair(line).map_err(|_| ConfigError::NotAPair {
                    place: format!("line {} of the properties", index + 1),
                })?;
            }
        }
        Ok(properties)
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |name: &str, value: &Value| match may_be_shown(name, value) {
            true => value.written.clone(),
            false => "[hidden]".to_owned(),
        };
        f.debug_map()
            .entries(self.values.iter().map(|(name, value)| (name, shown(name, value))))
            .finish()
    }
}

/// Passes what librdkafka logs on, under the target `librdkafka`. For the contexts of our clients.
pub(crate) fn log(level: RDKafkaLogLevel, facility: &str, text: &str) {
    use RDKafkaLogLevel::{Alert, Critical, Debug, Emerg, Error, Info, Notice, Warning};
    match level {
        Emerg | Alert | Critical | Error => tracing::error!(target: "librdkafka", facility, "{text}"),
        Warning => tracing::warn!(target: "librdkafka", facility, "{text}"),
        Notice | Info => tracing::info!(target: "librdkafka", facility, "{text}"),
        Debug => tracing::debug!(target: "librdkafka", facility, "{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(pairs: &[&str]) -> Properties {
        pairs.join("\n").parse().unwrap()
    }

    fn consumer_error(pair: &str) -> String {
        consumer_config("b:9092", "g", &properties(&[pair]))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn librdkafka_knows_every_name_that_is_listed() {
        for name in names::all() {
            let answer = ClientConfig::new().set(name, "1").create_native_config().map(drop);
            let unknown = answer
                .is_err_and(|error| matches!(refused(error, &Properties::default()), ConfigError::Unknown { .. }));
            assert!(!unknown, "{name}");
            assert_eq!(names::canonical(name), name, "an alias is no name of its own");
        }
    }

    #[test]
    fn our_defaults_are_taken_and_the_user_is_heard() {
        let set = properties(&["fetch.wait.max.ms=100", "queue.buffering.max.ms=20", "linger.ms=30"]);
        let consumer = consumer_config("b:9092", "bookings", &set).unwrap();
        assert_eq!(consumer.get("bootstrap.servers"), Some("b:9092"));
        assert_eq!(consumer.get("group.id"), Some("bookings"));
        assert_eq!(consumer.get("fetch.wait.max.ms"), Some("100"));
        assert_eq!(consumer.get("fetch.queue.backoff.ms"), Some("10"));
        assert_eq!(consumer.get("linger.ms"), None, "a producer's property, in a consumer");

        let producer = producer_config("", &properties(&["metadata.broker.list=c:9092"])).unwrap();
        assert_eq!(producer.get("bootstrap.servers"), Some("c:9092"));
        let producer = producer_config("b:9092", &set).unwrap();
        assert_eq!(producer.get("linger.ms"), Some("30"), "the later of two aliases");
        assert_eq!(producer.get("fetch.wait.max.ms"), None);
    }

    #[test]
    fn what_is_ours_is_refused_with_the_reason_under_any_alias() {
        assert_eq!(
            consumer_error("enable.auto.commit=true"),
            "`enable.auto.commit` is set by Seriatim: it commits what is settled and nothing else; remove it"
        );
        assert!(consumer_error("request.required.acks=1").contains("`acks` is set by Seriatim"));
    }

    #[test]
    fn the_consumer_protocol_is_refused_as_long_as_there_is_a_reason_to() {
        let error = consumer_error("group.protocol=consumer");
        assert!(error.contains("KIP-848") && error.contains("before 2.15"), "{error}");
        // As librdkafka writes it: 0xMMmmrrpp.
        let (version, text) = rdkafka::util::get_rdkafka_version();
        assert!(
            version < 0x02_0f_00_00,
            "librdkafka {text} has the fixes: allow the protocol"
        );
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_right_one() {
        assert_eq!(
            consumer_error("fetch.min.byte=1"),
            "librdkafka has no property `fetch.min.byte`; did you mean `fetch.min.bytes`?"
        );
        assert_eq!(
            consumer_error("max.request.size=1"),
            "librdkafka has no property `max.request.size`; set `message.max.bytes`"
        );
        assert_eq!(
            consumer_error("entirely.else=1"),
            "librdkafka has no property `entirely.else`"
        );
    }

    #[test]
    fn a_wrong_value_is_explained_by_librdkafka() {
        let error = consumer_error("fetch.min.bytes=-7");
        assert!(error.starts_with("`fetch.min.bytes` is wrong: "), "{error}");
        assert!(error.contains("range"), "{error}");
    }

    #[test]
    fn no_secret_is_shown() {
        let set = properties(&[
            "sasl.password=hunter2",
            "sasl.pasword=hunter2",
            "ssl.key.pem=hunter2",
            "sasl.oauthbearer.config=scope=hunter2",
            "security.protocol=env:hunter2",
            "client.rack=r1",
        ]);
        let shown = format!("{set:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains(r#""client.rack": "r1""#), "{shown}");

        for pair in ["sasl.pasword=hunter2", "hunter2"] {
            let error = pair
                .parse::<Properties>()
                .and_then(|set| producer_config("b:9092", &set))
                .unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn a_line_that_is_no_pair_is_named() {
        let error = "# a comment\n\nclient.id = x\nnonsense"
            .parse::<Properties>()
            .unwrap_err();
        assert_eq!(error.to_string(), "line 4 of the properties is no `name=value`");
    }
}
