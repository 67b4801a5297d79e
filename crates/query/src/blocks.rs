//! Adapts the size of reads: halves it when a call exceeds its budget, and doubles it again after chains that ended
//! successfully.

/// Number of chains that must end before a larger block is tried again.
const FIRST_PATIENCE: u32 = 2;
/// Factor for that number after a larger block has failed again: a chain that fails must be run again.
const MORE_PATIENCE: u32 = 4;

/// The size of a block: in bytes; for column files in rows.
#[derive(Debug)]
pub(crate) struct BlockSize {
    now: u32,
    least: u32,
    most: u32,
    /// Sizes are multiples of this.
    unit: u32,
    /// Chains that have ended with the current size.
    ended: u32,
    patience: u32,
    has_grown: bool,
}

impl BlockSize {
    /// Begins with the size `most`.
    pub(crate) const fn new(least: u32, most: u32, unit: u32) -> Self {
        let patience = FIRST_PATIENCE;
        Self { now: most, least, most, unit, ended: 0, patience, has_grown: false }
    }

    pub(crate) const fn now(&self) -> u32 {
        self.now
    }

    /// A chain with blocks of this size exceeded its budget. Returns whether to try again, with a smaller block.
    pub(crate) const fn halve(&mut self, failed: u32) -> bool {
        // The size has been reduced since that chain began.
        if self.now < failed {
            return true;
        }
        let half = failed / 2 / self.unit * self.unit;
        if half < self.least {
            return false;
        }
        if self.has_grown {
            self.patience = self.patience.saturating_mul(MORE_PATIENCE);
        }
        (self.now, self.ended, self.has_grown) = (half, 0, false);
        true
    }

    /// A chain with blocks of this size has ended successfully.
    pub(crate) fn ended(&mut self, size: u32) {
        if size != self.now || size == self.most {
            return;
        }
        self.ended += 1;
        if self.ended >= self.patience {
            let twice = self.now.saturating_mul(2) / self.unit * self.unit;
            (self.now, self.ended, self.has_grown) = (twice.min(self.most), 0, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::BlockSize;

    #[test]
    fn blocks_shrink_to_the_least_and_grow_again() {
        let mut block = BlockSize::new(256, 16 << 10, 1);
        for size in [16 << 10, 8 << 10, 4 << 10, 2 << 10, 1 << 10, 512] {
            assert_eq!((block.now(), block.halve(size)), (size, true));
            // Chains that began with the old size are tried again with the current one.
            assert!(block.halve(size) && block.now() == size / 2);
        }
        assert!(!block.halve(256));
        for size in [256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10] {
            for _ in 0..2 {
                assert_eq!(block.now(), size);
                block.ended(size);
            }
        }
        block.ended(16 << 10);
        assert_eq!(block.now(), 16 << 10);
    }

    /// With a file that permits only small blocks, fewer and fewer chains fail.
    #[test]
    fn a_block_that_is_too_large_is_tried_ever_less_often() {
        let mut block = BlockSize::new(256, 16 << 10, 1);
        let (mut failed, mut ended) = (0, 0);
        while ended < 10_000 {
            let size = block.now();
            if size > 1 << 10 {
                failed += 1;
                assert!(block.halve(size));
            } else {
                ended += 1;
                block.ended(size);
            }
        }
        assert!(failed < 12, "{failed}");
    }

    #[test]
    fn blocks_have_whole_records() {
        let mut block = BlockSize::new(28, 28 * 101, 28);
        assert!(block.halve(28 * 101) && block.now() == 28 * 50);
        assert!(block.halve(28 * 50) && block.halve(28 * 25) && block.now() == 28 * 12);
        (0..2).for_each(|_| block.ended(28 * 12));
        assert_eq!(block.now(), 28 * 24);
        let mut one = BlockSize::new(28, 28, 28);
        assert!(!one.halve(28));
    }
}
