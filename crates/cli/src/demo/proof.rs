//! The judge: it sees the starts and the ends of handlers, from inside the handlers, and nothing else.
//!
//! It shares neither code nor data with what it judges. Every session has its own entry with the order in which its
//! records were settled, and the proof is that each of these reads 1, 2, 3 and so on, to the last record that was sent.
//! What that order alone cannot tell is judged as it happens: two handlers of a session at once, and a record that
//! starts while one before it is not settled.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What was seen of all sessions.
pub(super) struct Proof {
    sessions: Box<[Mutex<Session>]>,
    starts: AtomicU64,
    settled: AtomicU64,
    hurt: AtomicU64,
}

/// What was seen of one session. Records go by their number in the session, from 1.
#[derive(Default)]
struct Session {
    /// In the order in which they were settled.
    settled: Vec<u32>,
    /// All up to here are settled.
    through: u32,
    /// Settled beyond.
    beyond: BTreeSet<u32>,
    running: Vec<u32>,
    violations: Violations,
    /// The first two that were handled at the same time.
    overlap: Option<(u32, u32)>,
    /// The first that was handled again.
    repeated: Option<u32>,
}

/// How often order was violated, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Violations {
    /// Starts while an earlier record of the session was not settled.
    pub(super) overtaken: u64,
    /// Starts while another handler of the session was running.
    pub(super) overlapping: u64,
    /// Records handled again after they were settled.
    pub(super) repeated: u64,
    /// Records that were sent and never settled.
    pub(super) lost: u64,
}

/// What the judge finds in the end.
#[derive(Debug)]
pub(super) struct Verdict {
    /// Starts of handlers, each of them judged.
    pub(super) starts: u64,
    /// Records settled, each counted once.
    pub(super) settled: u64,
    pub(super) violations: Violations,
    /// For each session, whether anything but 1, 2, 3 and so on was seen of it.
    pub(super) hurt: Vec<bool>,
    /// The most telling violation, and its session.
    pub(super) story: Option<(Story, u32)>,
}

/// A violation to tell people of, by the numbers of the records. The most telling come first: best of all a command that
/// was settled after its correction, which is the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Story {
    /// The second was settled before the first. Commands have odd numbers.
    Before { is_even: bool, earlier: u32, later: u32 },
    /// Both were handled at the same time.
    Together(u32, u32),
    /// It was handled again after it was settled.
    Again(u32),
    /// It was sent and never settled.
    Lost(u32),
}

impl Proof {
    /// A judge of sessions `0..sessions` that has seen nothing.
    pub(super) fn new(sessions: u32) -> Self {
        Self {
            sessions: (0..sessions).map(|_| Mutex::default()).collect(),
            starts: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            hurt: AtomicU64::new(0),
        }
    }

