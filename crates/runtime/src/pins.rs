//! How much of the client's memory the records that wait keep alive.
//!
//! Records of one batch lie in one chunk, which is freed as a whole: the first record that waits pins all of it, and the
//! others add nothing.

use std::cell::Cell;
use std::rc::Rc;

/// Memory of the client's that waiting records may pin, in bytes per worker; past it a record is copied out. Enough for
/// some ten thousand small records.
const PINNED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What one worker's records pin.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    bytes: Rc<Cell<usize>>,
}

/// A pinned chunk, until its last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Pin(#[expect(dead_code, reason = "held, not read")] Rc<Pinned>);

#[derive(Debug)]
struct Pinned {
    bytes: usize,
    all: Rc<Cell<usize>>,
}

impl Pins {
    /// Whether another chunk may be pinned.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.bytes.get() < PINNED_BYTES_MAX
    }

    /// Pins a chunk of so many bytes, if there is room.
    pub(crate) fn pin(&self, bytes: usize) -> Option<Pin> {
        self.has_room().then(|| {
            self.bytes.set(self.bytes.get() + bytes);
            Pin(Rc::new(Pinned {
                bytes,
                all: Rc::clone(&self.bytes),
            }))
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.all.set(self.all.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_counts_once_and_until_its_last_holder_is_gone() {
        let pins = Pins::default();
        let chunk = pins.pin(PINNED_BYTES_MAX - 1).expect("nothing is pinned");
        let holders = [chunk.clone(), chunk];
        let another = pins.pin(1).expect("holders of one chunk add nothing");
        assert!(pins.pin(1).is_none());
        let [first, second] = holders;
        drop(first);
        assert!(pins.pin(1).is_none(), "one holder is left");
        drop(second);
        assert!(pins.pin(1).is_some());
        drop(another);
        assert_eq!(pins.bytes.get(), 0);
    }
}
