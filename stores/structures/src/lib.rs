//! Data structures that many stores keep on storage, each with the storage function that reads it
//! in one chain, a builder, the function's argument and answer as types, and the same lookup over
//! plain reads.
//!
//! | module | structure | storage function |
//! |---|---|---|
//! | [`block`] | tables of sorted blocks with prefix compression, as LSM stores write them | `block_get` |
//! | [`hash`] | hash tables of buckets with chained overflow blocks | `hash_get` |
//! | [`log`] | logs whose records are linked backwards | `log_walk` |
//! | [`records`] | records of one size, filtered and reduced | `filter_reduce` |
//!
//! The header of each function, `functions/<function>.h`, defines the file format.
//!
//! # How data flows
//! A builder makes the bytes of a file. A `Get` or the like makes the argument and the first read
//! of the chain; the answer's type parses the chain's answer. `plain` of each module takes the same
//! query, and a closure that reads. Both find the same, or report the same [`Damage`].
//!
//! # What this crate does not do
//! No I/O, no caches, no compression, no updates in place: it has what is needed to try and measure
//! chains over such structures, and a starting point for a store's own function.
//! A B⁺-tree is in the crate `bpfkv`.

pub mod block;
mod bytes;
mod damage;
pub mod hash;
pub mod log;
pub mod records;

pub use damage::Damage;

/// Reads this many bytes at a file offset; None if the file has fewer bytes there.
pub type ReadAt<'a> = dyn FnMut(u64, usize) -> Option<Vec<u8>> + 'a;

/// The most bytes that one read can have wherever it begins, on devices of up to 4096 bytes a
/// logical block (`BPFOF_READ_MAX`).
pub const READ_MAX_BYTES: usize = 65_536 - 2 * 4096;

/// Where a chain, or a plain lookup, begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// File offset in bytes.
    pub offset_bytes: u64,
    /// Size of the read in bytes.
    pub size_bytes: u32,
}

impl Place {
    /// Reads the bytes at this place, as a storage function would get them.
    fn read(self, read: &mut ReadAt<'_>) -> Result<Vec<u8>, Damage> {
        read(self.offset_bytes, self.size_bytes as usize).ok_or(Damage::Unreadable)
    }
}
