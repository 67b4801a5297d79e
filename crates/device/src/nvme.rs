//! An NVMe namespace by its character device: commands past file systems and the block layer.
#![allow(unsafe_code)]

use crate::ring::{Ring, RingFile};
use io_uring::{cqueue, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// `_IO('N', 0x40)`: the namespace's id.
const NVME_IOCTL_ID: u32 = 0x4E40;
/// `_IOWR('N', 0x41, struct nvme_admin_cmd)`
const NVME_IOCTL_ADMIN_CMD: u32 = 0xC048_4E41;
/// `_IOWR('N', 0x80, struct nvme_uring_cmd)`
const NVME_URING_CMD_IO: u32 = 0xC048_4E80;
/// Identify (NVMe Base 2.0 §5.17), of CNS 00h: the namespace.
const ADMIN_IDENTIFY: u8 = 0x06;
/// Read (NVM Command Set 1.0 §3.2.4).
const READ: u8 = 0x02;
/// Bytes of an Identify structure.
pub const IDENTIFY_BYTES: usize = 4096;

/// `struct nvme_passthru_cmd`, of which `struct nvme_uring_cmd` differs in the last field only:
/// there it is reserved.
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
    /// As the kernel takes it from a submission entry of 128 bytes.
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
    /// The kernel's answer: among others that it is no NVMe namespace.
    pub fn open(path: &Path) -> io::Result<NvmeDevice> {
        let file = File::open(path)?;
        // SAFETY: the descriptor is open; the call takes no memory.
        let nsid = unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ID as _) };
        match u32::try_from(nsid) {
            Ok(0) => Err(io::Error::other("this is no NVMe namespace")),
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

    /// What the controller says of the namespace (NVM Command Set 1.0 §4.1.5.1).
    ///
    /// # Errors
    /// The kernel's answer, or the status of the command in words.
    pub fn identify(&self) -> io::Result<[u8; IDENTIFY_BYTES]> {
        let mut data = [0; IDENTIFY_BYTES];
        let mut command = Command {
            opcode: ADMIN_IDENTIFY,
            nsid: self.nsid,
            address: data.as_mut_ptr().expose_provenance() as u64,
            data_bytes: IDENTIFY_BYTES as u32,
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

/// A ring whose entries have room for commands of NVMe.
pub type NvmeRing = Ring<squeue::Entry128, cqueue::Entry32>;

/// A read of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeRead {
    /// The namespace.
    pub nsid: u32,
    /// The first logical block.
    pub first_block: u64,
    /// How many, 1 to 65536.
    pub blocks: u32,
}

impl NvmeRing {
    /// Reads blocks of a namespace into memory with an owner of its own; `buffer` is the slot that
    /// has this memory, if one has. The completion's result is 0, an NVMe status above it, or a
    /// negative errno.
    ///
    /// # Safety
    /// The blocks must fit `length` bytes at `to`, which must stay valid for writes, and nobody
    /// else may touch them, until the completion has been taken or the ring has been dropped.
    pub unsafe fn read_blocks(
        &mut self,
        device: RingFile,
        read: NvmeRead,
        buffer: Option<u16>,
        (to, length): (*mut u8, u32),
        token: u64,
    ) {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that the kernel gets are those of the structure.
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

    #[test]
    fn other_files_are_refused() {
        assert!(NvmeDevice::open(Path::new("/dev/null")).is_err());
        assert!(NvmeDevice::open(Path::new("/nowhere")).is_err());
    }
}
