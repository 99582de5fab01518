//! Dead letters on virtual time: slow, at times refused, at times kept without an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use seriatim_runtime::message::OwnedMessage;
use seriatim_runtime::ports::{DeadLetter, DeadLetterError, DeadLetters};
use seriatim_runtime::record::Record;

use super::clock::Clock;
use super::sabotage::Sabotage;
use crate::log::{LetterFault, Log, LogDeadLetters};
use crate::rng::Rng;

/// How well dead letters fare. Clones are the same road.
#[derive(Clone, Default)]
pub(crate) struct Weather(Arc<AtomicBool>);

impl Weather {
    pub(crate) fn set_down(&self, down: bool) {
        self.0.store(down, Ordering::Relaxed);
    }
}

pub(crate) struct SimLetters {
    pub(crate) log: Log,
    pub(crate) clock: Clock,
    pub(crate) seed: u64,
    pub(crate) weather: Weather,
    pub(crate) sabotage: Sabotage,
    pub(crate) sent: AtomicU64,
}

impl DeadLetters for SimLetters {
    async fn publish(&self, letter: DeadLetter) -> Result<(), DeadLetterError> {
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        let mut rng = Rng::of(&[self.seed, number]);
        self.clock.sleep(Duration::from_micros(rng.within(0..8_000))).await;

        let kept = LogDeadLetters::new(&self.log);
        match self.sabotage {
            Sabotage::AcknowledgeLetterFirst => return Ok(()),
            Sabotage::StripLetters => return kept.keep(&stripped(letter)),
            Sabotage::PublishTwice => kept.keep(&letter)?,
            _ => {}
        }
        if self.weather.0.load(Ordering::Relaxed) || rng.percent(5) {
            kept.fail([LetterFault::Refused]);
        } else if rng.percent(4) {
            kept.fail([LetterFault::AnswerLost]);
        }
        kept.keep(&letter)
    }
}

fn stripped(letter: DeadLetter) -> DeadLetter {
    let record = &letter.record;
    let bare = OwnedMessage::build(
        record.topic(),
        record.partition(),
        record.id().offset,
        record.timestamp(),
        record.key(),
        record.value(),
        std::iter::empty(),
    );
    DeadLetter {
        record: Record::from(bare),
        ..letter
    }
}
