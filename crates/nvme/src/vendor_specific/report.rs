//! Entries of Function Report (protocol.md).

use crate::NulPadded;
use crate::bytes::wire_struct;

/// `fault_pc` of a function that never faulted (protocol.md, Function Report).
pub const NO_FAULT: u32 = u32::MAX;

wire_struct! {
    /// The target's report about one function (protocol.md, Function Report).
    pub struct FunctionReportEntry [128] {
        /// Function id (offset 0).
        0 => function: u32,
        /// eBPF instructions (offset 4).
        4 => instructions: u32,
        /// Native code in bytes (offset 8).
        8 => native_bytes: u32,
        /// pc of the last fault, or [`NO_FAULT`] (offset 12).
        12 => fault_pc: u32,
        /// Chains started (offset 16).
        16 => chains: u64,
        /// Hops (offset 24).
        24 => hops: u64,
        /// Bytes read (offset 32).
        32 => read_bytes: u64,
        /// Chains that ended in a fault or an exhausted instruction budget (offset 40).
        40 => faults: u64,
        /// Chains that the function aborted (offset 48).
        48 => aborts: u64,
        /// Time spent compiling in µs (offset 56).
        56 => compile_us: u64,
        /// The section name after `bpfof/` (offset 64).
        64 => name: NulPadded<64>,
    }
}

wire_struct! {
    /// The digest of a function's contents (protocol.md, Function Report, CDW12 4).
    pub struct FunctionDigest [36] {
        /// Function id (offset 0).
        0 => function: u32,
        /// SHA-256 (offset 4).
        4 => digest: [u8; 32],
    }
}

impl FunctionDigest {
    /// The whole entries of a report.
    pub fn list(report: &[u8]) -> impl Iterator<Item = Self> + '_ {
        report.as_chunks::<36>().0.iter().map(Self::from_bytes)
    }
}

impl FunctionReportEntry {
    /// The whole entries of a report.
    pub fn list(report: &[u8]) -> impl Iterator<Item = Self> + '_ {
        report.as_chunks::<128>().0.iter().map(Self::from_bytes)
    }
}
