//! The clock of a consumer.

use std::time::Instant;

/// Now, on a clock that never goes back and that goes on while the machine is suspended.
///
/// [`Instant::now`] stands still meanwhile where the system's does, and a member of a group that slept for an hour would
/// take what it was assigned for its own.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn now() -> Instant {
    use std::sync::OnceLock;
    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime};

    static BASE: OnceLock<(Instant, Duration)> = OnceLock::new();
    let since_boot = || {
        let time = clock_gettime(ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    };
    let (instant, booted) = *BASE.get_or_init(|| (Instant::now(), since_boot()));
    instant + since_boot().saturating_sub(booted)
}

/// Now, on a clock that never goes back.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_forward() {
        let (first, monotonic) = (now(), Instant::now());
        std::thread::sleep(std::time::Duration::from_millis(2));
        let (second, passed) = (now(), monotonic.elapsed());
        assert!(second > first);
        assert!(second - first >= passed / 2, "{:?} of {passed:?}", second - first);
    }
}
