//! How much memory the machine code of many functions may take together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Machine code is mapped in pages, so the shortest function takes one.
const PAGE_BYTES: usize = 4096;

/// An account of memory for machine code, shared by all whose functions it bounds.
#[derive(Debug)]
pub struct CodeMemory {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
}

/// There is no room left for the machine code of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} bytes of machine code, where {used_bytes} of {limit_bytes} bytes are in use; unload \
     functions first"
)]
pub struct CodeMemoryFull {
    /// What the function takes.
    pub bytes: usize,
    /// What others have taken.
    pub used_bytes: usize,
    /// What all may take together.
    pub limit_bytes: usize,
}

/// Memory that is taken from an account, and given back when this is dropped.
#[derive(Debug)]
pub struct CodeCharge {
    memory: Arc<CodeMemory>,
    bytes: usize,
}

impl CodeMemory {
    /// An account of which nothing is used.
    pub fn new(limit_bytes: usize) -> Arc<CodeMemory> {
        Arc::new(CodeMemory { limit_bytes, used_bytes: AtomicUsize::new(0) })
    }

    /// Bytes that functions take now, in whole pages.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, rounded up to pages.
    ///
    /// # Errors
    /// If that is more than what is left; then nothing is taken.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Result<CodeCharge, CodeMemoryFull> {
        let full = |used_bytes| CodeMemoryFull { bytes, used_bytes, limit_bytes: self.limit_bytes };
        let pages = bytes.checked_next_multiple_of(PAGE_BYTES);
        let after = |used: usize| used.checked_add(pages?).filter(|sum| *sum <= self.limit_bytes);
        self.used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, after)
            .map_err(full)
            .map(|_| CodeCharge { memory: Arc::clone(self), bytes: pages.unwrap_or(bytes) })
    }
}

impl Drop for CodeCharge {
    fn drop(&mut self) {
        self.memory.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back() {
        let memory = CodeMemory::new(3 * PAGE_BYTES);
        let one = memory.charge(1).expect("room");
        let two = memory.charge(PAGE_BYTES + 1).expect("room");
        assert_eq!(memory.used_bytes(), 3 * PAGE_BYTES);
        let full = memory.charge(1).expect_err("no room");
        let (used_bytes, limit_bytes) = (3 * PAGE_BYTES, 3 * PAGE_BYTES);
        assert_eq!(full, CodeMemoryFull { bytes: 1, used_bytes, limit_bytes });
        drop(one);
        assert!(memory.charge(usize::MAX).is_err(), "the sum overflows");
        assert_eq!(memory.used_bytes(), 2 * PAGE_BYTES);
        let again = memory.charge(PAGE_BYTES).expect("room");
        drop((two, again));
        assert_eq!(memory.used_bytes(), 0);
    }
}
