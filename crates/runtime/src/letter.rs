//! Dead letters on their way: made from a record and its last failure, kept until they are acknowledged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use seriatim_engine::lane::LaneId;
use seriatim_engine::trail::CRASHES_MAX;

use crate::failure::Failure;
use crate::ports::{DeadLetter, DeadLetterError, DeadLetterReason, DeadLetters, Event, Observer};
use crate::record::Record;
use crate::session_by::SessionBy;
use crate::slots::Publication;

/// The dead letters of one worker that are not acknowledged yet, by lane.
pub(crate) struct Letters {
    publish: Box<dyn Fn(DeadLetter) -> Publication + Send>,
    session_by: Arc<SessionBy>,
    clock: WallClock,
    pending: HashMap<LaneId, Pending>,
}

struct Pending {
    letter: DeadLetter,
    tries: u32,
}

/// Turns the monotonic times that the tiers go by into times that people read.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    /// A monotonic time,
    pub instant: Instant,
    /// and the wall time that it was.
    pub wall: SystemTime,
}

impl WallClock {
    /// The clock of a consumer that starts now.
    pub fn now() -> Self {
        Self {
            instant: Instant::now(),
            wall: SystemTime::now(),
        }
    }

    fn at(&self, instant: Instant) -> SystemTime {
        self.wall + instant.saturating_duration_since(self.instant)
    }
}

impl Letters {
    pub(crate) fn new(sink: Arc<impl DeadLetters>, session_by: Arc<SessionBy>, clock: WallClock) -> Self {
        let publish = move |letter| -> Publication {
            let sink = Arc::clone(&sink);
            Box::pin(async move { sink.publish(letter).await })
        };
        Self {
            publish: Box::new(publish),
            session_by,
            clock,
            pending: HashMap::new(),
        }
    }

    /// Begins to write the dead letter of the record in `lane`.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn begin(
        &mut self,
        lane: LaneId,
        record: Record,
        reason: DeadLetterReason,
        attempts: u32,
        failure: &Failure,
        first_failure: Instant,
        now: Instant,
    ) -> Publication {
        let error = failure.error();
        let letter = DeadLetter {
            session: self.session_by.key_of_record(&record).ok(),
            record: record.detached(),
            reason,
            attempts,
            error_class: error_class(error).to_owned(),
            error_text: printable(&error.to_string()),
            first_failure: self.clock.at(first_failure),
            last_failure: self.clock.at(now),
        };
        self.send(lane, letter)
    }

    /// Begins to write the dead letter of a record without a readable session key.
    pub(crate) fn undecodable(&mut self, lane: LaneId, record: Record, now: Instant) -> Publication {
        let error_text = match self.session_by.key_of_record(&record) {
            Ok(_) => String::new(),
            Err(error) => printable(&error.to_string()),
        };
        let letter = DeadLetter {
            record,
            session: None,
            reason: DeadLetterReason::Undecodable,
            attempts: 0,
            error_class: "SessionKeyError".to_owned(),
            error_text,
            first_failure: self.clock.at(now),
            last_failure: self.clock.at(now),
        };
        self.send(lane, letter)
    }

    /// Begins to write the dead letter of a record that was in flight at several crashes in a row, after so many attempts
    /// that failed without one.
    pub(crate) fn poison(&mut self, lane: LaneId, record: Record, attempts: u32, now: Instant) -> Publication {
        let letter = DeadLetter {
            session: self.session_by.key_of_record(&record).ok(),
            record: record.detached(),
            reason: DeadLetterReason::Exhausted,
            attempts: attempts + u32::from(CRASHES_MAX),
            error_class: "ProcessCrash".to_owned(),
            error_text: format!(
                "{CRASHES_MAX} times in a row its process ended, or lost its partition and did not come back to it, while this \
                 record was in flight; it is not started again"
            ),
            first_failure: self.clock.at(now),
            last_failure: self.clock.at(now),
        };
        self.send(lane, letter)
    }

    fn send(&mut self, lane: LaneId, letter: DeadLetter) -> Publication {
        let publication = (self.publish)(letter.clone());
        self.pending.insert(lane, Pending { letter, tries: 0 });
        publication
    }

    /// Writes the letter of `lane` once more, if it has one that failed to be written.
    pub(crate) fn again(&self, lane: LaneId) -> Option<Publication> {
        if self.pending.is_empty() {
            return None;
        }
        let pending = self.pending.get(&lane)?;
        Some((self.publish)(pending.letter.clone()))
    }

    /// The letter of `lane` is acknowledged.
    pub(crate) fn published(&mut self, lane: LaneId, observer: &dyn Observer) {
        let pending = self.pending.remove(&lane).expect("a letter that was written was begun");
        observer.observe(Event::DeadLettered(&pending.letter));
    }

    /// The letter of `lane` could not be written. Returns how often that happened.
    pub(crate) fn failed(&mut self, lane: LaneId, error: &DeadLetterError, observer: &dyn Observer) -> u32 {
        let pending = self.pending.get_mut(&lane).expect("a letter that failed was begun");
        pending.tries += 1;
        observer.observe(Event::DeadLetterFailed(&pending.letter, error));
        pending.tries
    }

    /// The record of `lane` is no longer ours.
    pub(crate) fn forget(&mut self, lane: LaneId) {
        if !self.pending.is_empty() {
            self.pending.remove(&lane);
        }
    }
}

/// What kind of error it is, in one word of its `Debug` form: the variant or type name, never its contents.
fn error_class(error: &(dyn std::error::Error + Send + Sync)) -> String {
    let debug = format!("{error:?}");
    let word: String = debug
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .take(64)
        .collect();
    // A plain text turned into an error prints as a quoted text.
    if word.is_empty() { "Error".to_owned() } else { word }
}

/// The text with control characters replaced, cut at a character's border.
fn printable(text: &str) -> String {
    let mut printable = String::new();
    for c in text.chars() {
        let c = if c.is_control() { ' ' } else { c };
        if printable.len() + c.len_utf8() > DeadLetter::ERROR_TEXT_MAX {
            break;
        }
        printable.push(c);
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_text_is_printable_and_bounded() {
        assert_eq!(printable("two\nlines\u{7}"), "two lines ");
        assert!(printable(&"ü".repeat(5000)).len() <= DeadLetter::ERROR_TEXT_MAX);
    }

    #[test]
    fn an_errors_class_is_its_name_and_not_its_contents() {
        let plain: Box<dyn std::error::Error + Send + Sync> = "card 4111 declined".into();
        assert_eq!(error_class(&*plain), "Error");
        let parse = "x".parse::<i32>().unwrap_err();
        assert_eq!(error_class(&parse), "ParseIntError");
    }
}
