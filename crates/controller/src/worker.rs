//! A thread beside the reactors that does one work after the other: what takes milliseconds, and what
//! strangers may ask for.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// How much less than reactors the thread gets of a processor that they share (nice).
const NICENESS: i32 = 10;

/// Work that waits, and the order in which it is done.
pub(crate) trait Waiting: Default + Send + 'static {
    /// A piece of work.
    type Work;

    /// The work whose turn it is.
    fn take(&mut self) -> Option<Self::Work>;
}

/// The way to the thread, which ends with the last clone.
pub(crate) struct Worker<W: Waiting>(Arc<Handle<W>>);

/// Ends the thread when it is dropped.
struct Handle<W: Waiting>(Arc<Queue<W>>);

/// The work that waits, shared with the thread.
pub(crate) struct Queue<W> {
    state: Mutex<State<W>>,
    changed: Condvar,
}

struct State<W> {
    waiting: W,
    has_ended: bool,
}

impl<W: Waiting> Clone for Worker<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W: Waiting> Drop for Handle<W> {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_one();
    }
}

impl<W: Waiting> Queue<W> {
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at what waits, or changes it.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut W) -> T) -> T {
        look(&mut self.lock().waiting)
    }

    /// Waits for work; none at the end.
    fn take(&self) -> Option<W::Work> {
        let mut state = self.lock();
        loop {
            if state.has_ended {
                return None;
            }
            if let Some(work) = state.waiting.take() {
                return Some(work);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<W: Waiting> Worker<W> {
    /// Starts the thread. It runs where `reactors` do not, if the process may run there, and else gives
    /// way to them. Work that panics is lost, and the next is done.
    pub(crate) fn start(
        name: &'static str,
        reactors: &[usize],
        serve: impl Fn(W::Work, &Queue<W>) + Send + 'static,
    ) -> io::Result<Self> {
        let state = State { waiting: W::default(), has_ended: false };
        let queue = Arc::new(Queue { state: Mutex::new(state), changed: Condvar::new() });
        let works = Arc::clone(&queue);
        let reactors = reactors.to_vec();
        std::thread::Builder::new().name(name.into()).spawn(move || {
            step_aside(&reactors);
            while let Some(work) = works.take() {
                if catch_unwind(AssertUnwindSafe(|| serve(work, &works))).is_err() {
                    log::error!("{name}: a work was given up, which is a defect of the target");
                }
            }
        })?;
        Ok(Self(Arc::new(Handle(queue))))
    }

    /// Adds work to what waits.
    pub(crate) fn add(&self, add: impl FnOnce(&mut W)) {
        let Handle(queue) = &*self.0;
        queue.with(add);
        queue.changed.notify_one();
    }

    /// Takes work back that has not been begun.
    pub(crate) fn cancel(&self, cancel: impl FnOnce(&mut W)) {
        self.0.0.with(cancel);
    }
}

/// Lets the calling thread run where `reactors` do not, if the process may run there, and else give way to them.
/// Where it cannot be kept it shares a processor.
pub(crate) fn step_aside(reactors: &[usize]) {
    if let Some(others) = others_than(reactors) {
        let _ = sched_setaffinity(None, &others);
    }
    // Of the calling thread, on Linux. It is only a little slower or faster without.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}

/// The processors that the process may run on without these; none if that is no processor.
fn others_than(reactors: &[usize]) -> Option<CpuSet> {
    let mut set = sched_getaffinity(None).ok()?;
    for &core in reactors.iter().filter(|core| **core < CpuSet::MAX_CPU) {
        set.unset(core);
    }
    (set.count() > 0).then_some(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::mpsc;

    impl Waiting for VecDeque<u32> {
        type Work = u32;

        fn take(&mut self) -> Option<u32> {
            self.pop_front()
        }
    }

    #[test]
    fn work_that_panics_ends_nothing_else() {
        let (done, results) = mpsc::channel();
        let worker = Worker::<VecDeque<u32>>::start("test", &[], move |work, _| {
            assert_ne!(work, 1, "planted");
            done.send(work).unwrap();
        });
        let worker = worker.unwrap();
        worker.add(|waiting| waiting.extend([0, 1, 2]));
        assert_eq!([results.recv(), results.recv()], [Ok(0), Ok(2)]);
        drop(worker);
        assert!(results.recv().is_err(), "the thread has ended");
    }
}
