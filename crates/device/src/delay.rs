//! A latency model for memory namespaces: when each operation is due.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device's speed: a fixed latency and a limit of operations per second. Shared by all reactors.
#[derive(Debug)]
pub struct LatencyModel {
    latency_ns: u64,
    interval_ns: u64,
    /// When the device can begin its next operation.
    next_start_ns: AtomicU64,
}

impl LatencyModel {
    /// A device that takes `latency_us` for each operation and starts at most `iops` per second (0: no limit). `None`
    /// if there is neither a latency nor a limit.
    pub fn new(latency_us: u64, iops: u64) -> Option<LatencyModel> {
        let interval_ns = 1_000_000_000u64.checked_div(iops).unwrap_or(0);
        if latency_us == 0 && interval_ns == 0 {
            return None;
        }
        let next_start_ns = AtomicU64::new(0);
        Some(LatencyModel { latency_ns: latency_us * 1000, interval_ns, next_start_ns })
    }

    /// When an operation submitted at `now_ns` completes.
    fn due_ns(&self, now_ns: u64) -> u64 {
        if self.interval_ns == 0 {
            return now_ns + self.latency_ns;
        }
        let begin = |next: u64| next.max(now_ns) + self.interval_ns;
        let previous = self
            .next_start_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| Some(begin(next)))
            .unwrap_or_else(|unchanged| unchanged);
        previous.max(now_ns) + self.latency_ns
    }
}

/// One reactor's operations on one memory namespace with a latency model, in the order in which they
/// are due.
#[derive(Debug)]
pub struct DelayQueue<T>(VecDeque<(u64, T)>);

impl<T> Default for DelayQueue<T> {
    fn default() -> Self {
        DelayQueue(VecDeque::new())
    }
}

impl<T> DelayQueue<T> {
    /// Adds an operation submitted at `now_ns` (any monotonic clock, the same for all calls).
    pub fn push(&mut self, model: &LatencyModel, now_ns: u64, operation: T) {
        self.0.push_back((model.due_ns(now_ns), operation));
    }

    /// Takes the next operation, if one is due.
    #[inline]
    pub fn pop(&mut self, now_ns: u64) -> Option<T> {
        let is_due = self.0.front().is_some_and(|(due_ns, _)| *due_ns <= now_ns);
        if is_due { self.0.pop_front().map(|(_, operation)| operation) } else { None }
    }

    /// When the next operation is due.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.0.front().map(|(due_ns, _)| *due_ns)
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_and_ceiling() {
        assert!(LatencyModel::new(0, 0).is_none());
        let model = LatencyModel::new(3, 1_000_000).expect("a model");
        let mut queue = DelayQueue::default();
        for operation in 0..3 {
            queue.push(&model, 100, operation);
        }
        assert_eq!(queue.pop(3099), None);
        assert_eq!(queue.pop(3100), Some(0));
        assert_eq!(queue.next_due_ns(), Some(4100));
        assert_eq!(queue.pop(4099), None);
        assert_eq!([queue.pop(9000), queue.pop(9000), queue.pop(9000)], [Some(1), Some(2), None]);
        assert!(queue.is_empty());
    }
}
