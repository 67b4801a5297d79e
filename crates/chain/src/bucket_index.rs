//! Finds a place in a sorted list in about constant time.
//!
//! A binary search in a long list costs a cache miss or a mispredicted branch for most of its steps. Here the range of
//! keys is divided into equal stretches, one to two for each key, and a table has the list position at which each
//! stretch begins. Only the few keys of one stretch remain to be searched; where many keys fall in one stretch, as in a
//! sparse file, that is a binary search again, without branches.

use std::hint::select_unpredictable;

/// The list position at which each stretch of keys begins. Takes four to eight bytes for each key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    /// The first key.
    base: u64,
    /// The length of a stretch is two to this power.
    shift: u32,
    /// For each stretch, the last item whose key is not above the stretch's first key.
    firsts: Box<[u32]>,
}

impl Directory {
    /// A directory of `items`, whose keys ascend and are below `end`.
    pub(crate) fn new<T>(items: &[T], end: u64, key: impl Fn(&T) -> u64) -> Directory {
        let Some(base) = items.first().map(&key) else { return Directory::default() };
        let span = end.saturating_sub(base);
        let stretches_max = items.len() as u64 * 2;
        let mut shift = 0;
        while span >> shift >= stretches_max {
            shift += 1;
        }
        let mut item = 0;
        let firsts = (0..(span >> shift) + 2).map(|stretch| {
            // Saturating: no key is above the largest number.
            let first = base.saturating_add(stretch.saturating_mul(1 << shift));
            while items.get(item + 1).is_some_and(|next| key(next) <= first) {
                item += 1;
            }
            item as u32
        });
        Directory { base, shift, firsts: firsts.collect() }
    }

    /// Bytes of memory that the table takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.firsts)
    }

    /// The index of the last item whose key is not above `wanted`. `None` if there is no such item; perhaps also if
    /// `wanted` is not below the `end` that was passed to [`new`](Self::new).
    #[inline]
    pub(crate) fn find<T>(
        &self,
        items: &[T],
        wanted: u64,
        key: impl Fn(&T) -> u64,
    ) -> Option<usize> {
        let stretch = (wanted.checked_sub(self.base)? >> self.shift) as usize;
        let first = *self.firsts.get(stretch)? as usize;
        let last = *self.firsts.get(stretch + 1)? as usize;
        let items = items.get(first..=last)?;
        let (mut found, mut left) = (0, items.len());
        while left > 1 {
            let half = left / 2;
            let not_above = key(items.get(found + half)?) <= wanted;
            found = select_unpredictable(not_above, found + half, found);
            left -= half;
        }
        Some(first + found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(keys: &[u64], end: u64, wanted: u64) {
        let directory = Directory::new(keys, end, |key| *key);
        assert!(directory.firsts.len() <= keys.len() * 2 + 2);
        let plain = keys.partition_point(|key| *key <= wanted).checked_sub(1);
        let found = directory.find(keys, wanted, |key| *key);
        assert!(found == plain || (found.is_none() && wanted >= end), "{keys:?} {end} {wanted}");
    }

    #[test]
    fn lists_of_every_kind() {
        let most = u64::MAX;
        let crowd: Vec<u64> = (0..1000).chain([1 << 40, most - 1]).collect();
        let dense: Vec<u64> = (1..=1000).collect();
        let lists: [(&[u64], u64); 7] = [
            (&[], 0),
            (&[0], most),
            (&[7], 8),
            (&[most - 1], most),
            (&[0, most - 1], most),
            (&crowd, most),
            (&dense, 1001),
        ];
        for (keys, end) in lists {
            let around = keys.iter().flat_map(|key| [key.saturating_sub(1), *key, key + 1]);
            for wanted in around.chain([0, end - end.min(1), end, most]) {
                check(keys, end, wanted);
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_linear_search(
            keys in proptest::collection::btree_set(0..u64::MAX, 0..300),
            shift in 0..64_u32,
            wanted in proptest::collection::vec(any::<u64>(), 0..50),
        ) {
            // Also small numbers, so that many keys are equal or adjacent.
            let mut keys: Vec<u64> = keys.into_iter().map(|key| key >> shift).collect();
            keys.dedup();
            let end = keys.last().map_or(0, |last| last + 1);
            for wanted in wanted.iter().map(|wanted| wanted >> shift).chain(keys.clone()) {
                check(&keys, end, wanted);
            }
        }
    }
}
