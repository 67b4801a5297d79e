//! A thread outside the reactors that does one piece of work after the other: work that takes milliseconds, and that
//! strangers may ask for.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Nice value of the thread, for when it shares a processor with a reactor.
const NICENESS: i32 = 10;

/// Waiting work, and the order in which it is done.
pub(crate) trait Waiting: Default + Send + 'static {
    /// A piece of work.
    type Work;

    /// The work whose turn it is.
    fn take(&mut self) -> Option<Self::Work>;
}

/// Handle to the thread, which ends with the last clone.
pub(crate) struct Worker<W: Waiting>(Arc<Handle<W>>);

/// Ends the thread when it is dropped.
struct Handle<W: Waiting>(Arc<Queue<W>>);

/// The waiting work, shared with the thread.
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

    /// Reads or changes the waiting work.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut W) -> T) -> T {
        look(&mut self.lock().waiting)
    }

    /// Waits for work; none when the thread is to end.
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
    /// Starts the thread. It runs on other processors than `reactors` if the process may use some, and has a lower
    /// priority. Work that panics is lost, and the thread goes on with the next.
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
                    log::error!("{name}: a task panicked, which is a defect of the target");
                }
            }
        })?;
        Ok(Self(Arc::new(Handle(queue))))
    }

    /// Adds waiting work.
    pub(crate) fn add(&self, add: impl FnOnce(&mut W)) {
        let Handle(queue) = &*self.0;
        queue.with(add);
        queue.changed.notify_one();
    }

    /// Removes work that has not begun.
    pub(crate) fn cancel(&self, cancel: impl FnOnce(&mut W)) {
        self.0.0.with(cancel);
    }
}

/// Moves the calling thread to other processors than `reactors`, if the process may use some, and lowers its priority.
/// If the thread cannot be moved, it shares a processor.
pub(crate) fn step_aside(reactors: &[usize]) {
    if let Some(others) = others_than(reactors) {
        let _ = sched_setaffinity(None, &others);
    }
    // On Linux this concerns only the calling thread. Failure costs only a little speed.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}

/// The processors that the process may run on, without these; none if no processor is left.
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
    fn a_panicking_task_does_not_end_others() {
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
