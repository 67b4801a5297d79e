//! What can be wrong with a file.

/// Why a lookup fails that is not the network's or the device's fault. All but the first are abort
/// codes of the storage functions (`functions/damage.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A block lies outside of the file: the target answers *Read Outside File*.
    #[error("the file ends before a block that it names (is it truncated?)")]
    Unreadable,
    /// The argument contradicts itself, or scratch is too small for it.
    #[error("the request contradicts itself, or its scratch is too small")]
    Request,
    /// A block that is shorter than all are, or not as long as it says.
    #[error("a block has an impossible size")]
    Size,
    /// The checksum of a block is another.
    #[error("the checksum of a block is wrong")]
    Checksum,
    /// An entry that reaches beyond its block, or is none.
    #[error("an entry of a block is malformed")]
    Entry,
    /// A pointer to where no block can be, or to one that no read can have.
    #[error("a block points to where no block can be")]
    Pointer,
    /// More blocks than there are.
    #[error("more blocks follow each other than there are (is there a cycle?)")]
    TooManyBlocks,
    /// A block that belongs elsewhere.
    #[error("a block is where another should be")]
    WrongPlace,
    /// A block that is compressed.
    #[error("a block is compressed in a way that the storage function does not know")]
    Compressed,
    /// A key that does not fit the scratch buffer.
    #[error("a key does not fit the scratch buffer; ask with a larger one")]
    KeyTooLong,
}

impl Damage {
    const CODES: [Damage; 9] = [
        Damage::Request,
        Damage::Size,
        Damage::Checksum,
        Damage::Entry,
        Damage::Pointer,
        Damage::TooManyBlocks,
        Damage::WrongPlace,
        Damage::Compressed,
        Damage::KeyTooLong,
    ];

    /// What a function of this crate aborts with `code` for, if it is a code of these functions.
    #[must_use]
    pub fn from_abort_code(code: u32) -> Option<Damage> {
        Self::CODES.get(code.checked_sub(1)? as usize).copied()
    }
}
