//! Ctrl-C and SIGTERM.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask a command to end. From its making on they end the process no more by themselves.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    seen: u32,
}

impl Signals {
    /// Begins to listen. Within a tokio runtime.
    ///
    /// # Errors
    /// When the system does not let the process handle them.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            seen: 0,
        })
    }

    /// Returns at the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
        self.seen += 1;
    }

    /// Returns when there have been two in all: the first asks for an orderly end, whatever ends already.
    pub(crate) async fn second(&mut self) {
        while self.seen < 2 {
            self.next().await;
        }
    }
}
