//! How much of the client's memory the records that wait keep alive.
//!
//! Records of one batch lie in one chunk, which is freed as a whole: the first record that waits pins all of it, and the
//! others add nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory of the client's that waiting records may pin, in bytes per worker; past it a record is copied out. Enough for
/// some ten thousand small records.
const PINNED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What one worker's records pin.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    bytes: Arc<AtomicUsize>,
}

/// Counts a chunk as pinned while it lives: the chunk keeps it, so it is told by whatever holds the chunk.
#[derive(Debug)]
pub(crate) struct Pinned {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Pins {
    /// Whether another chunk may be pinned.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) < PINNED_BYTES_MAX
    }

    /// Pins a chunk of so many bytes, if there is room.
    pub(crate) fn pin(&self, bytes: usize) -> Option<Pinned> {
        self.has_room().then(|| {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            Pinned {
                bytes,
                all: Arc::clone(&self.bytes),
            }
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_counts_as_long_as_it_lives() {
        let pins = Pins::default();
        let chunk = pins.pin(PINNED_BYTES_MAX - 1).expect("nothing is pinned");
        let another = pins.pin(1).expect("the limit is not reached");
        assert!(pins.pin(1).is_none());
        drop(chunk);
        assert!(pins.pin(1).is_some());
        drop(another);
        assert_eq!(pins.bytes.load(Ordering::Relaxed), 0);
    }
}