    /// Sees that a handler starts. Dropping what is returned is its end without success.
    pub(super) fn start(&self, session: u32, seq: u32) -> Running<'_> {
        self.starts.fetch_add(1, Ordering::Relaxed);
        self.change(session, |seen| seen.start(seq));
        Running {
            proof: self,
            session,
            seq,
            settled: false,
        }
    }

    fn end(&self, session: u32, seq: u32, settled: bool) {
        self.change(session, |seen| seen.end(seq, settled));
    }

    fn change(&self, session: u32, change: impl FnOnce(&mut Session)) {
        let mut seen = self.session(session);
        let (settled, hurt) = (seen.distinct(), seen.violations.any());
        change(&mut seen);
        self.settled.fetch_add(seen.distinct() - settled, Ordering::Relaxed);
        let hurt = !hurt && seen.violations.any();
        self.hurt.fetch_add(u64::from(hurt), Ordering::Relaxed);
    }

    /// Records settled so far.
    pub(super) fn settled(&self) -> u64 {
        self.settled.load(Ordering::Relaxed)
    }

    /// Sessions whose order was violated so far.
    pub(super) fn hurt(&self) -> u64 {
        self.hurt.load(Ordering::Relaxed)
    }

    /// Judges all that was seen, given how many records were sent of each session.
    pub(super) fn verdict(&self, sent: impl Fn(u32) -> u32) -> Verdict {
        let mut violations = Violations::default();
        let mut stories = Vec::new();
        let judge = |session: u32| {
            let (seen, sent) = (self.session(session), sent(session));
            let lost = (1..=sent).filter(|seq| !seen.is_settled(*seq));
            violations.add(seen.violations);
            violations.lost += lost.clone().count() as u64;
            let first_lost = lost.map(Story::Lost).next();
            stories.extend(seen.story().or(first_lost).map(|story| (story, session)));
            !seen.settled.iter().copied().eq(1..=sent) || seen.violations.any()
        };
        Verdict {
            starts: self.starts.load(Ordering::Relaxed),
            settled: self.settled(),
            hurt: (0..self.sessions.len() as u32).map(judge).collect(),
            violations,
            story: stories.into_iter().min(),
        }
    }

    /// The records of a session in the order in which they were settled.
    pub(super) fn settled_order(&self, session: u32) -> Vec<u32> {
        self.session(session).settled.clone()
    }

    fn session(&self, session: u32) -> MutexGuard<'_, Session> {
        // A handler that panics holds no lock.
        self.sessions[session as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Verdict {
    /// Whether every record of every session was handled in order, one at a time, once.
    pub(super) fn passed(&self) -> bool {
        self.hurt() == 0
    }

    /// Sessions of which that is not true.
    pub(super) fn hurt(&self) -> u64 {
        self.hurt.iter().filter(|hurt| **hurt).count() as u64
    }

    /// Attempts that came to nothing and were made again.
    pub(super) fn retries(&self) -> u64 {
        self.starts.saturating_sub(self.settled + self.violations.repeated)
    }
}

impl Story {
    /// The record that was handled first.
    pub(super) fn first(self) -> u32 {
        match self {
            Story::Before { later, .. } => later,
            Story::Together(seq, _) | Story::Again(seq) | Story::Lost(seq) => seq,
        }
    }
}

impl Violations {
    fn any(&self) -> bool {
        *self != Self::default()
    }

    fn add(&mut self, other: Self) {
        self.overtaken += other.overtaken;
        self.overlapping += other.overlapping;
        self.repeated += other.repeated;
        self.lost += other.lost;
    }
}

/// A handler that runs.
pub(super) struct Running<'a> {
    proof: &'a Proof,
    session: u32,
    seq: u32,
    settled: bool,
}

impl Running<'_> {
    /// Sees that the handler ended well.
    pub(super) fn settled(mut self) {
        self.settled = true;
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.proof.end(self.session, self.seq, self.settled);
    }
}

impl Session {
    fn start(&mut self, seq: u32) {
        if self.is_settled(seq) {
            self.violations.repeated += 1;
            self.repeated.get_or_insert(seq);
        } else if let Some(other) = self.running.last() {
            self.violations.overlapping += 1;
            self.overlap.get_or_insert((seq.min(*other), seq.max(*other)));
        } else if seq != self.through + 1 {
            self.violations.overtaken += 1;
        }
        self.running.push(seq);
    }

    fn end(&mut self, seq: u32, settled: bool) {
        let ended = self.running.iter().position(|running| *running == seq);
        self.running.swap_remove(ended.expect("only what runs ends"));
        if !settled {
            return;
        }
        self.settled.push(seq);
        if !self.is_settled(seq) {
            self.beyond.insert(seq);
            while self.beyond.remove(&(self.through + 1)) {
                self.through += 1;
            }
        }
    }

    fn is_settled(&self, seq: u32) -> bool {
        seq <= self.through || self.beyond.contains(&seq)
    }

    /// How many are settled, each counted once.
    fn distinct(&self) -> u64 {
        u64::from(self.through) + self.beyond.len() as u64
    }

    fn story(&self) -> Option<Story> {
        let together = |(one, other)| Story::Together(one, other);
        self.swapped()
            .or(self.overlap.map(together))
            .or(self.repeated.map(Story::Again))
    }

