//! Definitions that rewritten programs and the module share.

use crate::helper::Helper;

/// The argument of the kernel's function, `struct bpfof_xrp_hop` in `kernel/xrp.h`: offsets of its fields in
/// bytes.
pub mod context {
    /// `slot`, u64: offset of the chain's slot in the arena, in bytes: the position of guest address 0.
    pub const SLOT: i16 = 0;
    /// `limit`, u64: guest address of the end of the accessible memory.
    pub const LIMIT: i16 = 8;
    /// `budget`, u64: units, before and after the call.
    pub const BUDGET: i16 = 16;
    /// `result`, u64: the return value of the function; 0 before.
    pub const RESULT: i16 = 24;
    /// `address`, u64: address of a memory fault.
    pub const ADDRESS: i16 = 32;
    /// `fault`, u32: 0, or the cause of the end of the call in the upper half (a value of [`Ended`](super::Ended)), and
    /// the index of the instruction in the lower half.
    pub const FAULT: i16 = 40;
}

/// Causes that end a call without a return: the upper half of `fault`.
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

/// Maximum slots of a rewritten program: jumps reach no further.
pub const MAX_SLOTS: usize = 32_000;

/// The reason why a function cannot be rewritten. Such a function runs in user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// More than [`MAX_SLOTS`]: calls are inlined, and recursive functions grow.
    #[error("it needs more than {MAX_SLOTS} kernel instructions")]
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

/// The opcode of a 64-bit constant, and the source register that makes it a reference to a map.
pub(super) const CONSTANT: u8 = 0x18;
pub(super) const PSEUDO_MAP: u8 = 1;
/// The opcode of a call, and the source register that makes it a call of a kfunc.
pub(super) const CALL: u8 = 0x85;
pub(super) const PSEUDO_KFUNC: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// The module charges what the other engines charge.
    #[test]
    fn prices_are_those_of_the_module() {
        let source = include_str!("../../../../kernel/ops.c");
        for (helper, name) in KFUNCS {
            let definition = source.split(&format!("__bpf_kfunc u64 {name}(")).nth(1);
            let charge = definition.and_then(|text| text.split("xrp_charge(hop, ").nth(1));
            let (fixed, shift) = helper.bulk_price();
            let expected = format!("{fixed}, len, {shift})");
            assert!(
                charge.is_some_and(|charge| charge.starts_with(&expected)),
                "{name}: {charge:.40?}"
            );
        }
    }
}
