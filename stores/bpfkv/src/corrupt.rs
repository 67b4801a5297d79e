//! Defects of a database.

/// A corrupt database: the node and its defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the BPF-KV node at byte {offset_bytes} is corrupt: {defect}")]
pub struct Corrupt {
    /// File offset of the node (or value block) at fault, in bytes.
    pub offset_bytes: u64,
    /// The node's defect.
    pub defect: Defect,
}

impl Corrupt {
    pub(crate) fn new(offset_bytes: u64, defect: Defect) -> Corrupt {
        Corrupt { offset_bytes, defect }
    }
}

/// A defect of a node. All but the last two are also abort codes of the storage functions
/// (functions/bpfkv.h), which find them in the same order as the cursors do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// Neither an internal node nor a leaf, or not the one that belongs here.
    #[error("its type is wrong")]
    NodeType,
    /// A child or sibling pointer to no block. Zeroes in place of a node have this defect: perhaps
    /// the database was created in part and the key is outside that part.
    #[error("it points to no node (a hole, if the database was created in part)")]
    NodePointer,
    /// A value pointer to no slot of the log.
    #[error("it points to no value")]
    ValuePointer,
    /// Keys that do not ascend, in a leaf or from one leaf to the next. A cycle of leaves has this
    /// defect.
    #[error("its keys do not ascend")]
    KeysNotAscending,
    /// A leaf without keys.
    #[error("it has no key")]
    EmptyNode,
    /// More levels than [`LEVELS_MAX`](crate::format::LEVELS_MAX): a cycle of internal nodes.
    #[error("it is deeper than the maximum number of levels")]
    TooDeep,
    /// The read returned fewer or more bytes than requested: the file is truncated.
    #[error("its read returned the wrong number of bytes (is the file truncated?)")]
    WrongLength,
}

impl Defect {
    /// The defect for which a storage function of this store aborts with `code`, if it is one.
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
