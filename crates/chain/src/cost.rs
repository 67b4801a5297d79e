//! What chains cost beside what their functions pay, in [units](bpfof_function::cost) of processor
//! time. A caller that shares a thread between many takes them from [`Engine::take_spent`]
//! (crate::Engine::take_spent). `bpfof bench function --parts charges` compares them with the clock.

use bpfof_function::abi;

/// A hop: its reads, translated and queued; outputs cleared and checked.
pub(crate) const HOP: u64 = 120;
/// Clearing what an arena keeps of another owner.
pub(crate) const WIPE: u64 = bytes(abi::WORKSPACE_BYTES as u64 + (abi::DATA - abi::GUEST_BASE));
/// Entering and leaving a function.
const CALL: u64 = 80;
/// Placing a chain in an arena.
const START: u64 = 150;

/// What moving so many bytes costs that are in no cache.
const fn bytes(count: u64) -> u64 {
    count / 2
}

/// A call of the function on a block of this length, which was brought into the arena for it.
#[inline]
pub(crate) fn call(length_bytes: u32) -> u64 {
    CALL + bytes(u64::from(length_bytes))
}

/// The start of a chain with a scratch of this size.
#[inline]
pub(crate) fn start(scratch_bytes: u32) -> u64 {
    START + u64::from(scratch_bytes) / 16
}

/// Taking a chain out of its arena, or putting it back.
pub(crate) fn move_state(count: usize) -> u64 {
    START + bytes(count as u64)
}
