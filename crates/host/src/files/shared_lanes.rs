//! The lanes that the readers of an association share: one for each processor that has needed one.

use crate::{Caravan, Error, Lane, SharedLane};
use rustix::thread::sched_getcpu;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Lanes by processors: threads of one processor do not wait for each other's turn with a lane, and an answer
/// is received where its thread is.
#[derive(Debug)]
pub(crate) struct SharedLanes {
    /// Processors are dealt out to these in turn.
    lanes: Mutex<Vec<Option<Arc<SharedLane>>>>,
    lanes_max: usize,
    /// Who connects has it. Whether there was none to be had for a processor.
    no_more: Mutex<bool>,
    /// A thread connects one.
    connects: AtomicBool,
}

impl SharedLanes {
    /// At most `lanes_max` lanes, of which none is connected.
    pub(crate) fn new(lanes_max: usize) -> Self {
        let lanes_max = lanes_max.max(1);
        let lanes = Mutex::new(vec![None; lanes_max]);
        Self { lanes, lanes_max, no_more: Mutex::new(false), connects: AtomicBool::new(false) }
    }

    /// The lane at a place, if it is connected.
    pub(crate) fn known(&self, place: usize) -> Option<Arc<SharedLane>> {
        self.find(place).0
    }

    /// Whether the caller is to have the lane at a place connected, by [`get`](Self::get), and to say when that is
    /// [over](Self::has_connected): somebody else does so already, or there is none to be had.
    pub(crate) fn is_to_connect(&self) -> bool {
        let is_possible = self.no_more.try_lock().is_ok_and(|no_more| !*no_more);
        is_possible && !self.connects.swap(true, Ordering::Relaxed)
    }

    /// Another may connect one.
    pub(crate) fn has_connected(&self) {
        self.connects.store(false, Ordering::Relaxed);
    }

    /// Where the lane is of the processor on which the caller runs.
    pub(crate) fn place(&self) -> usize {
        sched_getcpu() % self.lanes_max
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Option<Arc<SharedLane>>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lane at a place, and any other one, as far as they are connected.
    fn find(&self, place: usize) -> (Option<Arc<SharedLane>>, Option<Arc<SharedLane>>) {
        let lanes = self.lanes();
        let is_good = |lane: &&Arc<SharedLane>| lane.is_connected();
        let own = lanes.get(place).and_then(Option::as_ref).filter(is_good);
        let other = lanes.iter().flatten().find(is_good);
        (own.map(Arc::clone), other.map(Arc::clone))
    }

    /// The lane at a place, which `open` connects if there is none. If another thread connects one just now, or
    /// there is no more to be had, any other one. None without a target.
    ///
    /// # Errors
    /// Those of `open`, if there is no lane at all.
    pub(crate) fn get(
        &self,
        open: impl FnOnce() -> Result<Option<Lane>, Error>,
        place: usize,
    ) -> Result<Option<Arc<SharedLane>>, Error> {
        let mut no_more = match (self.find(place), self.no_more.try_lock()) {
            ((Some(own), _), _) => return Ok(Some(own)),
            (_, Ok(no_more)) => no_more,
            ((_, Some(other)), Err(_)) => return Ok(Some(other)),
            (_, Err(_)) => self.no_more.lock().unwrap_or_else(PoisonError::into_inner),
        };
        let other = match self.find(place) {
            (Some(own), _) => return Ok(Some(own)),
            (None, other) if other.is_some() && *no_more => return Ok(other),
            (None, other) => other,
        };
        match (open().and_then(|lane| lane.map(share).transpose()), other) {
            (Ok(lane), _) => {
                if let (Some(lane), Some(slot)) = (&lane, self.lanes().get_mut(place)) {
                    *slot = Some(Arc::clone(lane));
                }
                Ok(lane)
            }
            (Err(error), Some(other)) => {
                log::warn!("processors share a connection, for there is no other: {error}");
                *no_more = true;
                Ok(Some(other))
            }
            (Err(error), None) => Err(error),
        }
    }
}

fn share(lane: Lane) -> Result<Arc<SharedLane>, Error> {
    SharedLane::new(lane, Caravan::default()).map(Arc::new)
}
