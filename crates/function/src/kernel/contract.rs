//! What rewritten programs and the module have in common.

use crate::helper::Helper;

/// The structure that the kernel's function gets, `struct bpfof_xrp_hop` in
/// `kernel/bpfof_xrp.h`: offsets of its fields in bytes.
pub mod context {
    /// `slot`, u64: where the slot of the chain begins in the arena, in bytes. Its guest address is 0.
    pub const SLOT: i16 = 0;
    /// `limit`, u64: guest address of the end of what the call may access.
    pub const LIMIT: i16 = 8;
    /// `budget`, u64: units, before the call and after it.
    pub const BUDGET: i16 = 16;
    /// `result`, u64: what the function has returned; 0 before.
    pub const RESULT: i16 = 24;
    /// `address`, u64: of a fault of memory.
    pub const ADDRESS: i16 = 32;
    /// `fault`, u32: 0, or what has ended the call (the values of [`Ended`](super::Ended)) in the upper
    /// half, and the index of the instruction in the lower.
    pub const FAULT: i16 = 40;
}

/// What ended a call that did not return: the upper half of `fault`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ended {
    /// [`FaultKind::Memory`](crate::FaultKind::Memory).
    Memory = 1,
    /// [`FaultKind::ReadOnly`](crate::FaultKind::ReadOnly).
    ReadOnly = 2,
    /// [`FaultKind::Budget`](crate::FaultKind::Budget).
    Budget = 3,
    /// [`FaultKind::StackOverflow`](crate::FaultKind::StackOverflow).
    StackOverflow = 4,
    /// The function calls a helper that the module does not have.
    Helper = 5,
}

/// Slots of a rewritten program: jumps reach no further.
pub const MAX_SLOTS: usize = 32_000;

/// Why a function cannot be rewritten. It runs in user space then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// More than [`MAX_SLOTS`]: calls are put in place, and functions that call themselves grow.
    #[error("it takes more than {MAX_SLOTS} instructions of the kernel")]
    TooLong,
}

/// The kfuncs of the module, by the order in which rewritten programs refer to them.
pub const KFUNCS: [(Helper, &str); 6] = [
    (Helper::Memcmp, "bpfof_xrp_memcmp"),
    (Helper::Memmove, "bpfof_xrp_memmove"),
    (Helper::Memset, "bpfof_xrp_memset"),
    (Helper::Crc32c, "bpfof_xrp_crc32c"),
    (Helper::Find, "bpfof_xrp_find"),
    (Helper::FindAny, "bpfof_xrp_find_any"),
];

/// The opcode of a 64-bit constant, and the source that makes it a map.
pub(super) const CONSTANT: u8 = 0x18;
pub(super) const PSEUDO_MAP: u8 = 1;
/// A call, and the source that makes it one of a kfunc.
pub(super) const CALL: u8 = 0x85;
pub(super) const PSEUDO_KFUNC: u8 = 2;
