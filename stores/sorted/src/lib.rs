//! Sorted tables: immutable files of key-value pairs, as log-structured stores write them, and a
//! storage function that looks a key up in a set of them, newest first, in one chain.
//!
//! The layout is in `functions/sorted.h`. [`TableWriter`] writes a table; [`get_argument`] and
//! [`Lookup::parse`] are the two ends of the storage function [`GET_OBJECT`], whose first read is
//! the root block of the newest table.
//!
//! # What this crate does not do
//!
//! No I/O, no memtable, no merging, no caching, no checksums: its lookups have the shape of those
//! of such a store, for tests of chains over several files and for measuring.

use std::ops::Range;

/// The storage function `sorted_get`, an ELF object.
pub const GET_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sorted_get.bpf.o"));
/// The most tables that one lookup can search: the files that a request may name.
pub const TABLES_MAX: usize = 16;
/// Largest block in bytes.
pub const BLOCK_MAX_BYTES: usize = 32_768;

/// The most layers of index blocks that a lookup descends.
const INDEX_LAYERS_MAX: u32 = 7;
const INDEX_MAGIC: u32 = 0x5844_4953;
const DATA_MAGIC: u32 = 0x5441_4453;
const HEADER_BYTES: usize = 8;
const CHILD_BYTES: usize = 24;
const ENTRY_BYTES: usize = 16;
const DELETED: u32 = u32::MAX;
const ANSWER_BYTES: usize = 16;

/// The place of a table's root block in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Offset in bytes.
    pub offset: u64,
    /// Size in bytes.
    pub size: u32,
}

/// Sizes that determine the number of blocks and layers of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// A data block is closed when it reaches this many bytes. Blocks are not padded, so they may
    /// begin at any offset.
    pub data_block_bytes: usize,
    /// Largest number of children of an index block, at least 2.
    pub fanout: usize,
}

impl Default for Shape {
    /// Data blocks of about 4 KiB, index blocks of about 2.4 KiB.
    fn default() -> Self {
        Self { data_block_bytes: 4000, fanout: 100 }
    }
}

/// Makes one table, in memory.
#[derive(Debug)]
pub struct TableWriter {
    shape: Shape,
    bytes: Vec<u8>,
    /// Entries of the open data block: key, and the range of its value in `values`.
    entries: Vec<(u64, Option<Range<usize>>)>,
    values: Vec<u8>,
    /// First key and place of each finished data block.
    children: Vec<(u64, Root)>,
    last_key: Option<u64>,
}

/// Why an entry was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Keys must come in ascending order, each once.
    #[error("key {key} comes after {last}; add keys in ascending order")]
    Order {
        /// The key.
        key: u64,
        /// The previous key.
        last: u64,
    },
    /// A value too long for a block.
    #[error("a value of {0} bytes does not fit a block of {BLOCK_MAX_BYTES}")]
    ValueTooLong(usize),
}

