//! What a process has used, as Linux tells it. Elsewhere there are no figures.

use std::fs;
use std::time::{Duration, Instant};

/// The time and what this process has computed by then.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub at: Instant,
    /// Time on a processor, all threads together.
    pub cpu: Option<Duration>,
}

impl Reading {
    pub fn now() -> Self {
        let at = Instant::now();
        // What a thread computes is counted when it leaves its processor, or at the next tick.
        std::thread::yield_now();
        Self { at, cpu: cpu() }
    }

    /// Wall time and processor time since `earlier`.
    pub fn since(&self, earlier: Reading) -> (Duration, Option<Duration>) {
        let cpu = self.cpu.zip(earlier.cpu).map(|(now, then)| now.saturating_sub(then));
        (self.at.saturating_duration_since(earlier.at), cpu)
    }
}

/// Summed over the threads there are: their clock counts nanoseconds, where the process's own counts hundredths of a
/// second. What runs a benchmark starts before it and ends after it.
fn cpu() -> Option<Duration> {
    let on_processor = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let threads = fs::read_dir("/proc/self/task").ok()?;
    Some(Duration::from_nanos(threads.flatten().filter_map(on_processor).sum()))
}

/// Memory in bytes: now, and at its highest.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub resident: u64,
    pub peak: u64,
}

impl Memory {
    pub fn now() -> Option<Self> {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
            Some(kib * 1024)
        };
        Some(Self {
            resident: bytes("VmRSS:")?,
            peak: bytes("VmHWM:")?,
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_time_and_memory() {
        let began = Reading::now();
        let mut sum = 0u64;
        while began.at.elapsed() < Duration::from_millis(50) {
            sum = std::hint::black_box(sum + 1);
        }
        let (wall, cpu) = Reading::now().since(began);
        assert!(wall >= Duration::from_millis(50));
        assert!(cpu.is_some_and(|cpu| !cpu.is_zero()));
        let memory = Memory::now().expect("Linux tells");
        assert!(memory.peak >= memory.resident && memory.resident > 0);
    }
}
