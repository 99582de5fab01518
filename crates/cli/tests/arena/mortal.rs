//! A member that kills itself at a step of its work: see `examples/mortal-member.rs`.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use seriatim_testkit::history::{What, recording};

use super::{
    Arena, COMMIT_INTERVAL, DRAIN_TIMEOUT, LATENCY_MAX_MS, PERMANENT_PER_MILLE, RETRY_BASE, RETRY_CAP,
    TRANSIENT_PERCENT,
};
use crate::command::{Running, example, until};

pub(crate) struct Mortal {
    running: Running,
    recording: PathBuf,
}

impl Arena {
    /// Starts a member that dies when it is at `step` for the `nth` time, from 1.
    pub(crate) fn join_mortal(&mut self, step: &str, nth: usize) -> Mortal {
        let recording = self.recording();
        let order = json!({
            "step": step,
            "nth": nth,
            "brokers": self.brokers,
            "group": self.group,
            "topic": self.topic,
            "recording": recording,
            "session_timeout_ms": self.session_timeout.as_millis() as u64,
            "commit_interval_ms": COMMIT_INTERVAL.as_millis() as u64,
            "drain_timeout_ms": DRAIN_TIMEOUT.as_millis() as u64,
            "retry_base_ms": RETRY_BASE.as_millis() as u64,
            "retry_cap_ms": RETRY_CAP.as_millis() as u64,
            "temper": {
                "seed": self.seed,
                "latency_max_ms": LATENCY_MAX_MS,
                "transient_percent": TRANSIENT_PERCENT,
                "permanent_per_mille": PERMANENT_PER_MILLE,
            },
        });
        let running = Running::start_program(&example("mortal-member"), &[], &[&order.to_string()]);
        Mortal { running, recording }
    }
}

impl Mortal {
    /// Waits until it has committed what it has done.
    #[track_caller]
    pub(crate) fn await_work(&self) {
        let has_committed = || fs::read_to_string(&self.recording).is_ok_and(|text| text.contains(" yes\n"));
        until("it has committed", has_committed);
    }

    /// Waits until it has killed itself, and returns all that it wrote before.
    #[track_caller]
    pub(crate) fn dies(self) -> Vec<(Duration, What)> {
        let done = self.running.finish();
        assert_eq!(done.code, -1, "it ended otherwise: {}", done.err);
        let mut recordings = recording::read(&self.recording).expect("its recording");
        recordings.pop().expect("it has recorded").entries
    }
}
