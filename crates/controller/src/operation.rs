//! Device operations, and the commands and chains that they belong to.

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

/// The command that a chain belongs to, and, if it is a vector, the chain's index in it.
pub(crate) type ChainOf = (CommandId, Option<u16>);

/// A command that waits until all reactors have dropped a fence, between two of their operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fenced {
    pub(crate) command: CommandId,
    /// Serial number of the connection.
    pub(crate) serial: u64,
}

/// An operation that can be performed now, in half a cache line. Namespaces are places in the reactor's table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// A read of a chain from memory.
    ChainRead { namespace: u32, read: DeviceRead },
    /// A read of a chain has ended; `paid` units of its hop's cost have been charged already.
    ChainReadDone { chain: ChainId, ok: bool, paid: u32 },
    /// A hop continues with its remaining calls.
    ChainCalls { chain: ChainId },
    /// The operation in a command's slot, on memory. Offset and length are those of its read, in bytes; the length is 0
    /// if it does not read.
    Command { namespace: u32, command: CommandId, offset: u64, length: u32 },
    /// Zeroes for a command, in memory: offset and length in bytes.
    Zero { namespace: u32, command: CommandId, offset: u64, length: u64 },
}

const _: () = assert!(size_of::<Operation>() <= 32);

impl Operation {
    /// The chain that it belongs to, if any.
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

/// A result below this is a status of the drive, one above it and below 0 an errno number.
const STATUS_RESULTS: i32 = -0x1_0000;

/// The result of an operation on a drive that the driver has cancelled: a status of 0 is no refusal.
const CANCELLED: i32 = STATUS_RESULTS;

/// The status code type of errors that concern the path to a drive (NVMe Base 2.0 §3.3.3.2.1.5).
const PATH: u8 = 3;

/// The result of an operation that a drive answered with this status field.
pub(crate) fn status_result(field: u16) -> i32 {
    STATUS_RESULTS - i32::from(field)
}

/// The result of an operation on a drive, by that of its commands: 0, an NVMe status, or a negative errno.
pub(crate) fn drive_result(result: i32) -> i32 {
    match result {
        1.. => {
            let status = Status::from_field(result as u16);
            // The driver aborts a command that takes long before it resets the drive. The path to a drive on a network
            // may be lost.
            let is_cancelled = status.same_code(Status::ABORT_REQUESTED) || status.sct() == PATH;
            if is_cancelled { CANCELLED } else { status_result(status.field()) }
        }
        // After a reset or a timeout. The block layer sends such requests again by itself.
        _ if result == -libc::EINTR => CANCELLED,
        _ => result,
    }
}

/// Why an operation on a file or a drive has not been done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was done only in part.
    Short,
    /// An error of the kernel.
    Kernel(io::Error),
    /// A status of the drive.
    Drive(Status),
    /// No status: the driver has cancelled the command, which may be sent again.
    Cancelled,
}

impl Failure {
    /// The failure that a result stands for, which is not the length of the operation.
    pub(crate) fn of(result: i32) -> Failure {
        match result {
            0.. => Failure::Short,
            CANCELLED => Failure::Cancelled,
            ..CANCELLED => Failure::Drive(Status::from_field((STATUS_RESULTS - result) as u16)),
            _ => Failure::Kernel(io::Error::from_raw_os_error(-result)),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Short => f.write_str("it was cut short"),
            Failure::Kernel(error) => error.fmt(f),
            Failure::Drive(status) => write!(f, "the drive answers {status}"),
            Failure::Cancelled => f.write_str("the drive was reset, or did not answer in time"),
        }
    }
}

/// What an operation on files does. The number of each kind is limited by itself, because a disk may do one and not
/// another: a frozen file system can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileWork {
    Read,
    Write,
    FlushOrZeroes,
}

/// An operation for the ring, on the file or drive of the namespace at this place. Offsets and lengths
/// are in bytes.
#[derive(Debug)]
pub(crate) enum FileOperation {
    Read { namespace: usize, buffer: IoBuffer, offset: u64, command: CommandId },
    ChainRead { namespace: usize, read: DeviceRead },
    Write { namespace: usize, buffer: IoBuffer, offset: u64, fua: bool, command: CommandId },
    Sync { namespace: usize, command: CommandId },
    Zero { namespace: usize, offset: u64, length: u64, deallocate: bool, command: CommandId },
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

    /// What it does.
    pub(crate) const fn work(&self) -> FileWork {
        match self {
            FileOperation::Read { .. } | FileOperation::ChainRead { .. } => FileWork::Read,
            FileOperation::Write { .. } => FileWork::Write,
            FileOperation::Sync { .. } | FileOperation::Zero { .. } => FileWork::FlushOrZeroes,
        }
    }

    /// Its buffer, if it has one.
    pub(crate) fn into_buffer(self) -> Option<IoBuffer> {
        match self {
            FileOperation::Read { buffer, .. } | FileOperation::Write { buffer, .. } => {
                Some(buffer)
            }
            _ => None,
        }
    }

    /// Offset and length in bytes; none if it concerns the whole namespace.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// That the driver has cancelled a command is told apart from what the drive and the kernel say.
    #[test]
    fn results_of_drives_keep_their_meanings() {
        let of = |result| Failure::of(drive_result(result));
        assert!(matches!(of(0x281), Failure::Drive(Status::UNRECOVERED_READ_ERROR)));
        assert!(matches!(of(1), Failure::Drive(Status::INVALID_OPCODE)));
        for cancelled in [-libc::EINTR, 0x7, 0x4007, 0x370] {
            assert!(matches!(of(cancelled), Failure::Cancelled), "{cancelled:x}");
        }
        for errno in [libc::EIO, libc::ENODEV] {
            let Failure::Kernel(error) = of(-errno) else { panic!("it is the kernel's") };
            assert_eq!(error.raw_os_error(), Some(errno));
        }
        assert_eq!(drive_result(0), 0);
        // A file's is one like others.
        assert!(matches!(Failure::of(-libc::EINTR), Failure::Kernel(_)));
    }
}
