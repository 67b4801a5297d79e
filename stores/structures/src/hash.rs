//! Hash tables of buckets with chained overflow blocks (`functions/hash_get.h`).

use crate::bytes::Bytes;
use crate::{Damage, Place, READ_MAX_BYTES, ReadAt};
use std::collections::BTreeMap;

/// The storage function `hash_get`, an ELF object.
pub const GET_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hash_get.bpf.o"));

const HEADER_BYTES: usize = 24;
const ENTRY_BYTES: usize = 8;

/// The layout of a table, which lookups must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Size of a block in bytes.
    pub block_bytes: u32,
    /// Number of buckets; the first is at the start of the file.
    pub buckets: u32,
    /// Number of blocks of the longest bucket.
    pub blocks_max: u32,
}

/// A finished table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The file.
    pub bytes: Vec<u8>,
    /// The layout for lookups.
    pub layout: Layout,
}

/// Why a table cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// No bucket, or blocks too large for a read.
    #[error("a table has at least one bucket, and blocks of 32 to {READ_MAX_BYTES} bytes")]
    Shape,
    /// An entry too long for a block.
    #[error("an entry of {0} bytes does not fit a block, or has a key or value above 65535")]
    TooLong(usize),
}

/// The hash of a key: FNV-1a, mixed once more because its upper bits are weak for short keys.
fn hash(key: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in key {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}

impl Layout {
    /// The bucket of a key, and the bits of its hash that entries store.
    fn place(&self, key: &[u8]) -> (u32, u32) {
        let hash = hash(key);
        ((hash % u64::from(self.buckets.max(1))) as u32, (hash >> 32) as u32)
    }
}

/// Writes the checksum of a block.
pub fn seal(block: &mut [u8]) {
    if let Some((checksum, checked)) = block.split_first_chunk_mut::<4>() {
        *checksum = crc32c::crc32c(checked).to_le_bytes();
    }
}

impl Table {
    /// Makes a table of blocks of `block_bytes`.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn new(
        block_bytes: u32,
        buckets: u32,
        entries: &BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<Table, TableError> {
        let size = block_bytes as usize;
        if buckets == 0 || !(HEADER_BYTES + ENTRY_BYTES..=READ_MAX_BYTES).contains(&size) {
            return Err(TableError::Shape);
        }
        let mut layout = Layout { block_bytes, buckets, blocks_max: 1 };
        // The entries of each block of each bucket.
        let mut chains = vec![vec![Vec::new()]; buckets as usize];
        for (key, value) in entries {
            let length = ENTRY_BYTES + key.len() + value.len();
            let sizes = [key.len(), value.len()].map(u16::try_from);
            let ([Ok(key_size), Ok(value_size)], true) = (sizes, length <= size - HEADER_BYTES)
            else {
                return Err(TableError::TooLong(length));
            };
            let (bucket, hash) = layout.place(key);
            let Some(chain) = chains.get_mut(bucket as usize) else { continue };
            if chain.last().is_none_or(|block: &Vec<u8>| block.len() + length > size - HEADER_BYTES)
            {
                chain.push(Vec::new());
            }
            layout.blocks_max = layout.blocks_max.max(chain.len() as u32);
            let Some(block) = chain.last_mut() else { continue };
            block.extend_from_slice(&hash.to_le_bytes());
            block.extend_from_slice(&key_size.to_le_bytes());
            block.extend_from_slice(&value_size.to_le_bytes());
            block.extend_from_slice(key);
            block.extend_from_slice(value);
        }
        Ok(Table { bytes: write(layout, &chains), layout })
    }
}

/// The first blocks of all buckets, followed by the overflow blocks.
fn write(layout: Layout, chains: &[Vec<Vec<u8>>]) -> Vec<u8> {
    let size = layout.block_bytes as usize;
    let mut buckets = Vec::new();
    let mut overflow = Vec::new();
    for (bucket, chain) in chains.iter().enumerate() {
        for (number, entries) in chain.iter().enumerate() {
            let next = if number + 1 < chain.len() {
                // Overflow blocks of a bucket follow each other, after the last block written.
                chains.len() * size + overflow.len() + if number == 0 { 0 } else { size }
            } else {
                0
            };
            let to = if number == 0 { &mut buckets } else { &mut overflow };
            let from = to.len();
            to.extend_from_slice(&[0; 4]);
            to.extend_from_slice(&(entries.len() as u32).to_le_bytes());
            to.extend_from_slice(&(next as u64).to_le_bytes());
            to.extend_from_slice(&(bucket as u32).to_le_bytes());
            to.extend_from_slice(&[0; 4]);
            to.extend_from_slice(entries);
            to.resize(from + size, 0);
            seal(to.split_at_mut(from).1);
        }
    }
    buckets.extend(overflow);
    buckets
}

/// A query for the value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get<'a> {
    /// The table.
    pub layout: Layout,
    /// The key.
    pub key: &'a [u8],
}

