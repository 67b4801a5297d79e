//! NVMe namespaces through their character devices: commands that bypass file systems and the block
//! layer.
#![allow(unsafe_code)]

use crate::buffer::IoBuffer;
use crate::ring::{Memory, Ring, RingFile};
use crate::volume::Part;
use io_uring::{cqueue, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

/// `_IO('N', 0x40)`: returns the namespace's id.
const NVME_IOCTL_ID: u32 = 0x4E40;
/// `_IOWR('N', 0x41, struct nvme_admin_cmd)`
const NVME_IOCTL_ADMIN_CMD: u32 = 0xC048_4E41;
/// `_IOWR('N', 0x80, struct nvme_uring_cmd)`
const NVME_URING_CMD_IO: u32 = 0xC048_4E80;
/// Identify (NVMe Base 2.0 §5.17), of CNS 00h: the namespace.
const ADMIN_IDENTIFY: u8 = 0x06;
/// Flush, Write, Read, Write Zeroes (NVM Command Set 1.0 §3.2).
const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const WRITE_ZEROES: u8 = 0x08;
/// Command dword 12: Force Unit Access, and Deallocate of a Write Zeroes.
const FUA: u32 = 1 << 30;
const DEALLOCATE: u32 = 1 << 25;
/// Bytes of an Identify structure.
pub const IDENTIFY_BYTES: usize = 4096;

/// `struct nvme_passthru_cmd`; `struct nvme_uring_cmd` differs only in the last field, which is
/// reserved.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Command {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    /// Command dwords 10 to 15.
    cdw10: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<Command>() == 72);

impl Command {
    /// The command's layout in a submission entry of 128 bytes.
    fn to_bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[0] = self.opcode;
        bytes[4..8].copy_from_slice(&self.nsid.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.address.to_ne_bytes());
        bytes[36..40].copy_from_slice(&self.data_bytes.to_ne_bytes());
        for (place, dword) in bytes[40..64].chunks_exact_mut(4).zip(self.cdw10) {
            place.copy_from_slice(&dword.to_ne_bytes());
        }
        bytes
    }
}

/// An open character device of a namespace, `/dev/ngXnY`.
#[derive(Debug)]
pub struct NvmeDevice {
    file: File,
    nsid: u32,
}

impl NvmeDevice {
    /// Opens a character device for reading.
    ///
    /// # Errors
    /// The kernel's error, for example that the device is not an NVMe namespace.
    pub fn open(path: &Path) -> io::Result<NvmeDevice> {
        NvmeDevice::of(File::open(path)?)
    }

