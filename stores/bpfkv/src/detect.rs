//! Determines whether a file is a BPF-KV database, and its number of levels.
//!
//! The format has no magic, so this checks the leftmost path: types, ascending keys, and pointers
//! into the file. Text, zeroes and random bytes fail at the root.

use crate::cache::Reader;
use crate::corrupt::{Corrupt, Defect};
use crate::format::{
    BLOCK_BYTES, FANOUT, LEVELS_MAX, Layout, NO_KEY, NODE_BYTES, Node, VALUE_BYTES,
};
use std::io;

/// The properties of a detected database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detected {
    /// Levels of the tree, leaves included.
    pub levels: u32,
    /// Whether its leftmost path is that of a stock database of that many levels ([`Layout`]),
    /// whose keys are dense from 0.
    pub stock: bool,
}

/// Why a file is not a database.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    /// Smaller than one node and one value block.
    #[error("{0} bytes are too few for a BPF-KV database: was it created?")]
    TooShort(u64),
    /// A node of the leftmost path is invalid.
    #[error("this is not a BPF-KV database ({0}): create one first, or name another file")]
    NotADatabase(#[from] Corrupt),
    /// The reader failed.
    #[error("reading the node at byte {offset_bytes}: {source}")]
    Read {
        /// File offset of the read, in bytes.
        offset_bytes: u64,
        /// The reader's error.
        source: io::Error,
    },
}

/// Examines a file (or namespace) of `file_bytes` bytes by a few reads of 512 bytes.
///
/// # Errors
/// [`DetectError`].
pub fn detect(file_bytes: u64, read: Reader<'_>) -> Result<Detected, DetectError> {
    if file_bytes < 2 * BLOCK_BYTES {
        return Err(DetectError::TooShort(file_bytes));
    }
    // First pointer of each node of the leftmost path, and distance between its keys.
    let mut path = Vec::new();
    let mut offset_bytes = 0;
    loop {
        let mut bytes = [0; NODE_BYTES];
        read(offset_bytes, &mut bytes)
            .map_err(|source| DetectError::Read { offset_bytes, source })?;
        let node = Node::parse(offset_bytes, &bytes)?;
        let first = check(&node, file_bytes)?;
        path.push((offset_bytes, node.key(0), node.key(1).wrapping_sub(node.key(0))));
        if node.is_leaf() {
            break;
        }
        if path.len() == LEVELS_MAX as usize {
            return Err(node.corrupt(Defect::TooDeep).into());
        }
        offset_bytes = first;
    }
    let levels = path.len() as u32;
    let stock = Layout::new(levels).is_ok_and(|layout| {
        let stock_path = (0..levels)
            .map(|level| (layout.node_offset_bytes(level, 0), 0, layout.keys_below(level + 1)));
        file_bytes >= layout.file_bytes() && path.iter().copied().eq(stock_path)
    });
    Ok(Detected { levels, stock })
}

/// Checks the slots in use and returns the place to which the first points.
fn check(node: &Node<'_>, file_bytes: u64) -> Result<u64, Corrupt> {
    if node.key(0) == NO_KEY {
        return Err(node.corrupt(Defect::EmptyNode));
    }
    let mut above = 0;
    for slot in (0..FANOUT).take_while(|&slot| node.key(slot) != NO_KEY) {
        if node.key(slot) < above {
            return Err(node.corrupt(Defect::KeysNotAscending));
        }
        above = node.key(slot) + 1;
        pointer(node, slot, file_bytes)?;
    }
    pointer(node, 0, file_bytes)
}

fn pointer(node: &Node<'_>, slot: usize, file_bytes: u64) -> Result<u64, Corrupt> {
    let (offset_bytes, length_bytes, defect) = if node.is_leaf() {
        (node.value_offset_bytes(slot)?, VALUE_BYTES as u64, Defect::ValuePointer)
    } else {
        (node.child_offset_bytes(slot)?, BLOCK_BYTES, Defect::NodePointer)
    };
    if offset_bytes <= file_bytes - length_bytes {
        Ok(offset_bytes)
    } else {
        Err(node.corrupt(defect))
    }
}
