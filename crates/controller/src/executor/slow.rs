//! Flushes, and zeroes in files: operations for which the kernel needs a thread each.
//!
//! It has a limited number of threads for all files of a reactor. Those that wait for a disk which does not answer must
//! leave some for other disks, so only a few of each namespace run at a time.

use crate::limits::SLOW_THREADS;
use crate::operation::FileOperation;
use std::collections::VecDeque;

/// Such operations of a namespace.
#[derive(Debug, Default)]
pub(super) struct Slow {
    running: usize,
    waiting: VecDeque<FileOperation>,
}

impl Slow {
    /// Returns the operation if it is to run now. Otherwise it waits. Each takes up to `threads` threads, always the
    /// same number.
    pub(super) fn begin(
        &mut self,
        operation: FileOperation,
        threads: usize,
    ) -> Option<FileOperation> {
        // One runs in any case.
        if self.running > 0 && (self.running + 1) * threads > SLOW_THREADS {
            self.waiting.push_back(operation);
            return None;
        }
        self.running += 1;
        Some(operation)
    }

    /// An operation has ended. Returns the next one, which is to run now.
    pub(super) fn ended(&mut self) -> Option<FileOperation> {
        let next = self.waiting.pop_front();
        self.running -= usize::from(next.is_none());
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::CommandId;

    #[test]
    fn some_run_and_others_wait_in_order() {
        let flush =
            |slot| FileOperation::Sync { namespace: 0, command: CommandId { connection: 1, slot } };
        let slot = |operation: FileOperation| match operation {
            FileOperation::Sync { command, .. } => command.slot,
            other => panic!("{other:?}"),
        };
        let (mut slow, most) = (Slow::default(), SLOW_THREADS as u16 / 2);
        for number in 0..most + 2 {
            let begun = slow.begin(flush(number), 2).map(slot);
            assert_eq!(begun, (number < most).then_some(number));
        }
        let next: Vec<_> = (0..most + 2).map(|_| slow.ended().map(slot)).collect();
        assert_eq!(next[..3], [Some(most), Some(most + 1), None]);
        assert_eq!((slow.running, slow.waiting.len()), (0, 0));
        let alone = [0, 1].map(|number| slow.begin(flush(number), 4 * SLOW_THREADS).is_some());
        assert_eq!(alone, [true, false]);
    }
}
