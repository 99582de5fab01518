//! Printing records: one line each on standard output, in the order in which they are settled.
//!
//! A record is settled when its line is written. Lines are collected while a thread writes those before them, so that
//! thousands of records share one write and each of its waiters is woken once.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use seriatim_runtime::context::Context;
use seriatim_runtime::failure::Failure;
use seriatim_runtime::ports::Handler;
use seriatim_runtime::record::Record;
use seriatim_runtime::session_by::SessionBy;
use tokio::sync::watch;

use crate::json::{JsonRecord, wire_id};
use crate::show::{SHOWN_CHARS_MAX, show};

/// How a record's line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Place, session and value, for people
    Text,
    /// One JSON object, for programs
    Json,
}

/// A page that is fuller than this takes no line before it is written: some writes' worth, whatever records hold.
const PAGE_BYTES_MAX: usize = 1024 * 1024;

/// The handler that prints. Clones print to the same output.
#[derive(Clone)]
pub(crate) struct Printer {
    format: Format,
    session_by: SessionBy,
    sheet: Arc<Sheet>,
    written: watch::Receiver<Written>,
    draining: watch::Receiver<bool>,
}

/// What is collected, and what tells the writer of it.
struct Sheet {
    page: Mutex<Page>,
    turn: Condvar,
}

struct Page {
    lines: Vec<u8>,
    /// The number of this page, from 1.
    number: u64,
    /// How many more lines may be written; `None` without a limit.
    quota: Option<u64>,
}

/// How far the writer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// Up to and with this page.
    UpTo(u64),
    /// Nobody reads any more.
    Closed,
}

/// Why nothing more is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrintEnd {
    /// As many lines as were wanted.
    Quota,
    /// Nobody reads standard output any more.
    Closed,
}

/// A record that was not printed. It stays unsettled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unprinted {
    #[error("standard output was closed")]
    Closed,
    #[error("as many records were printed as were wanted")]
    Quota,
}

impl Printer {
    /// Prints to standard output, at most `quota` lines. `draining` tells when the run's last drain has begun.
    pub(crate) fn start(
        format: Format,
        session_by: SessionBy,
        quota: Option<u64>,
        draining: watch::Receiver<bool>,
    ) -> Self {
        let (progress, written) = watch::channel(Written::UpTo(0));
        let sheet = Arc::new(Sheet {
            page: Mutex::new(Page {
                lines: Vec::new(),
                number: 1,
                quota,
            }),
            turn: Condvar::new(),
        });
        let writer = Arc::clone(&sheet);
        thread::Builder::new()
            .name("seriatim-print".into())
            .spawn(move || writer.write_pages(&mut io::stdout(), &progress))
            .expect("the system has room for another thread");
        Self {
            format,
            session_by,
            sheet,
            written,
            draining,
        }
    }

    /// Returns when nothing more will be printed.
    pub(crate) async fn ended(&self) -> PrintEnd {
        let mut written = self.written.clone();
        loop {
            match *written.borrow_and_update() {
                Written::Closed => return PrintEnd::Closed,
                Written::UpTo(page) if self.sheet.is_complete(page) => return PrintEnd::Quota,
                Written::UpTo(_) => {}
            }
            if written.changed().await.is_err() {
                return PrintEnd::Closed;
            }
        }
    }

    /// Puts the record's line on a page, and returns the page's number. It waits while the page is full.
    async fn place(&self, line: &[u8]) -> Result<u64, Unprinted> {
        loop {
            match self.sheet.place(line) {
                Placed::On(page) => return Ok(page),
                Placed::Full(page) => self.written(page).await?,
                Placed::OverQuota => return Err(Unprinted::Quota),
            }
        }
    }

    async fn written(&self, page: u64) -> Result<(), Unprinted> {
        let reached = |written: &Written| match *written {
            Written::UpTo(written) => written >= page,
            Written::Closed => true,
        };
        match self.written.clone().wait_for(reached).await.as_deref() {
            Ok(Written::UpTo(_)) => Ok(()),
            Ok(Written::Closed) | Err(_) => Err(Unprinted::Closed),
        }
    }
}

impl Handler for Printer {
    async fn handle(&self, record: Record, cx: Context) -> Result<(), Failure> {
        let session = self.session_by.key_of_record(&record).ok();
        let mut line = Vec::with_capacity(128 + record.payload().len().min(SHOWN_CHARS_MAX));
        match self.format {
            Format::Text => text_line(&record, session.as_deref(), &mut line),
            Format::Json => {
                JsonRecord::new(&wire_id(&record), &record, session.as_deref(), Some(cx.attempt()))
                    .write_line(&mut line);
            }
        }
        let printed = match self.place(&line).await {
            Ok(page) => self.written(page).await,
            Err(unprinted) => Err(unprinted),
        };
        if printed.is_err() {
            // The run is about to stop. Once its worker knows that too, at its next turn, the failure is no attempt to make
            // again: the record is the next run's.
            let _ = self.draining.clone().wait_for(|draining| *draining).await;
            tokio::task::yield_now().await;
        }
        Ok(printed?)
    }
}

enum Placed {
    On(u64),
    Full(u64),
    OverQuota,
}

impl Sheet {
    fn place(&self, line: &[u8]) -> Placed {
        let mut page = self.page();
        if page.lines.len() >= PAGE_BYTES_MAX {
            return Placed::Full(page.number);
        }
        match &mut page.quota {
            Some(0) => return Placed::OverQuota,
            Some(quota) => *quota -= 1,
            None => {}
        }
        let wake = page.lines.is_empty();
        page.lines.extend_from_slice(line);
        let number = page.number;
        drop(page);
        if wake {
            self.turn.notify_one();
        }
        Placed::On(number)
    }

    /// Whether, with `written` being the last page that was, all lines of the quota are.
    fn is_complete(&self, written: u64) -> bool {
        let page = self.page();
        page.quota == Some(0) && written + 1 == page.number && page.lines.is_empty()
    }

    /// The writer's loop. It ends when standard output does, or with the process.
    fn write_pages(&self, output: &mut impl Write, progress: &watch::Sender<Written>) {
        let mut lines = Vec::new();
        loop {
            let number = self.turn_page(&mut lines);
            match output.write_all(&lines).and_then(|()| output.flush()) {
                Ok(()) => progress.send_replace(Written::UpTo(number)),
                Err(error) => {
                    if error.kind() != io::ErrorKind::BrokenPipe {
                        tracing::error!(%error, "standard output cannot be written to");
                    }
                    progress.send_replace(Written::Closed);
                    return;
                }
            };
            lines.clear();
        }
    }

    /// Waits for a page that is not empty, begins the next, and returns the number of the one taken.
    fn turn_page(&self, lines: &mut Vec<u8>) -> u64 {
        let mut page = self.page();
        while page.lines.is_empty() {
            page = self.turn.wait(page).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut page.lines, lines);
        page.number += 1;
        page.number - 1
    }

    fn page(&self) -> MutexGuard<'_, Page> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `chat[3]@42`, the session and the value, with tabs between them.
fn text_line(record: &Record, session: Option<&[u8]>, line: &mut Vec<u8>) {
    let mut text = format!("{}[{}]@{}\t", record.topic(), record.partition(), record.offset());
    show(session, &mut text);
    text.push('\t');
    show(record.value(), &mut text);
    text.push('\n');
    line.extend_from_slice(text.as_bytes());
}
