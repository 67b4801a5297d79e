//! Arenas in which functions are called, and what calls return.

use bpfof_function::{Arena, Exit, Fault, Limit, Program, abi};

/// Where scratch is in an arena.
pub(super) const SCRATCH_AT: usize = (abi::SCRATCH - abi::GUEST_BASE) as usize;

/// An arena in which a call on a block is prepared.
pub(super) fn prepare(block: &[u8]) -> (Arena, Limit) {
    let mut arena = Arena::new();
    arena.begin_chain(&[], abi::DEFAULT_SCRATCH_BYTES);
    arena.data_mut(0..block.len()).copy_from_slice(block);
    arena.begin_hop(0);
    let limit = arena.begin_call(0..block.len(), 0, 0, 0);
    (arena, limit)
}

/// What a call returned: anything but 0 means that the block or the argument is not what the
/// function wants.
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
