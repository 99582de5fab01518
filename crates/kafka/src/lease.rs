//! Until when the group certainly counts this member, as far as its answers tell.
//!
//! A coordinator drops a member of which it has heard nothing for the session timeout, and it counts from the last request,
//! whose time it alone knows. But a commit that it has accepted was sent before, and an assignment was heard after the last
//! time that nothing was heard: each is no later than the coordinator's own count. Heartbeats, which librdkafka keeps to
//! itself, are not needed for this: a commit is made before the lease runs out.

use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use seriatim_runtime::clock;
use seriatim_runtime::ports::LeaseTerm;

/// What librdkafka does when nothing is configured.
const SESSION_TIMEOUT: Duration = Duration::from_secs(45);
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(300);

/// What is known of our standing in the group.
#[derive(Debug)]
pub(crate) struct Standing {
    session_timeout: Duration,
    poll_interval_max: Duration,
    /// The last time from which on everything was heard that had come before.
    heard_all_at: Instant,
    /// The group counted us then.
    confirmed_at: Instant,
    polled_at: Instant,
}

impl Standing {
    pub(crate) fn new(config: &ClientConfig) -> Self {
        let millis = |name, default| {
            let millis = config.get(name).and_then(|value| value.parse().ok());
            millis.map_or(default, Duration::from_millis)
        };
        let now = clock::now();
        Self {
            session_timeout: millis("session.timeout.ms", SESSION_TIMEOUT),
            poll_interval_max: millis("max.poll.interval.ms", POLL_INTERVAL_MAX),
            heard_all_at: now,
            confirmed_at: now,
            polled_at: now,
        }
    }

    /// The client is polled now; when that is not done for `max.poll.interval.ms`, it leaves the group.
    pub(crate) fn polled(&mut self, now: Instant) {
        self.polled_at = now;
    }

    /// All events were heard that had come before `began`.
    pub(crate) fn heard_all(&mut self, began: Instant) {
        self.heard_all_at = began;
    }

    /// The group has told an assignment. It did so after everything was heard the last time.
    pub(crate) fn assigned(&mut self) {
        self.confirm(self.heard_all_at);
    }

    /// The group has accepted a commit that was sent then.
    pub(crate) fn committed(&mut self, sent_at: Instant) {
        self.confirm(sent_at);
    }

    fn confirm(&mut self, at: Instant) {
        self.confirmed_at = self.confirmed_at.max(at);
    }

    pub(crate) fn term(&self) -> LeaseTerm {
        let session_ends = self.confirmed_at + self.session_timeout;
        LeaseTerm {
            renew_from: self.confirmed_at + self.session_timeout / 3,
            ends: session_ends.min(self.polled_at + self.poll_interval_max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing() -> Standing {
        let mut config = ClientConfig::new();
        config
            .set("session.timeout.ms", "9000")
            .set("max.poll.interval.ms", "20000");
        Standing::new(&config)
    }

    #[test]
    fn an_assignment_counts_from_the_last_time_that_all_was_heard() {
        let mut standing = standing();
        let (heard, thawed) = (
            standing.heard_all_at + Duration::from_secs(5),
            standing.heard_all_at + Duration::from_secs(60),
        );
        standing.heard_all(heard);
        standing.polled(thawed);
        standing.assigned();
        let term = standing.term();
        assert_eq!(term.ends, heard + Duration::from_secs(9));
        assert_eq!(term.renew_from, heard + Duration::from_secs(3));
        assert!(
            term.ends < thawed,
            "what was assigned before a freeze may be another's after it"
        );
    }

    #[test]
    fn a_commit_counts_from_its_sending_and_never_shortens_the_lease() {
        let mut standing = standing();
        let began = standing.confirmed_at;
        standing.committed(began + Duration::from_secs(4));
        standing.committed(began + Duration::from_secs(2));
        assert_eq!(standing.term().ends, began + Duration::from_secs(13));
    }

    #[test]
    fn who_does_not_poll_is_out_of_the_group_whatever_it_commits() {
        let mut standing = standing();
        let began = standing.polled_at;
        standing.committed(began + Duration::from_secs(19));
        assert_eq!(standing.term().ends, began + Duration::from_secs(20));
    }

    #[test]
    fn without_configuration_librdkafkas_own_limits_count() {
        let standing = Standing::new(&ClientConfig::new());
        assert_eq!(standing.term().ends, standing.confirmed_at + SESSION_TIMEOUT);
    }
}
