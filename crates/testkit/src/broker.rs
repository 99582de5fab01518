//! A real Apache Kafka for tests and benchmarks: one node or three, in KRaft combined mode, on loopback.
//!
//! [`shared`] is what most tests want: one broker for the whole test binary, or the one that
//! `SERIATIM_TEST_BROKERS` names. A test that kills, freezes or configures its broker starts its own [`Broker`].
//!
//! Nothing outlives the process that started it, however that process ends: each node has a keeper that
//! notices.

mod certificates;
mod cluster;
mod keeper;
mod listeners;
mod node;
pub(crate) mod ports;
mod wire;

use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub use certificates::{Authority, Identity};
pub use cluster::{Cluster, Replicas};
pub use listeners::{Listener, Security};
pub use node::Node;
use ports::NodePorts;

/// The version of Apache Kafka that `scripts/fetch-kafka` fetches.
pub const KAFKA_VERSION: &str = "4.3.1";

/// Names the bootstrap addresses of a cluster that runs already: [`shared`] then starts none.
pub const BROKERS_VARIABLE: &str = "SERIATIM_TEST_BROKERS";

/// Names the directory of Kafka's jars, where they are not in `.tools` of the workspace.
pub const LIBS_VARIABLE: &str = "SERIATIM_KAFKA_LIBS";

/// A node is ready within 5 s on an idle machine; two minutes are for three nodes on one that compiles on all its cores.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// "seriatim-testkit" as Kafka writes a UUID. Clusters are told apart by their ports.
const CLUSTER_ID: &str = "c2VyaWF0aW0tdGVzdGtpdA";

/// What a [`Broker`] may be asked to be.
#[derive(Debug, Clone)]
pub struct BrokerOptions {
    /// How many nodes the cluster has; each is broker and controller. 1 or 3.
    pub nodes: u32,
    /// The heap of each node's JVM, in MiB.
    pub heap_mib: u32,
    /// Whether the nodes are to start soon rather than to become fast: in half of the processor time, since they are compiled
    /// once and simply. For a cluster that ends with its test.
    pub short_lived: bool,
    /// Partitions of a topic that is created without a count.
    pub partitions: u32,
    /// What it takes to listen with TLS and with passwords too, on ports of their own: see [`Broker::bootstrap_of`].
    pub security: Option<Security>,
    /// Lines for `server.properties` of every node. They come last, so they override the fixture's own. In a value
    /// `{client_port}` and `{controller_port}` stand for the node's own.
    pub properties: Vec<(String, String)>,
}

impl Default for BrokerOptions {
    fn default() -> Self {
        Self {
            nodes: 1,
            heap_mib: 512,
            short_lived: false,
            partitions: 4,
            security: None,
            properties: Vec::new(),
        }
    }
}

/// Why a broker did not start, or did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// Kafka's jars are not on this machine.
    #[error("Apache Kafka's jars are not in {}: run scripts/fetch-kafka, or set {LIBS_VARIABLE} to their directory", .looked_in.display())]
    LibsMissing {
        /// The directory that should hold them.
        looked_in: PathBuf,
    },
    /// The directory or the processes of a node could not be made, or its keeper is gone.
    #[error("node {node}: {doing} failed")]
    Node {
        /// The node's id.
        node: u32,
        /// What was being done.
        doing: &'static str,
        /// The operating system's word on it.
        source: io::Error,
    },
    /// Kafka ended before it was ready, or could not format its storage.
    #[error("node {node} ended before it was ready; the end of its log:\n{log_tail}")]
    Ended {
        /// The node's id.
        node: u32,
        /// The last lines of the node's log.
        log_tail: String,
    },
    /// Kafka runs but does not answer as a member of its cluster.
    #[error("node {node} was not ready after {} s; the end of its log:\n{log_tail}", READY_TIMEOUT.as_secs())]
    NotReady {
        /// The node's id.
        node: u32,
        /// The last lines of the node's log.
        log_tail: String,
    },
    /// No bootstrap server gave an answer that could be read.
    #[error("no answer from {address}")]
    Unreachable {
        /// The bootstrap server.
        address: String,
        /// What went wrong on the wire.
        source: io::Error,
    },
    /// The cluster refused to create a topic, or its leaders were not elected in time.
    #[error("topic {topic} was not created: {reason}")]
    Topic {
        /// The topic's name.
        topic: String,
        /// The broker's error code and message.
        reason: String,
    },
    /// The `openssl` command is missing, or did not make a certificate.
    #[error("openssl made no certificate: {reason}")]
    Certificates {
        /// Its words, or the operating system's.
        reason: String,
    },
    /// A tool of Kafka's could not be started.
    #[error("{class} did not start: is Java installed? scripts/setup tells")]
    ToolStart {
        /// The tool's class.
        class: String,
        /// The operating system's word on it.
        source: io::Error,
    },
    /// A tool of Kafka's ended with an error.
    #[error("{class} failed:\n{output}")]
    Tool {
        /// The tool's class.
        class: String,
        /// What it printed, on both streams.
        output: String,
    },
}

