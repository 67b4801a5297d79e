//! Identifiers of I/O queues.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Queue identifiers that no lane of an association uses, the longest unused first: a target may
/// notice a closed connection late.
#[derive(Clone, Debug)]
pub(crate) struct QueueIds(Arc<Mutex<VecDeque<u16>>>);

impl QueueIds {
    pub(crate) fn new(granted: u16) -> Self {
        Self(Arc::new(Mutex::new((1..=granted).collect())))
    }

    pub(crate) fn take(&self) -> Option<u16> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    pub(crate) fn give_back(&self, qid: u16) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(qid);
    }
}
