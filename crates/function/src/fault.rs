//! How a call of a storage function can fail.

use std::fmt;

/// A call that was ended by the confinement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// Index of the instruction, in 8-byte slots of the program.
    pub pc: u32,
}

/// The cause of a [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An access outside the memory of the call, at this guest address.
    Memory {
        /// First byte of the access, as the function computed it.
        address: u64,
    },
    /// The instruction budget of the call is used up.
    Budget,
    /// More than [`MAX_FRAMES`](crate::abi::MAX_FRAMES) nested calls.
    StackOverflow,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            FaultKind::Memory { address } => {
                write!(f, "instruction {}: access outside the arena at {address:#x}", self.pc)
            }
            FaultKind::Budget => {
                write!(f, "instruction {}: instruction budget exhausted", self.pc)
            }
            FaultKind::StackOverflow => {
                write!(f, "instruction {}: more than 8 nested calls", self.pc)
            }
        }
    }
}

impl std::error::Error for Fault {}