impl Get<'_> {
    /// The block that the chain begins with.
    #[must_use]
    pub fn first(&self) -> Place {
        let (bucket, _) = self.layout.place(self.key);
        let size_bytes = self.layout.block_bytes;
        Place { offset_bytes: u64::from(bucket) * u64::from(size_bytes), size_bytes }
    }

    /// The argument of `hash_get`. The chain fails with [`Damage::Request`] if the value is longer than its scratch less 4
    /// bytes; [`plain`](Self::plain) reads any.
    #[must_use]
    pub fn argument(&self) -> Vec<u8> {
        let (bucket, hash) = self.layout.place(self.key);
        let numbers = [hash, bucket, self.layout.blocks_max, self.key.len() as u32];
        let mut argument: Vec<u8> =
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        argument.extend_from_slice(self.key);
        argument
    }

    /// The same lookup over plain reads.
    ///
    /// # Errors
    /// The table's [`Damage`].
    pub fn plain(&self, read: &mut ReadAt<'_>) -> Result<Lookup, Damage> {
        let mut place = self.first();
        for _ in 0..self.layout.blocks_max.max(1) {
            let block = place.read(read)?;
            let (entries, next) = self.open(&block)?;
            if let Some(value) = self.search(entries)? {
                return Ok(Lookup::Found(value.to_vec()));
            }
            if next == 0 {
                return Ok(Lookup::NotFound);
            }
            place.offset_bytes = next;
        }
        Err(Damage::TooManyBlocks)
    }

    /// The entries of a block, and the place of the next block.
    fn open<'b>(&self, block: &'b [u8]) -> Result<(Bytes<'b>, u64), Damage> {
        let mut rest = Bytes(block);
        let mut header = || Some((rest.u32()?, rest.u32()?, rest.u64()?, rest.u32()?, rest.u32()?));
        let (checksum, used, next, bucket, _) = header().ok_or(Damage::Size)?;
        if block.get(4..).map(crc32c::crc32c) != Some(checksum) {
            return Err(Damage::Checksum);
        }
        if bucket != self.layout.place(self.key).0 {
            return Err(Damage::WrongPlace);
        }
        Ok((Bytes(rest.take(used as usize).ok_or(Damage::Size)?), next))
    }

    fn search<'b>(&self, mut entries: Bytes<'b>) -> Result<Option<&'b [u8]>, Damage> {
        let (_, wanted) = self.layout.place(self.key);
        while !entries.0.is_empty() {
            let mut entry = || {
                let hash = entries.u32()?;
                let [key_size, value_size] = [entries.u16()?, entries.u16()?].map(usize::from);
                Some((hash, entries.take(key_size)?, entries.take(value_size)?))
            };
            let (hash, key, value) = entry().ok_or(Damage::Entry)?;
            if hash == wanted && key == self.key {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The table does not have the key.
    NotFound,
    /// The key's value.
    Found(Vec<u8>),
}

impl Lookup {
    /// Parses an answer of `hash_get`; None if it is malformed.
    #[must_use]
    pub fn parse(answer: &[u8]) -> Option<Lookup> {
        if answer.is_empty() {
            return Some(Lookup::NotFound);
        }
        let (size, value) = answer.split_first_chunk()?;
        let is_whole = value.len() == u32::from_le_bytes(*size) as usize;
        is_whole.then(|| Lookup::Found(value.to_vec()))
    }
}
