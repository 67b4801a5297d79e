//! Free arenas, each with its last owner.

/// How many of the most recently released arenas are searched for one that `owner` used last. Such an arena need not be
/// wiped, which costs more than a short chain.
const AMONG: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Free {
    index: u32,
    owner: u64,
}

/// The stack of free arenas, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct FreeArenas {
    free: Vec<Free>,
}

impl FreeArenas {
    /// Number of free arenas.
    pub(crate) fn len(&self) -> usize {
        self.free.len()
    }

    /// Adds a released arena whose last owner is `owner`.
    pub(crate) fn put(&mut self, index: u32, owner: u64) {
        self.free.push(Free { index, owner });
    }

    /// Takes an arena for `owner`: its own last one if that was released recently, else the one released last.
    #[inline]
    pub(crate) fn take(&mut self, owner: u64) -> Option<u32> {
        let lately = self.free.len().saturating_sub(AMONG);
        let own = self.free[lately..].iter().rposition(|free| free.owner == owner);
        let taken = match own {
            Some(at) => self.free.remove(lately + at),
            None => self.free.pop()?,
        };
        Some(taken.index)
    }

    /// Removes arenas with numbers from `count` on.
    pub(crate) fn trim(&mut self, count: u32) {
        self.free.retain(|free| free.index < count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_get_their_own_arena_back_while_it_is_warm() {
        let mut free = FreeArenas::default();
        assert_eq!(free.take(1), None);
        for (index, owner) in [(0, 1), (1, 2), (2, 1), (3, 2)] {
            free.put(index, owner);
        }
        assert_eq!([1, 1, 2, 1].map(|owner| free.take(owner)), [2, 0, 3, 1].map(Some));
        assert_eq!(free.len(), 0);
        free.put(0, 1);
        (1..=AMONG as u32).for_each(|index| free.put(index, 2));
        assert_eq!(free.take(1), Some(AMONG as u32), "its own is cold");
        assert_eq!(free.take(1), Some(0), "and has become one of the last");
        free.trim(2);
        assert_eq!((free.len(), free.take(3), free.take(3)), (1, Some(1), None));
    }
}
