//! What chains cost apart from what their functions pay, in [units](bpfof_function::cost) of processor time.
//! A caller that shares a thread between many connections takes them from
//! [`Engine::take_spent`](crate::Engine::take_spent).
//! `bpfof bench function --parts charges` compares them with the clock.

use bpfof_function::abi;

/// A hop: its reads, translated and queued; outputs cleared and checked.
const HOP: u64 = 120;
/// Each further piece of a read: looked up in the file map twice, queued, and performed.
const PIECE: u64 = 300;
/// Clearing the data that another owner left in an arena.
pub(crate) const WIPE: u64 = bytes(abi::WORKSPACE_BYTES as u64 + (abi::DATA - abi::GUEST_BASE));
/// Entering and leaving a function.
pub(crate) const CALL: u64 = 80;
/// Placing a chain in an arena.
const START: u64 = 150;

/// The cost of moving `count` bytes that are in no cache.
const fn bytes(count: u64) -> u64 {
    count / 2
}

/// A hop whose reads brought `length_bytes` into the arena.
#[inline]
pub(crate) fn hop(length_bytes: u32) -> u64 {
    HOP + bytes(u64::from(length_bytes))
}

/// The extra cost of a read that is split into `count` pieces of the namespace.
pub(crate) fn pieces(count: u64) -> u64 {
    PIECE * count.saturating_sub(1)
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