    /// Two neighbours that were settled the wrong way round.
    fn swapped(&self) -> Option<Story> {
        let mut places: Vec<(u32, usize)> = self.settled.iter().copied().zip(0..).collect();
        places.sort_unstable();
        let neighbours = places.windows(2).filter_map(|pair| match *pair {
            [(earlier, after), (later, before)] if before < after && later - earlier == 1 => Some(Story::Before {
                is_even: earlier % 2 == 0,
                earlier,
                later,
            }),
            _ => None,
        });
        neighbours.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of one session: `3` starts record 3, `3+` ends it well, `3-` ends it badly.
    fn seen(events: &str) -> Proof {
        let proof = Proof::new(1);
        let mut running = Vec::new();
        for event in events.split_whitespace() {
            let seq: u32 = event.trim_end_matches(['+', '-']).parse().unwrap();
            let ended = running.iter().position(|run: &Running<'_>| run.seq == seq);
            match (event.chars().last(), ended) {
                (Some('+'), Some(ended)) => running.swap_remove(ended).settled(),
                (Some('-'), Some(ended)) => drop(running.swap_remove(ended)),
                _ => running.push(proof.start(0, seq)),
            }
        }
        drop(running);
        proof
    }

    fn violations(events: &str, sent: u32) -> Violations {
        let verdict = seen(events).verdict(|_| sent);
        assert!(!verdict.passed(), "{events}");
        verdict.violations
    }

    #[test]
    fn one_after_another_with_retries_passes() {
        let proof = seen("1 1+ 2 2- 2 2- 2 2+ 3 3+");
        let verdict = proof.verdict(|_| 3);
        assert!(verdict.passed());
        assert_eq!((verdict.starts, verdict.settled, verdict.retries()), (5, 3, 2));
        assert_eq!(verdict.story, None);
        assert_eq!(proof.hurt(), 0);
    }

    #[test]
    fn a_record_that_overtakes_a_failed_one_is_found() {
        let expected = Violations {
            overtaken: 1,
            ..Violations::default()
        };
        assert_eq!(violations("1 1- 2 2+ 1 1+ 3 3+", 3), expected);
    }

    #[test]
    fn handlers_that_overlap_are_found_even_when_they_end_in_order() {
        let expected = Violations {
            overlapping: 1,
            ..Violations::default()
        };
        assert_eq!(violations("1 2 1+ 2+", 2), expected);
        assert_eq!(
            violations("1 1 1- 1+ 2 2+", 2),
            expected,
            "one record twice at once, too"
        );
    }

    #[test]
    fn a_lost_record_is_found_at_the_end_or_when_it_is_passed_over() {
        let expected = Violations {
            lost: 1,
            ..Violations::default()
        };
        assert_eq!(violations("1 1+ 2 2+", 3), expected);
        let passed_over = violations("1 1+ 3 3+", 3);
        assert_eq!((passed_over.lost, passed_over.overtaken), (1, 1));
        assert_eq!(violations("1 1+ 2 2-", 2), expected, "tried and given up is lost, too");
    }

    #[test]
    fn a_repeated_record_is_found() {
        let expected = Violations {
            repeated: 1,
            ..Violations::default()
        };
        assert_eq!(violations("1 1+ 2 2+ 2 2+", 2), expected);
        assert_eq!(violations("1 1+ 2 2+ 1 1-", 2), expected, "whether or not it ends well");
    }

    #[test]
    fn a_record_that_nobody_sent_is_found() {
        assert!(!seen("1 1+ 2 2+").verdict(|_| 1).passed());
    }

    #[test]
    fn one_hurt_session_is_told_from_the_others() {
        let proof = Proof::new(3);
        for session in 0..3 {
            proof.start(session, 1).settled();
        }
        proof.start(1, 3).settled();
        assert_eq!((proof.settled(), proof.hurt()), (4, 1));
        let verdict = proof.verdict(|session| if session == 1 { 3 } else { 1 });
        assert_eq!(verdict.hurt, [false, true, false]);
        assert_eq!(verdict.hurt(), 1);
    }

    #[test]
    fn the_story_is_of_a_correction_that_came_first_if_there_is_one() {
        let story = |events, sent| seen(events).verdict(|_| sent).story.map(|(story, _)| story);
        let before = |earlier| {
            Some(Story::Before {
                is_even: earlier % 2 == 0,
                earlier,
                later: earlier + 1,
            })
        };
        assert_eq!(story("1 1+ 3 3+ 2 2+ 5 5+ 6 6+ 4 4+", 6), before(2));
        assert_eq!(story("1 1+ 3 3+ 2 2+ 4 5 4+ 6 6+ 5+", 6), before(5));
        assert_eq!(story("1 2 1+ 2+", 2), Some(Story::Together(1, 2)));
        assert_eq!(story("1 1+ 1 1+", 1), Some(Story::Again(1)));
        assert_eq!(story("1 1+", 2), Some(Story::Lost(2)));
    }
}
