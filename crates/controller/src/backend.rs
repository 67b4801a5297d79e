//! The storage of a namespace's blocks.

use bpfof_device::{FileError, Lock, MemoryNamespace, NvmeDrive, Volume};
use std::io;
use std::sync::Arc;

/// The storage of a namespace's blocks: an Arc, so that a renumbered namespace keeps its storage.
///
/// The [`Executor`](crate::executor::Executor) reads and writes it: memory by operations of its own, volumes and drives
/// by operations of the reactor's rings.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Memory(Arc<MemoryNamespace>),
    Volume(Arc<Volume>),
    Drive(Arc<NvmeDrive>),
}

impl Backend {
    /// The memory, if it is memory.
    #[inline]
    pub(crate) fn memory(&self) -> Option<&Arc<MemoryNamespace>> {
        match self {
            Backend::Memory(memory) => Some(memory),
            Backend::Volume(_) | Backend::Drive(_) => None,
        }
    }

    /// The files, if it is in files.
    pub(crate) fn volume(&self) -> Option<&Volume> {
        match self {
            Backend::Memory(_) | Backend::Drive(_) => None,
            Backend::Volume(volume) => Some(volume),
        }
    }

    /// Changes the lock of its files. A drive stays claimed, whatever `how` says.
    pub(crate) fn lock(&self, how: Lock) -> io::Result<()> {
        match self {
            Backend::Memory(memory) => memory.lock(how),
            Backend::Volume(volume) => volume.lock(how).map_err(io::Error::other),
            Backend::Drive(_) => Ok(()),
        }
    }

    /// Its size when it was opened, in bytes.
    pub(crate) fn size_bytes(&self) -> u64 {
        match self {
            Backend::Memory(memory) => memory.size_bytes(),
            Backend::Volume(volume) => volume.size_bytes(),
            Backend::Drive(drive) => drive.size_bytes(),
        }
    }

    /// Bytes of the process's memory that it takes.
    pub(crate) fn process_bytes(&self) -> u64 {
        self.memory().map_or(0, |memory| memory.size_bytes())
    }

    /// The unit of chains' reads, in bytes: a logical block of `block_bytes`. Memory has no blocks and a smaller unit,
    /// so that less is read that the function has not asked for.
    #[inline]
    pub(crate) fn unit_bytes(&self, block_bytes: u32) -> u32 {
        match self {
            Backend::Memory(_) => MemoryNamespace::UNIT_BYTES,
            Backend::Volume(_) | Backend::Drive(_) => block_bytes,
        }
    }

    /// Whether ranges can be zeroed without a transfer of data.
    pub(crate) fn writes_zeroes(&self) -> bool {
        match self {
            Backend::Memory(_) => true,
            Backend::Volume(volume) => volume.punches_holes(),
            Backend::Drive(drive) => drive.writes_zeroes(),
        }
    }

    /// Whether zeroing a range can give its blocks back.
    pub(crate) fn deallocates(&self) -> bool {
        match self {
            Backend::Memory(_) => true,
            Backend::Volume(volume) => volume.gives_back(),
            Backend::Drive(drive) => drive.deallocates(),
        }
    }

    /// Whether acknowledged writes may be in a cache that a Flush empties.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        match self {
            Backend::Memory(_) => false,
            Backend::Volume(_) => true,
            Backend::Drive(drive) => drive.has_volatile_cache(),
        }
    }

    /// Its new size in bytes: with each of its files at `file_bytes`, if given, for which they may grow; of a drive its
    /// current size; none for memory, whose size cannot change.
    pub(crate) fn settle_size(&self, file_bytes: Option<u64>) -> Result<Option<u64>, FileError> {
        match self {
            Backend::Memory(_) => Ok(None),
            Backend::Volume(volume) => volume.settle_size(file_bytes).map(Some),
            Backend::Drive(drive) => drive.measure().map(Some),
        }
    }
}
