//! From a session key to its hash, from its hash to its worker.
//!
//! Both steps are pure functions of the router's key and its number of workers: the same session meets the same worker
//! on every record, in every process that has the same key, and a simulation replays.

use std::fmt;

use siphasher::sip::SipHasher13;

use crate::record::{PartitionId, SessionHash};

/// Sets the hash of a partition that stands as a session apart from the hash of a session key: it is taken under
/// another SipHash key, so no session key, whatever its bytes, is the same input.
const PARTITION_DOMAIN: (u64, u64) = (u64::from_le_bytes(*b"partitio"), u64::from_le_bytes(*b"n stands"));

/// Decides where a record goes.
///
/// The hash is keyed because session keys come from outside. With a hash that anyone can compute, a sender could choose
/// keys that all meet at one worker, or even in one lane, and so delay sessions that are not his. SipHash-1-3 under a
/// secret key leaves him guessing, at the price of some ten nanoseconds a record.
///
/// The key must be stable where two processes have to agree (a replay by seed, a flight recorder that is read
/// elsewhere); nothing durable depends on it.
#[derive(Clone)]
pub struct Router {
    sessions: SipHasher13,
    partitions: SipHasher13,
    workers: usize,
}

impl Router {
    /// A router to `workers` workers, whose hashes depend on the secret `key`.
    ///
    /// # Panics
    /// When there is no worker.
    pub fn new(key: (u64, u64), workers: usize) -> Self {
        assert!(workers > 0, "a router needs a worker to route to");
        Self {
            sessions: SipHasher13::new_with_keys(key.0, key.1),
            partitions: SipHasher13::new_with_keys(key.0 ^ PARTITION_DOMAIN.0, key.1 ^ PARTITION_DOMAIN.1),
            workers,
        }
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The session of a session key: its plain SipHash-1-3 under the router's key.
    #[inline]
    pub fn session(&self, key: &[u8]) -> SessionHash {
        SessionHash(self.sessions.hash(key))
    }

    /// The session of the records that have no session key: their partition stands as one session, so that they keep
    /// the partition's order. It depends on the partition alone, so ask once per assignment and not per record.
    pub fn partition_session(&self, partition: &PartitionId) -> SessionHash {
        // The number has a fixed width at the end, so two partitions never yield the same bytes.
        let mut name = Vec::with_capacity(partition.topic().len() + size_of::<i32>());
        name.extend_from_slice(partition.topic().as_bytes());
        name.extend_from_slice(&partition.number().to_le_bytes());
        SessionHash(self.partitions.hash(&name))
    }

    /// The worker that owns a session's lane, below [`workers`](Self::workers).
    ///
    /// Sessions spread evenly, and with one worker more only those sessions move that the new worker takes over.
    #[inline]
    pub fn worker(&self, session: SessionHash) -> usize {
        if self.workers == 1 {
            return 0;
        }
        jump(session.0, self.workers)
    }
}

// Whoever knows the key can flood a lane: keep it out of logs.
impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}

