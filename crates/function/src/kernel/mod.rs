//! Storage functions as eBPF of the Linux kernel, for the module in `kernel/` (XRP §4 on a kernel that
//! nobody has patched).
//!
//! The kernel's verifier has to accept what it runs, and knows no storage functions: their pointers are
//! plain numbers, their loops are bounded by a budget. So each instruction is rewritten:
//!
//! - memory is a *BPF arena* (`BPF_MAP_TYPE_ARENA`, Linux 6.9), in which the chain has a *slot* with the
//!   layout of [`abi`](crate::abi). Registers hold guest addresses, as everywhere else. An access is
//!   compared with the limit of the call, as in native code, and then goes to slot base plus address;
//! - a jump backwards pays from the budget, which is on the kernel's stack, and is a `may_goto`;
//! - functions that are called are put in the place of the call, so that the frame pointer is a constant;
//! - a helper that the module has is a *kfunc*, a function of the kernel that eBPF may call. One that it
//!   has not ends the chain with [`Ended::Helper`]: it is then run in user space;
//! - what went wrong is left in the context ([`context`]), with the same fault, instruction, address and
//!   rest of the budget as in the other engines.
//!
//! The result must be independent of the kernel, and is: `machine`, for tests, runs it on the arenas of
//! user space.
//!
//! # Registers
//! r0 to r9 are the function's own. The kernel's r10 is the kernel's stack, where the rewritten code keeps
//! what it needs itself; the function's r10 is known everywhere. What an access needs beside them are
//! registers that nobody reads afterwards (`liveness`), or some that are put aside for a moment.

mod assembler;
mod liveness;
#[cfg(feature = "fuzz")]
pub mod machine;
mod memory;
pub mod slot;
mod translator;

use crate::helper::Helper;
use crate::program::Program;
use translator::Translator;

/// The structure that the kernel's function gets, `struct bpfof_xrp_hop` in
/// `kernel/bpfof_xrp.h`: offsets of its fields in bytes.
pub mod context {
    /// `slot`, u64: where the slot of the chain begins in the arena, in bytes. Its guest address is 0.
    pub const SLOT: i16 = 0;
    /// `limit`, u64: guest address of the end of what the call may access.
    pub const LIMIT: i16 = 8;
    /// `budget`, u64: units, before the call and after it.
    pub const BUDGET: i16 = 16;
    /// `result`, u64: what the function has returned.
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

/// The kfuncs of the module, by the order in which [`KernelProgram`] refers to them.
pub const KFUNCS: [(Helper, &str); 6] = [
    (Helper::Memcmp, "bpfof_xrp_memcmp"),
    (Helper::Memmove, "bpfof_xrp_memmove"),
    (Helper::Memset, "bpfof_xrp_memset"),
    (Helper::Crc32c, "bpfof_xrp_crc32c"),
    (Helper::Find, "bpfof_xrp_find"),
    (Helper::FindAny, "bpfof_xrp_find_any"),
];

/// A program for the kernel. It refers to the arena by the number 0 and to kfuncs by their places in
/// [`KFUNCS`]: [`relocate`](Self::relocate) puts in what they are on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelProgram {
    slots: Vec<[u8; 8]>,
}

/// The opcode of a 64-bit constant, and the source that makes it a map.
const CONSTANT: u8 = 0x18;
const PSEUDO_MAP: u8 = 1;
/// A call, and the source that makes it one of a kfunc.
const CALL: u8 = 0x85;
const PSEUDO_KFUNC: u8 = 2;

impl KernelProgram {
    /// Rewrites a checked program.
    ///
    /// # Errors
    /// [`TranslateError`].
    pub fn translate(program: &Program) -> Result<KernelProgram, TranslateError> {
        Ok(KernelProgram { slots: Translator::new(program).translate()? })
    }

    /// Its instructions, unrelocated.
    pub fn slots(&self) -> &[[u8; 8]] {
        &self.slots
    }

    /// The instructions for a kernel in which the arena has the descriptor `arena`, and the kfuncs have
    /// these BTF ids in the module's BTF, which is the first of the program's `fd_array` after entry 0.
    pub fn relocate(&self, arena: i32, kfuncs: &[u32; KFUNCS.len()]) -> Vec<[u8; 8]> {
        let mut slots = self.slots.clone();
        let mut at = 0;
        while let Some(slot) = slots.get_mut(at) {
            at += 1 + usize::from(slot[0] == CONSTANT);
            let source = slot[1] >> 4;
            if slot[0] == CONSTANT && source == PSEUDO_MAP {
                slot[4..].copy_from_slice(&arena.to_le_bytes());
            } else if slot[0] == CALL && source == PSEUDO_KFUNC {
                let id = kfuncs.get(usize::from(slot[4])).copied().unwrap_or(0);
                slot[2..4].copy_from_slice(&1i16.to_le_bytes());
                slot[4..].copy_from_slice(&id.to_le_bytes());
            }
        }
        slots
    }
}
