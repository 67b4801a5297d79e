//! The lanes that the readers of an association share: one for each processor that has needed one.

use super::shared::Shared;
use crate::{Caravan, Error, Lane, SharedLane};
use rustix::thread::sched_getcpu;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Lanes by processors: threads of one processor do not wait for each other's turn with a lane, and an answer
/// is received where its thread is.
#[derive(Debug)]
pub(crate) struct SharedLanes {
    /// Processors are dealt out to these in turn.
    lanes: Box<[OnceLock<Arc<SharedLane>>]>,
    /// Who connects has it. Whether there was none to be had for a processor.
    no_more: Mutex<bool>,
}

impl SharedLanes {
    /// At most `lanes_max` lanes, of which none is connected.
    pub(crate) fn new(lanes_max: usize) -> Self {
        let lanes = (0..lanes_max.max(1)).map(|_| OnceLock::new()).collect();
        Self { lanes, no_more: Mutex::new(false) }
    }

    /// The lane of the processor on which the caller runs. If it is to be connected, and another thread
    /// connects one just now, or there is no more to be had, any other one. None without a target.
    ///
    /// # Errors
    /// Those of [`Shared::open_lane`], if there is no lane at all.
    pub(crate) fn get(&self, shared: &Shared) -> Result<Option<&Arc<SharedLane>>, Error> {
        let slot = &self.lanes[sched_getcpu() % self.lanes.len()];
        if let Some(lane) = slot.get() {
            return Ok(Some(lane));
        }
        let any = || self.lanes.iter().find_map(OnceLock::get);
        let mut no_more = match (any(), self.no_more.try_lock()) {
            (_, Ok(no_more)) => no_more,
            (Some(lane), Err(_)) => return Ok(Some(lane)),
            (None, Err(_)) => self.no_more.lock().unwrap_or_else(PoisonError::into_inner),
        };
        let others = any();
        // A connection that is lost says that the target is not to be waited for.
        if others.is_some_and(|lane| *no_more || !lane.is_connected()) {
            return Ok(others);
        }
        match shared.open_lane().and_then(|lane| lane.map(share).transpose()) {
            Ok(Some(lane)) => Ok(Some(slot.get_or_init(|| lane))),
            Ok(None) => Ok(None),
            Err(error) if others.is_none() => Err(error),
            Err(error) => {
                log::warn!("processors share a connection, for there is no other: {error}");
                *no_more = true;
                Ok(others)
            }
        }
    }
}

fn share(lane: Lane) -> Result<Arc<SharedLane>, Error> {
    SharedLane::new(lane, Caravan::default()).map(Arc::new)
}
