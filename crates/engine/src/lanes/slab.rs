//! A store whose places are reused.

/// It grows a chunk at a time. A vector would be moved as it grows, and so touch twice the memory that it comes to.
#[derive(Debug)]
pub(super) struct Slab<T> {
    /// All full but the last.
    chunks: Vec<Vec<Option<T>>>,
    free: Vec<u32>,
}

/// Places of a chunk.
const CHUNK: usize = 1024;

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn insert(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(place) => {
                *self.place(place) = Some(item);
                place
            }
            None => self.append(item),
        }
    }

    fn append(&mut self, item: T) -> u32 {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let full = self.chunks.len() - 1;
        let chunk = &mut self.chunks[full];
        let place = full * CHUNK + chunk.len();
        chunk.push(Some(item));
        u32::try_from(place).expect("fewer than 2^32 records are held")
    }

    pub(super) fn remove(&mut self, place: u32) -> T {
        let item = self.place(place).take().expect("the place is taken");
        self.free.push(place);
        item
    }

    #[inline]
    pub(super) fn get(&self, place: u32) -> Option<&T> {
        let place = place as usize;
        self.chunks.get(place / CHUNK)?.get(place % CHUNK)?.as_ref()
    }

    #[inline]
    fn place(&mut self, place: u32) -> &mut Option<T> {
        let place = place as usize;
        &mut self.chunks[place / CHUNK][place % CHUNK]
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, place: u32) -> &T {
        self.get(place).expect("the place is taken")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, place: u32) -> &mut T {
        self.place(place).as_mut().expect("the place is taken")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_keeps_its_item_in_whatever_chunk_and_is_reused_when_it_is_free() {
        let mut slab = Slab::new();
        let places: Vec<u32> = (0..3 * CHUNK).map(|item| slab.insert(item)).collect();
        for (item, place) in places.iter().enumerate() {
            assert_eq!(slab[*place], item);
        }
        for item in [CHUNK, 0, 2 * CHUNK - 1] {
            assert_eq!(slab.remove(places[item]), item);
            assert_eq!(slab.get(places[item]), None);
            assert_eq!(slab.insert(item + 1), places[item]);
            assert_eq!(slab[places[item]], item + 1);
        }
        let beyond = slab.insert(0);
        assert!(!places.contains(&beyond));
        assert_eq!(slab.get(u32::MAX), None);
    }
}
