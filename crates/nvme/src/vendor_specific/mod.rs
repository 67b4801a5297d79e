//! Structures of the vendor commands (docs/protocol.md).

mod file_map;
mod function_map;
mod limits;
mod pushdown;
mod pushdown_vector;
mod report;

pub use file_map::{Extent, FILE_ID_NAMESPACE, FileMapObject};
pub use function_map::{MapAddress, MapChange, MapCommand, MapReportEntry};
pub use limits::PushdownLimits;
pub use pushdown::{
    DEFAULT_SCRATCH_BYTES, FileVersion, PushdownHeader, PushdownParts, PushdownRequest,
    PushdownShort, effective_scratch_bytes,
};
pub use pushdown_vector::{
    FirstRead, FirstReads, PushdownVectorHeader, PushdownVectorParts, PushdownVectorRequest,
    VectorAnswer, VectorArguments, VectorChain, VectorChains, VectorRecord,
};
pub use report::{FunctionDigest, FunctionReportEntry, NO_FAULT};

use thiserror::Error;

/// Protocol version that this crate speaks (protocol.md, Pushdown Identify, PV).
pub const PROTOCOL_VERSION: u16 = 1;

/// Function type bit: eBPF in ELF (protocol.md, Pushdown Identify).
pub const FUNCTION_TYPE_EBPF: u32 = 1 << 0;

/// A structure that breaks a rule of protocol.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("malformed at byte {at}")]
pub struct Malformed {
    /// Offset in bytes of the field at fault; the structure's length if it is too short.
    pub at: u32,
}

/// The error for the field at offset `at`.
fn malformed<T>(at: usize) -> Result<T, Malformed> {
    Err(Malformed { at: u32::try_from(at).unwrap_or(u32::MAX) })
}
