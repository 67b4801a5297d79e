//! Chains over an NVMe namespace of this machine by its character device: as at a target, with file
//! maps and their versions, but without a network.

use super::chains::Chains;
use super::reads::NamespaceReads;
use super::with_function;
use crate::files::entry::{Entry, Pin};
use crate::files::{NvmeNamespace, PushdownFile, ReadPushdown};
use bpfof_chain::{
    ChainError, Extent, FileMap, FileVersion, MapError, Outcome, Start, Tables, WHOLE_NAMESPACE,
};
use bpfof_device::RingError;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The functions and maps that the chains of one reader have used.
#[derive(Debug)]
pub(super) struct Namespace {
    tables: Tables,
    /// Files that have a map in the tables.
    mapped: Vec<(u32, Weak<Entry>)>,
    /// Entries that had been closed when these were last looked through.
    closed: u64,
}

impl Namespace {
    pub(super) const fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Forgets the maps of files that were closed since.
    fn let_go(&mut self) {
        let closed = Entry::closed();
        if closed == self.closed {
            return;
        }
        self.closed = closed;
        let Self { tables, mapped, .. } = self;
        mapped.retain(|(id, entry)| {
            let is_open = entry.strong_count() > 0;
            if !is_open {
                *tables = tables.without_map(*id);
            }
            is_open
        });
    }

    /// Takes the map that `pin` holds, in place of an older one: chains that began with that become
    /// stale with their next hop.
    fn set_map(
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
        let layout = pin.layout();
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
            self.mapped.push((id, Arc::downgrade(file.entry())));
        }
        Ok(())
    }
}

/// Runs chains over one namespace.
#[derive(Debug)]
pub(crate) struct Passthrough {
    chains: Chains<NamespaceReads>,
    files: Namespace,
    versions: Vec<FileVersion>,
}

impl Passthrough {
    pub(crate) fn new(of: &NvmeNamespace) -> Result<Self, RingError> {
        let info = &of.info;
        let reads = NamespaceReads::new(Arc::clone(&of.device), info.block_bytes)?;
        let whole = FileMap::whole_namespace(info.nsid, info.size_bytes());
        let files = Namespace {
            tables: Tables::new(vec![whole]),
            mapped: Vec::new(),
            closed: Entry::closed(),
        };
        Ok(Self { chains: Chains::new(reads), files, versions: Vec::new() })
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.chains.running()
    }

    /// Begins a chain over files with these pins; a file without one is the whole namespace.
    pub(crate) fn start(
        &mut self,
        number: usize,
        call: &ReadPushdown<'_>,
        pins: &[Pin],
        of: &NvmeNamespace,
    ) -> Result<(), ChainError> {
        if self.chains.is_full() {
            return Err(ChainError::TooManyChains);
        }
        self.files.let_go();
        self.versions.clear();
        let mut pins = pins.iter();
        for (index, file) in (0..).zip(call.files) {
            let version = if file.is_whole_namespace() {
                FileVersion { id: WHOLE_NAMESPACE, version: 1 }
            } else {
                let unknown = ChainError::UnknownFile(index);
                let pin = pins.next().ok_or(unknown)?;
                self.files.set_map(file, pin, of).map_err(|_| unknown)?;
                let crate::FileVersion { id, version } = pin.version();
                FileVersion { id, version }
            };
            self.versions.push(version);
        }
        let local = call.function.local_function();
        if self.files.tables.function_index(local.id).is_none() {
            self.files.tables = with_function(&self.files.tables, local);
        }
        let start = Start {
            owner: 0,
            namespace: of.info.nsid,
            unit_bytes: of.info.block_bytes,
            function: local.id,
            files: &self.versions,
            first_file: u32::from(call.first_read.file),
            first_offset_bytes: call.first_read.offset_bytes,
            first_size_bytes: call.first_read.size_bytes,
            argument: call.scratch,
            scratch_bytes: call.effective_scratch_bytes(),
            answer_max_bytes: call.answer_max_bytes,
        };
        self.chains.start(number, &start, &self.files)
    }

    /// As [`Local::turn`](super::Local::turn); `on_end` gets the outcome and scratch.
    pub(crate) fn turn(
        &mut self,
        timeout: Duration,
        on_end: &mut dyn FnMut(usize, Outcome, &[u8]),
    ) -> io::Result<usize> {
        self.chains.turn(timeout, &self.files, on_end)
    }
}
