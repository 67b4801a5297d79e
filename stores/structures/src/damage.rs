//! Damage that lookups report.

/// Why a lookup fails for a reason other than the network or the device. All but the first are
/// abort codes of the storage functions (`functions/damage.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A block lies outside of the file: the target answers *Read Outside File*.
    #[error("the file ends before a block that it names (is it truncated?)")]
    Unreadable,
    /// The argument contradicts itself, or scratch is too small for it.
    #[error("the request contradicts itself, or its scratch is too small")]
    Request,
    /// A block is shorter than any block can be, or its size differs from the size it states.
    #[error("a block has an invalid size")]
    Size,
    /// The checksum of a block is wrong.
    #[error("the checksum of a block is wrong")]
    Checksum,
    /// An entry reaches beyond its block, or is malformed.
    #[error("an entry of a block is malformed")]
    Entry,
    /// A pointer to a place where no block can be, or to a block too large for a read.
    #[error("a block has an invalid pointer")]
    Pointer,
    /// A bucket has more blocks than the request allows.
    #[error("a bucket has more blocks than the request allows (is there a cycle?)")]
    TooManyBlocks,
    /// A block belongs in another place.
    #[error("a block is in the place of another block")]
    WrongPlace,
    /// A block is compressed.
    #[error("a block is compressed in a way that the storage function does not know")]
    Compressed,
    /// A key does not fit the scratch buffer.
    #[error("a key does not fit the scratch buffer; use a larger one")]
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

    /// The damage for which a function of this crate aborts with `code`, if it is one of these
    /// codes.
    #[must_use]
    pub fn from_abort_code(code: u32) -> Option<Damage> {
        Self::CODES.get(code.checked_sub(1)? as usize).copied()
    }
}
