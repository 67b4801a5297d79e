//! A file opened again, for direct reads that bypass the page cache.

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
    /// Offsets and lengths of reads must be multiples of this.
    pub(crate) block_bytes: u32,
    _spare: Option<Spare>,
}

impl DirectFile {
    /// None if the file system does not support direct I/O for the file, or requires blocks larger
    /// than 4 KiB; also if the process may not open the file again.
    pub(crate) fn of(file: &File) -> Option<Self> {
        // Checked before the open, because opening a FIFO or character device may have side
        // effects.
        let block_bytes = direct_block_bytes(file).filter(|block| *block <= BLOCK_MAX_BYTES)?;
        // Opened through the descriptor, because the path may lead to another file by now, or to
        // none.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .ok()?;
        Some(Self { file, block_bytes, _spare: None })
    }

    /// The same for a file that is otherwise kept without a descriptor: None also if the quota of
    /// spare descriptors is used up.
    pub(crate) fn of_many(file: &File) -> Option<Self> {
        let spare = Spare::take()?;
        Self::of(file).map(|direct| Self { _spare: Some(spare), ..direct })
    }
}
