//! A thread that frees what takes time to free: who drops tables may have none.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

static FREES: OnceLock<Sender<Box<dyn Send>>> = OnceLock::new();

/// Starts the thread that frees what tables leave that have many file maps, many functions or large
/// function maps, once for the process. It calls `begin` first. Without it whoever drops such tables frees
/// all that: a file map takes 0.3 µs, a function some 50 µs, a function map up to some milliseconds.
///
/// # Errors
/// There can be no thread.
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

/// Frees a value by the thread. Without one, or if it could not be started, it is freed here.
pub(crate) fn free(value: impl Send + 'static) {
    if let Some(frees) = FREES.get() {
        let _ = frees.send(Box::new(value));
    }
}