    /// Opens a character device for reading and writing.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_for_writing(path: &Path) -> io::Result<NvmeDevice> {
        NvmeDevice::of(File::options().read(true).write(true).open(path)?)
    }

    fn of(file: File) -> io::Result<NvmeDevice> {
        // SAFETY: the descriptor is open; the call accesses no memory.
        let nsid = unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ID as _) };
        match u32::try_from(nsid) {
            Ok(0) => Err(io::Error::other("not an NVMe namespace")),
            Ok(nsid) => Ok(NvmeDevice { file, nsid }),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// The namespace's id.
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// The open device.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Identify Namespace (NVM Command Set 1.0 §4.1.5.1).
    ///
    /// # Errors
    /// The kernel's error, or the status of the command in words.
    pub fn identify(&self) -> io::Result<[u8; IDENTIFY_BYTES]> {
        self.identify_of(self.nsid, 0)
    }

    /// Identify Controller (NVMe Base 2.0 §5.17.2.1).
    ///
    /// # Errors
    /// As [`identify`](Self::identify).
    pub fn identify_controller(&self) -> io::Result<[u8; IDENTIFY_BYTES]> {
        self.identify_of(0, 1)
    }

    /// Identify Controller of the NVM command set (NVM Command Set 1.0 §4.1.5.2).
    ///
    /// # Errors
    /// As [`identify`](Self::identify): drives older than version 2.0 reject it.
    pub fn identify_nvm_controller(&self) -> io::Result<[u8; IDENTIFY_BYTES]> {
        self.identify_of(0, 6)
    }

    fn identify_of(&self, nsid: u32, cns: u32) -> io::Result<[u8; IDENTIFY_BYTES]> {
        let mut data = [0; IDENTIFY_BYTES];
        let mut command = Command {
            opcode: ADMIN_IDENTIFY,
            nsid,
            address: data.as_mut_ptr().expose_provenance() as u64,
            data_bytes: IDENTIFY_BYTES as u32,
            cdw10: [cns, 0, 0, 0, 0, 0],
            ..Command::default()
        };
        let (fd, request) = (self.file.as_raw_fd(), NVME_IOCTL_ADMIN_CMD);
        // SAFETY: the descriptor is open; the kernel reads and writes a struct nvme_admin_cmd, and
        // at most `data_bytes` bytes at `address`, which is as long.
        match unsafe { libc::ioctl(fd, request as _, &raw mut command) } {
            0 => Ok(data),
            status if status > 0 => Err(io::Error::other(format!("NVMe status {status:#x}"))),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A ring whose entries have room for NVMe commands.
pub type NvmeRing = Ring<squeue::Entry128, cqueue::Entry32>;

/// A read of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeRead {
    /// The namespace.
    pub nsid: u32,
    /// The first logical block.
    pub first_block: u64,
    /// Number of blocks, 1 to 65536.
    pub blocks: u32,
}

impl NvmeRing {
    /// Reads blocks of a namespace into memory that the caller owns; `buffer` is the slot
    /// registered for this memory, if any. The completion's result is 0, a positive NVMe status, or
    /// a negative errno.
    ///
    /// # Safety
    /// The blocks must fit `length` bytes at `to`, which must stay valid for writes, and nothing
    /// else may access them, until the completion has been taken or the ring has been dropped.
    pub unsafe fn read_blocks(
        &mut self,
        device: RingFile,
        read: NvmeRead,
        buffer: Option<u16>,
        (to, length): (*mut u8, u32),
        token: u64,
    ) {
        self.borrows = true;
        let NvmeRead { nsid, first_block, blocks } = read;
        let command = Command {
            opcode: READ,
            nsid,
            address: to.expose_provenance() as u64,
            data_bytes: length,
            // SLBA, then the number of blocks - 1 (NVM Command Set 1.0 §3.2.4).
            cdw10: [first_block as u32, (first_block >> 32) as u32, blocks - 1, 0, 0, 0],
            ..Command::default()
        };
        self.push(token, None, |_| {
            let entry = match device {
                RingFile::Descriptor(fd) => {
                    opcode::UringCmd80::new(types::Fd(fd), NVME_URING_CMD_IO)
                }
                RingFile::Registered(slot) => {
                    opcode::UringCmd80::new(types::Fixed(slot), NVME_URING_CMD_IO)
                }
            };
            entry.cmd(command.to_bytes()).buf_index(buffer).build()
        });
    }

    /// Reads the parts of a drive into `buffer`, whose length is theirs together. The result is as
    /// for [`read_blocks`](Self::read_blocks).
    ///
    /// # Panics
    /// If the parts' lengths add up to another number.
    pub fn read_drive(&mut self, drive: DriveBlocks, parts: &[Part], buffer: IoBuffer, token: u64) {
        self.push_joined(token, Memory::Owned(buffer), (parts, first_status), |part, to| {
            drive.entry(Command { address: address(to), ..drive.command(READ, part, 0) }, part)
        });
    }

    /// Reads the parts of a drive into memory that the caller owns.
    ///
    /// # Safety
    /// As for [`read_blocks`](Self::read_blocks), for the total length of the parts.
    pub unsafe fn read_drive_into(
        &mut self,
        drive: DriveBlocks,
        parts: &[Part],
        to: *mut u8,
        token: u64,
    ) {
        self.push_joined(token, Memory::Lent(to), (parts, first_status), |part, to| {
            drive.entry(Command { address: address(to), ..drive.command(READ, part, 0) }, part)
        });
    }

    /// Writes `buffer` to the parts of a drive, whose lengths add up to its length; with `fua`,
    /// durably.
    ///
    /// # Panics
    /// If the parts' lengths add up to another number.
    pub fn write_drive(
        &mut self,
        drive: DriveBlocks,
        parts: &[Part],
        (buffer, fua): (IoBuffer, bool),
        token: u64,
    ) {
        let flags = if fua { FUA } else { 0 };
        self.push_joined(token, Memory::Owned(buffer), (parts, first_status), |part, from| {
            let command = drive.command(WRITE, part, flags);
            drive.entry(Command { address: address(from), ..command }, part)
        });
    }

    /// Makes the parts of a drive read as zeroes. Asks it to `deallocate` their blocks if
    /// [`zeroes_deallocate`](DriveBlocks::zeroes_deallocate).
    pub fn zero_drive(&mut self, drive: DriveBlocks, parts: &[Part], deallocate: bool, token: u64) {
        self.push_joined(token, Memory::None, (parts, first_status), |part, _| {
            drive.entry(drive.zeroes(part, deallocate), part)
        });
    }

    /// Makes all completed writes of a drive durable.
    pub fn flush_drive(&mut self, drive: DriveBlocks, fd: RawFd, token: u64) {
        let part = Part { fd, offset: 0, length: 0 };
        let command = Command { opcode: FLUSH, nsid: drive.nsid, ..Command::default() };
        self.push(token, None, |_| drive.entry(command, &part));
    }
}

/// How the bytes of a namespace of a drive are addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveBlocks {
    /// The namespace's id on the drive.
    pub nsid: u32,
    /// log2 of a logical block in bytes.
    pub block_shift: u32,
    /// Whether Write Zeroes may ask for blocks to be given back. Other drives may refuse the command then.
    pub zeroes_deallocate: bool,
}

impl DriveBlocks {
    /// A command on the blocks of a part.
    fn command(self, opcode: u8, part: &Part, flags: u32) -> Command {
        let first_block = part.offset >> self.block_shift;
        let blocks = (part.length >> self.block_shift) as u32;
        Command {
            opcode,
            nsid: self.nsid,
            data_bytes: part.length as u32,
            cdw10: [first_block as u32, (first_block >> 32) as u32, (blocks - 1) | flags, 0, 0, 0],
            ..Command::default()
        }
    }

    /// Write Zeroes on the blocks of a part.
    fn zeroes(self, part: &Part, deallocate: bool) -> Command {
        let flags = if deallocate && self.zeroes_deallocate { DEALLOCATE } else { 0 };
        Command { data_bytes: 0, ..self.command(WRITE_ZEROES, part, flags) }
    }

    fn entry(self, command: Command, part: &Part) -> squeue::Entry128 {
        opcode::UringCmd80::new(types::Fd(part.fd), NVME_URING_CMD_IO)
            .cmd(command.to_bytes())
            .build()
    }
}

/// The first nonzero status of two commands, or 0.
fn first_status(one: i32, other: i32) -> i32 {
    if one == 0 { other } else { one }
}

fn address(memory: *mut u8) -> u64 {
    memory.expose_provenance() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes passed to the kernel have the layout of the structure.
    #[test]
    fn commands_are_laid_out_as_the_kernel_reads_them() {
        let command = Command {
            opcode: READ,
            nsid: 0x0102_0304,
            address: 0x1112_1314_1516_1718,
            data_bytes: 0x2122_2324,
            cdw10: [1, 2, 3, 4, 5, 6],
            ..Command::default()
        };
        let bytes = command.to_bytes();
        // SAFETY: the structure has no padding, and any bytes are a value of it.
        let back: Command = unsafe { bytes.as_ptr().cast::<Command>().read_unaligned() };
        assert_eq!(format!("{back:?}"), format!("{command:?}"));
    }

    /// A drive whose deallocated blocks may read as anything must not be asked to deallocate, and no drive unless the
    /// host asks for it.
    #[test]
    fn zeroes_give_blocks_back_where_the_drive_allows_it() {
        let part = Part { fd: 3, offset: 8 << 9, length: 16 << 9 };
        for (zeroes_deallocate, deallocate, flags) in
            [(true, true, DEALLOCATE), (true, false, 0), (false, true, 0), (false, false, 0)]
        {
            let drive = DriveBlocks { nsid: 5, block_shift: 9, zeroes_deallocate };
            let Command { opcode, nsid, data_bytes, cdw10, .. } = drive.zeroes(&part, deallocate);
            assert_eq!((opcode, nsid, data_bytes), (WRITE_ZEROES, 5, 0));
            assert_eq!(cdw10, [8, 0, 15 | flags, 0, 0, 0]);
        }
    }

    /// If a drive rejects several commands of one operation, the result is the status of one, not
    /// their sum.
    #[test]
    fn an_operation_has_the_status_of_one_failed_command() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(512).expect("it grows");
        let mut ring = Ring::new(4).expect("a ring");
        // The results of these reads are 0, 512 and 512.
        let parts = [512, 0, 0].map(|offset| Part { fd: file.as_raw_fd(), offset, length: 512 });
        let buffer = Memory::Owned(IoBuffer::new(3 * 512));
        ring.push_joined(1, buffer, (&parts, first_status), |part, to| {
            opcode::Read::new(types::Fd(part.fd), to, 512).offset(part.offset).build()
        });
        let done = loop {
            ring.submit(Some(std::time::Duration::from_secs(10))).expect("the kernel answers");
            if let Some(done) = ring.completion() {
                break done;
            }
        };
        assert_eq!(done.result, 512);
    }

    #[test]
    fn other_files_are_refused() {
        assert!(NvmeDevice::open(Path::new("/dev/null")).is_err());
        assert!(NvmeDevice::open(Path::new("/nowhere")).is_err());
    }
}
