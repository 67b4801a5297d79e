//! The file maps of an association, by file.
//!
//! Each change makes a new table, which shares all but some hundred entries with its predecessor: entries are in
//! chunks, which are shared as a whole, and a change copies one chunk and the list of chunks. A file is found through
//! two directories: first the chunk, then the entry in the chunk.

use crate::bucket_index::Directory;
use crate::file_map::FileMap;
use crate::frees;
use bpfof_function::memory::Charge;
use std::sync::Arc;

/// Maximum entries of a chunk. Two adjacent chunks together have more than half as many.
const CHUNK: usize = 128;
/// A dropped table frees up to this many chunks itself, and lets go of up to this many that others have.
const FREED_AT_ONCE: usize = 4;
const LET_GO_AT_ONCE: usize = 64;
/// Bits of a [`Position`] that hold the index within a chunk.
const CHUNK_BITS: u32 = CHUNK.ilog2();

/// A file's map. The fields that a request is checked against are next to it, so that the check need not read the map.
#[derive(Clone, Debug)]
pub(crate) struct MapEntry {
    pub(crate) file: u32,
    pub(crate) namespace: u32,
    pub(crate) version: u64,
    pub(crate) serial: u64,
    pub(crate) map: Arc<FileMap>,
    /// The charge for the map's memory.
    pub(crate) _memory: Option<Arc<Charge>>,
}

/// The position of an entry in a table: chunk number and index in the chunk.
pub(crate) type Position = u32;

/// Entries with adjacent file ids, sorted.
#[derive(Debug)]
struct Chunk {
    entries: Vec<MapEntry>,
    directory: Directory,
    /// Total extents of all maps in the chunk.
    extents: usize,
    /// The least and the greatest namespace of its maps.
    namespaces: (u32, u32),
}

impl Chunk {
    fn new(entries: Vec<MapEntry>) -> Arc<Chunk> {
        let directory = directory_of(&entries, |entry| entry.file);
        let extents = entries.iter().map(|entry| entry.map.extent_count()).sum();
        let namespaces = || entries.iter().map(|entry| entry.namespace);
        let namespaces = (namespaces().min().unwrap_or(0), namespaces().max().unwrap_or(0));
        Arc::new(Chunk { entries, directory, extents, namespaces })
    }

    /// This chunk without those maps of a namespace for which `stays` is false.
    fn retaining(
        self: &Arc<Chunk>,
        namespace: u32,
        stays: &impl Fn(&MapEntry) -> bool,
    ) -> Arc<Chunk> {
        let (least, greatest) = self.namespaces;
        let stays = |entry: &&MapEntry| entry.namespace != namespace || stays(entry);
        if !(least..=greatest).contains(&namespace)
            || self.entries.iter().all(|entry| stays(&entry))
        {
            return Arc::clone(self);
        }
        Chunk::new(self.entries.iter().filter(stays).cloned().collect())
    }

    fn place_of(&self, file: u32) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&file, |entry| entry.file)
    }
}

fn directory_of<T>(items: &[T], key: impl Fn(&T) -> u32) -> Directory {
    let end = items.last().map_or(0, |last| u64::from(key(last)) + 1);
    Directory::new(items, end, |item| u64::from(key(item)))
}

/// Maps by file.
#[derive(Debug, Default)]
pub(crate) struct MapTable {
    chunks: Vec<Arc<Chunk>>,
    /// The first file of each chunk.
    firsts: Vec<u32>,
    /// The directory of `firsts`.
    directory: Directory,
    /// The largest file id.
    last: u32,
    len: usize,
    extents: usize,
    /// The charge for the memory of the tables themselves. A copy has none.
    memory: Option<Charge>,
}

impl Clone for MapTable {
    fn clone(&self) -> MapTable {
        MapTable {
            chunks: self.chunks.clone(),
            firsts: self.firsts.clone(),
            directory: self.directory.clone(),
            memory: None,
            ..*self
        }
    }
}

