//! Files and functions of the local executor's engine. Each file is a range of an imaginary
//! namespace.

use super::tables::Functions;
use crate::files::direct::BLOCK_MAX_BYTES;
use crate::files::file::PushdownFile;
use crate::files::function::StorageFunction;
use crate::files::mapped_file::{Closed, MappedFile};
use crate::files::sys::length_bytes;
use bpfof_chain::{Extent, FileMap, FileVersion, Tables};
use bpfof_device::RingFile;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Weak};

/// Id of the imaginary namespace.
pub(super) const NAMESPACE: u32 = 1;
/// Each file has a range of two to the power of this many bytes: 256 TiB. Longer files go to the
/// fall-back.
const FILE_SHIFT: u32 = 48;
/// Number of ranges in the namespace. Further files go to the fall-back.
const FILES_MAX: usize = (1 << (u64::BITS - FILE_SHIFT)) - 1;
/// The version of all maps. Versions are not needed, because the file system translates offsets.
const VERSION: u64 = 1;

/// Sets or clears a slot of the ring's file table. Returns whether a file is registered in it now.
pub(super) type Register<'a> = dyn FnMut(usize, Option<RawFd>) -> bool + 'a;

/// A file that chains have read.
#[derive(Debug)]
struct Slot {
    /// The slot is free once the file is dropped.
    file: Weak<MappedFile>,
    fd: RawFd,
    block_bytes: u32,
    length_bytes: u64,
    is_registered: bool,
}

/// Files and functions by the engine's numbers.
#[derive(Debug)]
pub(super) struct Files {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots by the address of the file. The address is not reused while the slot has a [`Weak`].
    by_file: HashMap<usize, usize>,
    tables: Tables,
    functions: Functions,
    closed: Closed,
}

impl Files {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_file: HashMap::new(),
            tables: Tables::new(Vec::new()),
            functions: Functions::default(),
            closed: Closed::new(),
        }
    }

    pub(super) const fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Puts the engine's ids of `files` into `names`. Returns the block size in bytes for direct
    /// reads of all of them; None if one cannot be read directly.
    pub(super) fn find(
        &mut self,
        files: &[PushdownFile],
        register: &mut Register<'_>,
        names: &mut Vec<FileVersion>,
    ) -> Option<u32> {
        self.let_go(register);
        names.clear();
        let mut block_bytes = 1;
        for file in files {
            let slot = match self.by_file.get(&address(file)) {
                Some(slot) => *slot,
                None => self.add(file, register)?,
            };
            block_bytes = block_bytes.max(self.slots[slot].block_bytes);
            names.push(FileVersion { id: id(slot), version: VERSION });
        }
        Some(block_bytes)
    }

    fn add(&mut self, file: &PushdownFile, register: &mut Register<'_>) -> Option<usize> {
        let direct = file.mapped().direct()?;
        let length_bytes = length_bytes(&direct.file).ok()?;
        let index = self.free.last().copied().unwrap_or(self.slots.len());
        let map = map(index, length_bytes)?;
        let fd = direct.file.as_raw_fd();
        let slot = Slot {
            file: Arc::downgrade(file.mapped()),
            fd,
            block_bytes: direct.block_bytes,
            length_bytes,
            is_registered: register(index, Some(fd)),
        };
        if self.free.pop().is_some() {
            self.slots[index] = slot;
        } else {
            self.slots.push(slot);
        }
        self.tables = self.tables.with_map(id(index), map);
        self.by_file.insert(address(file), index);
        Some(index)
    }

    /// Frees the slots of files that were closed, which the ring still holds open.
    fn let_go(&mut self, register: &mut Register<'_>) {
        if !self.closed.is_due(self.by_file.len()) {
            return;
        }
        let Self { slots, free, by_file, .. } = self;
        by_file.retain(|_, index| {
            let slot = &mut slots[*index];
            let is_open = slot.file.strong_count() > 0;
            if !is_open {
                if slot.is_registered {
                    register(*index, None);
                }
                free.push(*index);
            }
            is_open
        });
    }

    /// Updates the lengths of these files.
    pub(super) fn measure(&mut self, files: &[PushdownFile]) {
        for file in files {
            let Some(index) = self.by_file.get(&address(file)).copied() else { continue };
            let Ok(length_bytes) = file.file().and_then(|file| length_bytes(&file)) else {
                continue;
            };
            let slot = &mut self.slots[index];
            if slot.length_bytes == length_bytes {
                continue;
            }
            // A file that has become too long keeps its map: reads beyond that go to the fall-back.
            if let Some(map) = map(index, length_bytes) {
                slot.length_bytes = length_bytes;
                self.tables = self.tables.with_resized_map(id(index), map);
            }
        }
    }

    /// The engine's number of a function.
    pub(super) fn function(&mut self, function: &StorageFunction) -> u32 {
        self.functions.number(&mut self.tables, function)
    }

    /// Translates a read of `length_bytes` at `device_offset` of the imaginary namespace: to the
    /// file, the offset in it, and the number of bytes before its end.
    pub(super) fn place(&self, device_offset: u64, length_bytes: u32) -> (RingFile, u64, u32) {
        let index = (device_offset >> FILE_SHIFT) as usize;
        let slot = &self.slots[index];
        let offset = device_offset & ((1 << FILE_SHIFT) - 1);
        let file = match slot.is_registered {
            true => RingFile::Registered(index as u32),
            false => RingFile::Descriptor(slot.fd),
        };
        let left = slot.length_bytes.saturating_sub(offset).min(u64::from(length_bytes));
        (file, offset, left as u32)
    }
}

fn address(file: &PushdownFile) -> usize {
    Arc::as_ptr(file.mapped()) as usize
}

/// The engine's file id for this slot; id 0 would be the whole namespace.
const fn id(slot: usize) -> u32 {
    slot as u32 + 1
}

/// The map of a whole file, in its own range. None if there is no room for it.
fn map(slot: usize, length_bytes: u64) -> Option<FileMap> {
    if slot >= FILES_MAX || length_bytes > 1 << FILE_SHIFT {
        return None;
    }
    // Reads cover the last block whole.
    let length = length_bytes.next_multiple_of(u64::from(BLOCK_MAX_BYTES));
    let extent = Extent { file_offset: 0, device_offset: (slot as u64) << FILE_SHIFT, length };
    let extents = if length == 0 { vec![] } else { vec![extent] };
    FileMap::new(NAMESPACE, VERSION, length_bytes, extents, u64::MAX, BLOCK_MAX_BYTES).ok()
}
