//! The rings of the local executors, which read straight into arenas.
#![allow(unsafe_code)]

use super::chains::{CHAINS, Reads};
use super::files::Files;
use super::namespace::Namespace;
use bpfof_chain::{ChainId, DeviceRead, Engine, Tables};
use bpfof_device::{NvmeDevice, NvmeRead, NvmeRing, Ring, RingError, RingFile};
use bpfof_function::abi::MAX_HOP_BYTES;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Most reads that one call into the kernel submits. Further reads wait for the next call.
const RING_ENTRIES: u32 = 512;
/// Most files that are registered. Further files are read by their descriptors.
const REGISTERED_FILES: u32 = 1024;

/// Which arenas are registered with a ring.
#[derive(Debug, Default)]
struct Arenas {
    /// By chain index; grows with the highest index that has read.
    registered: Vec<bool>,
}

impl Arenas {
    /// The slot of the chain's data area in the ring's buffer table. `set_buffer` registers it at
    /// its first use. None if that failed, for example because the process may not lock so much
    /// memory.
    fn slot(
        &mut self,
        engine: &mut Engine,
        chain: ChainId,
        mut set_buffer: impl FnMut(u32, *mut u8) -> io::Result<()>,
    ) -> Option<u16> {
        let index = chain.index();
        while self.registered.len() <= index {
            let slot = self.registered.len();
            let chain = ChainId::from_index(slot);
            let start = DeviceRead { chain, device_offset: 0, length: 0, data_at: 0 };
            let outcome = set_buffer(slot as u32, engine.data_ptr(&start));
            self.registered.push(outcome.is_ok());
        }
        self.registered[index].then_some(index as u16)
    }
}

/// Direct reads of files in flight. The arenas must outlive it.
#[derive(Debug)]
pub(super) struct FileReads {
    ring: Ring,
    /// Whether the ring has tables for files and buffers.
    has_tables: bool,
    arenas: Arenas,
}

impl FileReads {
    pub(super) fn new() -> Result<Self, RingError> {
        let mut ring = Ring::movable(RING_ENTRIES)?;
        let has_tables = ring.make_tables(REGISTERED_FILES, CHAINS as u32).is_ok();
        Ok(Self { ring, has_tables, arenas: Arenas::default() })
    }

    /// Sets or clears a slot of the file table. Returns whether a file is registered in it now.
    pub(super) fn register(&mut self, slot: usize, fd: Option<RawFd>) -> bool {
        let slot = u32::try_from(slot).ok().filter(|slot| *slot < REGISTERED_FILES);
        self.has_tables && slot.is_some_and(|slot| self.ring.set_file(slot, fd).is_ok())
    }
}

impl Reads for FileReads {
    type Files = Files;

    fn tables(files: &Files) -> &Tables {
        files.tables()
    }

    fn submit(&mut self, engine: &mut Engine, read: &DeviceRead, files: &Files) {
        let (file, offset, expected) = files.place(read.device_offset, read.length);
        if expected < read.length {
            // The file ends within this read, and the kernel writes nothing beyond the end. No read
            // of the hop has been submitted yet, so the kernel does not write to the arena now.
            let tail = expected as usize..;
            engine.data_mut(read)[tail].fill(0);
        }
        let Self { ring, arenas, .. } = self;
        let buffer = arenas.slot(engine, read.chain, |slot, data| {
            // SAFETY: the data area has MAX_HOP_BYTES, and the engine keeps its arenas until it is
            // dropped, after the ring.
            unsafe { ring.set_buffer(slot, data, MAX_HOP_BYTES) }
        });
        let token = (read.chain.index() as u64) << 32 | u64::from(expected);
        let to = (engine.data_ptr(read), read.length);
        // SAFETY: the arena stays where it is and belongs to this read until it is reported (the
        // engine asserts that on release), and `Chains` drops it after the ring, which waits for
        // the kernel.
        unsafe { ring.read_registered(file, buffer, to, offset, token) }
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let timeout = (!self.ring.has_completions()).then_some(timeout);
        self.ring.submit(timeout)
    }

    /// Whether the read returned as many bytes as the file's known length promised.
    fn completed(&mut self) -> Option<(ChainId, bool)> {
        let completion = self.ring.completion()?;
        let chain = ChainId::from_index((completion.token >> 32) as usize);
        let expected = completion.token as u32;
        Some((chain, u32::try_from(completion.result).is_ok_and(|read| read >= expected)))
    }
}

/// Reads of a namespace through its character device in flight. The arenas must outlive it.
#[derive(Debug)]
pub(super) struct NamespaceReads {
    ring: NvmeRing,
    device: Arc<NvmeDevice>,
    file: RingFile,
    /// log2 of the logical block size in bytes.
    block_shift: u32,
    arenas: Arenas,
}

impl NamespaceReads {
    pub(super) fn new(device: Arc<NvmeDevice>, block_bytes: u32) -> Result<Self, RingError> {
        let mut ring = NvmeRing::movable(RING_ENTRIES)?;
        let fd = device.file().as_raw_fd();
        let tables = ring.make_tables(1, CHAINS as u32);
        let file = match tables.and_then(|()| ring.set_file(0, Some(fd))) {
            Ok(()) => RingFile::Registered(0),
            Err(_) => RingFile::Descriptor(fd),
        };
        let block_shift = block_bytes.trailing_zeros();
        Ok(Self { ring, device, file, block_shift, arenas: Arenas::default() })
    }
}

impl Reads for NamespaceReads {
    type Files = Namespace;

    fn tables(files: &Namespace) -> &Tables {
        files.tables()
    }

    fn submit(&mut self, engine: &mut Engine, read: &DeviceRead, _: &Namespace) {
        let Self { ring, arenas, .. } = self;
        let buffer = arenas.slot(engine, read.chain, |slot, data| {
            // SAFETY: as for files.
            unsafe { ring.set_buffer(slot, data, MAX_HOP_BYTES) }
        });
        // The engine reads whole blocks.
        let blocks = NvmeRead {
            nsid: self.device.nsid(),
            first_block: read.device_offset >> self.block_shift,
            blocks: read.length >> self.block_shift,
        };
        let to = (engine.data_ptr(read), read.length);
        let token = read.chain.index() as u64;
        // SAFETY: as for files; and the blocks are as long as the read.
        unsafe { ring.read_blocks(self.file, blocks, buffer, to, token) }
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let timeout = (!self.ring.has_completions()).then_some(timeout);
        self.ring.submit(timeout)
    }

    fn completed(&mut self) -> Option<(ChainId, bool)> {
        let completion = self.ring.completion()?;
        if completion.result != 0 {
            log::debug!(
                "a read through the namespace's character device failed: {}",
                completion.result
            );
        }
        Some((ChainId::from_index(completion.token as usize), completion.result == 0))
    }
}