/// A reactor that drops a table must not spend its turn freeing many maps. All stays charged until it is freed.
/// Others may drop tables with the same chunks at the same time, so the number of owners says little for many chunks.
impl Drop for MapTable {
    fn drop(&mut self) {
        let is_last = |chunk: &&Arc<Chunk>| Arc::strong_count(chunk) == 1;
        if self.chunks.len() > LET_GO_AT_ONCE
            || self.chunks.len() > FREED_AT_ONCE
                && self.chunks.iter().filter(is_last).count() > FREED_AT_ONCE
        {
            frees::free((std::mem::take(&mut self.chunks), self.memory.take()));
        }
    }
}

impl MapTable {
    /// Sets the charge for the memory of the tables themselves.
    pub(crate) fn count(&mut self, memory: Charge) {
        self.memory = Some(memory);
    }

    /// This table without those maps of a namespace for which `stays` is false. Unchanged chunks are shared.
    pub(crate) fn retaining(&self, namespace: u32, stays: impl Fn(&MapEntry) -> bool) -> MapTable {
        let mut table = self.clone();
        table.chunks = self.chunks.iter().map(|chunk| chunk.retaining(namespace, &stays)).collect();
        table.chunks.retain(|chunk| !chunk.entries.is_empty());
        (0..table.chunks.len()).rev().for_each(|number| table.merge(number));
        table.index()
    }

    fn index(mut self) -> MapTable {
        self.chunks.retain(|chunk| !chunk.entries.is_empty());
        let ends = |entry: Option<&MapEntry>| entry.map_or(0, |entry| entry.file);
        self.firsts = self.chunks.iter().map(|chunk| ends(chunk.entries.first())).collect();
        self.last = ends(self.chunks.last().and_then(|chunk| chunk.entries.last()));
        let end = u64::from(self.last) + 1;
        self.directory = Directory::new(&self.firsts, end, |file| u64::from(*file));
        self.len = self.chunks.iter().map(|chunk| chunk.entries.len()).sum();
        self.extents = self.chunks.iter().map(|chunk| chunk.extents).sum();
        self
    }

    /// Number of maps.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many items a change copies at most: entries of one chunk, and pointers to chunks.
    pub(crate) fn copied_by_change(&self) -> usize {
        self.chunks.len() + self.len.min(CHUNK)
    }

    /// Total number of extents.
    pub(crate) fn extents(&self) -> usize {
        self.extents
    }

    /// Bytes of memory that a map's entry takes in the tables that share it.
    pub(crate) const ENTRY_BYTES: usize = size_of::<MapEntry>() + 2 * size_of::<u32>();

