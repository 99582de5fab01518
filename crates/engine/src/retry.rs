//! When a failed attempt is tried again, and when it no longer is.
//!
//! The wait grows exponentially and is drawn with *full jitter* (Brooker: "Exponential Backoff And Jitter", AWS
//! Architecture Blog, 2015): many sessions that fail together come back spread over the whole wait and not as a wave.
//! The draw has no state: it is computed from the seed, the session, the offset and the attempt, so a run replays by
//! its seed, whatever else happened in between.

use std::time::{Duration, Instant};

use crate::record::{Offset, SessionHash};

/// The longest wait that [`Retry::cap`] or a hint may ask for. A record that waits holds its session, its partition's
/// watermark and its bytes; a day is beyond any sensible wait, and a mistaken unit does not hold them for weeks.
pub const DELAY_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The policy of retries in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The bound of the wait after the first attempt; it doubles with each further attempt.
    pub base: Duration,
    /// The bound that the doubling does not pass; at most [`DELAY_MAX`] counts.
    pub cap: Duration,
    /// How many attempts a record has in all, the first among them; 1 retries nothing.
    pub attempts_max: u32,
    /// How long after the start of its first attempt a record's last attempt may start; `None` leaves the limit to
    /// [`attempts_max`](Self::attempts_max).
    pub elapsed_max: Option<Duration>,
    /// Seeds the jitter. Give each process its own, or their retries meet.
    pub jitter_seed: u64,
}

impl Default for Retry {
    /// Ten attempts, from 100 ms to 30 s apart: about half a minute in all on average, long enough for a restart of
    /// what the handler depends on.
    fn default() -> Self {
        Self {
            base: Duration::from_millis(100),
            cap: Duration::from_secs(30),
            attempts_max: 10,
            elapsed_max: None,
            jitter_seed: 0,
        }
    }
}

impl Retry {
    /// When a record is tried again whose `attempt` (from 1) failed at `now`; `None` when it has no attempt left.
    ///
    /// The wait is uniform in `[0, min(cap, base * 2^(attempt - 1))]`. A limit by time cuts the last wait short, so
    /// that the last attempt starts at the limit at the latest.
    pub fn next(
        &self,
        attempt: u32,
        first_started: Instant,
        now: Instant,
        session: SessionHash,
        offset: Offset,
    ) -> Option<Instant> {
        self.next_after(Duration::ZERO, attempt, first_started, now, session, offset)
    }

    /// As [`next`](Self::next), when the handler names the time that it needs (an HTTP `Retry-After`).
    ///
    /// The hint is honoured in full, up to [`DELAY_MAX`], and the wait that the attempt has anyway comes on top: so
    /// that a hundred sessions that got the same hint do not return in the same instant. A hint that ends past the
    /// limit by time leaves no attempt.
    pub fn next_after(
        &self,
        hint: Duration,
        attempt: u32,
        first_started: Instant,
        now: Instant,
        session: SessionHash,
        offset: Offset,
    ) -> Option<Instant> {
        if attempt >= self.attempts_max {
            return None;
        }
        let earliest = hint.min(DELAY_MAX);
        let wait = earliest + self.jitter(attempt, session, offset);
        let Some(elapsed_max) = self.elapsed_max else {
            return Some(now + wait);
        };
        let left = elapsed_max.checked_sub(now.saturating_duration_since(first_started))?;
        (!left.is_zero() && earliest <= left).then(|| now + wait.min(left))
    }

    /// The drawn wait after `attempt`, within its bound.
    fn jitter(&self, attempt: u32, session: SessionHash, offset: Offset) -> Duration {
        let bound = self.bound_nanos(attempt);
        let draw = [session.0, offset.get() as u64, u64::from(attempt)]
            .into_iter()
            .fold(splitmix64(self.jitter_seed), |hash, word| splitmix64(hash ^ word));
        // The high half of the product scales the draw to 0..=bound without the bias of a remainder.
        let nanos = (u128::from(draw) * (u128::from(bound) + 1)) >> 64;
        Duration::from_nanos(nanos as u64)
    }

