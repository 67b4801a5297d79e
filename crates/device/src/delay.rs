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

/// One reactor's operations on one memory namespace.
///
/// Operations wait until they are due. A few at a time are *active*: they take turns, and what
/// follows one of them may join them again without waiting. So some chains end while others have
/// not begun, and their answers are on the way meanwhile.
#[derive(Debug)]
pub struct DelayQueue<T> {
    active: VecDeque<T>,
    /// In the order in which they are due.
    waiting: VecDeque<(u64, T)>,
    /// Operations to take before the next group is announced.
    until_group: usize,
}

/// Operations that are active at a time, unless those that join again are more: enough to compute
/// on some while the memory of others is fetched.
const ACTIVE: usize = 16;
/// Operations whose memory is fetched together, so that their page walks overlap.
const GROUP: usize = 4;
/// How many operations ahead that is: enough work to cover the way from memory, and little enough
/// to still be in the cache then.
const AHEAD: usize = 8;

impl<T> Default for DelayQueue<T> {
    fn default() -> Self {
        DelayQueue { active: VecDeque::new(), waiting: VecDeque::new(), until_group: 0 }
    }
}

impl<T> DelayQueue<T> {
    /// Adds an operation submitted at `now_ns` (any monotonic clock, the same for all calls).
    /// Without a model it is due at once.
    #[inline]
    pub fn push(&mut self, model: Option<&LatencyModel>, now_ns: u64, operation: T) {
        let due_ns = model.map_or(0, |model| model.due_ns(now_ns));
        self.waiting.push_back((due_ns, operation));
    }

    /// Adds an operation that follows one just taken, due at once. `soon` is told of it if too few
    /// are active for [`pop`](Self::pop) to do that.
    #[inline]
    pub fn push_active(&mut self, operation: T, soon: impl FnOnce(&T)) {
        if self.active.len() < AHEAD {
            soon(&operation);
        }
        self.active.push_back(operation);
    }

    /// Takes the next operation if one is due. `soon` is told of operations whose turn comes
    /// shortly, for it to prefetch their memory: once in a while a group of them.
    #[inline]
    pub fn pop(&mut self, now_ns: u64, soon: impl FnMut(&T)) -> Option<T> {
        while self.active.len() < ACTIVE
            && let Some((due_ns, _)) = self.waiting.front()
            && *due_ns <= now_ns
            && let Some((_, operation)) = self.waiting.pop_front()
        {
            self.active.push_back(operation);
        }
        let operation = self.active.pop_front()?;
        if self.until_group == 0 {
            self.until_group = GROUP;
            let active = self.active.len();
            let ahead = (AHEAD - 1).min(active)..(AHEAD + GROUP - 1).min(active);
            self.active.range(ahead).for_each(soon);
        }
        self.until_group -= 1;
        Some(operation)
    }

    /// When the next operation is due.
    pub fn next_due_ns(&self) -> Option<u64> {
        if self.active.is_empty() {
            self.waiting.front().map(|(due_ns, _)| *due_ns)
        } else {
            Some(0)
        }
    }

    /// Operations waiting or active.
    pub fn len(&self) -> usize {
        self.active.len() + self.waiting.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
        queue.push(None, 50, 7);
        assert_eq!(queue.pop(0, |_| ()), Some(7));
        assert!(queue.is_empty());
    }

    #[test]
    fn a_few_take_turns_and_the_others_wait() {
        let mut queue = DelayQueue::default();
        for chain in 0..20 {
            queue.push(None, 0, (chain, 0));
        }
        let (mut taken, mut announced) = (Vec::new(), Vec::new());
        while let Some((chain, hop)) = queue.pop(0, |soon| announced.push(*soon)) {
            taken.push((chain, hop));
            if hop < 2 {
                queue.push_active((chain, hop + 1), |soon| announced.push(*soon));
            }
        }
        assert_eq!(taken.len(), 60);
        let first_turns = (0..2).flat_map(|hop| (0..16).map(move |chain| (chain, hop)));
        assert_eq!(taken[..32], first_turns.collect::<Vec<_>>()[..]);
        // The last four begin as the first sixteen end.
        let late = taken.iter().copied().filter(|(chain, _)| *chain >= 16);
        let expected = (0..3).flat_map(|hop| (16..20).map(move |chain| (chain, hop)));
        assert_eq!(late.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        let count = announced.len();
        announced.sort_unstable();
        announced.dedup();
        assert!(announced.len() == count && count > 40, "each at most once, and most of them");
    }
}
