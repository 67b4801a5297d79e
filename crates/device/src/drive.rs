//! A namespace of an NVMe drive of this machine, for a target that serves it.

use crate::file::{FileError, Lock, lock};
use crate::nvme::{DriveBlocks, NvmeDevice};
use crate::volume::Part;
use rustix::fs::{Mode, OFlags, open};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// Most bytes of one command. The kernel takes fewer than a drive may: as many pages as a request has
/// segments.
const TRANSFER_MAX_BYTES: u64 = 128 << 10;
/// Most logical blocks of one command (NVM Command Set 1.0 §3.2.8).
const BLOCKS_MAX: u64 = 1 << 16;

/// The character device of a namespace, `/dev/ngXnY`, opened for reading and writing.
#[derive(Debug)]
pub struct NvmeDrive {
    device: NvmeDevice,
    path: PathBuf,
    blocks: DriveBlocks,
    size_bytes: u64,
    transfer_max_bytes: u64,
    zeroes: bool,
    has_volatile_cache: bool,
    identity: String,
    /// The block device: held so that nobody mounts it.
    _claim: OwnedFd,
}

/// Fields of Identify data that a target needs of a drive (NVMe Base 2.0 §5.17.2.1, NVM Command Set 1.0
/// §4.1.5.1).
struct Identified {
    blocks: u64,
    block_shift: u8,
    metadata_bytes: u16,
    serial: String,
    /// Largest transfer is 2^this pages of 4 KiB; 0 is no limit.
    mdts: u8,
    zeroes: bool,
    has_volatile_cache: bool,
}

impl Identified {
    fn of(device: &NvmeDevice) -> io::Result<Identified> {
        let (namespace, controller) = (device.identify()?, device.identify_controller()?);
        // FLBAS: bits 3:0, and 6:5 above them.
        let format = usize::from(namespace[26] & 0xf | namespace[26] >> 1 & 0x30);
        let format = &namespace[128 + 4 * format..][..4];
        let serial = String::from_utf8_lossy(&controller[4..24]).trim().to_owned();
        let nsze = namespace.first_chunk::<8>().expect("4096 bytes");
        Ok(Identified {
            blocks: u64::from_le_bytes(*nsze),
            block_shift: format[2],
            metadata_bytes: u16::from_le_bytes([format[0], format[1]]),
            serial,
            mdts: controller[77],
            zeroes: controller[520] & 1 << 3 != 0,
            has_volatile_cache: controller[525] & 1 != 0,
        })
    }

    fn size_bytes(&self) -> u64 {
        self.blocks.saturating_mul(1 << self.block_shift)
    }
}

impl NvmeDrive {
    /// Opens the character device of a namespace for a target, and claims its block device, so that no
    /// file system on it is mounted meanwhile.
    ///
    /// # Errors
    /// [`FileError`]: it cannot be opened, is no NVMe namespace, has metadata or blocks that are not
    /// 512 or 4096 bytes, or is in use.
    pub fn open(path: &Path) -> Result<NvmeDrive, FileError> {
        let failed = |action| {
            let path = path.to_owned();
            move |source: io::Error| FileError::Io { action, path, source }
        };
        let refused = |why: String| FileError::Drive { path: path.to_owned(), why };
        let device =
            NvmeDevice::open_for_writing(path).map_err(|error| match error.raw_os_error() {
                Some(libc::ENOTTY | libc::EINVAL) => refused("is no NVMe namespace".to_owned()),
                _ => failed("open as the character device of an NVMe namespace")(error),
            })?;
        lock(device.file(), Lock::Alone).map_err(|_| FileError::Locked { path: path.to_owned() })?;
        let block_device = block_device(path)
            .ok_or_else(|| refused("has no name of the form /dev/ngXnY".to_owned()))?;
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        let claim = open(&block_device, flags, Mode::empty()).map_err(|error| {
            refused(format!(
                "cannot be claimed by {}: {}; is a file system on it mounted?",
                block_device.display(),
                io::Error::from(error)
            ))
        })?;
        let found = Identified::of(&device).map_err(failed("identify"))?;
        if found.metadata_bytes != 0 {
            let bytes = found.metadata_bytes;
            return Err(refused(format!(
                "has {bytes} bytes of metadata with each block; format it without (nvme format)"
            )));
        }
        if !matches!(found.block_shift, 9 | 12) {
            let bytes = 1u64.checked_shl(found.block_shift.into()).unwrap_or(0);
            return Err(refused(format!("has logical blocks of {bytes} bytes, not 512 or 4096")));
        }
        let transfer_max_bytes = match found.mdts {
            0 => TRANSFER_MAX_BYTES,
            mdts => TRANSFER_MAX_BYTES.min(4096u64.checked_shl(mdts.into()).unwrap_or(u64::MAX)),
        };
        let nsid = device.nsid();
        Ok(NvmeDrive {
            path: path.to_owned(),
            blocks: DriveBlocks { nsid, block_shift: found.block_shift.into() },
            size_bytes: found.size_bytes(),
            transfer_max_bytes,
            zeroes: found.zeroes,
            has_volatile_cache: found.has_volatile_cache,
            identity: format!("{}/{nsid}", found.serial),
            device,
            _claim: claim,
        })
    }

