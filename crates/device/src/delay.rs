//! When an operation of a memory namespace is due.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device's speed: a fixed latency and a ceiling of operations a second. Shared by all reactors.
#[derive(Debug)]
pub struct LatencyModel {
    latency_ns: u64,
    interval_ns: u64,
    /// When the device can begin its next operation.
    next_start_ns: AtomicU64,
}

impl LatencyModel {
    /// A device that takes `latency_us` for each operation and begins at most `iops` a second
    /// (0: no ceiling). None if it is as fast as memory.
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

/// One reactor's operations on one memory namespace, in the order in which they are due.
#[derive(Debug)]
pub struct DelayQueue<T> {
    queue: VecDeque<(u64, T)>,
    /// Operations to take before the next group is announced.
    until_group: usize,
}

/// Operations whose memory is fetched together, so that their page walks overlap.
const GROUP: usize = 4;
/// How many operations ahead that is: enough work to cover the way from memory, and little enough
/// to still be in the cache then.
const AHEAD: usize = 8;

impl<T> Default for DelayQueue<T> {
    fn default() -> Self {
        DelayQueue { queue: VecDeque::new(), until_group: 0 }
    }
}

impl<T> DelayQueue<T> {
    /// Adds an operation submitted at `now_ns` (any monotonic clock, the same for all calls).
    /// Without a model it is due at once.
    #[inline]
    pub fn push(&mut self, model: Option<&LatencyModel>, now_ns: u64, operation: T) {
        let due_ns = model.map_or(0, |model| model.due_ns(now_ns));
        self.queue.push_back((due_ns, operation));
    }

    /// Takes the next operation if it is due. `soon` is told of operations whose turn comes shortly,
    /// for it to prefetch their memory: once in a while a group of them.
    #[inline]
    pub fn pop(&mut self, now_ns: u64, soon: impl FnMut(&T)) -> Option<T> {
        if self.queue.front()?.0 > now_ns {
            return None;
        }
        if self.until_group == 0 {
            self.until_group = GROUP;
            let waiting = self.queue.len();
            let ahead = AHEAD.min(waiting)..(AHEAD + GROUP).min(waiting);
            self.queue.range(ahead).map(|(_, operation)| operation).for_each(soon);
        }
        self.until_group -= 1;
        self.queue.pop_front().map(|(_, operation)| operation)
    }

    /// When the next operation is due.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.queue.front().map(|(due_ns, _)| *due_ns)
    }

    /// Operations waiting.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_and_ceiling() {
        assert!(LatencyModel::new(0, 0).is_none());
        let pop = |queue: &mut DelayQueue<i32>| queue.pop(9000, |_| ());
        let model = LatencyModel::new(3, 1_000_000).expect("a model");
        let mut queue = DelayQueue::default();
        for operation in 0..3 {
            queue.push(Some(&model), 100, operation);
        }
        assert_eq!(queue.pop(3099, |_| ()), None);
        assert_eq!(queue.pop(3100, |_| ()), Some(0));
        assert_eq!(queue.next_due_ns(), Some(4100));
        assert_eq!(queue.pop(4099, |_| ()), None);
        assert_eq!((pop(&mut queue), pop(&mut queue), pop(&mut queue)), (Some(1), Some(2), None));
        for operation in 0..20 {
            queue.push(None, 9000, operation);
        }
        let mut announced = Vec::new();
        for operation in 0..20 {
            assert_eq!(queue.pop(9000, |soon| announced.push(*soon)), Some(operation));
        }
        // The first three were taken above, so the next group is announced by operation 1.
        assert_eq!(announced, (9..20).collect::<Vec<_>>());
        queue.push(None, 50, 7);
        assert_eq!(queue.pop(0, |_| ()), Some(7));
    }
}
