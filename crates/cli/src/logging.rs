//! What is said on standard error, and how much of it.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

/// How much is said.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Verbosity {
    /// Say more on standard error: `-v` each failed attempt, `-vv` each commit
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Say less on standard error: `-q` only trouble, `-qq` only errors
    #[arg(short, long, action = clap::ArgAction::Count, conflicts_with = "verbose")]
    quiet: u8,
}

impl Verbosity {
    /// Whether summaries and progress are unwanted.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet > 0
    }

    /// Sends events to standard error, as text: colours on a terminal only, and not with `NO_COLOR`. `RUST_LOG`
    /// overrides the options.
    pub(crate) fn init(&self) {
        // What librdkafka logs is for who asks for details: what matters of it we say in our own words, and once.
        let filter = match (self.verbose, self.quiet) {
            (_, 2..) => "error,librdkafka=off",
            (_, 1) => "warn,librdkafka=off",
            (0, 0) => "info,librdkafka=off",
            (1, 0) => "debug",
            (2.., 0) => "trace",
        };
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(filter));
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal() && !no_color)
            .with_target(false)
            .finish();
        // A second call would be a defect, and silence its only harm.
        let _ = tracing::subscriber::set_global_default(subscriber);
    }
}
