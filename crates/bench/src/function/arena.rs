//! Arenas in which functions are called, and the results of calls.

use bpfof_function::{Arena, Exit, Fault, Limit, Program, abi};

/// The offset of scratch in an arena.
pub(super) const SCRATCH_AT: usize = (abi::SCRATCH - abi::GUEST_BASE) as usize;

/// Prepares an arena for a call on a block.
pub(super) fn prepare(block: &[u8]) -> (Arena, Limit) {
    let mut arena = Arena::new();
    arena.begin_chain(&[], abi::DEFAULT_SCRATCH_BYTES);
    arena.data_mut(0..block.len()).copy_from_slice(block);
    arena.begin_hop(0);
    let limit = arena.begin_call(0..block.len(), 0, 0, 0);
    (arena, limit)
}

/// Checks the result of a call: any value but 0 means that the function has rejected the block or the argument.
pub(super) fn succeeded(
    outcome: Result<Exit, Fault>,
    name: &str,
    program: &Program,
) -> Result<(), String> {
    match outcome {
        Ok(Exit::Return(0)) => Ok(()),
        Ok(exit) => Err(format!("{name} ended with {exit:?}, not Return(0)")),
        Err(fault) => Err(format!("{name}: {}", fault.explain(program))),
    }
}
