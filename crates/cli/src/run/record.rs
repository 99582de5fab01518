//! What happens during a run, written to a file that `seriatim verify` judges.

use std::path::Path;

use anyhow::Context;
use seriatim_runtime::backend::Backend;
use seriatim_runtime::ports::Handler;
use seriatim_testkit::history::recording::{Consumes, Header, Recorder};
use seriatim_testkit::history::{History, TracedBackend, TracedHandler, TracedObserver, What};

use crate::exit::Exit;

/// A run has one instance, and a recording counts none.
const INSTANCE: u32 = 0;

/// A recording in the making.
pub(crate) struct Recording {
    history: History,
}

impl Recording {
    /// Begins to write to `file`, behind what it holds.
    ///
    /// # Errors
    /// With exit code 78 when the file cannot be written, or another process records into it.
    pub(super) fn begin(file: &Path, consumes: Consumes) -> anyhow::Result<Self> {
        let told = file.display().to_string();
        let failed = move |error| tracing::error!(file = told, %error, "the recording ends here: it cannot be written");
        let recorder = Recorder::append(file, &Header::now(consumes), failed)
            .with_context(|| format!("recording to {}", file.display()))
            .map_err(|error| Exit::BadConfiguration.error(format!("{error:#}")))?;
        Ok(Self {
            history: History::recorded(recorder),
        })
    }

    /// Watches where the consumer runs.
    pub(super) fn backend<B: Backend>(&self, backend: B) -> TracedBackend<B> {
        TracedBackend::new(backend, INSTANCE, &self.history)
    }

    /// Watches the handler.
    pub(super) fn handler<H: Handler>(&self, handler: H) -> TracedHandler<H> {
        TracedHandler::new(handler, INSTANCE, &self.history)
    }

    /// Takes down what only an observer is told.
    pub(super) fn observer(&self) -> TracedObserver {
        TracedObserver::new(INSTANCE, &self.history)
    }

    /// Says that the run has ended by itself. Nothing is written after it.
    pub(super) fn end(&self) {
        self.history.note(INSTANCE, What::Left);
    }
}
