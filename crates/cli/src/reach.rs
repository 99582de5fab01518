//! Whether any broker can be reached: asked apart from the client that does the work, which says that all are gone, and
//! never that one is back.

use std::time::{Duration, Instant};

use seriatim_kafka::config::Properties;
use seriatim_kafka::reader::{LogReader, ReadError};
use tokio::task::spawn_blocking;

/// How long a broker may take to answer: more than an overloaded one needs, less than a person waits for a word.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How often brokers are asked while none answers.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How often it is said that none answers.
const REMINDER_INTERVAL: Duration = Duration::from_secs(30);

/// Looks after the way to a cluster.
pub(crate) struct Reach {
    /// Where the brokers are.
    pub(crate) brokers: String,
    /// How to talk to them.
    pub(crate) properties: Properties,
    /// A topic to ask about.
    pub(crate) topic: String,
    /// How long none may answer; `None` for ever.
    pub(crate) give_up_after: Option<Duration>,
}

impl Reach {
    /// Asks at once and whenever there is a `suspicion`, and says what comes of it. Returns when no broker has answered
    /// for too long.
    pub(crate) async fn lost<F>(&self, suspicion: impl Fn() -> F)
    where
        F: Future<Output = ()>,
    {
        while self.regained().await {
            suspicion().await;
        }
    }

    /// Asks until a broker answers. False when none has for too long.
    async fn regained(&self) -> bool {
        let mut reader = None;
        let regained = self.ask_on(&mut reader).await;
        // The end of a client may take a moment.
        spawn_blocking(move || drop(reader));
        regained
    }

    /// Asks by one client, which connects at lengthening intervals: some servers count failed logins.
    async fn ask_on(&self, reader: &mut Option<LogReader>) -> bool {
        let since = Instant::now();
        let mut said: Option<Instant> = None;
        loop {
            let patience = self.give_up_after.map(|limit| limit.saturating_sub(since.elapsed()));
            let asked = Instant::now();
            let within = ANSWER_TIMEOUT.min(patience.unwrap_or(ANSWER_TIMEOUT));
            match self.ask(reader, within).await {
                Ok(()) => {
                    if said.is_some() {
                        tracing::info!(after = ?since.elapsed(), "a broker answers");
                    }
                    return true;
                }
                Err(reason) if said.is_none_or(|said| said.elapsed() >= REMINDER_INTERVAL) => {
                    tracing::warn!(
                        brokers = self.brokers,
                        "no broker can be reached: {reason}; still trying"
                    );
                    said = Some(Instant::now());
                }
                Err(_) => {}
            }
            if self.give_up_after.is_some_and(|limit| since.elapsed() >= limit) {
                return false;
            }
            tokio::time::sleep(RETRY_INTERVAL.saturating_sub(asked.elapsed())).await;
        }
    }

    async fn ask(&self, reader: &mut Option<LogReader>, within: Duration) -> Result<(), String> {
        let (brokers, properties, topic) = (self.brokers.clone(), self.properties.clone(), self.topic.clone());
        let former = reader.take();
        let ask = move || {
            let reader = match former {
                Some(reader) => reader,
                None => LogReader::connect(&brokers, None, &properties)?,
            };
            let answer = reader.reach(&topic, within);
            Ok((reader, answer))
        };
        let answer = match spawn_blocking(ask).await {
            Ok(Ok((asked, answer))) => {
                *reader = Some(asked);
                answer
            }
            Ok(Err(error)) => Err(error),
            Err(_) => return Err("the question was broken off".to_owned()),
        };
        answer.map_err(|error: ReadError| match error {
            ReadError::Unreachable { reason } => reason,
            other => other.to_string(),
        })
    }
}
