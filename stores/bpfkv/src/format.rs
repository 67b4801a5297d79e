//! The layout of a database file: nodes, values, and where they are.
//!
//! All integers are little-endian. There is no superblock, no magic and no checksum.

use crate::corrupt::{Corrupt, Defect};

/// Keys and pointers of a node.
pub const FANOUT: usize = 31;
/// Size of a node in bytes.
pub const NODE_BYTES: usize = 512;
/// The unit in which nodes and values are read, in bytes.
pub const BLOCK_BYTES: u64 = 512;
/// Size of a value in bytes.
pub const VALUE_BYTES: usize = 64;
/// Values in one block of the log; the last block is filled up.
pub const VALUES_PER_BLOCK: u64 = BLOCK_BYTES / VALUE_BYTES as u64;
/// Set in pointers to children and values that are on disk. `next` does not carry it.
pub const POINTER_ON_DISK: u64 = 1 << 63;
/// Fills the key slots of a node that is not full. Not a key.
pub const NO_KEY: u64 = u64::MAX;
/// Most levels of a tree: eight are 853 · 10⁹ keys and 50 TiB, far beyond the six of the papers.
pub const LEVELS_MAX: u32 = 8;

/// A value.
pub type Value = [u8; VALUE_BYTES];

/// Words of 8 bytes before the keys of a node: next, type.
const HEADER_WORDS: usize = 2;
const INTERNAL: u64 = 0;
const LEAF: u64 = 1;

/// The value that a database of the original tool holds for key `number`: the number, right-aligned in 63
/// characters, and a NUL.
pub fn value_text(number: u64) -> Value {
    let mut text = [b' '; VALUE_BYTES];
    text[VALUE_BYTES - 1] = 0;
    let mut rest = number;
    for digit in text[..VALUE_BYTES - 1].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text
}

/// The value that a database of numbers holds for key `number`: the number in 8 bytes, with which
/// aggregates compute, followed by the rest of the same text.
pub fn value_number(number: u64) -> Value {
    let mut value = value_text(number);
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// The number of such a value; `None` for other values.
pub fn number_of(value: &Value) -> Option<u64> {
    let number = u64::from_le_bytes(value.as_chunks().0[0]);
    (*value == value_number(number)).then_some(number)
}

/// A node, viewed in the 512 bytes it was read into. Its type is known to be valid.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    bytes: &'a [u8; NODE_BYTES],
    offset_bytes: u64,
    leaf: bool,
}

impl<'a> Node<'a> {
    /// Views `data`, read from `offset_bytes` of the file, as a node.
    ///
    /// # Errors
    /// [`Defect::WrongLength`], [`Defect::NodeType`].
    #[inline]
    pub fn parse(offset_bytes: u64, data: &'a [u8]) -> Result<Node<'a>, Corrupt> {
        let Ok(bytes) = <&[u8; NODE_BYTES]>::try_from(data) else {
            return Err(Corrupt::new(offset_bytes, Defect::WrongLength));
        };
        let node = Node { bytes, offset_bytes, leaf: word(bytes, 1) == LEAF };
        match word(bytes, 1) {
            INTERNAL | LEAF => Ok(node),
            _ => Err(node.corrupt(Defect::NodeType)),
        }
    }

    /// File offset of the node, in bytes.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Whether the pointers are to values rather than to nodes.
    pub fn is_leaf(&self) -> bool {
        self.leaf
    }

    /// File offset of the right sibling in bytes; 0 in the last node of a level.
    ///
    /// # Errors
    /// [`Defect::NodePointer`] if it is not the offset of a block.
    pub fn next_offset_bytes(&self) -> Result<u64, Corrupt> {
        let next = word(self.bytes, 0);
        if next & POINTER_ON_DISK == 0 && next.is_multiple_of(BLOCK_BYTES) {
            Ok(next)
        } else {
            Err(self.corrupt(Defect::NodePointer))
        }
    }

    /// Key number `slot`.
    ///
    /// # Panics
    /// If `slot` is not below [`FANOUT`]; likewise the other functions that take a slot.
    #[inline]
    pub fn key(&self, slot: usize) -> u64 {
        assert!(slot < FANOUT);
        word(self.bytes, HEADER_WORDS + slot)
    }

    /// File offset in bytes of child number `slot` of an internal node.
    ///
    /// # Errors
    /// [`Defect::NodePointer`].
    #[inline]
    pub fn child_offset_bytes(&self, slot: usize) -> Result<u64, Corrupt> {
        self.pointer(slot, BLOCK_BYTES).ok_or(self.corrupt(Defect::NodePointer))
    }

    /// File offset in bytes of value number `slot` of a leaf.
    ///
    /// # Errors
    /// [`Defect::ValuePointer`].
    #[inline]
    pub fn value_offset_bytes(&self, slot: usize) -> Result<u64, Corrupt> {
        self.pointer(slot, VALUE_BYTES as u64).ok_or(self.corrupt(Defect::ValuePointer))
    }

    /// How many of the keys are at most `key`: a binary search of five probes, in the order of
    /// `bpfkv_upper_bound` in functions/bpfkv.h.
    #[inline]
    pub fn upper_bound(&self, key: u64) -> usize {
        let mut count = 0;
        for step in [16, 8, 4, 2, 1] {
            // A product, not a branch: with random keys every second branch is mispredicted.
            count += step * usize::from(self.key(count + step - 1) <= key);
        }
        count
    }

    pub(crate) fn corrupt(&self, defect: Defect) -> Corrupt {
        Corrupt::new(self.offset_bytes, defect)
    }

    #[inline]
    fn pointer(&self, slot: usize, unit_bytes: u64) -> Option<u64> {
        assert!(slot < FANOUT);
        let offset = word(self.bytes, HEADER_WORDS + FANOUT + slot) ^ POINTER_ON_DISK;
        (offset & POINTER_ON_DISK == 0 && offset.is_multiple_of(unit_bytes)).then_some(offset)
    }
}

#[inline]
fn word(bytes: &[u8; NODE_BYTES], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_le_bytes(word)
}

/// Writes a node: `key` and `pointer` give each slot's key and pointer.
pub(crate) fn write_node(
    bytes: &mut [u8; NODE_BYTES],
    next_offset_bytes: u64,
    leaf: bool,
    key: impl Fn(u64) -> u64,
    pointer: impl Fn(u64) -> u64,
) {
    let (words, _) = bytes.as_chunks_mut::<8>();
    let [next, kind, slots @ ..] = words else { return };
    *next = next_offset_bytes.to_le_bytes();
    *kind = if leaf { LEAF } else { INTERNAL }.to_le_bytes();
    let (keys, pointers) = slots.split_at_mut(FANOUT);
    for ((slot, k), p) in (0..).zip(keys).zip(pointers) {
        *k = key(slot).to_le_bytes();
        *p = pointer(slot).to_le_bytes();
    }
}

/// An impossible number of levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a BPF-KV database has 1 to {LEVELS_MAX} levels, not {0}")]
pub struct BadLevels(pub u32);

/// The places of all nodes and values in a stock database of L levels: every node is full, the keys
/// are 0 ..31^L − 1, and the value of key i is value i of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    levels: u32,
}

