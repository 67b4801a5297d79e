//! Operations on files: how many run at a time, and which wait.
//!
//! The kernel has a limited number of threads for all files of a reactor. A flush, or zeroes, always need one; a read or
//! a write needs one if the kernel cannot begin it at once, because the disk's queue is full or the file system is
//! frozen. Operations that wait for a disk which does not answer must leave some threads for other disks, so only a
//! limited number of each disk run at a time. The groups of hosts whose operations wait take turns, and so do the
//! connections of a group, so that one with thousands of operations does not keep out the others.

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

    /// Returns the operation if it is to run now. Otherwise it waits.
    #[inline]
    pub(super) fn begin(
        &mut self,
        operation: FileOperation,
        asker: Asker,
        volume: &Volume,
    ) -> Option<FileOperation> {
        let queue = &mut self.queues[self.of_places[operation.namespace()]];
        let (threads, most) = threads(operation.work(), volume, self.reads_max);
        queue.turns(operation.work()).begin(Waiting { operation, threads }, asker, most)
    }

    /// Takes an operation of a connection that waits, if there is one; a read only `with_reads`. `resume` takes others
    /// that have waited for it and are to run now.
    pub(super) fn take_waiting(
        &mut self,
        asker: Asker,
        with_reads: bool,
        mut resume: impl FnMut(FileOperation),
    ) -> Option<FileOperation> {
        let reads_max = self.reads_max;
        self.queues.iter_mut().find_map(|FileQueue { reads, writes, slow, .. }| {
            let all = [(writes, reads_max / 2), (slow, SLOW_THREADS), (reads, reads_max)];
            let mut all = all.into_iter().take(if with_reads { 3 } else { 2 });
            all.find_map(|(turns, most)| {
                let taken = turns.take(asker)?;
                turns.resume(most, &mut resume);
                Some(taken)
            })
        })
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
    /// Flushes and zeroes.
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

/// The connection that an operation belongs to, and the group of its host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) connection: u32,
    pub(super) group: u32,
}

#[derive(Debug)]
struct Waiting {
    operation: FileOperation,
    threads: usize,
}

/// What waits of each member, in the order of their turns.
type Members<T> = VecDeque<(u32, T)>;

#[derive(Debug, Default)]
struct Turns {
    /// Threads that running operations may take.
    taken: usize,
    /// Groups of hosts with their connections, and these with their operations that wait, of which there is at least one.
    /// The one whose turn it is comes first.
    waiting: Members<Members<VecDeque<Waiting>>>,
}

