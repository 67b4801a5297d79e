//! The top levels of the tree, held in memory (XRP §5.1, BPF-oF §6.7): lookups start below them.

use crate::corrupt::{Corrupt, Defect};
use crate::format::{FANOUT, NO_KEY, NODE_BYTES, Node};
use std::io;

/// Most levels that a cache holds: three are 993 nodes, half a MiB; four would be 16 MiB, and the
/// papers use 0 to 3.
pub const LEVELS_CACHED_MAX: u32 = 3;

/// The most bytes that loading reads at once.
const READ_BYTES_MAX: usize = 128 << 10;

/// Why a cache could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// More levels than [`LEVELS_CACHED_MAX`].
    #[error("a BPF-KV cache holds 0 to {LEVELS_CACHED_MAX} levels, not {0}")]
    TooMany(u32),
    /// The leaves must stay out of the cache.
    #[error(
        "a BPF-KV cache of {cached} levels needs a tree of more: it has leaves at level {leaf}"
    )]
    NotBelowTree {
        /// Levels asked for.
        cached: u32,
        /// Level of a leaf, from 0.
        leaf: u32,
    },
    /// The root or a node below it is no node.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The reader failed.
    #[error("reading the node at byte {offset_bytes}: {source}")]
    Read {
        /// File offset of the read, in bytes.
        offset_bytes: u64,
        /// The reader's error.
        source: io::Error,
    },
}

/// The top levels of a database. In one that was created in part, keys outside the part are
/// reported when they are looked up.
#[derive(Debug)]
pub struct Cache {
    levels: u32,
    nodes: Vec<CachedNode>,
}

#[derive(Debug)]
struct CachedNode {
    offset_bytes: u64,
    keys: [u64; FANOUT],
    children: [Child; FANOUT],
}

#[derive(Clone, Copy, Debug)]
enum Child {
    /// Index of a cached node.
    Cached(u32),
    /// File offset in bytes of a node that is not cached.
    OnDisk(u64),
    /// The pointer is invalid.
    Missing,
}

/// Reads bytes at a file offset into a buffer, filling it.
pub type Reader<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>;

impl Cache {
    /// Reads the top `levels` levels, 0 to [`LEVELS_CACHED_MAX`] and fewer than the tree has.
    ///
    /// # Errors
    /// [`CacheError`].
    pub fn load(levels: u32, read: Reader<'_>) -> Result<Cache, CacheError> {
        if levels > LEVELS_CACHED_MAX {
            return Err(CacheError::TooMany(levels));
        }
        let mut cache = Cache { levels, nodes: Vec::new() };
        let mut offsets_bytes = vec![0];
        for level in 0..levels {
            offsets_bytes = cache.load_level(level, &offsets_bytes, read)?;
        }
        Ok(cache)
    }

    /// Levels held.
    pub fn levels(&self) -> u32 {
        self.levels
    }

    /// Memory of the cached nodes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.nodes.len() * size_of::<CachedNode>()
    }

    /// File offset in bytes of the node where the lookup of `key` continues, `None` if the database
    /// does not hold the key.
    ///
    /// # Errors
    /// [`Corrupt`] if the last cached node has no valid pointer.
    #[inline]
    pub fn start_of_get(&self, key: u64) -> Result<Option<u64>, Corrupt> {
        if key == NO_KEY {
            return Ok(None);
        }
        self.descend(key, |count| count.checked_sub(1))
    }

    /// File offset in bytes of the node where a range continues whose first key is `first`.
    ///
    /// # Errors
    /// [`Corrupt`] if the last cached node has no valid pointer.
    pub fn start_of_range(&self, first: u64) -> Result<u64, Corrupt> {
        // A range may begin before the first key, so there is always a slot.
        Ok(self.descend(first, |count| Some(count.saturating_sub(1)))?.unwrap_or(0))
    }

    fn descend(
        &self,
        key: u64,
        slot: impl Fn(usize) -> Option<usize>,
    ) -> Result<Option<u64>, Corrupt> {
        let mut node = self.nodes.first();
        while let Some(here) = node {
            let count = here.keys.partition_point(|&k| k <= key);
            let Some(slot) = slot(count) else { return Ok(None) };
            match here.children[slot] {
                Child::Cached(index) => node = self.nodes.get(index as usize),
                Child::OnDisk(offset_bytes) => return Ok(Some(offset_bytes)),
                Child::Missing => {
                    return Err(Corrupt::new(here.offset_bytes, Defect::NodePointer));
                }
            }
        }
        Ok(Some(0))
    }

    /// Reads the nodes of a level; returns the offsets of their children.
    fn load_level(
        &mut self,
        level: u32,
        offsets_bytes: &[u64],
        read: Reader<'_>,
    ) -> Result<Vec<u64>, CacheError> {
        let last = level + 1 == self.levels;
        let first_child = self.nodes.len() + offsets_bytes.len();
        let mut children_bytes = Vec::new();
        let mut buffer = vec![0; READ_BYTES_MAX];
        for run in offsets_bytes.chunk_by(|a, b| a + NODE_BYTES as u64 == *b) {
            for part in run.chunks(READ_BYTES_MAX / NODE_BYTES) {
                let buffer = &mut buffer[..part.len() * NODE_BYTES];
                read(part[0], buffer)
                    .map_err(|source| CacheError::Read { offset_bytes: part[0], source })?;
                for (&offset_bytes, bytes) in part.iter().zip(buffer.chunks(NODE_BYTES)) {
                    let node = Node::parse(offset_bytes, bytes)?;
                    if node.is_leaf() {
                        return Err(CacheError::NotBelowTree { cached: self.levels, leaf: level });
                    }
                    let child = |slot| match node.child_offset_bytes(slot) {
                        Err(_) => Child::Missing,
                        Ok(offset_bytes) if last => Child::OnDisk(offset_bytes),
                        Ok(offset_bytes) => {
                            children_bytes.push(offset_bytes);
                            Child::Cached((first_child + children_bytes.len() - 1) as u32)
                        }
                    };
                    self.nodes.push(CachedNode {
                        offset_bytes,
                        children: std::array::from_fn(child),
                        keys: std::array::from_fn(|slot| node.key(slot)),
                    });
                }
            }
        }
        Ok(children_bytes)
    }
}
