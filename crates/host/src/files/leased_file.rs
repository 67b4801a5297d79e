//! A file under a read lease, for the grant daemon, which has no chains of its own.

use super::lease;
use super::sys::{self, BreakSignal, LeaseState};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A read lease on an open file: as long as it is held, nobody can open the file for writing or truncate it.
/// Who wants to, waits until it is released or [`lease_break_time`] has passed.
///
/// The lease belongs to the open file description, so that duplicates of the descriptor keep it, in this
/// process or another. Dropping this releases it.
#[derive(Debug)]
pub struct LeasedFile(Arc<File>);

impl LeasedFile {
    /// Takes a lease on `file`, which must have been opened for reading only, by an open of its own. A
    /// break sends `signal` to the thread that it is of.
    ///
    /// # Errors
    /// `WouldBlock` if somebody has the file open for writing; the kernel's if the process neither owns the
    /// file nor has CAP_LEASE, or the file system has no leases.
    pub fn take(file: Arc<File>, signal: &BreakSignal) -> io::Result<Self> {
        sys::take_lease(&file, signal)?;
        Ok(Self(file))
    }

    /// Whether nobody waits for the lease, and it has not been taken away.
    #[must_use]
    pub fn is_held(&self) -> bool {
        sys::lease_state(&self.0) == LeaseState::Held
    }

    /// The file.
    #[must_use]
    pub const fn file(&self) -> &Arc<File> {
        &self.0
    }
}

impl Drop for LeasedFile {
    fn drop(&mut self) {
        if let Err(error) = sys::release_lease(&self.0) {
            log::warn!("cannot release a lease: {error}; writers of the file wait until it ends");
        }
    }
}

/// How long who breaks a lease waits for its release (`fs.lease-break-time`), at most 45 s; None if it is
/// below 8 s, or unknown.
#[must_use]
pub fn lease_break_time() -> Option<Duration> {
    lease::break_time()
}
