//! Threads of a test that go on until it ends, however it ends.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag when it is dropped: a check that fails then ends the test, which would wait for its threads otherwise.
pub(crate) struct StopAtEnd<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