    /// Bytes of memory that the table takes beside its predecessor, with which it shares all but one chunk, and without
    /// the maps and their entries.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.len.min(CHUNK) * Self::ENTRY_BYTES
            + self.chunks.len() * (size_of::<Chunk>() + size_of::<Arc<Chunk>>() + size_of::<u32>())
            + self.directory.memory_bytes()
    }

    /// All entries, by file.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &MapEntry> {
        self.chunks.iter().flat_map(|chunk| &chunk.entries)
    }

    #[inline]
    fn chunk_of(&self, file: u32) -> Option<usize> {
        self.directory.find(&self.firsts, u64::from(file), |first| u64::from(*first))
    }

    /// The entry of a file, and its position.
    #[inline]
    pub(crate) fn find(&self, file: u32) -> Option<(Position, &MapEntry)> {
        let number = self.chunk_of(file)?;
        let chunk = self.chunks.get(number)?;
        let place = chunk.directory.find(&chunk.entries, u64::from(file), |e| u64::from(e.file))?;
        let entry = chunk.entries.get(place)?;
        (entry.file == file).then_some(((number << CHUNK_BITS | place) as Position, entry))
    }

    /// The entry at a position that [`find`](Self::find) returned.
    #[inline]
    pub(crate) fn at(&self, position: Position) -> Option<&MapEntry> {
        let chunk = self.chunks.get((position >> CHUNK_BITS) as usize)?;
        chunk.entries.get(position as usize % CHUNK)
    }

    /// This table with an entry added, or replaced if the file has one.
    pub(crate) fn with(&self, entry: MapEntry) -> MapTable {
        let mut table = self.clone();
        // A file beyond the largest goes to the end of the last chunk.
        let behind = self.len > 0 && entry.file > self.last;
        let number =
            if behind { self.chunks.len() - 1 } else { self.chunk_of(entry.file).unwrap_or(0) };
        let Some(chunk) = self.chunks.get(number) else {
            table.chunks.push(Chunk::new(vec![entry]));
            return table.index();
        };
        let mut entries = chunk.entries.clone();
        match chunk.place_of(entry.file) {
            Ok(place) => entries[place] = entry,
            Err(place) => entries.insert(place, entry),
        }
        if entries.len() > CHUNK {
            // Split so that files added in ascending order fill their chunks.
            let half = if behind { CHUNK } else { entries.len() / 2 };
            table.chunks.insert(number + 1, Chunk::new(entries.split_off(half)));
        }
        table.chunks[number] = Chunk::new(entries);
        table.index()
    }

    /// This table without the entry of a file.
    pub(crate) fn without(&self, file: u32) -> MapTable {
        let mut table = self.clone();
        let Some((number, chunk)) = self.chunk_of(file).map(|at| (at, &self.chunks[at])) else {
            return table;
        };
        let Ok(place) = chunk.place_of(file) else { return table };
        let mut entries = chunk.entries.clone();
        entries.remove(place);
        table.chunks[number] = Chunk::new(entries);
        table.merge(number);
        table.merge(number.saturating_sub(1));
        table.index()
    }

    /// Merges a chunk with the next one if they have few entries.
    fn merge(&mut self, number: usize) {
        let Some([first, second]) = self.chunks.get(number..number + 2) else { return };
        if first.entries.len() + second.entries.len() <= CHUNK / 2 {
            let both = first.entries.iter().chain(&second.entries).cloned().collect();
            self.chunks.splice(number..number + 2, [Chunk::new(both)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    fn entry(file: u32, version: u64) -> MapEntry {
        let map = Arc::new(FileMap::whole_namespace(1, 512));
        MapEntry { file, namespace: 1, version, serial: map.serial(), map, _memory: None }
    }

    fn check(table: &MapTable, model: &BTreeMap<u32, u64>, around: &[u32]) {
        assert_eq!((table.len(), table.extents()), (model.len(), model.len()));
        assert!(
            table
                .iter()
                .map(|entry| (entry.file, entry.version))
                .eq(model.iter().map(|(file, version)| (*file, *version)))
        );
        for file in
            around.iter().flat_map(|file| [file.wrapping_sub(1), *file, file.wrapping_add(1)])
        {
            let found = table.find(file);
            assert_eq!(found.map(|(_, entry)| entry.version), model.get(&file).copied());
            let again = found.and_then(|(position, _)| table.at(position));
            assert_eq!(again.map(|entry| entry.file), found.map(|_| file));
        }
        let lengths: Vec<usize> = table.chunks.iter().map(|chunk| chunk.entries.len()).collect();
        assert!(lengths.iter().all(|length| (1..=CHUNK).contains(length)), "{lengths:?}");
        assert!(lengths.windows(2).all(|pair| pair[0] + pair[1] > CHUNK / 2), "{lengths:?}");
    }

    #[test]
    fn files_that_come_in_order_fill_their_chunks() {
        let mut table = MapTable::default();
        for file in 1..=1000 {
            table = table.with(entry(file, 1));
        }
        assert_eq!(table.chunks.len(), 8);
        let model = (1..=1000).map(|file| (file, 1)).collect();
        check(&table, &model, &(0..1001).collect::<Vec<_>>());
        // Most of the table is shared.
        let next = table.with(entry(500, 2));
        let shared = table.chunks.iter().zip(&next.chunks).filter(|(a, b)| Arc::ptr_eq(a, b));
        assert_eq!(shared.count(), 7);
        // Removed one by one, in ascending order, the entries leave few chunks behind.
        for file in (1..=1000).filter(|file| file % 100 != 0) {
            table = table.without(file);
        }
        assert_eq!((table.len(), table.chunks.len()), (10, 1));
    }

    #[test]
    fn the_largest_number_is_a_file() {
        let table = MapTable::default().with(entry(u32::MAX, 1)).with(entry(0, 2));
        check(&table, &[(0, 2), (u32::MAX, 1)].into(), &[0, u32::MAX, 1 << 31]);
        let empty = table.without(0).without(u32::MAX);
        check(&empty, &BTreeMap::new(), &[0]);
    }

    fn of_namespace(file: u32, namespace: u32) -> MapEntry {
        MapEntry { namespace, ..entry(file, u64::from(file)) }
    }

    #[test]
    fn chunks_without_a_namespace_are_shared_when_its_maps_go() {
        let namespace = |file| if file == 200 { 3 } else { 1 + u32::from(file > 640) };
        let table = (0..1000).fold(MapTable::default(), |table, file| {
            table.with(of_namespace(file, namespace(file)))
        });
        let shared = |other: &MapTable| {
            table.chunks.iter().zip(&other.chunks).filter(|(a, b)| Arc::ptr_eq(a, b)).count()
        };
        assert_eq!(shared(&table.retaining(4, |_| false)), 8);
        assert_eq!(shared(&table.retaining(3, |_| true)), 8);
        assert_eq!(shared(&table.retaining(3, |_| false)), 7);
        assert_eq!(shared(&table.retaining(2, |_| false)), 5);
    }

    /// Whoever keeps many versions of a large table pays for what they do not share.
    #[test]
    fn versions_are_charged_for_what_they_do_not_share() {
        let table = (0..10_000).fold(MapTable::default(), |table, file| table.with(entry(file, 1)));
        let all = table.len() * MapTable::ENTRY_BYTES;
        let next = table.with(entry(5000, 2)).memory_bytes();
        assert!((CHUNK * MapTable::ENTRY_BYTES..all / 20).contains(&next), "{next} of {all}");
    }

    /// Dropping the last table does not wait for its maps: another thread frees them.
    #[test]
    fn many_maps_are_freed_by_another_thread() {
        frees::free_elsewhere(|| ()).expect("a thread");
        let table = (0..10_000).fold(MapTable::default(), |table, file| table.with(entry(file, 1)));
        let maps: Vec<_> = table.iter().map(|entry| Arc::downgrade(&entry.map)).collect();
        let owners_become = |owners| {
            let until = Instant::now() + Duration::from_secs(10);
            while maps.iter().any(|map| map.strong_count() != owners) {
                assert!(Instant::now() < until, "maps do not get {owners} owners");
                std::thread::yield_now();
            }
        };
        let other = table.clone();
        drop(table);
        // Those of the last table; older ones are freed by now.
        owners_become(1);
        drop(other);
        owners_become(0);
    }

    proptest! {
        #[test]
        fn removing_the_maps_of_a_namespace_keeps_others(
            files in proptest::collection::btree_map(0..2000_u32, 1..4_u32, 0..600),
            namespace in 1..5_u32,
            least in 0..2000_u32,
        ) {
            let table = files.iter().fold(MapTable::default(), |table, (file, namespace)| {
                table.with(of_namespace(*file, *namespace))
            });
            let table = table.retaining(namespace, |entry| entry.file >= least);
            let stays = |(file, of): &(&u32, &u32)| **of != namespace || **file >= least;
            let model = files.iter().filter(stays).map(|(file, _)| (*file, u64::from(*file)));
            check(&table, &model.collect(), &[0, least]);
        }

        #[test]
        fn the_table_behaves_as_a_sorted_map(
            steps in proptest::collection::vec((any::<u32>(), 0..4_u32), 0..600),
            shift in 16..32_u32,
        ) {
            let mut table = MapTable::default();
            let mut model = BTreeMap::new();
            for (at, (file, kind)) in steps.iter().enumerate() {
                let file = file >> shift;
                if *kind == 0 {
                    table = table.without(file);
                    model.remove(&file);
                } else {
                    table = table.with(entry(file, at as u64));
                    model.insert(file, at as u64);
                }
                if at % 32 == 0 {
                    check(&table, &model, &[file]);
                }
            }
            let files: Vec<u32> = steps.iter().map(|(file, _)| file >> shift).collect();
            check(&table, &model, &files);
            // Removes all of them again.
            for file in files {
                table = table.without(file);
                model.remove(&file);
            }
            check(&table, &model, &[]);
        }
    }
}