    /// The character device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size in bytes when it was opened.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Its size in bytes now.
    ///
    /// # Errors
    /// The kernel's answer, or the status of the command in words.
    pub fn measure(&self) -> io::Result<u64> {
        Ok(Identified::of(&self.device)?.size_bytes())
    }

    /// Its logical block in bytes: 512 or 4096.
    pub fn block_bytes(&self) -> u32 {
        1 << self.blocks.block_shift
    }

    /// How its bytes are addressed, for the ring.
    pub fn blocks(&self) -> DriveBlocks {
        self.blocks
    }

    /// What tells the namespace from all others, whatever its device is called: the serial number of
    /// the drive and the namespace's id.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Whether it has the command Write Zeroes.
    pub fn writes_zeroes(&self) -> bool {
        self.zeroes
    }

    /// Whether completed writes may sit in a cache that a Flush empties.
    pub fn has_volatile_cache(&self) -> bool {
        self.has_volatile_cache
    }

    /// For the ring.
    pub fn fd(&self) -> RawFd {
        self.device.file().as_fd().as_raw_fd()
    }

    /// Puts the transfers of a range into `parts`, each as long as one command may be.
    pub fn transfers(&self, offset: u64, length: u64, parts: &mut Vec<Part>) {
        divide(self.fd(), (offset, length), self.transfer_max_bytes, parts);
    }

    /// The same for commands without data.
    pub fn ranges(&self, offset: u64, length: u64, parts: &mut Vec<Part>) {
        divide(self.fd(), (offset, length), BLOCKS_MAX << self.blocks.block_shift, parts);
    }
}

fn divide(fd: RawFd, (offset, length): (u64, u64), most: u64, parts: &mut Vec<Part>) {
    parts.clear();
    let mut at = 0;
    while at < length {
        let part = most.min(length - at);
        parts.push(Part { fd, offset: offset + at, length: part });
        at += part;
    }
}

/// `/dev/nvme0n1` for `/dev/ng0n1`.
fn block_device(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let rest = path.file_name()?.to_str()?.strip_prefix("ng")?;
    Some(path.with_file_name(format!("nvme{rest}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_divided_into_commands() {
        let mut parts = Vec::new();
        divide(3, (4096, 300 << 10), 128 << 10, &mut parts);
        let found: Vec<_> = parts.iter().map(|part| (part.offset, part.length)).collect();
        let (k, at) = (1 << 10, 4096);
        assert_eq!(found, [(at, 128 * k), (at + 128 * k, 128 * k), (at + 256 * k, 44 * k)]);
    }

    #[test]
    fn what_is_no_drive_is_refused() {
        let refused = NvmeDrive::open(Path::new("/dev/null")).expect_err("no drive");
        assert!(refused.to_string().starts_with("/dev/null is no NVMe namespace"), "{refused}");
        assert!(NvmeDrive::open(Path::new("/nowhere")).is_err());
    }
}
