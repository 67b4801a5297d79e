//! What can be wrong with a database.

/// A database that is not what it should be: where, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the BPF-KV node at byte {offset_bytes} is corrupt: {defect}")]
pub struct Corrupt {
    /// File offset of the node (or value block) at fault, in bytes.
    pub offset_bytes: u64,
    /// What is wrong with it.
    pub defect: Defect,
}

impl Corrupt {
    pub(crate) fn new(offset_bytes: u64, defect: Defect) -> Corrupt {
        Corrupt { offset_bytes, defect }
    }
}

/// What is wrong with a node. All but the last two are also abort codes of the storage functions
/// (functions/bpfkv.h), which find them in the same order as the cursors do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// Neither an internal node nor a leaf, or not the one that belongs here.
    #[error("its type is wrong")]
    NodeType,
    /// A child or sibling pointer that names no block. Zeroes where a node should be are found so:
    /// perhaps the database was created in part and the key is outside that part.
    #[error("it points to no node (a hole, if the database was created in part)")]
    NodePointer,
    /// A value pointer that names no slot of the log.
    #[error("it points to no value")]
    ValuePointer,
    /// Keys that do not ascend, in a leaf or from one leaf to the next. A cycle of leaves is found
    /// so.
    #[error("its keys do not ascend")]
    KeysNotAscending,
    /// A leaf without keys.
    #[error("it has no key")]
    EmptyNode,
    /// More levels than [`LEVELS_MAX`](crate::format::LEVELS_MAX): a cycle of internal nodes.
    #[error("it lies deeper than any tree has levels")]
    TooDeep,
    /// The read returned fewer or more bytes than were asked for: the file is truncated.
    #[error("the read of it has the wrong length (is the file truncated?)")]
    WrongLength,
}

impl Defect {
    /// The defect that a storage function of this store aborts with `code` for, if it is one.
    pub fn from_abort_code(code: u32) -> Option<Defect> {
        Some(match code {
            1 => Defect::NodeType,
            2 => Defect::NodePointer,
            3 => Defect::ValuePointer,
            4 => Defect::KeysNotAscending,
            5 => Defect::EmptyNode,
            _ => return None,
        })
    }
}
