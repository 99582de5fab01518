//! A node: its directory, its configuration, and what a test may do to it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::Instant;

use super::keeper::Keeper;
use super::ports::NodePorts;
use super::{BrokerError, BrokerOptions, POLL_INTERVAL, READY_TIMEOUT, class_path, java, wire};

/// One node of a [`Broker`](super::Broker): a JVM that can be killed, restarted, frozen and thawed.
#[derive(Debug)]
pub struct Node {
    id: u32,
    address: String,
    dir: PathBuf,
    keeper: Mutex<Keeper>,
}

impl Node {
    pub(super) fn prepare(
        id: u32,
        ports: &NodePorts,
        libs: &Path,
        voters: &str,
        options: &BrokerOptions,
    ) -> Result<Self, BrokerError> {
        let failed = |source| BrokerError::Node {
            node: id,
            doing: "the start of its keeper",
            source,
        };

        let dir = tempfile::Builder::new()
            .prefix("seriatim-kafka-")
            .tempdir()
            .map_err(failed)?;
        let mut properties = server_properties(id, ports, voters, options);
        properties.push_str(&format!("log.dir={}\n", dir.path().join("data").display()));
        fs::write(dir.path().join("server.properties"), properties).map_err(failed)?;
        let mut format_args = Vec::new();
        if let Some(security) = &options.security {
            security.write_keys(dir.path()).map_err(failed)?;
            format_args = security.format_args();
        }
        let keeper = Keeper::start(dir.path(), &java(), &class_path(libs), options, &format_args).map_err(failed)?;

        // From here on the keeper removes the directory: it is still there when a kill has ended this process.
        Ok(Self {
            id,
            address: format!("127.0.0.1:{}", ports.client),
            dir: dir.keep(),
            keeper: Mutex::new(keeper),
        })
    }

    /// The node's id, from 1.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Where it serves clients, `host:port`. It keeps its address over a restart.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The process id of its JVM; none while it is killed.
    pub fn pid(&self) -> Option<u32> {
        self.keeper().pid()
    }

    /// The directory that holds its data and its log; it goes with the [`Broker`](super::Broker).
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        fs::read(self.dir.join("kafka.log"))
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// Kills it as a crash would (SIGKILL), and returns when it is gone. Its data stays.
    ///
    /// # Errors
    /// When the node's keeper is gone.
    pub fn kill(&self) -> Result<(), BrokerError> {
        self.keeper().kill().map_err(self.failed("the kill"))
    }

    /// Kills it unless that is done, starts it on the same data and port, and returns when it serves again.
    ///
    /// # Errors
    /// When it does not come up within two minutes, as it cannot while most nodes of its cluster are killed.
    pub fn restart(&self) -> Result<(), BrokerError> {
        self.kill()?;
        self.spawn()?;
        self.await_ready(Instant::now() + READY_TIMEOUT, |members| members.contains(&self.id))
    }

    /// Stops it in its tracks (SIGSTOP): its connections stay open and nothing answers.
    ///
    /// # Errors
    /// When the node is killed, or its keeper is gone.
    pub fn freeze(&self) -> Result<(), BrokerError> {
        self.keeper().freeze().map_err(self.failed("the freeze"))
    }

    /// Lets it go on after [`Node::freeze`].
    ///
    /// # Errors
    /// When the node is killed, or its keeper is gone.
    pub fn thaw(&self) -> Result<(), BrokerError> {
        self.keeper().thaw().map_err(self.failed("the thaw"))
    }

    pub(super) fn begin_format(&self) -> Result<(), BrokerError> {
        self.keeper()
            .begin_format()
            .map_err(self.failed("the format of its storage"))
    }

    pub(super) fn await_format(&self) -> Result<(), BrokerError> {
        match self.keeper().await_format() {
            Ok(true) => Ok(()),
            Ok(false) => Err(BrokerError::Ended {
                node: self.id,
                log_tail: self.log_tail(),
            }),
            Err(error) => Err(self.failed("the format of its storage")(error)),
        }
    }

    pub(super) fn spawn(&self) -> Result<(), BrokerError> {
        self.keeper().spawn().map_err(self.failed("the start of Kafka"))
    }

    /// Waits until the node answers and `joined` holds for the ids of the members it names.
    pub(super) fn await_ready(&self, deadline: Instant, joined: impl Fn(&[u32]) -> bool) -> Result<(), BrokerError> {
        loop {
            if wire::metadata(&self.address, None).is_ok_and(|metadata| joined(&metadata.members)) {
                return Ok(());
            }
            if !self.keeper().is_alive().map_err(self.failed("the start of Kafka"))? {
                return Err(BrokerError::Ended {
                    node: self.id,
                    log_tail: self.log_tail(),
                });
            }
            if Instant::now() > deadline {
                return Err(BrokerError::NotReady {
                    node: self.id,
                    log_tail: self.log_tail(),
                });
            }
            sleep(POLL_INTERVAL);
        }
    }

    fn keeper(&self) -> MutexGuard<'_, Keeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, doing: &'static str) -> impl FnOnce(io::Error) -> BrokerError {
        let node = self.id;
        move |source| BrokerError::Node { node, doing, source }
    }

    /// The last 40 lines: a stack trace of Kafka's with its cause.
    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

/// All but the log directory, which the node adds.
fn server_properties(id: u32, ports: &NodePorts, voters: &str, options: &BrokerOptions) -> String {
    let BrokerOptions { nodes, partitions, .. } = *options;
    // What was acknowledged survives a node that is killed.
    let min_isr = nodes.min(2);
    let NodePorts { client, controller, .. } = ports;
    let (mut listeners, mut protocols) = (format!("CLIENT://127.0.0.1:{client}"), String::new());
    for (listener, port) in &ports.secured {
        listeners.push_str(&format!(",{}://127.0.0.1:{port}", listener.name()));
        protocols.push_str(&format!(",{}:{}", listener.name(), listener.protocol()));
    }
    let mut properties = format!(
        "\
process.roles=broker,controller
node.id={id}
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
listener.security.protocol.map=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}
inter.broker.listener.name=CLIENT
controller.listener.names=CONTROLLER
controller.quorum.voters={voters}
auto.create.topics.enable=false
num.partitions={partitions}
default.replication.factor={nodes}
min.insync.replicas={min_isr}
offsets.topic.num.partitions=4
offsets.topic.replication.factor={nodes}
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor={nodes}
transaction.state.log.min.isr={min_isr}
share.coordinator.state.topic.num.partitions=4
share.coordinator.state.topic.replication.factor={nodes}
share.coordinator.state.topic.min.isr={min_isr}
# A group forms at once, and a test that kills a member need not wait 6 s for its session to end.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
# A node that was killed is missed, and may register again, when its session has ended: 9 s by default.
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=1000
# 128 MiB by default, a quarter of the heap.
log.cleaner.dedupe.buffer.size=16777216
"
    );
    if let Some(security) = &options.security {
        properties.push_str(&security.properties());
    }
    for (key, value) in &options.properties {
        let value = value.replace("{client_port}", &ports.client.to_string());
        let value = value.replace("{controller_port}", &ports.controller.to_string());
        properties.push_str(&format!("{key}={value}\n"));
    }
    properties
}
