//! Functions of the passthrough executor's engine, and maps of files on one namespace.

use super::tables::Functions;
use crate::files::file::{Pin, PushdownFile};
use crate::files::function::StorageFunction;
use crate::files::mapped_file::{Closed, MappedFile};
use crate::files::nvme::NvmeNamespace;
use bpfof_chain::{Extent, FileMap, MapError, Tables};
use std::sync::{Arc, Weak};

/// The functions and maps that the chains of one reader have used.
#[derive(Debug)]
pub(super) struct Namespace {
    tables: Tables,
    functions: Functions,
    /// Files that have a map in the tables.
    mapped: Vec<(u32, Weak<MappedFile>)>,
    closed: Closed,
}

impl Namespace {
    pub(super) fn new(of: &NvmeNamespace) -> Self {
        let info = &of.info;
        let whole = FileMap::whole_namespace(info.nsid, info.size_bytes());
        Self {
            tables: Tables::new(vec![whole]),
            functions: Functions::default(),
            mapped: Vec::new(),
            closed: Closed::new(),
        }
    }

    pub(super) const fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Removes the maps of files that were closed. Whether there may have been any.
    pub(super) fn let_go(&mut self) -> bool {
        if !self.closed.is_due(self.mapped.len()) {
            return false;
        }
        let Self { tables, mapped, .. } = self;
        mapped.retain(|(id, file)| {
            let is_open = file.strong_count() > 0;
            if !is_open {
                *tables = tables.without_map(*id);
            }
            is_open
        });
        true
    }

    /// Sets the map that `pin` holds, in place of an older one. Chains that began with the older
    /// map become stale at their next hop.
    pub(super) fn set_map(
        &mut self,
        file: &PushdownFile,
        pin: &Pin,
        of: &NvmeNamespace,
    ) -> Result<(), MapError> {
        let crate::FileVersion { id, version } = pin.version();
        let nsid = of.info.nsid;
        let known = self.tables.map(nsid, id).map(FileMap::version);
        if known == Some(version) {
            return Ok(());
        }
        let Some(layout) = pin.layout() else { return Ok(()) };
        let extents: Vec<Extent> = layout
            .extents()
            .iter()
            .map(|extent| Extent {
                file_offset: extent.file_offset,
                device_offset: extent.device_offset,
                length: extent.length_bytes,
            })
            .collect();
        let (length, size, block) =
            (layout.length_bytes(), of.info.size_bytes(), of.info.block_bytes);
        let map = FileMap::new(nsid, version, length, extents, size, block)?;
        self.tables = self.tables.with_map(id, map);
        if known.is_none() {
            self.mapped.push((id, Arc::downgrade(file.mapped())));
        }
        Ok(())
    }

    /// The engine's number of a function.
    pub(super) fn function(&mut self, function: &StorageFunction) -> u32 {
        self.functions.number(&mut self.tables, function)
    }
}