    /// `min(cap, base * 2^(attempt - 1))` in nanoseconds, for any attempt number.
    fn bound_nanos(&self, attempt: u32) -> u64 {
        let nanos = |wait: Duration| wait.min(DELAY_MAX).as_nanos() as u64;
        let doubled = 1u64.checked_shl(attempt.saturating_sub(1)).unwrap_or(u64::MAX);
        nanos(self.base).saturating_mul(doubled).min(nanos(self.cap))
    }
}

/// One step of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
fn splitmix64(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALICE: SessionHash = SessionHash(0xa11ce);
    const SECOND: Duration = Duration::from_secs(1);

    fn offset(offset: i64) -> Offset {
        Offset::new(offset)
    }

    #[test]
    fn ten_attempts_are_made_and_no_eleventh() {
        let (retry, start) = (Retry::default(), Instant::now());
        let mut now = start;
        let mut attempts = 1;
        while let Some(at) = retry.next(attempts, start, now, ALICE, Offset::ZERO) {
            now = at;
            attempts += 1;
        }
        assert_eq!(attempts, 10);
        // 0.1 + 0.2 + .. + 25.6 s at most.
        assert!(now - start <= Duration::from_millis(51_100));
    }

    #[test]
    fn a_limit_by_time_places_the_last_attempt_at_the_limit() {
        let retry = Retry {
            base: 20 * SECOND,
            attempts_max: u32::MAX,
            elapsed_max: Some(10 * SECOND),
            ..Retry::default()
        };
        let start = Instant::now();
        // At 9 s the wait is drawn from 20 s and more, but the last attempt is not given away.
        let last = (0..50)
            .map(|n| {
                retry
                    .next(1, start, start + 9 * SECOND, ALICE, offset(n))
                    .expect("one second is left")
            })
            .max();
        assert_eq!(last, Some(start + 10 * SECOND));
        assert_eq!(retry.next(2, start, start + 10 * SECOND, ALICE, Offset::ZERO), None);
        assert_eq!(retry.next(2, start, start + 11 * SECOND, ALICE, Offset::ZERO), None);
    }

    #[test]
    fn a_hint_is_kept_and_sessions_with_the_same_hint_do_not_return_together() {
        let (retry, now) = (Retry::default(), Instant::now());
        let at = |session| {
            retry
                .next_after(5 * SECOND, 3, now, now, SessionHash(session), Offset::ZERO)
                .expect("attempts are left")
        };
        let mut times = (0..100).map(at).collect::<Vec<_>>();
        times.sort();
        times.dedup();
        assert_eq!(times.len(), 100);
        assert!(times[0] >= now + 5 * SECOND);
        assert!(times[99] <= now + 5 * SECOND + Duration::from_millis(400));
    }

    #[test]
    fn a_hint_past_the_limit_by_time_leaves_no_attempt() {
        let retry = Retry {
            elapsed_max: Some(10 * SECOND),
            ..Retry::default()
        };
        let now = Instant::now();
        assert_eq!(retry.next_after(11 * SECOND, 1, now, now, ALICE, Offset::ZERO), None);
        assert_eq!(
            retry.next_after(10 * SECOND, 1, now, now, ALICE, Offset::ZERO),
            Some(now + 10 * SECOND)
        );
    }

    #[test]
    fn a_hint_in_the_wrong_unit_holds_a_session_for_a_day_and_not_for_ever() {
        let (retry, now) = (Retry::default(), Instant::now());
        let at = retry
            .next_after(Duration::MAX, 1, now, now, ALICE, Offset::ZERO)
            .unwrap();
        assert!(at >= now + DELAY_MAX && at <= now + DELAY_MAX + retry.base);
    }

    #[test]
    fn the_mean_wait_is_half_its_bound() {
        let (retry, now) = (Retry::default(), Instant::now());
        for attempt in [1, 4, 9] {
            let bound = retry.base * 2u32.pow(attempt - 1);
            let waits = (0..10_000).map(|n| retry.next(attempt, now, now, SessionHash(n), offset(7)).unwrap() - now);
            let mean = waits.sum::<Duration>() / 10_000;
            // A uniform mean of 10,000 has a standard deviation of bound / 346: five of them.
            assert!(
                mean.abs_diff(bound / 2) < bound / 70,
                "attempt {attempt}: {mean:?} of {bound:?}"
            );
        }
    }

    #[test]
    fn splitmix64_gives_its_published_numbers() {
        // The first three outputs of the reference implementation for the seed 1234567.
        let mut state = 1_234_567u64;
        let outputs = [(); 3].map(|()| {
            let output = splitmix64(state);
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            output
        });
        assert_eq!(
            outputs,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    fn wait() -> impl Strategy<Value = Duration> {
        prop_oneof![
            Just(Duration::ZERO),
            Just(Duration::MAX),
            (0u64..200_000_000_000).prop_map(Duration::from_nanos),
        ]
    }

    fn policy() -> impl Strategy<Value = Retry> {
        (wait(), wait(), any::<u32>(), prop::option::of(wait()), any::<u64>()).prop_map(
            |(base, cap, attempts_max, elapsed_max, jitter_seed)| Retry {
                base,
                cap,
                attempts_max,
                elapsed_max,
                jitter_seed,
            },
        )
    }

    /// The bound as the documentation states it, in arithmetic that cannot overflow below 2^128.
    fn documented_bound(retry: &Retry, attempt: u32) -> Duration {
        let (mut bound, cap) = (retry.base.min(DELAY_MAX), retry.cap.min(DELAY_MAX));
        for _ in 1..attempt.min(200) {
            bound = (bound * 2).min(cap);
        }
        bound.min(cap)
    }

    proptest! {
        #[test]
        fn every_wait_keeps_its_bounds(
            retry in policy(),
            attempt: u32,
            small in 0u32..70,
            hint in wait(),
            (session, place) in (any::<u64>(), 0i64..),
            since in (0u64..400_000_000_000).prop_map(Duration::from_nanos),
        ) {
            let first_started = Instant::now();
            let now = first_started + since;
            for attempt in [attempt, small] {
                let at = retry.next_after(hint, attempt, first_started, now, SessionHash(session), offset(place));
                let hint = hint.min(DELAY_MAX);
                let exhausted = attempt >= retry.attempts_max
                    || retry.elapsed_max.is_some_and(|max| since >= max || since + hint > max);
                prop_assert_eq!(at.is_none(), exhausted);
                if let Some(at) = at {
                    prop_assert!(at >= now + hint);
                    prop_assert!(at <= now + hint + documented_bound(&retry, attempt));
                    prop_assert!(retry.elapsed_max.is_none_or(|max| at - first_started <= max));
                }
            }
        }

        #[test]
        fn a_run_replays_by_its_seed(retry in policy(), attempt: u32, session: u64, place in 0i64..) {
            let now = Instant::now();
            let at = || retry.next(attempt, now, now, SessionHash(session), offset(place));
            prop_assert_eq!(at(), at());
        }

        #[test]
        fn every_input_moves_the_draw(jitter_seed: u64, session: u64, place in 0i64..i64::MAX, attempt in 20u32..30) {
            let retry = Retry { attempts_max: 100, jitter_seed, ..Retry::default() };
            let other = Retry { jitter_seed: jitter_seed ^ 1, ..retry };
            let drawn = retry.jitter(attempt, SessionHash(session), offset(place));
            for moved in [
                other.jitter(attempt, SessionHash(session), offset(place)),
                retry.jitter(attempt + 1, SessionHash(session), offset(place)),
                retry.jitter(attempt, SessionHash(session ^ 1), offset(place)),
                retry.jitter(attempt, SessionHash(session), offset(place + 1)),
            ] {
                // Equal by chance once in 30 billion draws.
                prop_assert_ne!(drawn, moved);
            }
        }
    }
}
