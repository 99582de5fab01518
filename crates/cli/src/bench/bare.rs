//! The bare batch loop: what the client gives away, checked for order and thrown away, on one thread. It is what
//! anything that reads with this client can reach at most.

use seriatim::runtime::message::Message;

use super::by_hand::{Reader, source};
use super::contender::Spec;
use super::meter::Reading;
use super::stage::Stage;

pub fn run(spec: &Spec, stage: &'static Stage) -> anyhow::Result<Reading> {
    let mut reader = Reader::new(source(spec)?, spec.ends.len());
    reader.read(spec.workload.records, |message| {
        stage.pass(message.value().unwrap_or_default());
    })?;
    reader.commit()?;
    let ended = Reading::now();
    reader.close();
    Ok(ended)
}
