//! The lanes that the readers of an association share: one for each processor that has needed one.

use super::shared::Shared;
use crate::{Caravan, Error, Lane, SharedLane};
use rustix::thread::sched_getcpu;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

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

    /// Has the lane at a place connected, by a thread of its own: nobody waits for that who has a lane.
    pub(crate) fn connect_later(shared: &Arc<Shared>, place: usize) {
        let is_wanted = |lanes: &Self| {
            let no_more = lanes.no_more.try_lock().is_ok_and(|no_more| !*no_more);
            no_more && !lanes.connects.swap(true, Ordering::Relaxed)
        };
        if !shared.lanes.get().is_some_and(is_wanted) {
            return;
        }
        let kept = Arc::clone(shared);
        let connect = move || {
            if let Some(lanes) = kept.lanes.get() {
                // Another one is used as long as there is none.
                let _ = lanes.get(&kept, place);
                lanes.connects.store(false, Ordering::Relaxed);
            }
        };
        // Without a thread there is none for this processor.
        let _ = thread::Builder::new().name("bpfof-lane".to_owned()).spawn(connect);
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

    /// The lane at a place. If it is to be connected, and another thread connects one just now, or there is
    /// no more to be had, any other one. None without a target.
    ///
    /// # Errors
    /// Those of [`Shared::open_lane`], if there is no lane at all.
    pub(crate) fn get(
        &self,
        shared: &Shared,
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
        match (shared.open_lane().and_then(|lane| lane.map(share).transpose()), other) {
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
