//! A thread that frees values that take long to free: a reactor that drops tables may not have the time.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

static FREES: OnceLock<Sender<Box<dyn Send>>> = OnceLock::new();

/// Starts the thread that frees large tables: those with many file maps, many functions or large function maps. Only
/// the first call in a process starts it. The thread calls `begin` first. Without it the thread that drops such tables
/// frees them: a file map takes 0.3 µs, a function some 50 µs, a function map up to some milliseconds.
///
/// # Errors
/// The thread cannot be started.
pub fn free_elsewhere(begin: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let (sender, receiver) = channel::<Box<dyn Send>>();
    if FREES.set(sender).is_err() {
        return Ok(());
    }
    let free = move || {
        begin();
        receiver.into_iter().for_each(drop);
    };
    std::thread::Builder::new().name("table frees".into()).spawn(free).map(|_| ())
}

/// Hands a value to the freeing thread. If there is none, or it could not be started, frees the value here.
pub(crate) fn free(value: impl Send + 'static) {
    if let Some(frees) = FREES.get() {
        let _ = frees.send(Box::new(value));
    }
}
