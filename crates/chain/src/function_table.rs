//! The functions of an association and their maps.

use crate::frees;
use crate::function::{Function, FunctionMap, FunctionMaps};
use std::sync::Arc;

/// A dropped table frees up to this many functions, and this many bytes of their maps, itself.
const FREED_AT_ONCE: usize = 2;
const FREED_AT_ONCE_BYTES: u64 = 1 << 20;

/// Functions by id, each with its maps.
#[derive(Clone, Debug, Default)]
pub(crate) struct FunctionTable {
    functions: Vec<Arc<Function>>,
    /// The maps of each function, in the same order.
    functions_maps: Vec<FunctionMaps>,
    /// The maps of all functions, each once, by id.
    maps: Vec<Arc<FunctionMap>>,
}

/// Large tables are freed by another thread. Their memory stays charged until then.
impl Drop for FunctionTable {
    fn drop(&mut self) {
        let functions = self.functions.iter().filter(|function| Arc::strong_count(function) == 1);
        let last_maps = self.functions_maps.iter().filter(|maps| Arc::strong_count(maps) == 1);
        let map_bytes: u64 = last_maps
            .flat_map(|maps| maps.iter())
            .map(|function_map| function_map.map.definition().memory_bytes())
            .sum();
        if functions.count() > FREED_AT_ONCE || map_bytes > FREED_AT_ONCE_BYTES {
            let functions = std::mem::take(&mut self.functions);
            let functions_maps = std::mem::take(&mut self.functions_maps);
            frees::free((functions, functions_maps, std::mem::take(&mut self.maps)));
        }
    }
}

impl FunctionTable {
    pub(crate) fn memory_bytes(&self) -> usize {
        self.functions.len() * (size_of::<Arc<Function>>() + size_of::<FunctionMaps>())
            + self.maps.len() * size_of::<Arc<FunctionMap>>()
    }

    /// The functions, by id.
    pub(crate) fn functions(&self) -> &[Arc<Function>] {
        &self.functions
    }

    /// The maps of all functions, by id.
    pub(crate) fn maps(&self) -> &[Arc<FunctionMap>] {
        &self.maps
    }

    /// The map with this id.
    pub(crate) fn map(&self, id: u32) -> Option<&Arc<FunctionMap>> {
        let index = self.maps.binary_search_by_key(&id, |map| map.id).ok()?;
        self.maps.get(index)
    }

    /// The index of the function with this id.
    #[inline]
    pub(crate) fn index_of(&self, id: u32) -> Option<usize> {
        self.functions.binary_search_by_key(&id, |function| function.id).ok()
    }

    /// The maps of the function with this id.
    #[inline]
    pub(crate) fn maps_of(&self, id: u32) -> Option<&FunctionMaps> {
        self.index_of(id).and_then(|index| self.functions_maps.get(index))
    }

    /// Adds a function, or puts it in place of one with the same id.
    pub(crate) fn set(&mut self, function: Arc<Function>, maps: FunctionMaps) {
        match self.functions.binary_search_by_key(&function.id, |known| known.id) {
            Ok(index) => {
                self.functions[index] = function;
                self.functions_maps[index] = maps;
            }
            Err(index) => {
                self.functions.insert(index, function);
                self.functions_maps.insert(index, maps);
            }
        }
        self.index_maps();
    }

    /// Removes a function and the maps that only it had.
    pub(crate) fn remove(&mut self, id: u32) {
        if let Some(index) = self.index_of(id) {
            self.functions.remove(index);
            self.functions_maps.remove(index);
            self.index_maps();
        }
    }

    fn index_maps(&mut self) {
        let all = self.functions_maps.iter().flat_map(|maps| maps.iter().cloned());
        let mut all: Vec<Arc<FunctionMap>> = all.collect();
        all.sort_by_key(|map| map.id);
        all.dedup_by_key(|map| map.id);
        self.maps = all;
    }
}
