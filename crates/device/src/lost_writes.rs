//! Detects writes to a file that the kernel took into its page cache and then lost.
//!
//! The kernel reports a loss once to each open file description, at its next sync (errseq_t). The watch has an open
//! file description of its own, so that no other sync can consume its report.
#![allow(unsafe_code)]

use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// Looks for lost writes of a file.
#[derive(Debug)]
pub(crate) struct LossWatch(File);

impl LossWatch {
    /// Watches the file that is open as `fd` from now on.
    ///
    /// # Errors
    /// The kernel's error: the file cannot be opened once more.
    pub(crate) fn of(fd: RawFd) -> io::Result<LossWatch> {
        let path = format!("/proc/self/fd/{fd}");
        let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(LossWatch(File::from(file)))
    }

    /// Whether writes have been lost since the last call. Does not wait and writes nothing.
    pub(crate) fn has_lost(&self) -> bool {
        /// An offset at which no file has pages: there is nothing to wait for.
        const NOWHERE: i64 = i64::MAX - 8191;
        let (fd, how) = (self.0.as_raw_fd(), libc::SYNC_FILE_RANGE_WAIT_BEFORE);
        // SAFETY: the descriptor is open; the call takes no memory.
        if unsafe { libc::sync_file_range(fd, NOWHERE, 4096, how) } == 0 {
            return false;
        }
        // Disks report errors by many numbers (ENODATA for a bad sector), so exclude only the errors of the call
        // itself.
        let of_call =
            [libc::EBADF, libc::EINVAL, libc::ESPIPE, libc::ENOSYS, libc::EPERM, libc::EINTR];
        let error = io::Error::last_os_error().raw_os_error();
        error.is_some_and(|error| !of_call.contains(&error))
    }
}

#[cfg(test)]
mod tests {
    use crate::loop_device::LoopDevice;
    use crate::skip::skip;
    use crate::{FileNamespace, Volume};
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fdatasync, ftruncate, memfd_create};
    use std::cell::Cell;
    use std::os::fd::{AsRawFd, BorrowedFd};
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    /// A loss is seen once, even if the namespace's own open file was told of it before.
    #[test]
    fn a_loss_reported_to_another_open_file_is_seen() {
        let memory = memfd_create("disk", MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&memory, 1 << 20).expect("it grows");
        let image = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        let Some(device) = LoopDevice::of(Path::new(&image)) else {
            return skip("no loop device can be made here");
        };
        // Blocks smaller than the device's: I/O goes through the page cache.
        let file = FileNamespace::open(&device.0, None, 512).expect("it opens");
        // The second half of the image is gone and cannot be written any more.
        ftruncate(&memory, 512 << 10).expect("it shrinks");
        fcntl_add_seals(&memory, SealFlags::GROW).expect("sealed");
        let fd = file.fd();
        let volume = Volume::single(file);
        let losses = Cell::new(0);
        let look = || {
            volume.look_for_lost_writes(|| losses.set(losses.get() + 1));
            losses.get()
        };
        // SAFETY: the volume keeps the descriptor open.
        let own = unsafe { BorrowedFd::borrow_raw(fd) };
        let writer = std::fs::File::from(own.try_clone_to_owned().expect("a descriptor"));
        writer.write_all_at(&[1; 4096], 0).expect("taken");
        fdatasync(own).expect("it is there");
        assert_eq!(look(), 0);
        writer.write_all_at(&[1; 4096], 768 << 10).expect("taken");
        let ended = [fdatasync(own), fdatasync(own)];
        let seen = [look(), look()];
        drop((volume, writer));
        assert_eq!((ended, seen), ([Err(rustix::io::Errno::IO), Ok(())], [1, 1]));
    }
}
