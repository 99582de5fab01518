//! How long something took, noted by many threads at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A histogram in stripes: a thread keeps to its own, so that noting a time costs an uncontended lock.
pub struct Times {
    stripes: Vec<Mutex<Stripe>>,
}

struct Stripe {
    histogram: Histogram<u64>,
    sum_nanos: u128,
}

/// More than the threads that note times.
const STRIPES: usize = 16;

const LONGEST: Duration = Duration::from_secs(3600);

/// What many times come to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    pub mean_micros: f64,
    pub p50_micros: f64,
    pub p99_micros: f64,
    pub max_micros: f64,
}

impl Times {
    pub fn new() -> Self {
        let stripe = || Stripe {
            histogram: Histogram::new_with_bounds(100, LONGEST.as_nanos() as u64, 3).expect("the bounds are in order"),
            sum_nanos: 0,
        };
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::new(stripe())).collect(),
        }
    }

    #[inline]
    pub fn note(&self, time: Duration) {
        thread_local!(static STRIPE: usize = {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES
        });
        let nanos = time.as_nanos() as u64;
        let mut stripe = STRIPE.with(|stripe| self.stripes[*stripe].lock().unwrap_or_else(PoisonError::into_inner));
        stripe.histogram.saturating_record(nanos);
        stripe.sum_nanos += u128::from(nanos);
    }

    /// `None` when nothing was noted.
    pub fn distribution(&self) -> Option<Distribution> {
        let (mut all, mut sum_nanos) = (None::<Histogram<u64>>, 0);
        for stripe in &self.stripes {
            let stripe = stripe.lock().unwrap_or_else(PoisonError::into_inner);
            sum_nanos += stripe.sum_nanos;
            match &mut all {
                None => all = Some(stripe.histogram.clone()),
                Some(all) => all.add(&stripe.histogram).expect("all have the same bounds"),
            }
        }
        let all = all.filter(|all| !all.is_empty())?;
        let micros = |nanos: u64| nanos as f64 / 1e3;
        Some(Distribution {
            mean_micros: sum_nanos as f64 / 1e3 / all.len() as f64,
            p50_micros: micros(all.value_at_quantile(0.5)),
            p99_micros: micros(all.value_at_quantile(0.99)),
            max_micros: micros(all.max()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_several_threads_make_one_distribution() {
        let times = Times::new();
        assert_eq!(times.distribution(), None);
        std::thread::scope(|threads| {
            for millis in 1..=100 {
                let times = &times;
                threads.spawn(move || times.note(Duration::from_millis(millis)));
            }
        });
        let distribution = times.distribution().expect("some were noted");
        assert!((distribution.mean_micros - 50_500.0).abs() < 1.0);
        assert!((distribution.p50_micros - 50_000.0).abs() < 100.0);
        assert!((distribution.p99_micros - 99_000.0).abs() < 100.0);
    }
}
