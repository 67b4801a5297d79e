//! The lanes that the readers of an association share: one for each processor on which a reader has needed one.

use crate::{Error, SharedLane};
use rustix::thread::sched_getcpu;
use std::iter;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most processors that have a lane of their own.
const PLACES_MAX: usize = 1024;
/// Pause before connecting a lane is tried again after a failure, and before a reader whose lane was lost takes another
/// one.
pub(crate) const RETRY: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// Lanes by processor: threads that run on different processors do not contend for a lane, and a thread receives its
/// answers on its own processor.
#[derive(Debug)]
pub(crate) struct SharedLanes {
    /// Processor `n` uses the lane at `n` modulo their number.
    lanes: Mutex<Vec<Option<Arc<SharedLane>>>>,
    places: usize,
    /// Locked while a thread connects the first lane. Holds the error of the last attempt that failed while other
    /// threads waited.
    first: Mutex<Option<Arc<Error>>>,
    /// Threads that want the first lane, and the number of attempts that failed while others waited.
    wanting: AtomicUsize,
    failures: AtomicU64,
    /// Whether a thread is connecting another lane.
    connects: AtomicBool,
    /// When the next attempt may begin, in ns since `made`.
    next_try_ns: AtomicU64,
    made: Instant,
}

impl SharedLanes {
    /// Places for at most `lanes_max` lanes; none is connected yet.
    pub(crate) fn new(lanes_max: usize) -> Self {
        let places = lanes_max.clamp(1, PLACES_MAX);
        Self {
            lanes: Mutex::new(vec![None; places]),
            places,
            first: Mutex::new(None),
            wanting: AtomicUsize::new(0),
            failures: AtomicU64::new(0),
            connects: AtomicBool::new(false),
            next_try_ns: AtomicU64::new(0),
            made: Instant::now(),
        }
    }

    /// The place of the lane for the processor on which the caller runs.
    pub(crate) fn place(&self) -> usize {
        sched_getcpu() % self.places
    }

    /// The lane at a place, if it is connected. Also detects the loss of a lane that has been idle for long.
    pub(crate) fn known(&self, place: usize) -> Option<Arc<SharedLane>> {
        let lane = self.lanes().get(place)?.clone();
        lane.filter(|lane| lane.look())
    }

    /// A lane, and its place: the one at `place`, or else any connected lane. If there is none, `open` connects the
    /// first lane, and other threads wait for that. None without a target.
    ///
    /// # Errors
    /// Those of `open`, as [`Error::Joined`] if several threads waited for the attempt.
    pub(crate) fn any(
        &self,
        place: usize,
        open: impl FnOnce() -> Result<Option<SharedLane>, Error>,
    ) -> Result<Option<(Arc<SharedLane>, usize)>, Error> {
        if let Some(found) = self.find(place) {
            return Ok(Some(found));
        }
        let before = self.failures.load(Ordering::SeqCst);
        self.wanting.fetch_add(1, Ordering::SeqCst);
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = match self.find(place) {
            Some(found) => Ok(Some(found)),
            None => match &*first {
                // An attempt has just failed, perhaps after a long timeout: do not repeat it for each waiting thread.
                Some(error) if self.failures.load(Ordering::SeqCst) != before => {
                    Err(Error::Joined(Arc::clone(error)))
                }
                _ => self.connect(place, open).map(|lane| lane.map(|lane| (lane, place))),
            },
        };
        let others = self.wanting.fetch_sub(1, Ordering::SeqCst) - 1;
        lane.map_err(|error| match error {
            Error::Joined(_) => error,
            _ if others == 0 => error,
            _ => {
                let error = Arc::new(error);
                *first = Some(Arc::clone(&error));
                self.failures.fetch_add(1, Ordering::SeqCst);
                Error::Joined(error)
            }
        })
    }

    /// Whether the caller should [connect](Self::connect) another lane and then call [`end`](Self::end): true if no
    /// other thread is connecting one, and no attempt has failed recently.
    pub(crate) fn begin(&self) -> bool {
        let now_ns = self.now_ns();
        now_ns >= self.next_try_ns.load(Ordering::Relaxed)
            && !self.connects.swap(true, Ordering::Relaxed)
    }

    /// Ends what [`begin`](Self::begin) began: another thread may connect a lane.
    pub(crate) fn end(&self) {
        self.connects.store(false, Ordering::Relaxed);
    }

    /// Connects the lane at a place.
    ///
    /// # Errors
    /// Those of `open`. Then [`begin`](Self::begin) is false for [`RETRY`].
    pub(crate) fn connect(
        &self,
        place: usize,
        open: impl FnOnce() -> Result<Option<SharedLane>, Error>,
    ) -> Result<Option<Arc<SharedLane>>, Error> {
        let lane = open().map(|lane| lane.map(Arc::new));
        if lane.is_err() {
            let next = self.now_ns().saturating_add(RETRY.as_nanos() as u64);
            self.next_try_ns.store(next, Ordering::Relaxed);
        }
        let lane = lane?;
        if let Some(slot) = self.lanes().get_mut(place) {
            slot.clone_from(&lane);
        }
        Ok(lane)
    }

    /// A connected lane, preferably the one at `place`, and its place.
    pub(crate) fn find(&self, place: usize) -> Option<(Arc<SharedLane>, usize)> {
        let places = iter::once(place).chain(0..self.places);
        let mut known = places.filter_map(|at| self.known(at).map(|lane| (lane, at)));
        let first = known.next()?;
        // Prefer a lane that does not wait for a path.
        if first.0.has_socket() {
            return Some(first);
        }
        Some(known.find(|(lane, _)| lane.has_socket()).unwrap_or(first))
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Option<Arc<SharedLane>>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn waiters_share_the_error_of_a_failed_attempt() {
        const THREADS: usize = 20;
        let (lanes, tries) = (SharedLanes::new(4), AtomicUsize::new(0));
        let open = || {
            // The first attempt fails once all threads want the lane.
            let is_first = tries.fetch_add(1, Ordering::SeqCst) == 0;
            while is_first && lanes.wanting.load(Ordering::SeqCst) < THREADS {
                thread::yield_now();
            }
            Err(Error::NoPath { reasons: "silent".to_owned(), is_denied: false })
        };
        thread::scope(|scope| {
            let threads = [(); THREADS].map(|()| scope.spawn(|| lanes.any(0, open)));
            for thread in threads {
                let error = thread.join().expect("no panic").expect_err("it is silent");
                assert_eq!(error.to_string(), "no path to the target: silent");
            }
        });
        assert_eq!(tries.load(Ordering::SeqCst), 1);
        // A later caller tries again, alone, so its error is not shared.
        let error = lanes.any(0, open).expect_err("it is silent");
        assert!(matches!(error, Error::NoPath { .. }), "{error:?}");
        assert_eq!(tries.load(Ordering::SeqCst), 2);
        assert!(lanes.any(0, || Ok(None)).expect("no target").is_none());
    }
}
