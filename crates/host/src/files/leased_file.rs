//! A file under a read lease, for the grant daemon, which has no chains of its own.

use super::lease;
use super::sys::{self, BreakSignal, LeaseState};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A read lease on an open file. While it is held, opening the file for writing or truncating it blocks until the lease
/// is released or [`lease_break_time`] has passed.
///
/// The lease belongs to the open file description, so that duplicates of the descriptor keep it, in this
/// process or another. Dropping this releases it.
#[derive(Debug)]
pub struct LeasedFile(Arc<File>);

impl LeasedFile {
    /// Takes a lease on `file`, which must have been opened for reading only, by an open of its own. A break of the
    /// lease sends `signal` to the thread that owns the signal.
    ///
    /// # Errors
    /// `WouldBlock` if the file is open for writing; the kernel's error if the process neither owns the file nor has
    /// CAP_LEASE, or the file system does not support leases.
    pub fn take(file: Arc<File>, signal: &BreakSignal) -> io::Result<Self> {
        sys::take_lease(&file, signal)?;
        Ok(Self(file))
    }

    /// Whether the lease is held and not being broken.
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

/// How long the kernel lets a lease breaker wait for the release (`fs.lease-break-time`), at most 45 s; None if it is
/// below 8 s, or unknown.
#[must_use]
pub fn lease_break_time() -> Option<Duration> {
    lease::break_time()
}
