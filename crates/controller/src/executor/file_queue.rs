//! Operations on files: how many run at a time, and which wait.
//!
//! The kernel has a limited number of threads for all files of a reactor. A flush, or zeroes, always need one; a read or
//! a write needs one if the kernel cannot begin it at once, because the disk's queue is full or the file system is
//! frozen. Operations that wait for a disk which does not answer must leave some threads for other disks, so only a
//! limited number of each disk run at a time. The groups of hosts whose operations wait take turns, so that a group with
//! thousands of operations does not keep out the others.

use crate::limits::{FILE_READS, SLOW_THREADS};
use crate::operation::{FileOperation, FileWork};
use bpfof_device::Volume;
use std::collections::VecDeque;

/// The operations of all namespaces of files.
#[derive(Debug)]
pub(super) struct FileQueues {
    queues: Vec<FileQueue>,
    /// For each place of a namespace, its queue.
    of_places: Vec<usize>,
    /// Reads of a disk that run at a time. Writes are half as many.
    pub(super) reads_max: usize,
}

impl Default for FileQueues {
    fn default() -> Self {
        FileQueues { queues: Vec::new(), of_places: Vec::new(), reads_max: FILE_READS }
    }
}

impl FileQueues {
    /// The places have these volumes from now on. A place has the same volume as long as it has operations.
    pub(super) fn serve<'a>(&mut self, volumes: impl Iterator<Item = Option<&'a Volume>>) {
        let disks: Vec<_> = volumes.map(|volume| volume.map_or(&[][..], Volume::disks)).collect();
        self.queues.retain(|queue| disks.contains(&&*queue.disks));
        self.of_places.clear();
        for disks in disks {
            let known = self.queues.iter().position(|queue| *queue.disks == *disks);
            self.of_places.push(known.unwrap_or(self.queues.len()));
            if known.is_none() {
                self.queues.push(FileQueue { disks: disks.into(), ..FileQueue::default() });
            }
        }
    }

    /// Returns the operation of this group if it is to run now. Otherwise it waits.
    #[inline]
    pub(super) fn begin(
        &mut self,
        operation: FileOperation,
        group: u32,
        volume: &Volume,
    ) -> Option<FileOperation> {
        let queue = &mut self.queues[self.of_places[operation.namespace()]];
        let (threads, most) = threads(operation.work(), volume, self.reads_max);
        queue.turns(operation.work()).begin(Waiting { operation, threads }, group, most)
    }

    /// An operation of this kind has ended at this place, which has this volume. `resume` takes those that are to run now.
    #[inline]
    pub(super) fn ended(
        &mut self,
        work: FileWork,
        (place, volume): (usize, &Volume),
        resume: impl FnMut(FileOperation),
    ) {
        let (threads, most) = threads(work, volume, self.reads_max);
        self.queues[self.of_places[place]].turns(work).ended(threads, most, resume);
    }
}

/// Threads that an operation on a volume may take, and that all of its kind may take.
#[inline]
fn threads(work: FileWork, volume: &Volume, reads_max: usize) -> (usize, usize) {
    match work {
        FileWork::Read => (1, reads_max),
        FileWork::Write => (1, reads_max / 2),
        FileWork::FlushOrZeroes => (volume.pieces() as usize, SLOW_THREADS),
    }
}

/// The operations of the namespaces whose files are on the same disks.
#[derive(Debug, Default)]
struct FileQueue {
    /// See [`Volume::disks`].
    disks: Box<[u64]>,
    reads: Turns,
    writes: Turns,
    slow: Turns,
}

impl FileQueue {
    #[inline]
    fn turns(&mut self, work: FileWork) -> &mut Turns {
        match work {
            FileWork::Read => &mut self.reads,
            FileWork::Write => &mut self.writes,
            FileWork::FlushOrZeroes => &mut self.slow,
        }
    }
}

#[derive(Debug)]
struct Waiting {
    operation: FileOperation,
    threads: usize,
}

#[derive(Debug, Default)]
struct Turns {
    /// Threads that running operations may take.
    taken: usize,
    /// Groups of hosts, each with its operations that wait, of which there is at least one; the group whose turn it is
    /// comes first.
    waiting: VecDeque<(u32, VecDeque<Waiting>)>,
}

impl Turns {
    /// Returns the operation if it is to run now, beside others that take up to `most` threads with it.
    #[inline]
    fn begin(&mut self, begun: Waiting, group: u32, most: usize) -> Option<FileOperation> {
        if !self.waiting.is_empty() || !self.has_room(begun.threads, most) {
            self.wait(begun, group);
            return None;
        }
        self.taken += begun.threads;
        Some(begun.operation)
    }

    /// Whether an operation that takes this number of threads may run. One may in any case.
    #[inline]
    fn has_room(&self, threads: usize, most: usize) -> bool {
        self.taken == 0 || self.taken + threads <= most
    }

    #[cold]
    fn wait(&mut self, waiting: Waiting, group: u32) {
        match self.waiting.iter_mut().find(|(other, _)| *other == group) {
            Some((_, all)) => all.push_back(waiting),
            None => self.waiting.push_back((group, [waiting].into())),
        }
    }

