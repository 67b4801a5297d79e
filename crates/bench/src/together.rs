//! Threads that begin at the same time.

use std::panic::resume_unwind;
use std::sync::Barrier;
use std::thread;

/// Runs `work` in a thread for each of `items`, once all threads have started, and collects the results.
pub(crate) fn together<T: Send, R: Send>(
    items: Vec<T>,
    work: impl Fn(usize, T) -> R + Sync,
) -> Vec<R> {
    let (work, barrier) = (&work, &Barrier::new(items.len()));
    thread::scope(|scope| {
        let start = |(index, item)| {
            scope.spawn(move || {
                barrier.wait();
                work(index, item)
            })
        };
        let started: Vec<_> = items.into_iter().enumerate().map(start).collect();
        let joined = started.into_iter().map(|thread| thread.join());
        joined.map(|end| end.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
