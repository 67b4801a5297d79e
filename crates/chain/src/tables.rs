//! The functions and file maps of one association.
//!
//! A table is immutable; a change makes a new one that shares what did not change. Readers keep
//! the one they have until they look for a newer one, so the read side takes no lock.

use crate::map::FileMap;
use bpfof_function::NativeFunction;
use std::sync::Arc;

/// The file id that names the whole namespace.
pub const WHOLE_NAMESPACE: u32 = 0;

/// An installed storage function.
#[derive(Debug)]
pub struct Function {
    /// The id the host uses, never 0.
    pub id: u32,
    /// Its name in the object.
    pub name: String,
    /// Number of eBPF instructions (8-byte slots).
    pub instructions: u32,
    /// Its machine code.
    pub native: NativeFunction,
}

/// Functions and file maps, each sorted by id.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    functions: Vec<Arc<Function>>,
    maps: Vec<(u32, Arc<FileMap>)>,
    whole_namespaces: Vec<FileMap>,
}

impl Tables {
    /// Tables without functions over namespaces of which each is one file, id 0.
    pub fn new(whole_namespaces: Vec<FileMap>) -> Tables {
        Tables { whole_namespaces, ..Tables::default() }
    }

    /// The function with this id.
    #[inline]
    pub fn function(&self, id: u32) -> Option<&Function> {
        self.function_index(id).map(|index| &*self.functions[index])
    }

    /// Where in [`functions`](Tables::functions) the function with this id stands.
    #[inline]
    pub fn function_index(&self, id: u32) -> Option<usize> {
        self.functions.binary_search_by_key(&id, |function| function.id).ok()
    }

    /// All functions, by id.
    pub fn functions(&self) -> &[Arc<Function>] {
        &self.functions
    }

    /// The map of a file in a namespace; id [`WHOLE_NAMESPACE`] is the namespace itself.
    #[inline]
    pub fn map(&self, namespace: u32, file: u32) -> Option<&FileMap> {
        if file == WHOLE_NAMESPACE {
            return self.whole_namespaces.iter().find(|map| map.namespace() == namespace);
        }
        let index = self.maps.binary_search_by_key(&file, |(id, _)| *id).ok()?;
        Some(&*self.maps[index].1).filter(|map| map.namespace() == namespace)
    }

    /// How many file maps there are, namespaces not counted.
    pub fn map_count(&self) -> usize {
        self.maps.len()
    }

    /// How many extents the maps of all files but this one have together.
    pub fn extent_count(&self, except_file: u32) -> usize {
        let others = self.maps.iter().filter(|(id, _)| *id != except_file);
        others.map(|(_, map)| map.extent_count()).sum()
    }

    /// Whether a map for this file id is set.
    pub fn has_map(&self, file: u32) -> bool {
        self.maps.binary_search_by_key(&file, |(id, _)| *id).is_ok()
    }

    /// These tables with a function more, in place of one with the same id.
    pub fn with_function(&self, function: impl Into<Arc<Function>>) -> Tables {
        let (mut tables, function) = (self.clone(), function.into());
        match tables.functions.binary_search_by_key(&function.id, |known| known.id) {
            Ok(index) => tables.functions[index] = function,
            Err(index) => tables.functions.insert(index, function),
        }
        tables
    }

    /// These tables without a function.
    pub fn without_function(&self, id: u32) -> Tables {
        let mut tables = self.clone();
        tables.functions.retain(|function| function.id != id);
        tables
    }

    /// These tables with the map of a whole namespace replaced.
    pub fn with_whole_namespace(&self, map: FileMap) -> Tables {
        let mut tables = self.clone();
        let same = |known: &&mut FileMap| known.namespace() == map.namespace();
        if let Some(known) = tables.whole_namespaces.iter_mut().find(same) {
            *known = map;
        }
        tables
    }

    /// These tables with a file's map set or replaced.
    pub fn with_map(&self, file: u32, map: FileMap) -> Tables {
        let mut tables = self.clone();
        match tables.maps.binary_search_by_key(&file, |(id, _)| *id) {
            Ok(index) => tables.maps[index].1 = Arc::new(map),
            Err(index) => tables.maps.insert(index, (file, Arc::new(map))),
        }
        tables
    }

    /// These tables without a file's map.
    pub fn without_map(&self, file: u32) -> Tables {
        let mut tables = self.clone();
        tables.maps.retain(|(id, _)| *id != file);
        tables
    }
}
