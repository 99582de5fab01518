//! Exit codes, and how an error is told.

use std::fmt;
use std::process::ExitCode;

/// How the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All went well.
    Fine = 0,
    /// Something unexpected happened.
    Unexpected = 1,
    /// The command line is wrong.
    Usage = 2,
    /// Nothing matched.
    NothingMatched = 4,
    /// No broker can be reached.
    Unreachable = 69,
    /// The configuration is wrong.
    BadConfiguration = 78,
    /// Order was violated, or a record was lost.
    Violation = 100,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// An error with an exit code of its own.
#[derive(Debug)]
pub struct ExitError {
    /// The code.
    pub exit: Exit,
    /// What is said on standard error.
    pub message: String,
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ExitError {}

impl Exit {
    /// An error that ends the command with this code.
    pub fn error(self, message: impl Into<String>) -> anyhow::Error {
        let message = message.into();
        ExitError { exit: self, message }.into()
    }

    /// An error that ends the command with this code, and says what was wrong and why.
    pub fn caused(self, error: Box<dyn std::error::Error + Send + Sync>) -> anyhow::Error {
        self.error(format!("{:#}", anyhow::Error::from_boxed(error)))
    }

    /// Tells `error` on standard error, and returns its code.
    pub fn of_error(error: anyhow::Error) -> Exit {
        eprintln!("error: {error:#}");
        let exit = error.chain().find_map(|cause| cause.downcast_ref::<ExitError>());
        exit.map_or(Exit::Unexpected, |error| error.exit)
    }
}
