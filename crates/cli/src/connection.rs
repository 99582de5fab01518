//! Which cluster to talk to, and how: the options that all commands share which need one.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use seriatim_kafka::config::Properties;

use crate::exit::Exit;

/// Where the cluster is.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Connection {
    /// Brokers to begin with, e.g. localhost:9092; several with commas between them
    #[arg(
        short = 'b',
        long = "brokers",
        visible_alias = "bootstrap-server",
        value_name = "HOST:PORT,…"
    )]
    brokers: Option<String>,

    /// Sets a property of the Kafka client, in librdkafka's names; a value may be `file:PATH` or `env:NAME`
    #[arg(short = 'X', long = "property", value_name = "NAME=VALUE")]
    properties: Vec<String>,

    /// Reads properties from a file, one NAME=VALUE a line; `-X` goes before it
    #[arg(short = 'F', long = "properties", value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Connection {
    /// The brokers as given; empty when a property names them.
    pub(crate) fn brokers(&self) -> &str {
        self.brokers.as_deref().unwrap_or_default()
    }

    /// The client's properties.
    ///
    /// # Errors
    /// With exit code 78 when one is no property or the file cannot be read, and 2 when nothing names a broker.
    pub(crate) fn properties(&self) -> anyhow::Result<Properties> {
        let text = match &self.file {
            Some(path) => fs::read_to_string(path)
                .with_context(|| format!("reading properties from {}", path.display()))
                .map_err(|error| Exit::BadConfiguration.error(format!("{error:#}")))?,
            None => String::new(),
        };
        let bad = |error| Exit::BadConfiguration.error(format!("{error}"));
        let mut properties: Properties = text.parse().map_err(bad)?;
        for pair in &self.properties {
            properties.insert_pair(pair).map_err(bad)?;
        }
        let given = text.lines().chain(self.properties.iter().map(String::as_str));
        if self.brokers.is_none() && !given.into_iter().any(names_brokers) {
            return Err(Exit::Usage.error("no broker is named: say `-b HOST:PORT`, e.g. `-b localhost:9092`"));
        }
        Ok(properties)
    }
}

fn names_brokers(pair: &str) -> bool {
    let name = pair.split('=').next().unwrap_or_default().trim();
    matches!(name, "bootstrap.servers" | "metadata.broker.list")
}
