//! A namespace of an NVMe drive of this machine, to be served by a target.

use crate::file::{FileError, Lock, lock, not_locked};
use crate::nvme::{DriveBlocks, IDENTIFY_BYTES, NvmeDevice};
use crate::volume::Part;
use rustix::fs::{Mode, OFlags, open};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// Maximum bytes of one command. The kernel may take fewer than the drive allows: a request has a maximum number of
/// segments, each a page.
const TRANSFER_MAX_BYTES: u64 = 128 << 10;
/// Maximum logical blocks of one command (NVM Command Set 1.0 §3.2.8).
const BLOCKS_MAX: u64 = 1 << 16;

/// ONCS: Dataset Management, Write Zeroes (NVMe Base 2.0 §5.17.2.1).
const ONCS_DATASET_MANAGEMENT: u8 = 1 << 2;
const ONCS_WRITE_ZEROES: u8 = 1 << 3;
/// DLFEAT: bits 2:0 are 001b where deallocated blocks read as zeroes, bit 3 where Write Zeroes may
/// deallocate (NVM Command Set 1.0 §4.1.5.1).
const DLFEAT_MASK: u8 = 0b1111;
const DLFEAT_ZEROES_DEALLOCATE: u8 = 0b1001;

/// The character device of a namespace, `/dev/ngXnY`, opened for reading and writing.
#[derive(Debug)]
pub struct NvmeDrive {
    device: NvmeDevice,
    path: PathBuf,
    blocks: DriveBlocks,
    size_bytes: u64,
    transfer_max_bytes: u64,
    zeroes: bool,
    deallocates: bool,
    /// Maximum bytes of one Write Zeroes.
    zeroes_max_bytes: u64,
    has_volatile_cache: bool,
    identity: String,
    /// The open block device, held so that it cannot be mounted.
    _claim: OwnedFd,
}

/// Identify data of a drive that a target needs (NVMe Base 2.0 §5.17.2.1, NVM Command Set 1.0 §4.1.5.1).
struct Identified {
    blocks: u64,
    block_shift: u8,
    metadata_bytes: u16,
    serial: String,
    /// Largest transfer is 2^this pages of 4 KiB; 0 is no limit.
    mdts: u8,
    zeroes: bool,
    /// Whether Write Zeroes may deallocate blocks, which then read as zeroes (DLFEAT).
    zeroes_deallocate: bool,
    deallocates: bool,
    has_volatile_cache: bool,
}

impl Identified {
    fn of(device: &NvmeDevice) -> io::Result<Identified> {
        Ok(Identified::parse(&device.identify()?, &device.identify_controller()?))
    }

    fn parse(namespace: &[u8; IDENTIFY_BYTES], controller: &[u8; IDENTIFY_BYTES]) -> Identified {
        // FLBAS: bits 3:0, and 6:5 above them.
        let format = usize::from(namespace[26] & 0xf | namespace[26] >> 1 & 0x30);
        let format = &namespace[128 + 4 * format..][..4];
        let serial = String::from_utf8_lossy(&controller[4..24]).trim().to_owned();
        let nsze = namespace.first_chunk::<8>().expect("4096 bytes");
        let zeroes_deallocate = namespace[33] & DLFEAT_MASK == DLFEAT_ZEROES_DEALLOCATE;
        Identified {
            blocks: u64::from_le_bytes(*nsze),
            block_shift: format[2],
            metadata_bytes: u16::from_le_bytes([format[0], format[1]]),
            serial,
            mdts: controller[77],
            zeroes: controller[520] & ONCS_WRITE_ZEROES != 0,
            zeroes_deallocate,
            deallocates: controller[520] & ONCS_DATASET_MANAGEMENT != 0 && zeroes_deallocate,
            has_volatile_cache: controller[525] & 1 != 0,
        }
    }

    fn size_bytes(&self) -> u64 {
        self.blocks.saturating_mul(1 << self.block_shift)
    }
}

