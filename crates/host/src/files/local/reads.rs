//! The ring of the local executor, which reads into arenas.
#![allow(unsafe_code)]

use super::CHAINS;
use super::files::Files;
use bpfof_chain::{ChainId, DeviceRead, Engine};
use bpfof_device::{Ring, RingError};
use bpfof_function::abi::MAX_HOP_BYTES;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Reads that one call into the kernel takes. More wait for the next.
const RING_ENTRIES: u32 = 512;
/// Files that are registered. Further ones are read by their descriptors.
const REGISTERED_FILES: u32 = 1024;

/// Reads of chains, in flight. The arenas must outlive it.
#[derive(Debug)]
pub(super) struct ChainReads {
    ring: Ring,
    /// Whether the ring has tables for files and buffers.
    has_tables: bool,
    /// By chain index, whether its arena is registered; as long as the chains that have read.
    registered: Vec<bool>,
}

impl ChainReads {
    pub(super) fn new() -> Result<Self, RingError> {
        let mut ring = Ring::movable(RING_ENTRIES)?;
        let has_tables = ring.make_tables(REGISTERED_FILES, CHAINS as u32).is_ok();
        Ok(Self { ring, has_tables, registered: Vec::new() })
    }

    /// Fills or empties a slot of the file table; whether the file is registered now.
    pub(super) fn register(&mut self, slot: usize, fd: Option<RawFd>) -> bool {
        let slot = u32::try_from(slot).ok().filter(|slot| *slot < REGISTERED_FILES);
        self.has_tables && slot.is_some_and(|slot| self.ring.set_file(slot, fd).is_ok())
    }

    /// Hands a read that `engine` has emitted to the ring.
    pub(super) fn submit(&mut self, engine: &mut Engine, read: &DeviceRead, files: &Files) {
        let (file, offset, expected) = files.place(read.device_offset, read.length);
        if expected < read.length {
            // The file ends in this block, and the kernel writes nothing behind it.
            let tail = expected as usize..;
            engine.data_mut(read)[tail].fill(0);
        }
        let buffer = self.buffer(engine, read.chain);
        let token = (read.chain.index() as u64) << 32 | u64::from(expected);
        let to = (engine.data_ptr(read), read.length);
        // SAFETY: the arena stays where it is and belongs to this read until it is reported (the
        // engine asserts that on release), and `Local` drops it after the ring, which waits for
        // the kernel.
        unsafe { self.ring.read_registered(file, buffer, to, offset, token) }
    }

    /// The slot of the chain's data area in the buffer table. It is registered when it is first
    /// used; without the right to lock so much memory reads do without.
    fn buffer(&mut self, engine: &mut Engine, chain: ChainId) -> Option<u16> {
        let index = chain.index();
        while self.registered.len() <= index {
            let slot = self.registered.len();
            let chain = ChainId::from_index(slot);
            let data =
                engine.data_ptr(&DeviceRead { chain, device_offset: 0, length: 0, data_at: 0 });
            // SAFETY: the data area has MAX_HOP_BYTES, and the engine keeps its arenas until it is
            // dropped, after the ring.
            let outcome = unsafe { self.ring.set_buffer(slot as u32, data, MAX_HOP_BYTES) };
            self.registered.push(self.has_tables && outcome.is_ok());
        }
        self.registered[index].then_some(index as u16)
    }

    /// One call into the kernel: submits, and waits for a completion.
    pub(super) fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        if self.ring.has_news() {
            return self.ring.submit(None);
        }
        self.ring.submit(Some(timeout))
    }

    /// Takes a completion: its chain, and whether all bytes were read that the file was believed to
    /// have there.
    pub(super) fn completed(&mut self) -> Option<(ChainId, bool)> {
        let completion = self.ring.completion()?;
        let chain = ChainId::from_index((completion.token >> 32) as usize);
        let expected = completion.token as u32;
        Some((chain, u32::try_from(completion.result).is_ok_and(|read| read >= expected)))
    }
}
