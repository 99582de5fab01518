//! `seriatim produce`: writes lines of standard input to a topic, those of a session in their order.

mod form;
mod lines;

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use seriatim_kafka::config::Properties;
use seriatim_kafka::producer::{Delivery, ProduceError, SessionProducer, SessionRecord};
use seriatim_runtime::session_by::SessionBy;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use self::form::Form;
use self::lines::{Chunk, read_lines};
use crate::connection::Connection;
use crate::exit::Exit;
use crate::logging::Verbosity;
use crate::reach::Reach;
use crate::signals::Signals;
use crate::units::{counted, grouped, rate, took};

/// Acknowledgements that are awaited at a time; the producer's own limit, in bytes, is reached before by all but the
/// smallest records.
const DELIVERIES_MAX: usize = 256 * 1024;

/// Without an acknowledgement for this long, it is asked whether any broker can be reached.
const SUSPICION_AFTER: Duration = Duration::from_secs(5);

/// Sessions that are counted apart: 16 MiB of hashes.
const SESSIONS_COUNTED_MAX: usize = 1_000_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Topic to write to
    topic: String,

    #[command(flatten)]
    connection: Connection,

    /// Which part of a record names its session: `key`, `header:NAME` or `json:/pointer`
    #[arg(long, value_name = "PLACE", default_value = "key")]
    session_by: SessionBy,

    /// Takes what stands before this delimiter in a line as the key
    #[arg(short = 'K', long, value_name = "DELIMITER", conflicts_with = "json")]
    key_delimiter: Option<String>,

    /// Takes each line as a JSON object: {"key":…,"value":…,"headers":[[NAME,VALUE],…]}
    #[arg(short = 'J', long)]
    json: bool,

    #[command(flatten, next_help_heading = "Output")]
    verbosity: Verbosity,
}

pub(crate) fn run(args: Args) -> anyhow::Result<Exit> {
    args.verbosity.init();
    let form = args.form()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let exit = runtime.block_on(args.produce(&form));
    runtime.shutdown_background();
    exit
}

impl Args {
    fn form(&self) -> anyhow::Result<Form> {
        match (&self.key_delimiter, self.json, &self.session_by) {
            (Some(delimiter), _, _) if delimiter.is_empty() => Err(Exit::Usage.error("the delimiter of `-K` is empty")),
            (_, false, SessionBy::Header(_)) => {
                Err(Exit::Usage.error("plain lines have no headers: say `-J`, and give JSON objects with headers"))
            }
            (None, false, SessionBy::Key) => Err(Exit::Usage.error(
                "plain lines have no key to name their session: say `-K :`, and give lines as `key:value`; \
                 or `--session-by json:/pointer`, for a part of the value; or `-J`, and give JSON objects",
            )),
            (_, true, _) => Ok(Form::Json),
            (Some(delimiter), ..) => Ok(Form::KeyValue(delimiter.clone())),
            (None, ..) => Ok(Form::Value),
        }
    }

    async fn produce(&self, form: &Form) -> anyhow::Result<Exit> {
        let mut signals = Signals::listen()?;
        let properties = self.connection.properties()?;
        let producer = SessionProducer::connect(self.connection.brokers(), &properties)
            .map_err(|error| Exit::BadConfiguration.caused(error.into()))?;
        let began = Instant::now();
        let failures = Failures::default();
        let written = Arc::new(Written::default());
        let (deliveries, received) = mpsc::channel(DELIVERIES_MAX);
        let collector = tokio::spawn(collect(received, Arc::clone(&written), failures.clone()));
        let watching = tokio::spawn(self.watch(properties, Arc::clone(&written)));
        let mut sending = Sending {
            args: self,
            form,
            producer: &producer,
            deliveries,
            failures: &failures,
            sessions: Sessions::default(),
        };

        // A signal ends the input; what was read is still written. A second one ends that.
        let sent = tokio::select! {
            sent = sending.send_all(read_lines(io::stdin())) => sent,
            () = signals.next() => Ok(()),
        };
        let sessions = sending.finish();
        tokio::select! {
            collected = collector => collected?,
            () = signals.second() => return Err(Exit::Unexpected.error("ended before all records were acknowledged")),
        };
        watching.abort();
        self.sum_up(written.count(), failures.count(), &sessions, began.elapsed());
        sent?;
        Ok(if failures.count() == 0 {
            Exit::Fine
        } else {
            Exit::Unexpected
        })
    }

    /// Says when no broker can be reached: a producer itself only waits.
    fn watch(&self, properties: Properties, written: Arc<Written>) -> impl Future<Output = ()> + use<> {
        let reach = Reach {
            brokers: self.connection.brokers().to_owned(),
            properties,
            topic: self.topic.clone(),
            give_up_after: None,
        };
        async move { reach.lost(|| written.stall()).await }
    }

    fn sum_up(&self, written: u64, failed: u64, sessions: &Sessions, elapsed: Duration) {
        if !self.verbosity.is_quiet() {
            let failed = if failed == 0 {
                String::new()
            } else {
                format!(", {} failed", grouped(failed))
            };
            eprintln!(
                "wrote {} of {sessions} in {} ({}){failed}",
                counted(written, "record"),
                took(elapsed),
                rate(written, elapsed),
            );
        }
    }
}

