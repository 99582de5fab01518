//! Which cluster to talk to, and how: the options that all commands share which need one.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use seriatim_kafka::config::{ConfigError, Properties};

use crate::exit::Exit;

/// Where the cluster is.
#[derive(Clone, clap::Args)]
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

    /// The client's properties. What they refer to is read here, once for all clients of the command.
    ///
    /// # Errors
    /// With exit code 78 when one is no property, or a file or variable cannot be read, and 2 when nothing names a
    /// broker.
    pub(crate) fn properties(&self) -> anyhow::Result<Properties> {
        let text = match &self.file {
            Some(path) => fs::read_to_string(path)
                .with_context(|| format!("reading properties from {}", path.display()))
                .map_err(|error| Exit::BadConfiguration.error(format!("{error:#}")))?,
            None => String::new(),
        };
        let bad = |error: ConfigError| Exit::BadConfiguration.caused(error.into());
        let mut properties: Properties = text.parse().map_err(bad)?;
        for pair in &self.properties {
            properties.insert_pair(pair).map_err(bad)?;
        }
        properties.read_references().map_err(bad)?;
        let given = text.lines().chain(self.properties.iter().map(String::as_str));
        if self.brokers.is_none() && !given.into_iter().any(names_brokers) {
            return Err(Exit::Usage.error("no broker is named: say `-b HOST:PORT`, e.g. `-b localhost:9092`"));
        }
        Ok(properties)
    }
}

/// Without the properties, among which may be a password.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("brokers", &self.brokers)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

fn names_brokers(pair: &str) -> bool {
    let name = pair.split('=').next().unwrap_or_default().trim();
    matches!(name, "bootstrap.servers" | "metadata.broker.list")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        connection: Connection,
    }

    #[test]
    fn nothing_that_can_be_printed_has_a_secret() {
        let line = Line::parse_from([
            "x",
            "-b",
            "b:9092",
            "-X",
            "sasl.password=hunter2",
            "-X",
            "client.rack=r1",
        ]);
        let properties = line.connection.properties().unwrap();
        let printed = format!("{line:?} {properties:?}");
        assert!(!printed.contains("hunter2"), "{printed}");
        assert!(printed.contains("b:9092") && printed.contains("r1"), "{printed}");
    }
}
