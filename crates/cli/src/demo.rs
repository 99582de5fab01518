//! `seriatim demo`: order proven on an embedded broker, under faults and rebalances, beside a plain pool that has none.

mod members;
mod pool;
mod progress;
mod proof;
mod report;
mod text;
mod traffic;
mod work;
mod workload;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use seriatim_kafka::embedded::EmbeddedBroker;
use seriatim_kafka::producer::SessionProducer;

use crate::exit::Exit;
use members::Group;
use pool::PlainPool;
use progress::Progress;
use proof::Proof;
use report::{Episode, Report, Side};
use traffic::Traffic;
use work::Work;
use workload::Workload;

/// Runs 1,000 conversations through an embedded broker and two consumers that join and leave, makes a tenth of all
/// attempts fail, and judges the order of every record. Beside it, a plain pool of workers gets the same records.
///
/// Exits with 100 when order was violated or a record was lost.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Sessions that take part
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    sessions: u32,
    /// Records in all
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    records: u64,
    /// Probability that an attempt fails, from 0 to 0.9
    #[arg(long, default_value_t = 0.1, value_parser = probability)]
    faults: f64,
    /// Repeats the workload and the faults of an earlier run; drawn when not given
    #[arg(long)]
    seed: Option<u64>,
    /// Partitions of the topic
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(i32).range(2..=1_000))]
    partitions: i32,
    /// How the verdict is written to standard output
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Breaks what is to be proven, to show that the proof can fail
    #[arg(long, hide = true, value_enum)]
    sabotage: Option<Sabotage>,
}

#[derive(Clone, Copy, Default, clap::ValueEnum)]
enum Format {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Sabotage {
    /// Puts a plain pool in Seriatim's place
    Reorder,
}

const TOPIC: &str = "chat";

/// When nothing has been settled for so long, what is missing counts as lost.
const STALL: Duration = Duration::from_secs(20);

const SHOWN_EVERY: Duration = Duration::from_millis(50);

pub(crate) fn run(args: Args) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(play(&args))?;
    match args.format {
        Format::Text => print!("{report}"),
        Format::Json => println!("{}", report.json()),
    }
    Ok(if report.passed() { Exit::Fine } else { Exit::Violation })
}

async fn play(args: &Args) -> anyhow::Result<Report> {
    let workload = args.workload();
    let began = Instant::now();
    let [seriatim, plain] = [(); 2].map(|()| Arc::new(Work::new(workload, began)));
    let readers = [&seriatim.proof, &plain.proof];
    let progress = Progress::new(workload.records);

    let broker = EmbeddedBroker::start()?;
    broker.create_topic(TOPIC, args.partitions)?;
    progress.news("an embedded broker is up; the consumers join their groups, which takes 3 s");
    let pool = |group, work| PlainPool::start(broker.bootstrap(), group, TOPIC, Arc::clone(work));
    let plain_pool = pool("plain-pool", &plain);
    let impostor = args.sabotage.map(|Sabotage::Reorder| pool("demo", &seriatim));
    let group = Group::new(&broker, TOPIC, args.partitions, Arc::clone(&seriatim));
    let producer = SessionProducer::connect(&broker.bootstrap(), &EmbeddedBroker::properties())?;
    let traffic = Traffic::new(TOPIC, workload);

    let sent = async { Ok(traffic.send(&producer, began, readers).await?) };
    let settled = until_settled(&traffic, &progress, readers);
    let script = async {
        if impostor.is_some() {
            traffic.allow(100);
            return Ok(None);
        }
        group.come_and_go(&traffic, &progress).await.map(Some)
    };
    let ((), (), members) = tokio::try_join!(sent, settled, script)?;

    let changes = group.changes();
    if let Some(members) = members {
        group.disband(members).await?;
    }
    for pool in [Some(plain_pool), impostor].into_iter().flatten() {
        tokio::task::block_in_place(|| pool.stop())?;
    }
    progress.finish();
    Ok(Report {
        workload,
        partitions: args.partitions,
        changes,
        episode: Episode::find(&seriatim, &plain),
        seriatim: Side::of(&seriatim),
        plain: Side::of(&plain),
    })
}

/// Shows the progress until both have settled all records, or until it is plain that they will not.
async fn until_settled(traffic: &Traffic, progress: &Progress, readers: [&Proof; 2]) -> anyhow::Result<()> {
    let mut moved = (readers.map(Proof::settled), Instant::now());
    loop {
        let settled = readers.map(Proof::settled);
        progress.show(readers);
        if settled != moved.0 {
            moved = (settled, Instant::now());
        }
        let (sent, records) = (traffic.sent(), traffic.workload.records);
        let stalled = settled.iter().any(|settled| *settled < sent) && moved.1.elapsed() > STALL;
        // What is missing although everything was sent, the verdict tells.
        if settled == [records; 2] || stalled && sent == records {
            return Ok(());
        }
        if stalled {
            let [seriatim, plain] = settled;
            let stall =
                format!("nothing is settled any more: of {sent} records {seriatim} are, {plain} by the plain pool");
            return Err(Exit::Violation.error(stall));
        }
        tokio::time::sleep(SHOWN_EVERY).await;
    }
}

impl Args {
    fn workload(&self) -> Workload {
        Workload {
            sessions: self.sessions,
            records: self.records,
            faults: self.faults,
            seed: self.seed.unwrap_or_else(random_seed),
        }
    }
}

fn probability(text: &str) -> Result<f64, String> {
    let given = text.parse().ok();
    let fits = given.filter(|probability| (0.0..=0.9).contains(probability));
    fits.ok_or_else(|| "give a number from 0 to 0.9, e.g. 0.1 for a tenth of all attempts".to_owned())
}

/// Short enough to type.
fn random_seed() -> u64 {
    RandomState::new().hash_one(0) % 1_000_000
}
