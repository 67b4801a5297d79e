//! Operations on the files of a namespace: how many run at a time, and which wait.
//!
//! The kernel has a limited number of threads for all files of a reactor. A flush, or zeroes, always need one; a read or
//! a write needs one if the kernel cannot begin it at once, because the disk's queue is full or the file system is
//! frozen. Operations that wait for a disk which does not answer must leave some threads for other disks, so only a
//! limited number of each namespace run at a time. The groups of hosts whose operations wait take turns, so that a group
//! with thousands of operations does not keep out the others.

use crate::limits::SLOW_THREADS;
use crate::operation::{FileOperation, FileWork};
use std::collections::VecDeque;

/// The operations of a namespace.
#[derive(Debug, Default)]
pub(super) struct FileQueue {
    reads: Turns,
    writes: Turns,
    /// Flushes and zeroes.
    slow: Turns,
}

impl FileQueue {
    /// Returns the operation of this group if it is to run now. Otherwise it waits. The namespace has this number of
    /// files, and this number of reads and half as many writes run at a time; all are always the same.
    #[inline]
    pub(super) fn begin(
        &mut self,
        operation: FileOperation,
        group: u32,
        (files, reads_max): (usize, usize),
    ) -> Option<FileOperation> {
        match operation.work() {
            FileWork::Read => self.reads.begin(operation, group, (1, reads_max)),
            FileWork::Write => self.writes.begin(operation, group, (1, reads_max / 2)),
            FileWork::FlushOrZeroes => self.slow.begin(operation, group, (files, SLOW_THREADS)),
        }
    }

    /// An operation of this kind has ended. Returns the next one, which is to run now.
    #[inline]
    pub(super) fn ended(&mut self, work: FileWork) -> Option<FileOperation> {
        match work {
            FileWork::Read => self.reads.ended(),
            FileWork::Write => self.writes.ended(),
            FileWork::FlushOrZeroes => self.slow.ended(),
        }
    }
}

#[derive(Debug, Default)]
struct Turns {
    running: usize,
    /// Groups of hosts, each with its operations that wait, of which there is at least one; the group whose turn it is
    /// comes first.
    waiting: VecDeque<(u32, VecDeque<FileOperation>)>,
}

impl Turns {
    /// Returns the operation if it is to run now. Each takes up to `threads` of `most` threads.
    #[inline]
    fn begin(
        &mut self,
        operation: FileOperation,
        group: u32,
        (threads, most): (usize, usize),
    ) -> Option<FileOperation> {
        // One runs in any case.
        if self.running > 0 && (self.running + 1) * threads > most {
            self.wait(operation, group);
            return None;
        }
        self.running += 1;
        Some(operation)
    }

    #[cold]
    fn wait(&mut self, operation: FileOperation, group: u32) {
        match self.waiting.iter_mut().find(|(other, _)| *other == group) {
            Some((_, waiting)) => waiting.push_back(operation),
            None => self.waiting.push_back((group, [operation].into())),
        }
    }

    #[inline]
    fn ended(&mut self) -> Option<FileOperation> {
        if self.waiting.is_empty() {
            self.running -= 1;
            return None;
        }
        self.next()
    }

    #[cold]
    fn next(&mut self) -> Option<FileOperation> {
        let (group, mut waiting) = self.waiting.pop_front()?;
        let next = waiting.pop_front();
        if !waiting.is_empty() {
            self.waiting.push_back((group, waiting));
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::CommandId;
    use bpfof_chain::{ChainId, DeviceRead};

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
        let (mut queue, most) = (FileQueue::default(), SLOW_THREADS as u16 / 2);
        for number in 0..most + 2 {
            let begun = queue.begin(flush(number), 0, (2, 1)).map(slot);
            assert_eq!(begun, (number < most).then_some(number));
        }
        let next: Vec<_> =
            (0..most + 2).map(|_| queue.ended(FileWork::FlushOrZeroes).map(slot)).collect();
        assert_eq!(next[..3], [Some(most), Some(most + 1), None]);
        assert_eq!((queue.slow.running, queue.slow.waiting.len()), (0, 0));
        let alone =
            [0, 1].map(|number| queue.begin(flush(number), 0, (4 * SLOW_THREADS, 1)).is_some());
        assert_eq!(alone, [true, false]);
    }

    #[test]
    fn groups_take_turns() {
        let mut queue = FileQueue::default();
        for number in 0..100 {
            queue.begin(flush(number), 0, (SLOW_THREADS, 1));
        }
        for number in 100..103 {
            assert!(queue.begin(flush(number), number.into(), (SLOW_THREADS, 1)).is_none());
        }
        let next: Vec<_> = (0..6)
            .map(|_| queue.ended(FileWork::FlushOrZeroes).map(slot).expect("one waits"))
            .collect();
        assert_eq!(next, [1, 100, 101, 102, 2, 3]);
    }

    #[test]
    fn reads_and_flushes_do_not_wait_for_each_other() {
        let mut queue = FileQueue::default();
        let read = || {
            let chain = ChainId::from_index(0);
            let read = DeviceRead { chain, device_offset: 0, length: 512, data_at: 0 };
            FileOperation::ChainRead { namespace: 0, read }
        };
        let begun = (0..20).filter(|_| queue.begin(read(), 0, (1, 10)).is_some());
        assert_eq!(begun.count(), 10);
        assert!(queue.begin(flush(0), 0, (1, 10)).is_some());
        let next = (0..20).filter(|_| queue.ended(FileWork::Read).is_some()).count();
        assert_eq!((next, queue.reads.running), (10, 0));
        assert!(queue.ended(FileWork::FlushOrZeroes).is_none());
    }
}