impl NvmeDrive {
    /// Opens the character device of a namespace for a target, and claims its block device, so that no file system on
    /// it can be mounted in the meantime.
    ///
    /// # Errors
    /// [`FileError`]: the device cannot be opened, is not an NVMe namespace, has metadata, has blocks that are neither
    /// 512 nor 4096 bytes, or is in use.
    pub fn open(path: &Path) -> Result<NvmeDrive, FileError> {
        let failed = |action| {
            let path = path.to_owned();
            move |source: io::Error| FileError::Io { action, path, source }
        };
        let refused = |why: String| FileError::Drive { path: path.to_owned(), why };
        let device =
            NvmeDevice::open_for_writing(path).map_err(|error| match error.raw_os_error() {
                Some(libc::ENOTTY | libc::EINVAL) => refused("is not an NVMe namespace".to_owned()),
                _ => failed("open as the character device of an NVMe namespace")(error),
            })?;
        lock(device.file(), Lock::Alone).map_err(not_locked(path))?;
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
                "has {bytes} bytes of metadata with each block; format it without metadata (nvme \
                 format)"
            )));
        }
        if !matches!(found.block_shift, 9 | 12) {
            let bytes = 1u64.checked_shl(found.block_shift.into()).unwrap_or(0);
            return Err(refused(format!("has logical blocks of {bytes} bytes, not 512 or 4096")));
        }
        let transfer_max_bytes = TRANSFER_MAX_BYTES.min(pages(found.mdts));
        let wzsl = device.identify_nvm_controller().ok().map(|nvm| nvm[1]);
        let zeroes_max_bytes = zeroes_max_bytes(wzsl, found.mdts, found.block_shift);
        let nsid = device.nsid();
        let blocks = DriveBlocks {
            nsid,
            block_shift: found.block_shift.into(),
            zeroes_deallocate: found.zeroes_deallocate,
        };
        Ok(NvmeDrive {
            path: path.to_owned(),
            blocks,
            size_bytes: found.size_bytes(),
            transfer_max_bytes,
            zeroes: found.zeroes,
            deallocates: found.zeroes && found.deallocates,
            zeroes_max_bytes,
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
    /// The kernel's error, the status of the command in words, or that the namespace is gone from the drive or has
    /// other blocks.
    pub fn measure(&self) -> Result<u64, FileError> {
        let path = || self.path.clone();
        let found = Identified::of(&self.device).map_err(|source| FileError::Io {
            action: "measure",
            path: path(),
            source,
        })?;
        check_measured(&found, self.blocks.block_shift)
            .map_err(|why| FileError::Drive { path: path(), why })
    }

    /// Its logical block in bytes: 512 or 4096.
    pub fn block_bytes(&self) -> u32 {
        1 << self.blocks.block_shift
    }

    /// How its bytes are addressed in commands, for the ring.
    pub fn blocks(&self) -> DriveBlocks {
        self.blocks
    }

    /// Identifies the namespace, whatever its device is called: the serial number of the drive and the namespace's id.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Whether the drive supports Write Zeroes.
    pub fn writes_zeroes(&self) -> bool {
        self.zeroes
    }

    /// Whether Write Zeroes may deallocate blocks.
    pub fn deallocates(&self) -> bool {
        self.deallocates
    }

    /// Whether completed writes may be in a volatile cache until a Flush.
    pub fn has_volatile_cache(&self) -> bool {
        self.has_volatile_cache
    }

    /// The descriptor, for the ring.
    pub fn fd(&self) -> RawFd {
        self.device.file().as_fd().as_raw_fd()
    }

    /// Sets `parts` to the transfers of a range, each at most as long as one command may be.
    pub fn transfers(&self, offset: u64, length: u64, parts: &mut Vec<Part>) {
        divide(self.fd(), (offset, length), self.transfer_max_bytes, parts);
    }

    /// How many commands a range of `length` bytes is divided into; for Write Zeroes if it `is_zero`.
    pub fn count(&self, length: u64, is_zero: bool) -> u64 {
        let most = if is_zero { self.zeroes_max_bytes } else { self.transfer_max_bytes };
        length.div_ceil(most).max(1)
    }

    /// The same for Write Zeroes.
    pub fn ranges(&self, offset: u64, length: u64, parts: &mut Vec<Part>) {
        divide(self.fd(), (offset, length), self.zeroes_max_bytes, parts);
    }
}

/// The size in bytes of a namespace that was opened with blocks of this size, or how the namespace has changed since.
fn check_measured(found: &Identified, block_shift: u32) -> Result<u64, String> {
    match found.size_bytes() {
        0 => Err("is gone from the drive".to_owned()),
        _ if u32::from(found.block_shift) != block_shift || found.metadata_bytes != 0 => {
            Err("has been reformatted with another block size or with metadata".to_owned())
        }
        bytes => Ok(bytes),
    }
}

/// The bytes that a limit of the drive allows, as a power of two in pages of 4 KiB; exponent 0 is no limit.
fn pages(exponent: u8) -> u64 {
    match exponent {
        0 => u64::MAX,
        exponent if exponent < 52 => 4096 << exponent,
        _ => u64::MAX,
    }
}

/// Maximum bytes of one Write Zeroes of a drive with this WZSL (NVM Command Set 1.0 §4.1.5.2). Without a WZSL the limit
/// of transfers applies, as in Linux.
fn zeroes_max_bytes(wzsl: Option<u8>, mdts: u8, block_shift: u8) -> u64 {
    pages(wzsl.unwrap_or(mdts)).min(BLOCKS_MAX << block_shift)
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
    fn zeroes_have_the_limit_of_the_drive() {
        let most = 65536 * 512;
        assert_eq!(zeroes_max_bytes(Some(3), 9, 9), 8 * 4096);
        assert_eq!(zeroes_max_bytes(Some(0), 5, 9), most, "no limit");
        assert_eq!(zeroes_max_bytes(Some(200), 5, 9), most);
        assert_eq!(zeroes_max_bytes(None, 5, 9), 32 * 4096);
        assert_eq!(zeroes_max_bytes(None, 0, 12), 65536 * 4096);
    }

    #[test]
    fn changes_of_a_namespace_are_detected_when_it_is_measured() {
        let found = |blocks, block_shift, metadata_bytes| Identified {
            blocks,
            block_shift,
            metadata_bytes,
            serial: String::new(),
            mdts: 0,
            zeroes: false,
            zeroes_deallocate: false,
            deallocates: false,
            has_volatile_cache: false,
        };
        assert_eq!(check_measured(&found(1000, 9, 0), 9), Ok(512_000));
        for other in [found(0, 9, 0), found(0, 0, 0), found(1000, 12, 0), found(1000, 9, 8)] {
            assert!(check_measured(&other, 9).is_err());
        }
    }

    /// Blocks are deallocated only on drives whose deallocated blocks read as zeroes.
    #[test]
    fn drives_say_whether_zeroes_give_blocks_back() {
        let found = |dlfeat: u8, oncs: u8| {
            let (mut namespace, mut controller) = ([0; IDENTIFY_BYTES], [0; IDENTIFY_BYTES]);
            namespace[33] = dlfeat;
            controller[520] = oncs;
            let found = Identified::parse(&namespace, &controller);
            (found.zeroes_deallocate, found.deallocates)
        };
        let both = ONCS_DATASET_MANAGEMENT | ONCS_WRITE_ZEROES;
        assert_eq!(found(0b1001, both), (true, true));
        assert_eq!(found(0b1_1001, both), (true, true), "the bit above is of guards");
        assert_eq!(found(0b1001, ONCS_WRITE_ZEROES), (true, false));
        // No deallocation by Write Zeroes; nothing reported of deallocated blocks; both; deallocated blocks are all
        // ones.
        for dlfeat in [0b0001, 0b0000, 0b1000, 0b1010] {
            assert_eq!(found(dlfeat, both), (false, false), "{dlfeat:#06b}");
        }
    }

    #[test]
    fn files_that_are_no_drives_are_refused() {
        let refused = NvmeDrive::open(Path::new("/dev/null")).expect_err("no drive");
        assert!(refused.to_string().starts_with("/dev/null is not an NVMe namespace"), "{refused}");
        assert!(NvmeDrive::open(Path::new("/nowhere")).is_err());
    }
}