impl Layout {
    /// The layout of a database of `levels` levels, leaves included.
    ///
    /// # Errors
    /// [`BadLevels`] unless 1 to [`LEVELS_MAX`].
    pub fn new(levels: u32) -> Result<Layout, BadLevels> {
        if (1..=LEVELS_MAX).contains(&levels) {
            Ok(Layout { levels })
        } else {
            Err(BadLevels(levels))
        }
    }

    /// Levels of the tree, leaves included.
    pub fn levels(&self) -> u32 {
        self.levels
    }

    /// Number of keys, which are dense from 0.
    pub fn keys(&self) -> u64 {
        power(self.levels)
    }

    /// Nodes of `level`; level 0 is the root.
    pub fn nodes_in_level(&self, level: u32) -> u64 {
        power(level)
    }

    /// Nodes of all levels.
    pub fn nodes(&self) -> u64 {
        self.nodes_before_level(self.levels)
    }

    /// Keys below one node of `level`.
    pub fn keys_below(&self, level: u32) -> u64 {
        power(self.levels - level)
    }

    /// File offset in bytes of node `index` of `level`.
    pub fn node_offset_bytes(&self, level: u32, index: u64) -> u64 {
        (self.nodes_before_level(level) + index) * BLOCK_BYTES
    }

    /// File offset in bytes of the log.
    pub fn log_offset_bytes(&self) -> u64 {
        self.nodes() * BLOCK_BYTES
    }

    /// File offset in bytes of the value of `key`.
    pub fn value_offset_bytes(&self, key: u64) -> u64 {
        self.log_offset_bytes() + key * VALUE_BYTES as u64
    }

    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.log_offset_bytes() + self.keys().div_ceil(VALUES_PER_BLOCK) * BLOCK_BYTES
    }

    fn nodes_before_level(&self, level: u32) -> u64 {
        (0..level).map(power).sum()
    }
}

/// 31^exponent. With at most [`LEVELS_MAX`] every product of a [`Layout`] stays below 2^46.
fn power(exponent: u32) -> u64 {
    (FANOUT as u64).pow(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_equal_those_of_the_original() {
        for (levels, nodes, keys, mib) in
            [(4, 30_784, 923_521, 71.4), (5, 954_305, 28_629_151, 2213.4)]
        {
            let layout = Layout::new(levels).unwrap();
            assert_eq!((layout.nodes(), layout.keys()), (nodes, keys));
            let bytes = layout.file_bytes() as f64;
            assert!((bytes / 1048576.0 - mib).abs() < 0.1, "{bytes} bytes");
        }
        let papers = Layout::new(6).unwrap();
        assert_eq!((papers.nodes(), papers.keys()), (29_583_456, 887_503_681));
        assert!(Layout::new(8).unwrap().file_bytes() < 1 << 46);
        assert_eq!((Layout::new(0), Layout::new(9)), (Err(BadLevels(0)), Err(BadLevels(9))));
    }

    #[test]
    fn numbers_are_distinguished_from_text() {
        for number in [0, 7, 0x2020_2020_2020_2020, u64::MAX] {
            assert_eq!(number_of(&value_number(number)), Some(number));
        }
        assert_eq!(number_of(&value_text(7)), None);
        let mut other = value_number(7);
        other[62] = b'8';
        assert_eq!(number_of(&other), None);
    }

    #[test]
    fn value_text_is_right_aligned() {
        for number in [0, 7, 10, 923_520, u64::MAX] {
            assert_eq!(value_text(number), format!("{number:>63}\0").as_bytes());
        }
    }
}
