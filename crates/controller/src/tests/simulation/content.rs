//! Contents of blocks: each written block contains its write's number, and the pointer for chains.

use super::random::mix;
use std::collections::BTreeMap;

/// Blocks that a chain may visit: each file of a host has this length, so every pointer is valid in
/// each file.
pub(super) const CHAIN_BLOCKS: u64 = 24;
/// Block size of the namespaces that chains read, in bytes.
pub(super) const CHAIN_BLOCK_BYTES: u64 = 512;

/// The contents found in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Zeroes,
    /// The whole block is from this write.
    Write(u64),
}

impl Found {
    /// From the second word of a block.
    pub(super) fn of(write: u64) -> Found {
        if write == 0 { Found::Zeroes } else { Found::Write(write) }
    }
}

/// All writes so far, and their pointers.
#[derive(Debug, Default)]
pub(super) struct Contents {
    next: BTreeMap<u64, u64>,
}

impl Contents {
    /// Records a write of one block.
    pub(super) fn add(&mut self, write: u64, next: u64) {
        self.next.insert(write, next);
    }

    /// The pointer in a block; 0 ends a chain.
    pub(super) fn next(&self, found: Found) -> Option<u64> {
        match found {
            Found::Zeroes => Some(0),
            Found::Write(write) => self.next.get(&write).copied(),
        }
    }

    /// Appends the contents of one block written by `write`.
    pub(super) fn append(&self, write: u64, block_bytes: usize, to: &mut Vec<u8>) {
        let next = self.next.get(&write).copied().unwrap_or_default();
        to.extend_from_slice(&next.to_le_bytes());
        to.extend_from_slice(&write.to_le_bytes());
        let pattern = mix(write);
        for word in 2..block_bytes as u64 / 8 {
            to.extend_from_slice(&pattern.wrapping_add(word).to_le_bytes());
        }
    }

    /// Determines what a block holds.
    pub(super) fn find(&self, block: &[u8]) -> Result<Found, String> {
        let mut words = block.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let (next, write) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
        if write == 0 {
            return match next == 0 && words.all(|word| word == 0) {
                true => Ok(Found::Zeroes),
                false => Err("a block is zero in part".to_owned()),
            };
        }
        let found = Found::Write(write);
        let pattern = mix(write);
        let whole = (2..).zip(words).all(|(index, word)| word == pattern.wrapping_add(index));
        match self.next(found) == Some(next) && whole {
            true => Ok(found),
            false => Err(format!("a block begins as write {write} left it, the rest is not")),
        }
    }
}
