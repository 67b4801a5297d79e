//! Interruption by Ctrl-C during work, and destructors that run without Python's lock.

use pyo3::{PyErr, PyResult, Python};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often to check for signals.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Whether the work has been cancelled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn goes_on(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

/// Runs the work on a thread, and checks for Python's signals meanwhile. A signal ends the wait, even if the work
/// itself is blocked; the thread is told to stop, and ends by itself. Python handles signals only on its main thread;
/// on other threads none arrives.
pub(crate) fn watched<T, E>(
    py: Python<'_>,
    work: impl FnOnce(&Stop) -> Result<T, E> + Send + 'static,
) -> PyResult<T>
where
    T: Send + 'static,
    E: Into<PyErr> + Send + 'static,
{
    let stop = Stop::default();
    let (to, done) = sync_channel(1);
    let stops = stop.clone();
    let worker = std::thread::spawn(move || {
        // The receiver may have stopped waiting.
        let _ = to.send(work(&stops));
    });
    let done = Mutex::new(done);
    loop {
        let received = py.detach(|| match done.lock() {
            Ok(done) => done.recv_timeout(LOOK_AGAIN),
            Err(_) => Err(RecvTimeoutError::Disconnected),
        });
        match received {
            Ok(result) => return result.map_err(Into::into),
            Err(RecvTimeoutError::Disconnected) => match worker.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => unreachable!("it sends before it ends"),
            },
            Err(RecvTimeoutError::Timeout) => {
                if let Err(raised) = py.check_signals() {
                    stop.0.store(true, Ordering::Relaxed);
                    return Err(raised);
                }
            }
        }
    }
}

/// A value held by a Python object whose destructor takes time: it disconnects from a target, or waits for a thread.
/// Python objects are dropped with Python's lock held; this drops the value without it.
#[derive(Debug)]
pub(crate) struct Unlocked<T: Send>(Option<T>);

impl<T: Send> Unlocked<T> {
    pub(crate) const fn new(inner: T) -> Self {
        Self(Some(inner))
    }
}

impl<T: Send> Deref for Unlocked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(inner) => inner,
            None => unreachable!("it is there until it is dropped"),
        }
    }
}

impl<T: Send> Drop for Unlocked<T> {
    fn drop(&mut self) {
        let inner = self.0.take();
        Python::attach(|py| py.detach(|| drop(inner)));
    }
}
