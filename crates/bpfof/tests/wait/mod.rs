//! Waits for what other threads and processes do.
#![allow(dead_code)] // Each test uses a part.

use std::time::{Duration, Instant};

/// Longest wait for something that must happen, on a busy machine; shorter than the timeouts, of 30 s and more, that
/// would make it happen anyway.
const PATIENCE: Duration = Duration::from_secs(20);

/// Asks until it is `done`; fails after a while.
#[track_caller]
pub(crate) fn until(what: &str, done: impl FnMut() -> bool) {
    within(PATIENCE, what, done);
}

/// The same with a limit of its own.
#[track_caller]
pub(crate) fn within(time: Duration, what: &str, done: impl FnMut() -> bool) {
    assert!(is_soon(time, done), "{what}: it does not happen");
}

/// Asks until it is `done`, and returns false if it is not within this time.
pub(crate) fn is_soon(time: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + time;
    while !done() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
