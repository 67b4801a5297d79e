//! Ctrl-C while the work is done.

use pyo3::{PyErr, PyResult, Python};
use std::time::{Duration, Instant};

/// How often to look for signals.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Looks for Python's signals now and then. Python handles them on its main thread only; on others there is
/// never one.
#[derive(Debug)]
pub(crate) struct Watch {
    next: Instant,
    raised: Option<PyErr>,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self { next: Instant::now() + LOOK_AGAIN, raised: None }
    }

    /// Whether to go on.
    pub(crate) fn goes_on(&mut self) -> bool {
        if self.raised.is_none() && Instant::now() >= self.next {
            self.next = Instant::now() + LOOK_AGAIN;
            self.raised = Python::attach(|py| py.check_signals()).err();
        }
        self.raised.is_none()
    }

    /// What the work came to, or what a signal raised.
    pub(crate) fn end<T, E: Into<PyErr>>(self, result: Result<T, E>) -> PyResult<T> {
        match self.raised {
            Some(raised) => Err(raised),
            None => result.map_err(Into::into),
        }
    }
}
