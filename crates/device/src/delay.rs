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
/// Operations wait until they are due. Those that are *active* are taken in rounds: first the memory
/// of all is fetched, then they are taken one after the other, and what follows one of them joins the
/// next round without waiting. Only a few are active at a time (more only if one is followed by
/// several), so some chains end while others have not begun, and their answers are on the way
/// meanwhile. Those that are due come in before what follows the last of a round, so that nobody shuts
/// them out by being followed by many.
#[derive(Debug)]
pub struct DelayQueue<T> {
    active: VecDeque<T>,
    /// How many of the active ones are left of this round.
    round: usize,
    /// In the order in which they are due.
    waiting: VecDeque<(u64, T)>,
}

/// Operations of a round: enough for their page walks and their way from memory to overlap, and few
/// enough for all that they touch to stay in the cache.
const ACTIVE: usize = 16;

impl<T> Default for DelayQueue<T> {
    fn default() -> Self {
        DelayQueue { active: VecDeque::new(), round: 0, waiting: VecDeque::new() }
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

    /// Adds an operation that follows one just taken, due at once. What goes on for long must come
    /// by [`push`](Self::push) now and then: more than a round that do not would shut out all others.
    #[inline]
    pub fn push_active(&mut self, operation: T) {
        self.active.push_back(operation);
    }

    /// Begins a round if one or more operations are due: `soon` is told of all of them, for it to
    /// fetch their memory. Of the last round none may be left.
    #[inline(never)]
    pub fn begin_round(&mut self, now_ns: u64, soon: impl FnMut(&T)) -> bool {
        debug_assert_eq!(self.round, 0, "its memory has been fetched in vain");
        // There may have been none to take.
        self.admit(now_ns);
        self.round = self.active.len().min(ACTIVE);
        self.active.range(..self.round).for_each(soon);
        self.round > 0
    }

    /// Takes the next operation of the round, if one is left.
    #[inline]
    pub fn take(&mut self, now_ns: u64) -> Option<T> {
        self.round = self.round.checked_sub(1)?;
        let operation = self.active.pop_front();
        if self.round == 0 {
            self.admit(now_ns);
        }
        operation
    }

    #[inline(never)]
    fn admit(&mut self, now_ns: u64) {
        while self.active.len() < ACTIVE
            && let Some((due_ns, _)) = self.waiting.front()
            && *due_ns <= now_ns
            && let Some((_, operation)) = self.waiting.pop_front()
        {
            self.active.push_back(operation);
        }
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

    /// Takes the next operation, if one is due.
    fn pop<T>(queue: &mut DelayQueue<T>, now_ns: u64, soon: impl FnMut(&T)) -> Option<T> {
        let operation = queue.take(now_ns);
        operation.or_else(|| queue.begin_round(now_ns, soon).then(|| queue.take(now_ns))?)
    }

    #[test]
    fn latency_and_ceiling() {
        assert!(LatencyModel::new(0, 0).is_none());
        let late = |queue: &mut DelayQueue<i32>| pop(queue, 9000, |_| ());
        let model = LatencyModel::new(3, 1_000_000).expect("a model");
        let mut queue = DelayQueue::default();
        for operation in 0..3 {
            queue.push(Some(&model), 100, operation);
        }
        assert_eq!(pop(&mut queue, 3099, |_| ()), None);
        assert_eq!(pop(&mut queue, 3100, |_| ()), Some(0));
        assert_eq!(queue.next_due_ns(), Some(4100));
        assert_eq!(pop(&mut queue, 4099, |_| ()), None);
        assert_eq!(
            [late(&mut queue), late(&mut queue), late(&mut queue)],
            [Some(1), Some(2), None]
        );
        queue.push(None, 50, 7);
        assert_eq!(pop(&mut queue, 0, |_| ()), Some(7));
        assert!(queue.is_empty());
    }

    #[test]
    fn a_few_take_turns_and_the_others_wait() {
        let mut queue = DelayQueue::default();
        for chain in 0..20 {
            queue.push(None, 0, (chain, 0));
        }
        let (mut taken, mut announced) = (Vec::new(), Vec::new());
        while let Some((chain, hop)) = pop(&mut queue, 0, |soon| announced.push(*soon)) {
            assert!(announced.contains(&(chain, hop)), "its memory was fetched");
            taken.push((chain, hop));
            if hop < 2 {
                queue.push_active((chain, hop + 1));
            }
        }
        assert_eq!(announced, taken, "each once, in order");
        assert_eq!(taken.len(), 60);
        // One more comes in at the end of the first round, the others as chains end.
        let beginnings = taken.iter().enumerate().filter(|(_, (_, hop))| *hop == 0);
        let beginnings: Vec<usize> = beginnings.map(|(at, _)| at).collect();
        assert_eq!(beginnings[..16], (0..16).collect::<Vec<_>>()[..]);
        assert!(beginnings[16] > 16 && beginnings[17] > 40, "{beginnings:?}");
    }

    #[test]
    fn who_is_followed_by_many_lets_others_in() {
        let mut queue = DelayQueue::default();
        (0..ACTIVE).for_each(|_| queue.push_active(0));
        queue.push(None, 0, 1);
        let mut taken = 1;
        while pop(&mut queue, 0, |_| ()).expect("never empty") == 0 {
            if taken % ACTIVE == 0 {
                (0..ACTIVE).for_each(|_| queue.push_active(0));
            }
            taken += 1;
            assert!(taken <= 2 * ACTIVE, "it waits for ever");
        }
    }

    #[test]
    fn a_round_is_no_longer_than_its_memory_stays_in_the_cache() {
        let mut queue = DelayQueue::default();
        for operation in 0..3 * ACTIVE {
            queue.push_active(operation);
        }
        let mut announced = 0;
        for _ in 0..ACTIVE {
            pop(&mut queue, 0, |_| announced += 1);
            assert_eq!(announced, ACTIVE);
        }
        assert_eq!(pop(&mut queue, 0, |_| announced += 1), Some(ACTIVE));
        assert_eq!((announced, queue.len()), (2 * ACTIVE, 2 * ACTIVE - 1));
    }
}