/// Jump consistent hash: the bucket of `key` among `buckets`, in O(ln buckets) steps and without memory.
///
/// Lamping, Veach: "A Fast, Minimal Memory, Consistent Hash Algorithm", 2014, <https://arxiv.org/abs/1406.2294>. Each
/// step draws, from a generator seeded with the key, the next number of buckets at which the key would move; the last
/// one within `buckets` is where it lies.
#[inline]
fn jump(mut key: u64, buckets: usize) -> usize {
    let mut bucket = 0;
    let mut next = 0;
    while next < buckets as u64 {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let draw = ((1u64 << 31) as f64) / (((key >> 33) + 1) as f64);
        next = ((bucket + 1) as f64 * draw) as u64;
    }
    bucket as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: (u64, u64) = (0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);

    #[test]
    fn a_session_is_the_published_siphash_of_its_key_and_so_is_the_same_in_every_process() {
        let router = Router::new(KEY, 4);
        // The first two of SipHash-1-3's test vectors: no bytes, and the byte 0.
        assert_eq!(router.session(b""), SessionHash(0xabac_0158_050f_c4dc));
        assert_eq!(router.session(&[0]), SessionHash(0xc9f4_9bf3_7d57_ca93));
    }

    #[test]
    fn another_key_deals_the_sessions_anew() {
        let (ours, guessed) = (Router::new(KEY, 16), Router::new((KEY.0 ^ 1, KEY.1), 16));
        let same = (0u32..1_600)
            .filter(|n| {
                let key = n.to_le_bytes();
                ours.worker(ours.session(&key)) == guessed.worker(guessed.session(&key))
            })
            .count();
        assert!(
            (40..200).contains(&same),
            "about 100 of 1,600 meet by chance, not {same}"
        );
    }

    #[test]
    fn a_partition_stands_as_a_session_that_no_session_key_can_name() {
        let router = Router::new(KEY, 4);
        let orders = router.partition_session(&PartitionId::new("orders", 3));
        assert_ne!(orders, router.partition_session(&PartitionId::new("orders", 4)));
        assert_ne!(orders, router.partition_session(&PartitionId::new("invoices", 3)));

        // A sender who sends the very bytes under which the partition is hashed lands elsewhere.
        assert_ne!(orders, router.session(b"orders\x03\0\0\0"));
        assert_eq!(
            orders,
            Router::new(KEY, 9).partition_session(&PartitionId::new("orders", 3))
        );
    }

    #[test]
    fn jump_agrees_with_other_implementations() {
        // The vectors of github.com/dgryski/go-jump.
        for (key, buckets, bucket) in [
            (1, 1, 0),
            (42, 57, 43),
            (0xDEAD_10CC, 1, 0),
            (0xDEAD_10CC, 666, 361),
            (256, 1024, 520),
        ] {
            assert_eq!(jump(key, buckets), bucket, "key {key} among {buckets}");
        }
    }

    #[test]
    fn no_debug_output_shows_the_key() {
        let shown = format!("{:?}", Router::new((4_242_424_242, 77_777_777), 4));
        assert_eq!(shown, "Router { workers: 4, .. }");
    }

    #[test]
    #[should_panic(expected = "a router needs a worker")]
    fn a_router_without_workers_is_refused() {
        Router::new(KEY, 0);
    }

    proptest! {
        #[test]
        fn every_worker_is_in_range_and_one_more_worker_only_takes(session: u64, workers in 1usize..2_000) {
            let before = Router::new(KEY, workers).worker(SessionHash(session));
            let after = Router::new(KEY, workers + 1).worker(SessionHash(session));
            prop_assert!(before < workers);
            prop_assert!(after == before || after == workers, "moved from {} to {}, not to the new {}", before, after, workers);
        }

        #[test]
        fn sessions_spread_evenly_over_workers(key: (u64, u64), workers in 1usize..=64) {
            const SESSIONS: usize = 4_000;
            let router = Router::new(key, workers);
            let mut held = vec![0usize; workers];
            for n in 0..SESSIONS {
                held[router.worker(router.session(format!("session-{n}").as_bytes()))] += 1;
            }
            // Each count is binomial: six standard deviations are left by chance once in 500 million.
            let mean = SESSIONS as f64 / workers as f64;
            for count in held {
                prop_assert!((count as f64 - mean).abs() <= 6.0 * mean.sqrt(), "{} beside a mean of {}", count, mean);
            }
        }

        #[test]
        fn a_partition_never_meets_a_session_key(
            key: (u64, u64),
            topic in "[a-z]{1,12}",
            number in 0i32..1_000,
            session_key in prop::collection::vec(any::<u8>(), 0..24),
        ) {
            let router = Router::new(key, 8);
            let partition = router.partition_session(&PartitionId::new(topic.as_str(), number));
            let same_bytes = [topic.as_bytes(), &number.to_le_bytes()].concat();
            prop_assert_ne!(partition, router.session(&same_bytes));
            prop_assert_ne!(partition, router.session(&session_key));
        }
    }
}