    #[inline]
    fn ended(&mut self, threads: usize, most: usize, resume: impl FnMut(FileOperation)) {
        self.taken -= threads;
        if !self.waiting.is_empty() {
            self.resume(most, resume);
        }
    }

    #[cold]
    fn resume(&mut self, most: usize, mut resume: impl FnMut(FileOperation)) {
        while let Some((_, waiting)) = self.waiting.front()
            && self.has_room(waiting[0].threads, most)
            && let Some((group, mut waiting)) = self.waiting.pop_front()
            && let Some(next) = waiting.pop_front()
        {
            if !waiting.is_empty() {
                self.waiting.push_back((group, waiting));
            }
            self.taken += next.threads;
            resume(next.operation);
        }
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

    fn begin(turns: &mut Turns, number: u16, group: u32, (threads, most): (usize, usize)) -> bool {
        turns.begin(Waiting { operation: flush(number), threads }, group, most).is_some()
    }

    /// The operations that begin because one has ended.
    fn ended(turns: &mut Turns, (threads, most): (usize, usize)) -> Vec<u16> {
        let mut begun = Vec::new();
        turns.ended(threads, most, |operation| match operation {
            FileOperation::Sync { command, .. } => begun.push(command.slot),
            other => panic!("{other:?}"),
        });
        begun
    }

    #[test]
    fn some_run_and_others_wait_in_order() {
        let (mut turns, of) = (Turns::default(), (2, 10));
        for number in 0..7 {
            assert_eq!(begin(&mut turns, number, 0, of), number < 5);
        }
        let next: Vec<_> = (0..7).map(|_| ended(&mut turns, of)).collect();
        assert_eq!(next[..3], [vec![5], vec![6], vec![]]);
        assert_eq!((turns.taken, turns.waiting.len()), (0, 0));
    }

    #[test]
    fn one_runs_in_any_case() {
        let mut turns = Turns::default();
        assert!(begin(&mut turns, 0, 0, (40, 10)));
        assert!(!begin(&mut turns, 1, 0, (1, 10)));
        assert!(!begin(&mut turns, 2, 0, (30, 10)));
        assert!(!begin(&mut turns, 3, 0, (1, 10)), "it would overtake one that takes more");
        assert_eq!(ended(&mut turns, (40, 10)), [1]);
        assert_eq!(ended(&mut turns, (1, 10)), [2]);
        assert_eq!(ended(&mut turns, (30, 10)), [3]);
    }

    #[test]
    fn groups_take_turns() {
        let (mut turns, of) = (Turns::default(), (1, 1));
        for number in 0..100 {
            begin(&mut turns, number, 0, of);
        }
        for number in 100..103 {
            assert!(!begin(&mut turns, number, number.into(), of));
        }
        let next: Vec<_> = (0..6).flat_map(|_| ended(&mut turns, of)).collect();
        assert_eq!(next, [1, 100, 101, 102, 2, 3]);
    }

    /// Volumes of sparse files in a folder of memory and in one of a disk, of which there is one file each.
    fn volume(folder: &std::path::Path, names: &[&str]) -> Volume {
        let paths: Vec<_> = names.iter().map(|name| folder.join(name)).collect();
        Volume::open(&paths, Some(4096), 512, bpfof_device::Layout::Concatenated).expect("files")
    }

    #[test]
    fn namespaces_on_a_disk_share_its_queue() {
        let here = tempfile::tempdir_in(".").expect("a folder");
        let elsewhere = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        let volumes = [
            volume(here.path(), &["a"]),
            volume(here.path(), &["b", "c"]),
            volume(elsewhere.path(), &["d"]),
        ];
        let mut queues = FileQueues { reads_max: 10, ..FileQueues::default() };
        queues.serve([None].into_iter().chain(volumes.iter().map(Some)));
        let read = |namespace: usize| {
            let chain = ChainId::from_index(0);
            let read = DeviceRead { chain, device_offset: 0, length: 512, data_at: 0 };
            FileOperation::ChainRead { namespace, read }
        };
        let begun = |queues: &mut FileQueues, place: usize| {
            queues.begin(read(place), 0, &volumes[place - 1]).is_some()
        };
        assert_eq!((0..8).filter(|_| begun(&mut queues, 1)).count(), 8);
        assert_eq!((0..8).filter(|_| begun(&mut queues, 2)).count(), 2, "they share a disk");
        assert_eq!((0..8).filter(|_| begun(&mut queues, 3)).count(), 8, "this one is elsewhere");
        let flush =
            FileOperation::Sync { namespace: 2, command: CommandId { connection: 1, slot: 1 } };
        assert!(queues.begin(flush, 0, &volumes[1]).is_some(), "flushes do not wait for reads");

        // Queues and counts survive a change of the other namespaces.
        queues.serve([None, Some(&volumes[0]), Some(&volumes[1])].into_iter());
        assert_eq!(queues.queues.len(), 2);
        let mut next = Vec::new();
        for place in [1, 2] {
            queues.ended(FileWork::Read, (place, &volumes[place - 1]), |operation| {
                next.push(operation.namespace());
            });
        }
        assert_eq!(next, [2, 2]);
    }
}
