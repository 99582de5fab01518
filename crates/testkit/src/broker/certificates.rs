//! Certificates for tests of TLS, made by the `openssl` command when they are needed, in milliseconds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::BrokerError;

/// Longer than a test runs, and no use to whoever finds one.
const DAYS: &str = "2";

/// Where clients find the brokers of a test.
const BROKER_NAMES: &str = "subjectAltName=IP:127.0.0.1,DNS:localhost\n";

/// A certificate authority of one test. What it issued lies in files, which go when it is dropped.
#[derive(Debug)]
pub struct Authority {
    dir: TempDir,
}

/// Who somebody is, in two PEM files.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key, not encrypted.
    pub key: PathBuf,
}

impl Authority {
    /// Makes an authority that nobody else trusts.
    ///
    /// # Errors
    /// When the `openssl` command is missing or fails.
    pub fn new() -> Result<Self, BrokerError> {
        let dir = tempfile::Builder::new()
            .prefix("seriatim-certificates-")
            .tempdir()
            .map_err(|error| failed(&error))?;
        let authority = Self { dir };
        let Identity { certificate, key } = authority.files("authority");
        openssl(&[
            &["req", "-x509", "-days", DAYS, "-subj", "/CN=seriatim-authority"],
            NEW_KEY,
            &["-keyout", &text(&key), "-out", &text(&certificate)],
        ])?;
        Ok(authority)
    }

    /// Its own certificate, in PEM: who trusts it trusts all that it issued.
    pub fn certificate(&self) -> PathBuf {
        self.files("authority").certificate
    }

    /// Issues a certificate under this name, good for a client and for a broker on loopback.
    ///
    /// # Errors
    /// When the `openssl` command fails.
    pub fn issue(&self, name: &str) -> Result<Identity, BrokerError> {
        let (own, identity) = (self.files("authority"), self.files(name));
        let (request, names) = (self.path(name, "csr"), self.path(name, "ext"));
        fs::write(&names, BROKER_NAMES).map_err(|error| failed(&error))?;
        openssl(&[
            &["req", "-subj", &format!("/CN={name}")],
            NEW_KEY,
            &["-keyout", &text(&identity.key), "-out", &text(&request)],
        ])?;
        openssl(&[
            &["x509", "-req", "-days", DAYS, "-CAcreateserial"],
            &["-CA", &text(&own.certificate), "-CAkey", &text(&own.key)],
            &["-in", &text(&request), "-extfile", &text(&names)],
            &["-out", &text(&identity.certificate)],
        ])?;
        Ok(identity)
    }

    fn files(&self, name: &str) -> Identity {
        Identity {
            certificate: self.path(name, "pem"),
            key: self.path(name, "key"),
        }
    }

    fn path(&self, name: &str, extension: &str) -> PathBuf {
        self.dir.path().join(name).with_extension(extension)
    }
}

const NEW_KEY: &[&str] = &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

fn openssl(args: &[&[&str]]) -> Result<(), BrokerError> {
    let output = Command::new("openssl")
        .args(args.concat())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(&error))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(&String::from_utf8_lossy(&output.stderr)))
}

fn failed(reason: &dyn std::fmt::Display) -> BrokerError {
    BrokerError::Certificates {
        reason: reason.to_string(),
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
