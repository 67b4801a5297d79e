//! Disks with a volatile write cache.
//!
//! An operation accesses its blocks one by one, in any order, each at its own moment between
//! submission and completion. Written blocks are in the cache. A flush that completes makes durable
//! what was in the cache when it was submitted; Force Unit Access makes its own write durable.
//! After a power loss each block has any version since its durable one: single blocks are never
//! torn, writes of several blocks may be.

use super::Plant;
use super::random::Random;
use bpfof_chain::DeviceRead;
use bpfof_device::IoBuffer;
use std::rc::Rc;

/// A disk, identified by its namespace's number.
#[derive(Debug)]
pub(super) struct Disk {
    block_bytes: usize,
    blocks: Vec<Block>,
    /// Number of blocks written so far.
    serial: u64,
    plant: Option<Plant>,
}

#[derive(Debug)]
struct Block {
    durable: Rc<[u8]>,
    /// Newer versions, each with the disk's serial number; reads return the last one.
    cached: Vec<(u64, Rc<[u8]>)>,
}

/// The kind of operation.
#[derive(Debug)]
pub(super) enum Action {
    Read,
    /// A read for a chain.
    ChainRead(DeviceRead),
    Write {
        fua: bool,
    },
    Zero,
    /// Makes everything written up to this serial number durable.
    Sync {
        upto: u64,
    },
}

/// An operation in flight.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) disk: usize,
    pub(super) action: Action,
    /// The data read or written.
    pub(super) data: Data,
    /// Blocks not yet accessed: position in the data, and block.
    left: Vec<(usize, usize)>,
    /// Blocks written, with their serial numbers.
    written: Vec<(usize, u64)>,
}

/// Memory of an operation; that of a chain may be gone before the operation ends.
#[derive(Debug)]
pub(super) enum Data {
    Buffer(IoBuffer),
    Copy(Vec<u8>),
    None,
}

impl Data {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Data::Buffer(buffer) => buffer,
            Data::Copy(bytes) => bytes,
            Data::None => &mut [],
        }
    }
}

impl Disk {
    pub(super) fn new(block_bytes: usize, blocks: usize, plant: Option<Plant>) -> Disk {
        let zeroes: Rc<[u8]> = vec![0; block_bytes].into();
        let block = || Block { durable: Rc::clone(&zeroes), cached: Vec::new() };
        let blocks = std::iter::repeat_with(block).take(blocks).collect();
        Disk { block_bytes, blocks, serial: 0, plant }
    }

    /// Creates an operation on `length` bytes at `offset`.
    pub(super) fn submit(
        &self,
        disk: usize,
        (offset, length): (u64, u64),
        mut action: Action,
        data: Data,
        random: &mut Random,
    ) -> Operation {
        assert_eq!((offset | length) % self.block_bytes as u64, 0, "whole blocks");
        let (first, count) =
            (offset as usize / self.block_bytes, length as usize / self.block_bytes);
        let mut left: Vec<_> = (0..count).map(|at| (at * self.block_bytes, first + at)).collect();
        random.shuffle(&mut left);
        if let Action::Sync { upto } = &mut action {
            *upto = self.serial;
        }
        Operation { disk, action, data, left, written: Vec::new() }
    }

    /// Accesses some blocks; true once none is left.
    pub(super) fn step(&mut self, operation: &mut Operation, random: &mut Random) -> bool {
        let count = if random.one_in(2) { operation.left.len() } else { 1 };
        for _ in 0..count.min(operation.left.len()) {
            if let Some((at, block)) = operation.left.pop() {
                self.touch(operation, at, block, random);
            }
        }
        operation.left.is_empty()
    }

    fn touch(&mut self, operation: &mut Operation, at: usize, index: usize, random: &mut Random) {
        let block_bytes = self.block_bytes;
        let count = self.blocks.len();
        let block = &mut self.blocks[index];
        match operation.action {
            Action::Read | Action::ChainRead(_) => {
                let mut from = index;
                if self.plant == Some(Plant::ReadsElsewhere) && random.one_in(200) {
                    from = (index + 1) % count;
                }
                let content = Rc::clone(self.blocks[from].content());
                operation.data.bytes()[at..at + block_bytes].copy_from_slice(&content);
            }
            Action::Write { .. } | Action::Zero => {
                if self.plant == Some(Plant::LosesWrites) && random.one_in(200) {
                    return;
                }
                self.serial += 1;
                let content: Rc<[u8]> = match operation.action {
                    Action::Zero => vec![0; block_bytes].into(),
                    _ => operation.data.bytes()[at..at + block_bytes].into(),
                };
                block.cached.push((self.serial, content));
                operation.written.push((index, self.serial));
            }
            Action::Sync { .. } => {}
        }
    }

    /// Called when the operation is about to complete successfully.
    pub(super) fn complete(&mut self, operation: &Operation) {
        match operation.action {
            Action::Write { fua: true } if self.plant != Some(Plant::IgnoresFua) => {
                for (index, serial) in &operation.written {
                    self.blocks[*index].settle(*serial);
                }
            }
            Action::Sync { upto } if self.plant != Some(Plant::IgnoresFlush) => {
                self.blocks.iter_mut().for_each(|block| block.settle(upto));
            }
            _ => {}
        }
    }

    /// The process that submitted the operation has died: the part in progress may still be done.
    pub(super) fn abandon(&mut self, mut operation: Operation, random: &mut Random) {
        if random.one_in(2) {
            while !self.step(&mut operation, random) {}
        }
    }

    /// The target's process has died, which does not affect a disk.
    pub(super) fn target_died(&mut self) {
        if self.plant == Some(Plant::CacheDiesWithProcess) {
            self.blocks.iter_mut().for_each(|block| block.cached.clear());
        }
    }

    /// The power fails and returns.
    pub(super) fn power_lost(&mut self, random: &mut Random) {
        for block in &mut self.blocks {
            block.cached.truncate(random.index(block.cached.len() + 1));
            let kept = block.cached.pop();
            block.cached.clear();
            let Some((_, mut content)) = kept else { continue };
            if self.plant == Some(Plant::TearsBlocks) {
                let half = self.block_bytes / 2;
                content = [&content[..half], &block.durable[half..]].concat().into();
            }
            block.durable = content;
        }
    }
}

impl Block {
    fn content(&self) -> &Rc<[u8]> {
        self.cached.last().map_or(&self.durable, |(_, content)| content)
    }

    /// Makes the newest version up to this serial number durable.
    fn settle(&mut self, upto: u64) {
        let count = self.cached.iter().take_while(|(serial, _)| *serial <= upto).count();
        if let Some((_, content)) = self.cached.drain(..count).next_back() {
            self.durable = content;
        }
    }
}
