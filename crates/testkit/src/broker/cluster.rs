//! What a test asks of a cluster, whoever runs it.

use std::io;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Instant;

use super::{BrokerError, POLL_INTERVAL, READY_TIMEOUT, class_path, java, libs, wire};

/// A cluster to work with, whoever runs it.
#[derive(Debug)]
pub struct Cluster {
    bootstrap: String,
}

/// The nodes that have a partition, by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The one that serves it.
    pub leader: u32,
    /// Those that have all of it, the leader among them.
    pub in_sync: Vec<u32>,
}

impl Cluster {
    /// The cluster at these addresses, `host:port` with commas between them. Nothing is sent yet.
    pub fn at(bootstrap: &str) -> Self {
        Self {
            bootstrap: bootstrap.to_owned(),
        }
    }

    /// What a client takes as `bootstrap.servers`.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Creates a topic, and returns when every bootstrap server names a leader for each of its partitions, so that a
    /// client finds it at its first try. It has as many replicas as a cluster of ours has nodes.
    ///
    /// # Errors
    /// [`BrokerError::Topic`] with the broker's reason, a topic of that name among them.
    pub fn create_topic(&self, topic: &str, partitions: u32, configs: &[(&str, &str)]) -> Result<(), BrokerError> {
        let refused = |reason: String| BrokerError::Topic {
            topic: topic.to_owned(),
            reason,
        };

        let first = self.addresses().next().unwrap_or_default();
        wire::create_topic(first, topic, partitions, configs)
            .map_err(unreachable_at(first))?
            .map_err(refused)?;

        let deadline = Instant::now() + READY_TIMEOUT;
        for address in self.addresses() {
            loop {
                let metadata = wire::metadata(address, Some(topic)).map_err(unreachable_at(address))?;
                if metadata.partitions.iter().flatten().count() == partitions as usize {
                    break;
                }
                if Instant::now() > deadline {
                    return Err(refused(format!(
                        "{address} knows no leader for some of its {partitions} partitions"
                    )));
                }
                sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    /// Runs one of Kafka's own tools against this cluster and returns what it printed on its standard output: a
    /// witness that shares no code with Seriatim. It takes about a second.
    ///
    /// ```no_run
    /// # let cluster = seriatim_testkit::broker::Cluster::at("127.0.0.1:9092");
    /// let class = "org.apache.kafka.tools.ConsumerGroupCommand";
    /// println!("{}", cluster.tool(class, &["--describe", "--group", "orders"])?);
    /// # Ok::<(), seriatim_testkit::broker::BrokerError>(())
    /// ```
    ///
    /// # Errors
    /// [`BrokerError::Tool`] with all it printed, when its exit status is not 0.
    pub fn tool(&self, class: &str, args: &[&str]) -> Result<String, BrokerError> {
        let output = Command::new(java())
            // It lives for a second: the optimizing compiler would only compete for the cores.
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .args([
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                "-cp",
                &class_path(&libs()?),
                class,
            ])
            .args(["--bootstrap-server", &self.bootstrap])
            .args(args)
            .stdin(Stdio::null())
            .output()
            .map_err(|source| BrokerError::ToolStart {
                class: class.to_owned(),
                source,
            })?;

        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(printed);
        }
        Err(BrokerError::Tool {
            class: class.to_owned(),
            output: printed + &String::from_utf8_lossy(&output.stderr),
        })
    }

    /// The node that coordinates a consumer group, by its id, as the first bootstrap server that answers knows it; `None`
    /// while it knows of none. Of a node that was killed that may still be told for as long as nobody has missed it.
    pub fn coordinator(&self, group: &str) -> Option<u32> {
        let ask = |address| wire::coordinator(address, group).ok();
        self.addresses().find_map(ask).flatten()
    }

    /// Where the partitions of a topic are, by their numbers, as the first bootstrap server that answers knows it; none of a
    /// topic that it does not know. It may be late as [`Cluster::coordinator`] may.
    pub fn replicas(&self, topic: &str) -> Vec<Option<Replicas>> {
        let ask = |address| wire::metadata(address, Some(topic)).ok();
        let metadata = self.addresses().find_map(ask);
        metadata.map_or_else(Vec::new, |metadata| metadata.partitions)
    }

    fn addresses(&self) -> impl Iterator<Item = &str> {
        self.bootstrap.split(',').map(str::trim)
    }
}

fn unreachable_at(address: &str) -> impl FnOnce(io::Error) -> BrokerError {
    move |source| BrokerError::Unreachable {
        address: address.to_owned(),
        source,
    }
}
