//! An allocator for the data of requests in one memory of fixed size.

use std::ops::Range;

/// Alignment of ranges, in bytes: a cache line.
const ALIGN: usize = 64;

/// Allocates ranges of a memory, and frees them in any order.
#[derive(Debug)]
pub(super) struct Rooms {
    /// Free ranges, sorted and never adjacent.
    free: Vec<Range<usize>>,
}

impl Rooms {
    /// For a memory of `bytes` bytes.
    pub(super) fn new(bytes: usize) -> Rooms {
        let whole = 0..bytes / ALIGN * ALIGN;
        Rooms { free: if whole.end == 0 { Vec::new() } else { vec![whole] } }
    }

    /// Allocates the first free range of at least `bytes`; `None` if there is none now.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Range<usize>> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGN)?;
        let index = self.free.iter().position(|range| range.len() >= bytes)?;
        let range = self.free.get_mut(index)?;
        let taken = range.start..range.start + bytes;
        range.start = taken.end;
        if range.start == range.end {
            self.free.remove(index);
        }
        Some(taken)
    }

    /// Frees an allocated range.
    pub(super) fn give_back(&mut self, range: Range<usize>) {
        let index = self.free.partition_point(|other| other.start < range.start);
        let (before, behind) = self.free.split_at_mut(index);
        let before = before.last_mut().filter(|other| other.end == range.start);
        let behind = behind.first_mut().filter(|other| other.start == range.end);
        match (before, behind) {
            (Some(before), Some(behind)) => {
                before.end = behind.end;
                self.free.remove(index);
            }
            (Some(before), None) => before.end = range.end,
            (None, Some(behind)) => behind.start = range.start,
            (None, None) => self.free.insert(index, range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_rooms_without_enough_memory() {
        assert_eq!(Rooms::new(63).take(1), None);
        assert_eq!(Rooms::new(128).take(usize::MAX), None);
    }

    proptest! {
        #[test]
        fn rooms_are_disjoint_and_reused(
            steps in prop::collection::vec(prop::result::maybe_ok(any::<prop::sample::Index>(), 1usize..1500), 1..300)
        ) {
            const BYTES: usize = 4096;
            let (mut rooms, mut held) = (Rooms::new(BYTES), Vec::<Range<usize>>::new());
            for step in steps {
                match step {
                    Err(bytes) => {
                        let taken = rooms.take(bytes);
                        prop_assert!(taken.is_some() || !held.is_empty());
                        let Some(range) = taken else { continue };
                        prop_assert!(range.len() >= bytes && range.end <= BYTES);
                        prop_assert!(range.start % ALIGN == 0);
                        let is_apart = |other: &Range<usize>| range.end <= other.start || other.end <= range.start;
                        prop_assert!(held.iter().all(is_apart));
                        held.push(range);
                    }
                    Ok(index) if !held.is_empty() => {
                        let at = index.index(held.len());
                        rooms.give_back(held.swap_remove(at));
                    }
                    Ok(_) => {}
                }
            }
            for range in held {
                rooms.give_back(range);
            }
            prop_assert_eq!(rooms.take(BYTES), Some(0..BYTES));
        }
    }
}