/// The cluster for tests that share one: the one that [`BROKERS_VARIABLE`] names, else one that is started at the
/// first call and ends with this process.
///
/// # Panics
/// When no cluster can be had: no test that asks for one can go on.
pub fn shared() -> &'static Cluster {
    enum Shared {
        Attached(Cluster),
        Started(Broker),
    }
    static SHARED: OnceLock<Result<Shared, BrokerError>> = OnceLock::new();

    let shared = SHARED.get_or_init(|| match std::env::var(BROKERS_VARIABLE) {
        Ok(bootstrap) if !bootstrap.is_empty() => Ok(Shared::Attached(Cluster::at(&bootstrap))),
        _ => Broker::start().map(Shared::Started),
    });
    match shared {
        Ok(Shared::Attached(cluster)) => cluster,
        Ok(Shared::Started(broker)) => broker,
        Err(error) => panic!("no broker for this test: {error}"),
    }
}

/// A cluster that this process runs. Dropping it ends its nodes and removes their data.
#[derive(Debug)]
pub struct Broker {
    cluster: Cluster,
    ports: Vec<NodePorts>,
    nodes: Vec<Node>,
}

/// A broker is a cluster that can also be hurt, so all that a cluster offers, it offers.
impl Deref for Broker {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl Broker {
    /// Starts one node with default options, and returns when it serves.
    ///
    /// # Errors
    /// As [`Broker::start_with`].
    pub fn start() -> Result<Self, BrokerError> {
        Self::start_with(&BrokerOptions::default())
    }

    /// Starts a cluster, and returns when each node names all nodes as its members.
    ///
    /// # Errors
    /// When the jars are missing, or a node does not come up within two minutes; the error then shows the node's log.
    ///
    /// # Panics
    /// When asked for other than 1 or 3 nodes.
    pub fn start_with(options: &BrokerOptions) -> Result<Self, BrokerError> {
        assert!(
            matches!(options.nodes, 1 | 3),
            "a cluster has 1 or 3 nodes, not {}",
            options.nodes
        );
        let libs = libs()?;

        // Another process may take a port between its choice and Kafka's bind: then choose again, once.
        match Self::start_on(&NodePorts::choose(options), &libs, options) {
            Err(BrokerError::Ended { log_tail, .. }) if log_tail.contains("Address already in use") => {
                Self::start_on(&NodePorts::choose(options), &libs, options)
            }
            started => started,
        }
    }

    fn start_on(ports: &[NodePorts], libs: &Path, options: &BrokerOptions) -> Result<Self, BrokerError> {
        let ids = 1..=options.nodes;
        let voters = join(
            ids.clone()
                .zip(ports)
                .map(|(id, ports)| format!("{id}@127.0.0.1:{}", ports.controller)),
        );
        let nodes = ids
            .zip(ports)
            .map(|(id, ports)| Node::prepare(id, ports, libs, &voters, options))
            .collect::<Result<Vec<_>, _>>()?;

        // Each step is begun on all nodes before it is awaited on the first: a quorum forms only together.
        for step in [Node::begin_format, Node::await_format, Node::spawn] {
            nodes.iter().try_for_each(step)?;
        }
        let deadline = Instant::now() + READY_TIMEOUT;
        for node in &nodes {
            node.await_ready(deadline, |members| members.len() == nodes.len())?;
        }

        let bootstrap = join(ports.iter().map(|ports| format!("127.0.0.1:{}", ports.client)));
        Ok(Self {
            cluster: Cluster::at(&bootstrap),
            ports: ports.to_vec(),
            nodes,
        })
    }

    /// What a client of this listener takes as `bootstrap.servers`.
    ///
    /// # Panics
    /// When the cluster was given no [`Security`].
    pub fn bootstrap_of(&self, listener: Listener) -> String {
        let port = |ports: &NodePorts| {
            let mut secured = ports.secured.iter();
            let (_, port) = secured
                .find(|(of, _)| *of == listener)
                .unwrap_or_else(|| panic!("the cluster was started without security, so without {listener:?}"));
            format!("127.0.0.1:{port}")
        };
        join(self.ports.iter().map(port))
    }

    /// The node of this id, from 1.
    ///
    /// # Panics
    /// When the cluster has no such node.
    pub fn node(&self, id: u32) -> &Node {
        self.nodes
            .iter()
            .find(|node| node.id() == id)
            .unwrap_or_else(|| panic!("the cluster has no node {id}"))
    }

    /// All nodes, by id.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Ends all nodes and removes their data; returns when nothing of them is left. Dropping does the same.
    pub fn stop(self) {}
}

/// The directory of Kafka's jars: what the variable says, else `.tools` of the nearest directory upward that has them.
fn libs() -> Result<PathBuf, BrokerError> {
    let name = Path::new(".tools").join(format!("kafka-{KAFKA_VERSION}"));
    let found = match std::env::var_os(LIBS_VARIABLE) {
        Some(libs) => Some(PathBuf::from(libs)),
        None => [
            std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from),
            std::env::current_dir().ok(),
        ]
        .iter()
        .flatten()
        .flat_map(|start| start.ancestors())
        .map(|dir| dir.join(&name))
        .find(|libs| libs.is_dir()),
    };
    match found {
        Some(libs) if libs.is_dir() => Ok(libs),
        missing => Err(BrokerError::LibsMissing {
            looked_in: missing.unwrap_or(name),
        }),
    }
}

fn class_path(libs: &Path) -> String {
    libs.join("*").display().to_string()
}

fn java() -> PathBuf {
    match std::env::var_os("JAVA_HOME") {
        Some(home) => Path::new(&home).join("bin/java"),
        None => PathBuf::from("java"),
    }
}

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",")
}
