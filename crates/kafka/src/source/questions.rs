//! What is to be asked, of the brokers and by the aide, and when.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use seriatim_engine::assignment::AssignmentEpoch;

use super::range::Search;
use crate::rebalance::Ticket;

/// How often the logs' ends are reported: lag monitors look every ten seconds or more.
pub(super) const ENDS_INTERVAL: Duration = Duration::from_secs(5);

/// The first fetch tells where a log ends, and takes less than this.
const FIRST_ENDS_AFTER: Duration = Duration::from_secs(1);

/// A question that was not answered is asked again after this.
pub(super) const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// How often it is asked which topics there are by now, unless `topic.metadata.refresh.interval.ms` says otherwise: as often
/// as the client itself asks.
const TOPICS_INTERVAL_DEFAULT: Duration = Duration::from_secs(300);

/// A client may be told to ask for its topics in each millisecond, and it asks several times a second while a leader is away.
/// We need not.
const TOPICS_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// How long nothing is read while it is asked which topics there are: of one that was created anew, records are fetched soon.
/// A broker that answers does so in milliseconds; one that does not must not keep the others waiting.
const TOPICS_AWAITED_MAX: Duration = Duration::from_millis(500);

/// What is to be asked, and when.
#[derive(Debug, Default)]
pub(super) struct Questions {
    pub(super) committed: Vec<(Ticket, Instant)>,
    /// What was not found out yet of partitions that stand still.
    searches: Vec<(Search, Instant)>,
    /// Periods of ownership in which one is due, or the aide is at it.
    searching: HashSet<AssignmentEpoch>,
    pub(super) ends_due: Option<Instant>,
    /// Whether the aide is at it.
    pub(super) ends_asked: bool,
    pub(super) topics_due: Option<Instant>,
    /// Whether the aide is at it, when it was last sent, and how often the client has heard of topics by itself.
    pub(super) topics_asked: bool,
    pub(super) topics_asked_at: Option<Instant>,
    topic_news: u64,
    pub(super) gates_due: Option<Instant>,
}

impl Questions {
    /// How long until something is due.
    pub(super) fn next_due(&self, now: Instant) -> Duration {
        let committed = self.committed.iter().map(|(_, due)| *due);
        let searches = self.searches.iter().map(|(_, due)| *due);
        let next = committed
            .chain(searches)
            .chain(self.ends_due)
            .chain(self.topics_due)
            .chain(self.gates_due)
            .min();
        next.map_or(Duration::MAX, |due| due.saturating_duration_since(now))
    }

    /// Reports the logs' ends a little later.
    pub(super) fn ask_ends_soon(&mut self, now: Instant) {
        let soon = now + FIRST_ENDS_AFTER;
        self.ends_due = Some(self.ends_due.map_or(soon, |due| due.min(soon)));
    }

    /// Asks a little later what is committed.
    pub(super) fn ask_committed_later(&mut self, ticket: Ticket, now: Instant) {
        self.committed.push((ticket, now + ASK_AGAIN_AFTER));
    }

    /// The client has heard of topics so often by now: what it was told is asked too, at once or a little after the last time.
    pub(super) fn hear_of_topics(&mut self, times: u64, now: Instant) {
        if self.topic_news != times {
            self.topic_news = times;
            self.ask_topics_soon(now);
        }
    }

    /// Asks about topics as soon as that may be asked again.
    pub(super) fn ask_topics_soon(&mut self, now: Instant) {
        let soon = self.topics_asked_at.map_or(now, |at| now.max(at + TOPICS_INTERVAL_MIN));
        self.topics_due = Some(self.topics_due.map_or(soon, |due| due.min(soon)));
    }

    /// How much longer to read nothing, since it is asked whose the records may be; `None` when that is not needed.
    pub(super) fn topics_awaited(&self, now: Instant) -> Option<Duration> {
        let asked_at = self.topics_asked_at.filter(|_| self.topics_asked)?;
        (asked_at + TOPICS_AWAITED_MAX).checked_duration_since(now)
    }

    /// Looks, when it is due, whether new partitions may be started.
    pub(super) fn look_at_gates(&mut self, due: Instant) {
        self.gates_due.get_or_insert(due);
    }

    /// Searches when it is due.
    pub(super) fn search_later(&mut self, search: Search, due: Instant) {
        self.begin_search(search.epoch);
        self.searches.push((search, due));
    }

    /// Whether it is not decided yet where this period of ownership goes on.
    pub(super) fn is_searching(&self, epoch: AssignmentEpoch) -> bool {
        self.searching.contains(&epoch)
    }

    /// Takes note that a search has begun.
    pub(super) fn begin_search(&mut self, epoch: AssignmentEpoch) {
        self.searching.insert(epoch);
    }

    /// Takes note that a search has ended.
    pub(super) fn end_search(&mut self, epoch: AssignmentEpoch) {
        self.searching.remove(&epoch);
    }

    pub(super) fn take_due_searches(&mut self, now: Instant) -> Vec<Search> {
        let due = self.searches.extract_if(.., |(_, due)| *due <= now);
        due.map(|(search, _)| search).collect()
    }

    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Ticket> {
        let due = self.committed.extract_if(.., |(_, due)| *due <= now);
        due.map(|(ticket, _)| ticket).collect()
    }
}

/// How often it is asked which topics there are: as often as the client asks for itself.
pub(super) fn topics_interval(config: &ClientConfig) -> Duration {
    let set = config.get("topic.metadata.refresh.interval.ms");
    let millis = set.and_then(|millis| millis.parse().ok());
    // Its own -1 is for never.
    millis.map_or(TOPICS_INTERVAL_DEFAULT, |millis: u64| {
        Duration::from_millis(millis).max(TOPICS_INTERVAL_MIN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_client_has_heard_is_asked_at_once_and_no_more_than_once_a_second() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        questions.hear_of_topics(0, now);
        assert_eq!(questions.topics_due, None, "there is no news");
        questions.hear_of_topics(1, now);
        assert_eq!(questions.topics_due, Some(now));

        questions.topics_asked_at = Some(now);
        questions.topics_due = Some(now + TOPICS_INTERVAL_DEFAULT);
        let later = now + Duration::from_millis(300);
        questions.hear_of_topics(1, later);
        assert_eq!(
            questions.topics_due,
            Some(now + TOPICS_INTERVAL_DEFAULT),
            "it was asked"
        );
        questions.hear_of_topics(7, later);
        questions.hear_of_topics(8, later);
        assert_eq!(questions.topics_due, Some(now + TOPICS_INTERVAL_MIN));
    }

    #[test]
    fn nothing_is_read_while_it_is_asked_whose_it_may_be_and_not_for_long() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        questions.topics_asked_at = Some(now);
        assert_eq!(questions.topics_awaited(now), None, "it is answered");
        questions.topics_asked = true;
        assert_eq!(questions.topics_awaited(now), Some(TOPICS_AWAITED_MAX));
        let late = now + TOPICS_AWAITED_MAX + Duration::from_millis(1);
        assert_eq!(questions.topics_awaited(late), None);
    }
}
