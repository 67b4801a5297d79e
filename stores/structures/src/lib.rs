//! Structures that many stores have on storage, each with the storage function that reads it in one
//! chain, a builder, the function's argument and answer as types, and the same lookup over plain
//! reads.
//!
//! | module | structure | storage function |
//! |---|---|---|
//! | [`block`] | tables of sorted blocks with prefix compression, as LSM stores write them | `block_get` |
//! | [`hash`] | hash tables of buckets with chained overflow blocks | `hash_get` |
//! | [`log`] | logs whose records are linked backwards | `log_walk` |
//! | [`records`] | records of one size, filtered and reduced | `filter_reduce` |
//!
//! What a file may look like is told by the header of each function, `functions/<function>.h`.
//!
//! # How data flows
//! A builder makes the bytes of a file. A `Get` or the like makes the argument, and says which read
//! the chain begins with; what comes back is parsed by the answer's type. `plain` of each module
//! takes the same question, and a closure that reads. Both find the same, or the same [`Damage`].
//!
//! # What this crate does not do
//! No I/O, no caches, no compression, no changes in place: it has what is needed to try and measure
//! chains over such structures, and to start a store's own function from.
//! A B⁺-tree is in the crate `bpfkv`.

pub mod block;
mod bytes;
mod damage;
pub mod hash;
pub mod log;
pub mod records;

pub use damage::Damage;

/// Reads so many bytes at a file offset; None if the file has not so many there.
pub type ReadAt<'a> = dyn FnMut(u64, usize) -> Option<Vec<u8>> + 'a;

/// Bytes that one read can have wherever it begins, on devices of up to 4096 bytes a logical block
/// (`BPFOF_READ_MAX`).
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
    /// Reads what is there, as a storage function would get it.
    fn read(self, read: &mut ReadAt<'_>) -> Result<Vec<u8>, Damage> {
        read(self.offset_bytes, self.size_bytes as usize).ok_or(Damage::Unreadable)
    }
}
