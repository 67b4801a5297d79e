//! Storage functions as eBPF of the Linux kernel, for the module in `kernel/` (XRP §4 on an unpatched kernel).
//!
//! The kernel's verifier must accept the code, and does not know storage functions: their pointers are plain numbers,
//! their loops are bounded by a budget. So each instruction is rewritten:
//!
//! - memory is a *BPF arena* (`BPF_MAP_TYPE_ARENA`, Linux 6.9), in which the chain has a *slot* with the
//!   layout of [`abi`](crate::abi). Registers hold guest addresses, as in the other engines. An access is
//!   compared with the limit of the call, as in native code, and then goes to slot base plus address;
//! - a jump backwards pays from the budget, which is on the kernel's stack, and is a `may_goto`;
//! - called functions are inlined, or exist once for all calls at one depth (`calls`), so that the frame
//!   pointer is a constant;
//! - a helper that the module has is a *kfunc*, a kernel function that eBPF may call. Any other helper ends
//!   the chain with [`Ended::Helper`]: the chain is then run in user space;
//! - faults are stored in the context ([`context`]), with the same fault, instruction, address and rest of
//!   the budget as in the other engines.
//!
//! The rewritten code does not depend on a kernel: `machine`, for tests, runs it on user-space arenas.
//!
//! # Registers
//! r0 to r9 are the function's own. The kernel's r10 is the kernel's stack, where the rewritten code keeps its own
//! data; the function's r10 is a constant at every instruction. An access needs further registers: it takes dead ones
//! (`liveness`), or spills some for a moment.

mod assembler;
mod calls;
mod contract;
mod liveness;
#[cfg(feature = "fuzz")]
pub mod machine;
mod memory;
mod shared;
pub mod slot;
mod translator;

pub use contract::{Ended, KFUNCS, MAX_SLOTS, TranslateError, context};

use crate::helper::Helper;
use crate::instruction::Instruction;
use crate::program::Program;
use contract::{CALL, CONSTANT, PSEUDO_KFUNC, PSEUDO_MAP};
use liveness::is_kfunc;
use std::collections::BTreeSet;
use translator::Translator;

/// A program for the kernel. It refers to the arena by the number 0 and to kfuncs by their indices in [`KFUNCS`];
/// [`relocate`](Self::relocate) inserts their values on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelProgram {
    slots: Vec<[u8; 8]>,
}

/// The names of the helpers that a program calls and the module lacks. A chain that reaches such a call starts again in
/// user space.
pub fn missing_helpers(program: &Program) -> Vec<&'static str> {
    let calls = program.instructions().iter().filter_map(|instruction| match *instruction {
        Instruction::CallHelper { helper } => Some(helper),
        _ => None,
    });
    let missing = calls.filter(|helper| *helper != Helper::Workspace && !is_kfunc(*helper));
    let names: BTreeSet<_> = missing.map(Helper::name).collect();
    names.into_iter().collect()
}

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
