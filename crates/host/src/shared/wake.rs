//! Ends the wait of a lane's driver, which waits for the socket without the lock.

use crate::transport::tcp::wait_ready_or;
use crate::{Error, LostReason};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Calls of the driver by other threads. Callers of [`call`](Self::call) and [`clear`](Self::clear) hold the lane's
/// lock.
#[derive(Debug)]
pub(super) struct Wake {
    is_called: AtomicBool,
    /// Readable if the driver was called while it slept.
    event: OwnedFd,
}

impl Wake {
    /// # Errors
    /// The process has no descriptor left.
    pub(super) fn new() -> Result<Self, Error> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|error| LostReason::Io(error.kind()))?;
        Ok(Self { is_called: AtomicBool::new(false), event })
    }

    /// Calls the driver, which `sleeps` or looks at [`is_called`](Self::is_called).
    pub(super) fn call(&self, sleeps: bool) {
        self.is_called.store(true, Ordering::Relaxed);
        if sleeps {
            // It fails only if the counter is full, and then the driver wakes up anyway.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    pub(super) fn is_called(&self) -> bool {
        self.is_called.load(Ordering::Relaxed)
    }

    /// Forgets all calls, after a sleep of the driver if `has_slept`. Returns whether there were any.
    pub(super) fn clear(&self, has_slept: bool) -> bool {
        let is_called = self.is_called();
        if is_called && has_slept {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
        self.is_called.store(false, Ordering::Relaxed);
        is_called
    }

    /// Sleeps until the socket is readable (or writable, with `or_send`), or the driver is called, at most `timeout`.
    /// Returns false if only the time has passed.
    pub(super) fn sleep(&self, socket: impl AsFd, or_send: bool, timeout: Duration) -> bool {
        // The receive that follows reports an error of the socket.
        wait_ready_or(socket, or_send, &self.event, timeout) != Ok(false)
    }
}