/// The way of lines into the producer.
struct Sending<'a> {
    args: &'a Args,
    form: &'a Form,
    producer: &'a SessionProducer,
    deliveries: mpsc::Sender<(u64, Delivery)>,
    failures: &'a Failures,
    sessions: Sessions,
}

impl Sending<'_> {
    /// Sends all lines, each in its turn and none waiting for another's acknowledgement.
    async fn send_all(&mut self, mut chunks: mpsc::Receiver<io::Result<Chunk>>) -> anyhow::Result<()> {
        let mut given_up = self.failures.given_up();
        loop {
            let chunk = tokio::select! {
                chunk = chunks.recv() => chunk,
                // Found out by an acknowledgement, perhaps long after the last line.
                _ = given_up.wait_for(Option::is_some) => None,
            };
            self.failures.check()?;
            let Some(chunk) = chunk else { return Ok(()) };
            self.send_chunk(&chunk?).await?;
        }
    }

    async fn send_chunk(&mut self, chunk: &Chunk) -> anyhow::Result<()> {
        for (number, line) in chunk.lines().filter(|(_, line)| !line.is_empty()) {
            let parsed = match self.form.parse(line, &self.args.session_by) {
                Ok(parsed) => parsed,
                Err(error) => {
                    self.failures.note(number, &error.to_string());
                    continue;
                }
            };
            self.sessions.note(&parsed.session);
            let record = SessionRecord {
                topic: &self.args.topic,
                session: &parsed.session,
                key: parsed.key.as_deref(),
                value: parsed.value.as_deref(),
                headers: &parsed.headers(),
                timestamp_ms: parsed.timestamp_ms,
            };
            // Reserved before, so that a signal finds no record that is sent and whose acknowledgement nobody awaits.
            let place = self.deliveries.reserve().await?;
            match self.producer.send(record).await {
                Ok(delivery) => place.send((number, delivery)),
                Err(error) => self.failures.note_error(number, &error),
            }
            self.failures.check()?;
        }
        Ok(())
    }

    /// Says that nothing more will be sent.
    fn finish(self) -> Sessions {
        self.sessions
    }
}

/// Takes the acknowledgements in the order of their lines.
async fn collect(mut deliveries: mpsc::Receiver<(u64, Delivery)>, written: Arc<Written>, failures: Failures) {
    while let Some((number, delivery)) = deliveries.recv().await {
        written.waiting.store(true, Ordering::Relaxed);
        match delivery.await {
            Ok(_) => {
                written.records.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => failures.note_error(number, &error),
        }
        written.waiting.store(false, Ordering::Relaxed);
    }
}

/// How far the acknowledgements are.
#[derive(Default)]
struct Written {
    records: AtomicU64,
    /// Whether one is awaited.
    waiting: AtomicBool,
}

impl Written {
    fn count(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Returns when one is awaited and none has come for a while.
    async fn stall(&self) {
        loop {
            let before = self.count();
            sleep(SUSPICION_AFTER).await;
            if self.waiting.load(Ordering::Relaxed) && self.count() == before {
                return;
            }
        }
    }
}

/// Lines that were not written, told as they are found. Clones count together.
#[derive(Clone, Default)]
struct Failures {
    count: Arc<AtomicU64>,
    /// Why no other line can be written either.
    hopeless: watch::Sender<Option<ProduceError>>,
}

impl Failures {
    fn note(&self, number: u64, error: &str) {
        self.count.fetch_add(1, Ordering::Relaxed);
        eprintln!("line {number}: {error}");
    }

    fn note_error(&self, number: u64, error: &ProduceError) {
        use ProduceError::{Denied, Fatal, UnknownTopic, Unreachable};
        if matches!(
            error,
            Denied { .. } | Fatal { .. } | UnknownTopic { .. } | Unreachable { .. }
        ) {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.hopeless.send_replace(Some(error.clone()));
        } else {
            self.note(number, &error.to_string());
        }
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn given_up(&self) -> watch::Receiver<Option<ProduceError>> {
        self.hopeless.subscribe()
    }

    /// Fails when there is no sense in going on.
    fn check(&self) -> anyhow::Result<()> {
        if self.count() == 0 {
            return Ok(());
        }
        match &*self.hopeless.borrow() {
            None => Ok(()),
            Some(ProduceError::Unreachable { reason }) => {
                Err(Exit::Unreachable.error(format!("no broker can be reached: {reason}")))
            }
            Some(error) => Err(error.clone().into()),
        }
    }
}

/// Counts sessions, by their hashes.
#[derive(Default)]
struct Sessions {
    random: RandomState,
    seen: HashSet<u64>,
}

impl Sessions {
    fn note(&mut self, session: &[u8]) {
        if self.seen.len() < SESSIONS_COUNTED_MAX {
            self.seen.insert(self.random.hash_one(session));
        }
    }
}

impl std::fmt::Display for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.seen.len() {
            SESSIONS_COUNTED_MAX.. => f.write_str("a million sessions or more"),
            count => f.write_str(&counted(count as u64, "session")),
        }
    }
}
