//! A file opened once more, for direct reads past the page cache.

use super::access::Spare;
use bpfof_device::direct_block_bytes;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// The largest block of direct I/O that chains read, in bytes: the unit in which maps are made.
pub(crate) const BLOCK_MAX_BYTES: u32 = 4096;

/// The same file as the one that the application opened, with a file position and flags of its own.
#[derive(Debug)]
pub(crate) struct DirectFile {
    pub(crate) file: File,
    /// What offsets and lengths of reads must be multiples of.
    pub(crate) block_bytes: u32,
    _spare: Option<Spare>,
}

impl DirectFile {
    /// None where the file system has no direct I/O for the file, or wants blocks that are larger
    /// than those of disks; and where the process may not open it again.
    pub(crate) fn of(file: &File) -> Option<Self> {
        // Asked first, because opening what is no file may have effects.
        let block_bytes = direct_block_bytes(file).filter(|block| *block <= BLOCK_MAX_BYTES)?;
        // By the descriptor, for the name may be another file's by now, or nobody's.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .ok()?;
        Some(Self { file, block_bytes, _spare: None })
    }

    /// The same for a file that no descriptor is kept of: None also if there is none to spare.
    pub(crate) fn of_many(file: &File) -> Option<Self> {
        let spare = Spare::take()?;
        Self::of(file).map(|direct| Self { _spare: Some(spare), ..direct })
    }
}
