//! Flushes, and zeroes in files: operations for which the kernel needs a thread each.
//!
//! It has a limited number of threads for all files of a reactor. Those that wait for a disk which does not answer must
//! leave some for other disks, so only a few of each namespace run at a time. The groups of hosts whose operations wait
//! take turns, so that a host with thousands of flushes does not keep out the others.

use crate::limits::SLOW_THREADS;
use crate::operation::FileOperation;
use std::collections::VecDeque;

/// Such operations of a namespace.
#[derive(Debug, Default)]
pub(super) struct Slow {
    running: usize,
    /// Groups of hosts, each with its operations that wait, of which there is at least one; the group whose turn it is
    /// comes first.
    waiting: VecDeque<(u32, VecDeque<FileOperation>)>,
}

impl Slow {
    /// Returns the operation of this group if it is to run now. Otherwise it waits. Each takes up to `threads` threads,
    /// always the same number.
    pub(super) fn begin(
        &mut self,
        operation: FileOperation,
        group: u32,
        threads: usize,
    ) -> Option<FileOperation> {
        // One runs in any case.
        if self.running > 0 && (self.running + 1) * threads > SLOW_THREADS {
            match self.waiting.iter_mut().find(|(other, _)| *other == group) {
                Some((_, waiting)) => waiting.push_back(operation),
                None => self.waiting.push_back((group, [operation].into())),
            }
            return None;
        }
        self.running += 1;
        Some(operation)
    }

    /// An operation has ended. Returns the next one, which is to run now.
    pub(super) fn ended(&mut self) -> Option<FileOperation> {
        let next = self.waiting.pop_front().and_then(|(group, mut waiting)| {
            let next = waiting.pop_front();
            if !waiting.is_empty() {
                self.waiting.push_back((group, waiting));
            }
            next
        });
        self.running -= usize::from(next.is_none());
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::CommandId;

    fn flush(slot: u16) -> FileOperation {
        FileOperation::Sync { namespace: 0, command: CommandId { connection: 1, slot } }
    }

    fn slot(operation: FileOperation) -> u16 {
        match operation {
            FileOperation::Sync { command, .. } => command.slot,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn some_run_and_others_wait_in_order() {
        let (mut slow, most) = (Slow::default(), SLOW_THREADS as u16 / 2);
        for number in 0..most + 2 {
            let begun = slow.begin(flush(number), 0, 2).map(slot);
            assert_eq!(begun, (number < most).then_some(number));
        }
        let next: Vec<_> = (0..most + 2).map(|_| slow.ended().map(slot)).collect();
        assert_eq!(next[..3], [Some(most), Some(most + 1), None]);
        assert_eq!((slow.running, slow.waiting.len()), (0, 0));
        let alone = [0, 1].map(|number| slow.begin(flush(number), 0, 4 * SLOW_THREADS).is_some());
        assert_eq!(alone, [true, false]);
    }

    #[test]
    fn groups_take_turns() {
        let mut slow = Slow::default();
        for number in 0..100 {
            slow.begin(flush(number), 0, SLOW_THREADS);
        }
        for number in 100..103 {
            assert!(slow.begin(flush(number), number.into(), SLOW_THREADS).is_none());
        }
        let next: Vec<_> = (0..6).map(|_| slow.ended().map(slot).expect("one waits")).collect();
        assert_eq!(next, [1, 100, 101, 102, 2, 3]);
    }
}
