//! The memory of a chain in the kernel: laid out as an [`Arena`](crate::Arena), from guest address 0 on.

use crate::abi::{self, context};
use crate::arena::SavedArena;
use crate::program::Program;
use std::ops::Range;

/// The range of `len` bytes at a guest address.
fn at(address: u64, len: usize) -> Range<usize> {
    address as usize..address as usize + len
}

/// Begins a chain, as [`Arena::begin_chain`](crate::Arena::begin_chain) does, and places the static data of its
/// program.
///
/// # Panics
/// If the memory is shorter than a slot, or the argument longer than scratch.
pub fn begin_chain(slot: &mut [u8], program: &Program, argument: &[u8], scratch_bytes: usize) {
    slot[at(abi::CONTEXT, context::BYTES)].fill(0);
    let statics = program.statics().image();
    let (placed, rest) = slot[at(abi::STATICS, abi::STATICS_BYTES)].split_at_mut(statics.len());
    placed.copy_from_slice(statics);
    // Those of an earlier chain's program.
    rest.fill(0);
    let scratch = &mut slot[at(abi::SCRATCH, scratch_bytes)];
    let (head, tail) = scratch.split_at_mut(argument.len());
    head.copy_from_slice(argument);
    tail.fill(0);
}

/// The answer.
#[must_use]
pub fn scratch(slot: &[u8], len: usize) -> &[u8] {
    &slot[at(abi::SCRATCH, len)]
}

/// The state of a chain of this program after a hop, to continue in user space.
#[must_use]
pub fn save(slot: &[u8], program: &Program, scratch_bytes: usize) -> SavedArena {
    let uses_workspace = program.lowest_address() == abi::WORKSPACE;
    SavedArena::of_parts(
        &slot[at(abi::CONTEXT, context::BYTES)],
        &slot[at(abi::SCRATCH, scratch_bytes)],
        (program.statics().serial(), &slot[at(abi::STATICS, abi::STATICS_BYTES)]),
        uses_workspace.then(|| &slot[at(abi::WORKSPACE, abi::WORKSPACE_BYTES)]),
    )
}
