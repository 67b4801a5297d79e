//! Stops the threads of a test when it ends, however it ends.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag when it is dropped: so a failed check ends the test, which would otherwise wait for its threads.
pub(crate) struct StopAtEnd<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
