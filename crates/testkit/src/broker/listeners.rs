//! Listeners beside the plain one: with TLS, with passwords, with both.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::certificates::{Authority, Identity};

/// A listener of a cluster that was given [`Security`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener {
    /// TLS.
    Tls,
    /// TLS, to clients with a certificate alone.
    MutualTls,
    /// SASL in the clear: PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.
    Sasl,
    /// The same within TLS.
    SaslTls,
}

/// What a cluster needs to know so that it can listen on each [`Listener`] too.
#[derive(Debug, Clone)]
pub struct Security {
    /// The certificate of the brokers.
    pub broker: Identity,
    /// The certificate of the authority that clients' certificates are of.
    pub authority: PathBuf,
    /// Who may come with which password.
    pub users: Vec<(String, String)>,
}

impl Security {
    /// Brokers and clients of one authority; users with their passwords.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    pub fn new(authority: &Authority, users: &[(&str, &str)]) -> Result<Self, super::BrokerError> {
        let owned = |(name, password): &(&str, &str)| ((*name).to_owned(), (*password).to_owned());
        Ok(Self {
            broker: authority.issue("broker")?,
            authority: authority.certificate(),
            users: users.iter().map(owned).collect(),
        })
    }

    /// Writes the brokers' key store into the node's directory: Kafka wants key and certificate in one file.
    pub(super) fn write_keys(&self, dir: &Path) -> io::Result<()> {
        let key = fs::read_to_string(&self.broker.key)?;
        let certificate = fs::read_to_string(&self.broker.certificate)?;
        fs::write(dir.join(KEY_STORE), key + &certificate)
    }

    /// What the format of a node's storage needs beside its own: the users of SCRAM.
    pub(super) fn format_args(&self) -> Vec<String> {
        let mut args = Vec::new();
        for (name, password) in &self.users {
            for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
                args.push("--add-scram".to_owned());
                args.push(format!("{mechanism}=[name={name},password={password}]"));
            }
        }
        args
    }

    /// What `server.properties` needs beside the listeners themselves.
    pub(super) fn properties(&self) -> String {
        let mut properties = format!(
            "\
ssl.keystore.type=PEM
ssl.keystore.location={KEY_STORE}
ssl.truststore.type=PEM
ssl.truststore.location={}
listener.name.{}.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
",
            self.authority.display(),
            Listener::MutualTls.name().to_lowercase(),
        );
        let users = self.users.iter().fold(String::new(), |mut users, (name, password)| {
            let _ = write!(users, " user_{name}=\"{password}\"");
            users
        });
        let modules = "org.apache.kafka.common.security";
        for listener in [Listener::Sasl, Listener::SaslTls] {
            let prefix = format!("listener.name.{}", listener.name().to_lowercase());
            let _ = writeln!(
                properties,
                "{prefix}.plain.sasl.jaas.config={modules}.plain.PlainLoginModule required{users};"
            );
            for mechanism in ["scram-sha-256", "scram-sha-512"] {
                let _ = writeln!(
                    properties,
                    "{prefix}.{mechanism}.sasl.jaas.config={modules}.scram.ScramLoginModule required;"
                );
            }
        }
        properties
    }
}

/// Relative to the node's directory, which Kafka runs in.
const KEY_STORE: &str = "broker.pem";

impl Listener {
    pub(super) const ALL: [Self; 4] = [Self::Tls, Self::MutualTls, Self::Sasl, Self::SaslTls];

    /// What it is called in `server.properties`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Listener::Tls => "TLS",
            Listener::MutualTls => "MUTUAL_TLS",
            Listener::Sasl => "SASL",
            Listener::SaslTls => "SASL_TLS",
        }
    }

    /// Kafka's `security.protocol` of it, in upper case as brokers have it.
    pub(super) fn protocol(self) -> &'static str {
        match self {
            Listener::Tls | Listener::MutualTls => "SSL",
            Listener::Sasl => "SASL_PLAINTEXT",
            Listener::SaslTls => "SASL_SSL",
        }
    }
}
