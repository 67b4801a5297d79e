//! Data that translated code and the host share.

use crate::environment::Environment;
use crate::program::Program;

/// The reason why a checked program could not be translated: a defect of this crate or of
/// Cranelift.
#[derive(Debug, thiserror::Error)]
#[error("translation to native code failed: {0}")]
pub struct CompileError(pub(super) String);

/// The host's state of one call. The translated code reads and writes its fields by offset, except
/// for the last two, which are for `call_helper`.
#[repr(C)]
pub(super) struct Machine<'a> {
    /// Host address of the lowest guest address that the program may access.
    pub(super) base: *mut u8,
    /// [`NEAR_END_BYTES`] before the end of the accessible memory, in bytes from `base`.
    pub(super) near_end: u64,
    /// Units left.
    pub(super) budget: i64,
    /// 0, or a `FAULT_*` code.
    pub(super) fault: u32,
    /// The instruction that faults, or that calls a helper.
    pub(super) fault_pc: u32,
    /// The guest address of the fault, or the target of a tail call.
    pub(super) fault_address: u64,
    pub(super) program: &'a Program,
    pub(super) environment: &'a mut dyn Environment,
}

/// The width of the widest access. A limit is never below the start of the data area.
pub(super) const NEAR_END_BYTES: u64 = 8;

pub(super) const FAULT_MEMORY: u32 = 1;
pub(super) const FAULT_BUDGET: u32 = 2;
pub(super) const FAULT_STACK: u32 = 3;
pub(super) const FAULT_READ_ONLY: u32 = 4;
/// Not a fault, but ends the function like one.
pub(super) const TAIL_CALL: u32 = 5;
pub(super) const FAULT_NO_MAP: u32 = 6;
pub(super) const FAULT_HELPER: u32 = 7;

/// The name by which translated code calls `call_helper`.
pub(super) const CALL_HELPER: &str = "call_helper";