impl TableWriter {
    /// An empty table.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        let shape = Shape {
            data_block_bytes: shape.data_block_bytes.min(BLOCK_MAX_BYTES),
            fanout: shape.fanout.clamp(2, (BLOCK_MAX_BYTES - HEADER_BYTES) / CHILD_BYTES),
        };
        Self {
            shape,
            bytes: Vec::new(),
            entries: Vec::new(),
            values: Vec::new(),
            children: Vec::new(),
            last_key: None,
        }
    }

    /// Adds a value, or a deletion of the key.
    ///
    /// # Errors
    /// [`TableError`]; the table is then unchanged.
    pub fn add(&mut self, key: u64, value: Option<&[u8]>) -> Result<(), TableError> {
        if let Some(last) = self.last_key.filter(|last| *last >= key) {
            return Err(TableError::Order { key, last });
        }
        let length = value.map_or(0, <[u8]>::len);
        if length > BLOCK_MAX_BYTES - HEADER_BYTES - ENTRY_BYTES {
            return Err(TableError::ValueTooLong(length));
        }
        let size = HEADER_BYTES + self.entries.len() * ENTRY_BYTES + self.values.len();
        if !self.entries.is_empty() && size + ENTRY_BYTES + length > self.shape.data_block_bytes {
            self.close_block();
        }
        let from = self.values.len();
        self.values.extend_from_slice(value.unwrap_or(&[]));
        self.entries.push((key, value.map(|_| from..self.values.len())));
        self.last_key = Some(key);
        Ok(())
    }

    fn close_block(&mut self) {
        let Some((first_key, _)) = self.entries.first() else { return };
        let values_at = HEADER_BYTES + self.entries.len() * ENTRY_BYTES;
        let root =
            Root { offset: self.bytes.len() as u64, size: (values_at + self.values.len()) as u32 };
        self.children.push((*first_key, root));
        self.bytes.extend_from_slice(&DATA_MAGIC.to_le_bytes());
        self.bytes.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        for (key, value) in self.entries.drain(..) {
            let (at, length) = match value {
                Some(range) => ((values_at + range.start) as u32, range.len() as u32),
                None => (0, DELETED),
            };
            self.bytes.extend_from_slice(&key.to_le_bytes());
            self.bytes.extend_from_slice(&at.to_le_bytes());
            self.bytes.extend_from_slice(&length.to_le_bytes());
        }
        self.bytes.append(&mut self.values);
    }

    /// Returns the table's bytes and the place of its root block. A table without entries has an
    /// index block without children. Index blocks exceed `fanout` where a table would otherwise
    /// have more layers than lookups descend.
    #[must_use]
    pub fn finish(mut self) -> (Vec<u8>, Root) {
        self.close_block();
        let blocks = self.children.len() as u128;
        let widest = (self.shape.fanout..).find(|fanout| {
            (*fanout as u128).checked_pow(INDEX_LAYERS_MAX).is_none_or(|room| room >= blocks)
        });
        let fanout = widest.unwrap_or(self.shape.fanout);
        loop {
            if let [(_, root)] = self.children[..] {
                return (self.bytes, root);
            }
            let mut layer = Vec::new();
            // An empty table has one chunk, too.
            let none = [&[][..]];
            let below = std::mem::take(&mut self.children);
            let chunks = below.chunks(fanout);
            for chunk in chunks.chain(none.into_iter().filter(|_| below.is_empty())) {
                let first_key = chunk.first().map_or(0, |(key, _)| *key);
                layer.push((first_key, self.index_block(chunk)));
            }
            self.children = layer;
        }
    }

    fn index_block(&mut self, children: &[(u64, Root)]) -> Root {
        let offset = self.bytes.len() as u64;
        self.bytes.extend_from_slice(&INDEX_MAGIC.to_le_bytes());
        self.bytes.extend_from_slice(&(children.len() as u32).to_le_bytes());
        for (first_key, root) in children {
            self.bytes.extend_from_slice(&first_key.to_le_bytes());
            self.bytes.extend_from_slice(&root.offset.to_le_bytes());
            self.bytes.extend_from_slice(&root.size.to_le_bytes());
            self.bytes.extend_from_slice(&[0; 4]);
        }
        Root { offset, size: (HEADER_BYTES + children.len() * CHILD_BYTES) as u32 }
    }
}

/// The argument of `sorted_get` for tables whose files the request names in the same order, newest
/// first. None for no table or more than [`TABLES_MAX`].
#[must_use]
pub fn get_argument(key: u64, roots: &[Root]) -> Option<Vec<u8>> {
    if roots.is_empty() || roots.len() > TABLES_MAX {
        return None;
    }
    let mut argument = Vec::with_capacity(16 + 16 * roots.len());
    argument.extend_from_slice(&key.to_le_bytes());
    argument.extend_from_slice(&(roots.len() as u32).to_le_bytes());
    argument.extend_from_slice(&[0; 4]);
    for root in roots {
        argument.extend_from_slice(&root.offset.to_le_bytes());
        argument.extend_from_slice(&root.size.to_le_bytes());
        argument.extend_from_slice(&[0; 4]);
    }
    Some(argument)
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// No table has the key.
    NotFound,
    /// The place in the request of the newest table with the key, and the value.
    Found(u32, &'a [u8]),
    /// The newest table with the key has a deletion.
    Deleted(u32),
}

impl<'a> Lookup<'a> {
    /// Parses an answer of `sorted_get`; None if it is malformed.
    #[must_use]
    pub fn parse(answer: &'a [u8]) -> Option<Self> {
        let (fixed, value) = answer.split_first_chunk::<ANSWER_BYTES>()?;
        let (words, _) = fixed.as_chunks::<4>();
        let [status, table, size, 0] = [0, 1, 2, 3]
            .map(|at: usize| words.get(at).map_or(u32::MAX, |word| u32::from_le_bytes(*word)))
        else {
            return None;
        };
        if value.len() != size as usize {
            return None;
        }
        match status {
            0 => Some(Self::NotFound),
            1 => Some(Self::Found(table, value)),
            2 => Some(Self::Deleted(table)),
            _ => None,
        }
    }
}

/// Describes why `sorted_get` aborted with `code`.
#[must_use]
pub fn describe_abort(code: u32) -> &'static str {
    match code {
        1 => "a block is neither an index nor a data block",
        2 => "a block is shorter than its header says",
        3 => "an index names a block of an invalid size",
        4 => "a value lies outside its block, or does not fit the scratch buffer",
        5 => "a table has more layers than a table can have: is there a cycle?",
        6 => "the argument is damaged",
        _ => "an unknown code",
    }
}
