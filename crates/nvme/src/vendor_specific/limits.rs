//! The answer of Pushdown Identify (protocol.md).

use crate::bytes::wire_struct;

wire_struct! {
    /// The capabilities and limits of a target (protocol.md, Pushdown Identify).
    pub struct PushdownLimits [128] {
        /// PV: protocol version (offset 0).
        0 => protocol_version: u16,
        /// Files that one request may name (offset 2).
        2 => files: u16,
        /// Largest scratch that a request may declare (offset 4).
        4 => scratch_bytes: u32,
        /// Reads that one hop may ask for (offset 8).
        8 => reads_per_hop: u32,
        /// Bytes that one hop may read, each read rounded out to logical blocks, or to 64 bytes for namespaces in
        /// memory (offset 12).
        12 => hop_bytes: u32,
        /// Hop budget of a chain (offset 16).
        16 => hops: u32,
        /// Functions that an association may hold (offset 20).
        20 => functions: u32,
        /// File maps that an association may hold (offset 24).
        24 => file_maps: u32,
        /// Extents of one file map (offset 28).
        28 => extents: u32,
        /// Byte budget of a chain (offset 32).
        32 => chain_bytes: u64,
        /// Instruction budget of a chain (offset 40).
        40 => chain_instructions: u64,
        /// Size limit of a function object (offset 48).
        48 => object_bytes: u32,
        /// Instruction budget of one call (offset 52).
        52 => call_instructions: u32,
        /// Function types; bit 0 is [`FUNCTION_TYPE_EBPF`](super::FUNCTION_TYPE_EBPF) (offset 56).
        56 => function_types: u32,
        /// Bytes that the function maps of an association may take together; 0 from a target
        /// without function maps (offset 60).
        60 => map_bytes: u32,
        /// Chains of one Pushdown Vector command; 0 from a target without this command (offset 64).
        64 => vector_chains: u32,
        /// Longest answer of a Pushdown Vector command (offset 68).
        68 => vector_bytes: u32,
    }
}

impl PushdownLimits {
    /// Length in bytes that every target sends; targets without the later fields end there.
    pub const LEAST_BYTES: usize = 64;
}
