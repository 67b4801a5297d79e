//! The functions and file maps of one association.
//!
//! A table is immutable; a change makes a new table that shares the unchanged parts. Readers keep their table until
//! they look for a newer one, so the read side takes no lock.

use crate::file_map::FileMap;
use crate::function::{Function, FunctionMap, FunctionMaps};
use crate::function_table::FunctionTable;
use crate::map_table::{MapEntry, MapTable};
use crate::trace::Trace;
use bpfof_function::memory::Charge;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The file id that names the whole namespace.
pub const WHOLE_NAMESPACE: u32 = 0;

/// Functions and file maps, each sorted by id.
// More than 25 methods: look-ups for the engine, and for each kind of change one that makes a changed copy.
#[derive(Debug, Default)]
pub struct Tables {
    /// 0 for empty tables.
    serial: u64,
    functions: FunctionTable,
    /// Traces of this association, by function id: for functions that other associations run, too.
    traces: BTreeMap<u32, Arc<Trace>>,
    maps: MapTable,
    /// By namespace.
    whole_namespaces: Vec<Arc<FileMap>>,
    /// Whole namespaces are not files in these tables nor in any made from them.
    maps_only: bool,
}

/// The position of a map in a [`Tables`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MapIndex(u32);

/// Where a map is, and what identifies it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundMap {
    pub(crate) index: MapIndex,
    pub(crate) version: u64,
    /// [`FileMap::serial`]; 0 for a whole namespace.
    pub(crate) serial: u64,
}

impl MapIndex {
    /// Set for a whole namespace.
    const WHOLE: u32 = 1 << 31;
}

impl Tables {
    /// Tables without functions. Each of these namespaces is one file with id 0.
    pub fn new(mut whole_namespaces: Vec<FileMap>) -> Tables {
        whole_namespaces.sort_by_key(FileMap::namespace);
        let whole_namespaces = whole_namespaces.into_iter().map(Arc::new).collect();
        Tables { serial: Tables::next_serial(), whole_namespaces, ..Tables::default() }
    }

    /// Tables with the same serial have the same contents, so a result found in one is valid for the other.
    #[inline]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    fn next_serial() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Bytes of memory that a file map takes in tables, beside [its own](FileMap::memory_bytes).
    pub const MAP_BYTES: usize = MapTable::ENTRY_BYTES;

