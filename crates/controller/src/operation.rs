//! Device operations and who they are of.

use bpfof_chain::{ChainId, DeviceRead};
use bpfof_device::IoBuffer;
use bpfof_nvme::Status;
use std::fmt;
use std::io;

/// A command of a connection of this reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandId {
    pub(crate) connection: u32,
    pub(crate) slot: u16,
}

/// The command that a chain is of, and if it is a vector, which of its chains.
pub(crate) type ChainOf = (CommandId, Option<u16>);

/// A command that waits until all reactors have passed a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fenced {
    pub(crate) command: CommandId,
    /// Of the connection.
    pub(crate) serial: u64,
}

/// An operation that can be performed now, in half a cache line. Namespaces are places of the
/// reactor's table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// A read of a chain from memory.
    ChainRead { namespace: u32, read: DeviceRead },
    /// A read of a chain has ended, and so many units have been paid for what its hop pays for.
    ChainReadDone { chain: ChainId, ok: bool, paid: u32 },
    /// The calls of a hop go on.
    ChainCalls { chain: ChainId },
    /// What a command's slot describes, on memory, and what it reads: offset and length in bytes, of
    /// which the second is 0 if it does not read.
    Command { namespace: u32, command: CommandId, offset: u64, length: u32 },
    /// Zeroes for a command, in memory: offset and length in bytes.
    Zero { namespace: u32, command: CommandId, offset: u64, length: u64 },
}

const _: () = assert!(size_of::<Operation>() <= 32);

impl Operation {
    /// The chain that it is of, if it is of one.
    pub(crate) fn chain(&self) -> Option<ChainId> {
        match self {
            Operation::ChainRead { read, .. } => Some(read.chain),
            Operation::ChainReadDone { chain, .. } | Operation::ChainCalls { chain } => {
                Some(*chain)
            }
            _ => None,
        }
    }
}

/// The results of an operation on a drive which the drive refuses are below this: errno numbers are not.
const STATUS_RESULTS: i32 = -0x1_0000;

/// The result of an operation that a drive has answered with this status field.
pub(crate) fn status_result(field: u16) -> i32 {
    STATUS_RESULTS - i32::from(field)
}

/// Why an operation on a file or a drive has not been done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was done in part.
    Short,
    /// The kernel's answer.
    Kernel(io::Error),
    /// The drive's answer.
    Drive(Status),
}

impl Failure {
    /// What a result says that is not the length of the operation.
    pub(crate) fn of(result: i32) -> Failure {
        match result {
            0.. => Failure::Short,
            STATUS_RESULTS..0 => Failure::Kernel(io::Error::from_raw_os_error(-result)),
            _ => Failure::Drive(Status::from_field((STATUS_RESULTS - result) as u16)),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Short => f.write_str("it ended early"),
            Failure::Kernel(error) => error.fmt(f),
            Failure::Drive(status) => write!(f, "the drive answers {status}"),
        }
    }
}

/// An operation for the ring, on the file or drive of the namespace at this place. Offsets and lengths
/// are in bytes.
#[derive(Debug)]
pub(crate) enum FileOperation {
    Read { namespace: usize, buffer: IoBuffer, offset: u64, command: CommandId },
    ChainRead { namespace: usize, read: DeviceRead },
    Write { namespace: usize, buffer: IoBuffer, offset: u64, fua: bool, command: CommandId },
    Sync { namespace: usize, command: CommandId },
    Zero { namespace: usize, offset: u64, length: u64, command: CommandId },
}

impl FileOperation {
    /// The place of its namespace.
    pub(crate) const fn namespace(&self) -> usize {
        match self {
            FileOperation::Read { namespace, .. }
            | FileOperation::ChainRead { namespace, .. }
            | FileOperation::Write { namespace, .. }
            | FileOperation::Sync { namespace, .. }
            | FileOperation::Zero { namespace, .. } => *namespace,
        }
    }

    /// Offset and length in bytes; none if it is about all.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        match self {
            FileOperation::Read { buffer, offset, .. }
            | FileOperation::Write { buffer, offset, .. } => Some((*offset, buffer.len() as u64)),
            FileOperation::ChainRead { read, .. } => Some((read.device_offset, read.length.into())),
            FileOperation::Zero { offset, length, .. } => Some((*offset, *length)),
            FileOperation::Sync { .. } => None,
        }
    }
}