impl Turns {
    /// Returns the operation if it is to run now, beside others that take up to `most` threads with it.
    #[inline]
    fn begin(&mut self, begun: Waiting, asker: Asker, most: usize) -> Option<FileOperation> {
        if !self.waiting.is_empty() || !self.has_room(begun.threads, most) {
            self.wait(begun, asker);
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
    fn wait(&mut self, waiting: Waiting, Asker { connection, group }: Asker) {
        of_member(of_member(&mut self.waiting, group), connection).push_back(waiting);
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
        while let Some((_, connections)) = self.waiting.front()
            && let Some((_, operations)) = connections.front()
            && let Some(next) = operations.front()
            && self.has_room(next.threads, most)
        {
            let Some(next) =
                next_of(&mut self.waiting, |connections| next_of(connections, VecDeque::pop_front))
            else {
                return;
            };
            self.taken += next.threads;
            resume(next.operation);
        }
    }

    /// Takes the first operation of a connection that waits.
    fn take(&mut self, Asker { connection, group }: Asker) -> Option<FileOperation> {
        let at = self.waiting.iter().position(|(of, _)| *of == group)?;
        let connections = &mut self.waiting[at].1;
        let its = connections.iter().position(|(of, _)| *of == connection)?;
        let taken = connections[its].1.pop_front();
        if connections[its].1.is_empty() {
            connections.remove(its);
        }
        if connections.is_empty() {
            self.waiting.remove(at);
        }
        taken.map(|waiting| waiting.operation)
    }
}

/// What waits of a member, which is the last in turn if nothing of it did.
fn of_member<T: Default>(members: &mut Members<T>, member: u32) -> &mut T {
    let at = members.iter().position(|(other, _)| *other == member).unwrap_or_else(|| {
        members.push_back((member, T::default()));
        members.len() - 1
    });
    &mut members[at].1
}

/// Takes the next of the member whose turn it is, which is the last in turn from then on if more of it waits.
fn next_of<T>(
    members: &mut Members<VecDeque<T>>,
    next: impl FnOnce(&mut VecDeque<T>) -> Option<Waiting>,
) -> Option<Waiting> {
    let (member, mut waiting) = members.pop_front()?;
    let next = next(&mut waiting);
    if !waiting.is_empty() {
        members.push_back((member, waiting));
    }
    next
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
        let asker = Asker { connection: group, group };
        turns.begin(Waiting { operation: flush(number), threads }, asker, most).is_some()
    }

    fn slot(operation: FileOperation) -> u16 {
        match operation {
            FileOperation::Sync { command, .. } => command.slot,
            other => panic!("{other:?}"),
        }
    }

    /// The operations that begin because one has ended.
    fn ended(turns: &mut Turns, (threads, most): (usize, usize)) -> Vec<u16> {
        let mut begun = Vec::new();
        turns.ended(threads, most, |operation| begun.push(slot(operation)));
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

    #[test]
    fn connections_of_a_group_take_turns_and_their_operations_can_be_taken() {
        let (mut turns, most) = (Turns::default(), 1);
        let ask = |turns: &mut Turns, number: u16, connection: u32| {
            let asker = Asker { connection, group: connection / 10 };
            turns.begin(Waiting { operation: flush(number), threads: 1 }, asker, most).is_some()
        };
        assert!(ask(&mut turns, 0, 10));
        for (number, connection) in [(1, 10), (2, 10), (3, 10), (4, 11), (5, 11), (6, 20), (7, 20)]
        {
            assert!(!ask(&mut turns, number, connection));
        }
        let take = |turns: &mut Turns, connection| {
            turns.take(Asker { connection, group: connection / 10 }).map(slot)
        };
        assert_eq!(take(&mut turns, 20), Some(6));
        assert_eq!([12, 30].map(|connection| take(&mut turns, connection)), [None, None]);
        let next: Vec<_> = (0..4).flat_map(|_| ended(&mut turns, (1, most))).collect();
        assert_eq!(next, [1, 7, 4, 2]);
        assert_eq!([11, 11].map(|connection| take(&mut turns, connection)), [Some(5), None]);
        assert_eq!([10, 10].map(|connection| take(&mut turns, connection)), [Some(3), None]);
        assert_eq!(ended(&mut turns, (1, most)), []);
        assert_eq!((turns.taken, turns.waiting.len()), (0, 0));
    }

    /// A volume of sparse files.
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
        let asker = Asker { connection: 1, group: 0 };
        queues.serve([None].into_iter().chain(volumes.iter().map(Some)));
        let read = |namespace: usize| {
            let chain = ChainId::from_index(0);
            let read = DeviceRead { chain, device_offset: 0, length: 512, data_at: 0 };
            FileOperation::ChainRead { namespace, read }
        };
        let begun = |queues: &mut FileQueues, place: usize| {
            queues.begin(read(place), asker, &volumes[place - 1]).is_some()
        };
        assert_eq!((0..8).filter(|_| begun(&mut queues, 1)).count(), 8);
        assert_eq!((0..8).filter(|_| begun(&mut queues, 2)).count(), 2, "they share a disk");
        assert_eq!((0..8).filter(|_| begun(&mut queues, 3)).count(), 8, "this one is elsewhere");
        let flush =
            FileOperation::Sync { namespace: 2, command: CommandId { connection: 1, slot: 1 } };
        assert!(queues.begin(flush, asker, &volumes[1]).is_some(), "flushes do not wait for reads");

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
        let mut take = |with_reads| {
            queues.take_waiting(asker, with_reads, |next| panic!("{next:?} has no room"))
        };
        assert!(take(false).is_none());
        assert!(take(true).is_some_and(|left| left.namespace() == 2));
    }
}