    /// Bytes of memory that the tables take, without what other tables may share: functions, maps with their
    /// [entries](Self::MAP_BYTES), and traces.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Tables>()
            + self.functions.memory_bytes()
            + self.maps.memory_bytes()
            + self.whole_namespaces.len() * size_of::<Arc<FileMap>>()
            + self.traces.len() * size_of::<(u32, Arc<Trace>)>()
    }

    /// These tables with the charge for their memory.
    pub fn counted(mut self, memory: Charge) -> Tables {
        self.maps.count(memory);
        self
    }

    /// A copy with a new serial, to be changed.
    fn successor(&self) -> Tables {
        Tables {
            serial: Tables::next_serial(),
            functions: self.functions.clone(),
            traces: self.traces.clone(),
            maps: self.maps.clone(),
            whole_namespaces: self.whole_namespaces.clone(),
            maps_only: self.maps_only,
        }
    }

    /// The function with this id.
    #[inline]
    pub fn function(&self, id: u32) -> Option<&Function> {
        self.function_index(id).map(|index| &*self.functions()[index])
    }

    /// The function that `number` means in a tail call of `function`.
    pub(crate) fn peer(&self, function: &Function, number: u32) -> Option<Arc<Function>> {
        match &function.peers {
            Some(peers) => peers.get(number),
            None => self.function_index(number).map(|index| Arc::clone(&self.functions()[index])),
        }
    }

    /// The index in [`functions`](Tables::functions) of the function with this id.
    #[inline]
    pub fn function_index(&self, id: u32) -> Option<usize> {
        self.functions.index_of(id)
    }

    /// All functions, by id.
    pub fn functions(&self) -> &[Arc<Function>] {
        self.functions.functions()
    }

    /// The maps of a function that runs with these tables.
    #[inline]
    pub fn maps_of<'a>(&'a self, function: &'a Function) -> &'a [Arc<FunctionMap>] {
        if function.native.program().maps().is_empty() {
            return &[];
        }
        let own = self.functions.maps_of(function.id);
        own.filter(|own| !own.is_empty()).unwrap_or(&function.maps)
    }

    /// The maps of all functions, by id.
    pub fn function_maps(&self) -> &[Arc<FunctionMap>] {
        self.functions.maps()
    }

    /// The function map with this id.
    pub fn function_map(&self, id: u32) -> Option<&Arc<FunctionMap>> {
        self.functions.map(id)
    }

    /// The map of a file in a namespace; id [`WHOLE_NAMESPACE`] is the namespace itself.
    #[inline]
    pub fn map(&self, namespace: u32, file: u32) -> Option<&FileMap> {
        self.find_map(namespace, file).and_then(|found| self.map_at(found.index))
    }

    /// Finds the [`map`](Tables::map) of a file without reading the map itself.
    #[inline]
    pub(crate) fn find_map(&self, namespace: u32, file: u32) -> Option<FoundMap> {
        if file == WHOLE_NAMESPACE {
            let index = self.whole_namespace(namespace).ok()?;
            let version = self.whole_namespaces[index].version();
            let index = MapIndex(index as u32 | MapIndex::WHOLE);
            return Some(FoundMap { index, version, serial: 0 });
        }
        let (position, entry) = self.maps.find(file)?;
        let MapEntry { version, serial, .. } = *entry;
        let index = MapIndex(position);
        (entry.namespace == namespace).then_some(FoundMap { index, version, serial })
    }

    /// The index of a whole namespace, or where it would be inserted.
    #[inline]
    fn whole_namespace(&self, namespace: u32) -> Result<usize, usize> {
        self.whole_namespaces.binary_search_by_key(&namespace, |map| map.namespace())
    }

    /// The map at an index that [`find_map`](Tables::find_map) returned for tables of this serial.
    #[inline]
    pub(crate) fn map_at(&self, index: MapIndex) -> Option<&FileMap> {
        if index.0 & MapIndex::WHOLE != 0 {
            let at = (index.0 & !MapIndex::WHOLE) as usize;
            self.whole_namespaces.get(at).map(|map| &**map)
        } else {
            self.maps.at(index.0).map(|entry| &*entry.map)
        }
    }

    /// Number of file maps, not counting whole namespaces.
    pub fn map_count(&self) -> usize {
        self.maps.len()
    }

    /// How many items (map entries and chunks) adding a file map copies at most: a measure of its cost.
    pub fn copied_by_map(&self) -> usize {
        self.maps.copied_by_change()
    }

    /// Total number of extents in the maps of all files but this one.
    pub fn extent_count(&self, except_file: u32) -> usize {
        let except = self.maps.find(except_file);
        self.maps.extents() - except.map_or(0, |(_, entry)| entry.map.extent_count())
    }

    /// Whether this file id has a map.
    pub fn has_map(&self, file: u32) -> bool {
        self.maps.find(file).is_some()
    }

    /// These tables with one more function, which replaces a function with the same id. It has no maps.
    pub fn with_function(&self, function: impl Into<Arc<Function>>) -> Tables {
        self.with_function_and_maps(function, FunctionMaps::default())
    }

    /// The same for a function with maps, one for each that its program declares.
    pub fn with_function_and_maps(
        &self,
        function: impl Into<Arc<Function>>,
        maps: FunctionMaps,
    ) -> Tables {
        let mut tables = self.successor();
        tables.functions.set(function.into(), maps);
        tables
    }

    /// These tables without a function and the maps that only it had.
    pub fn without_function(&self, id: u32) -> Tables {
        let mut tables = self.successor();
        tables.functions.remove(id);
        tables.traces.remove(&id);
        tables
    }

    /// These tables with a trace of their own for a function that is in other tables, too. Its memory
    /// ([`Trace::MEMORY_BYTES`]) is charged for as long as any tables have it.
    pub fn with_trace(&self, id: u32, memory: Option<Charge>) -> Tables {
        let mut tables = self.successor();
        tables.traces.insert(id, Arc::new(Trace::counted(memory)));
        tables
    }

    /// The trace lines of a function that ran with these tables, if they have a trace of their own for it.
    pub fn trace_of(&self, id: u32) -> Option<&Trace> {
        self.traces.get(&id).map(|trace| &**trace)
    }

    /// These tables without whole namespaces, permanently: chains can only read files that have maps.
    pub fn without_whole_namespaces(&self) -> Tables {
        Tables { whole_namespaces: Vec::new(), maps_only: true, ..self.successor() }
    }

    /// These tables with a namespace that is new or has another size. `whole` maps it as one file, unless the tables
    /// are [without](Self::without_whole_namespaces) whole namespaces. Maps of files that reach beyond its end are
    /// removed.
    pub fn with_whole_namespace(&self, whole: FileMap) -> Tables {
        let mut tables = self.successor();
        let (namespace, bytes) = (whole.namespace(), whole.length_bytes());
        tables.maps = self.maps.retaining(namespace, |entry| entry.map.device_end() <= bytes);
        match tables.whole_namespace(namespace) {
            Ok(known) => tables.whole_namespaces[known] = Arc::new(whole),
            Err(_) if tables.maps_only => {}
            Err(place) => tables.whole_namespaces.insert(place, Arc::new(whole)),
        }
        tables
    }

    /// These tables without a namespace and the maps of files in it.
    pub fn without_namespace(&self, namespace: u32) -> Tables {
        let mut tables = self.successor();
        tables.maps = self.maps.retaining(namespace, |_| false);
        tables.whole_namespaces.retain(|map| map.namespace() != namespace);
        tables
    }

    /// These tables with a file's map set or replaced.
    pub fn with_map(&self, file: u32, map: FileMap) -> Tables {
        self.with_counted_map(file, map, None)
    }

    /// The same for a map whose memory is charged for as long as any tables hold the map.
    pub fn with_counted_map(&self, file: u32, map: FileMap, memory: Option<Charge>) -> Tables {
        let mut tables = self.successor();
        let (namespace, version, serial) = (map.namespace(), map.version(), map.serial());
        let (map, memory) = (Arc::new(map), memory.map(Arc::new));
        let entry = MapEntry { file, namespace, version, serial, map, _memory: memory };
        tables.maps = self.maps.with(entry);
        tables
    }

    /// These tables with a file's map replaced by one that agrees with it: chains that have read by it go on.
    pub fn with_resized_map(&self, file: u32, map: FileMap) -> Tables {
        let map = match self.maps.find(file) {
            Some((_, before)) => map.in_place_of(&before.map),
            None => map,
        };
        self.with_map(file, map)
    }

    /// These tables without a file's map.
    pub fn without_map(&self, file: u32) -> Tables {
        let mut tables = self.successor();
        tables.maps = self.maps.without(file);
        tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_map::Extent;

    #[test]
    fn maps_are_removed_with_their_namespace_or_its_blocks() {
        let map = |namespace, device_offset| {
            let extent = Extent { file_offset: 0, device_offset, length: 512 };
            FileMap::new(namespace, 1, 512, vec![extent], 4096, 512).expect("valid")
        };
        let tables = Tables::new(vec![FileMap::whole_namespace(1, 4096)])
            .with_whole_namespace(FileMap::whole_namespace(2, 4096))
            .with_map(5, map(1, 0))
            .with_map(6, map(1, 3584))
            .with_map(7, map(2, 3584));
        let known = |tables: &Tables| {
            let maps = [(1, 0), (1, 5), (1, 6), (2, 0), (2, 7)];
            maps.map(|(namespace, file)| tables.map(namespace, file).is_some())
        };
        assert_eq!(known(&tables), [true; 5]);
        let smaller = tables.with_whole_namespace(FileMap::whole_namespace(1, 3584));
        assert_eq!(known(&smaller), [true, true, false, true, true]);
        assert_ne!(smaller.serial(), tables.serial());
        let without = tables.without_namespace(1);
        assert_eq!(known(&without), [false, false, false, true, true]);
        let again = without.with_whole_namespace(FileMap::whole_namespace(1, 512));
        assert_eq!(known(&again), [true, false, false, true, true]);
        assert_eq!(again.map(1, WHOLE_NAMESPACE).map(FileMap::length_bytes), Some(512));
    }
}
