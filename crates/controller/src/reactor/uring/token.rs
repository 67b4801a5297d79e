//! Kinds of operations, in the top byte of a token.

pub(super) const WAKE: u64 = 1 << 56;
pub(super) const RECV: u64 = 2 << 56;
pub(super) const SEND: u64 = 3 << 56;
pub(super) const COMMAND: u64 = 4 << 56;
/// Bits 55:32 chain, 31:0 length.
pub(super) const CHAIN: u64 = 5 << 56;
/// Bits 55:32 the low bits of the link's number, 31:0 connection.
pub(super) const FABRIC: u64 = 6 << 56;
/// Drives have completions.
pub(super) const DRIVES: u64 = 7 << 56;
/// As `FABRIC`: the state of an RDMA connection has changed.
pub(super) const RDMA_CONNECTION: u64 = 8 << 56;
pub(super) const KIND: u64 = 0xff << 56;
