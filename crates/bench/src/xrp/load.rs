//! The data that chains read: linked blocks, and a BPF-KV database.

use super::counter::Result;
use bpfkv::create::{Extent, write_database};
use bpfkv::format::FANOUT;
use bpfkv::pushdown::{
    FIRST_READ_BYTES, GET_ANSWER_BYTES, GET_SCRATCH_BYTES, get_answer, get_argument,
};
use bpfkv::{GetCursor, Step, Value};
use fastrand::Rng;
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The number of linked blocks, 2 MiB in total.
const BLOCKS: u64 = 4096;
/// Size of a linked block, and the unit of BPF-KV.
pub(super) const BLOCK_BYTES: u32 = 512;
/// Levels of the database: a get makes 4 reads.
const LEVELS: u32 = 3;

const FOLLOW_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/follow.bpf.o"));

/// The kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Load {
    /// A chain of this many reads of linked blocks.
    Chain(u32),
    /// A BPF-KV get: three nodes and the value.
    Get,
}

impl Load {
    pub(super) const fn reads(self) -> u32 {
        match self {
            Load::Chain(reads) => reads,
            Load::Get => LEVELS + 1,
        }
    }

    pub(super) const fn object(self) -> &'static [u8] {
        match self {
            Load::Chain(_) => FOLLOW_OBJECT,
            Load::Get => bpfkv::GET_OBJECT,
        }
    }

    /// Bytes of scratch, and of the longest answer.
    pub(super) const fn sizes(self) -> (u32, u32) {
        match self {
            Load::Chain(_) => (8, 8),
            Load::Get => (GET_SCRATCH_BYTES, GET_ANSWER_BYTES as u32),
        }
    }

    /// The name of the file in its folder.
    pub(super) const fn file_name(self) -> &'static str {
        match self {
            Load::Chain(_) => "linked-blocks",
            Load::Get => "database",
        }
    }
}

/// Writes both files.
pub(super) fn write(folder: &Path) -> Result<Links> {
    let links = Links::shuffled();
    let mut file = std::fs::File::create_new(folder.join(Load::Chain(1).file_name()))?;
    file.write_all(&links.blocks())?;
    file.sync_all()?;
    let path = folder.join(Load::Get.file_name());
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let extent = Extent::full(LEVELS)?.with_numbers();
    let mut sink = |offset, bytes: &[u8]| file.write_all_at(bytes, offset);
    write_database(&extent, &mut sink, &mut |_, _| ControlFlow::Continue(()))?;
    file.sync_all()?;
    Ok(links)
}

/// The linked blocks: one cycle through all of them.
#[derive(Debug)]
pub(super) struct Links {
    /// Numbers of blocks in the order of the cycle.
    order: Vec<u64>,
}

impl Links {
    fn shuffled() -> Links {
        let mut order: Vec<u64> = (0..BLOCKS).collect();
        Rng::with_seed(0).shuffle(&mut order);
        Links { order }
    }

    fn at(&self, place: u64) -> u64 {
        self.order[(place % BLOCKS) as usize]
    }

    fn blocks(&self) -> Vec<u8> {
        let mut bytes = vec![0; (BLOCKS * u64::from(BLOCK_BYTES)) as usize];
        for place in 0..BLOCKS {
            let (number, next) = (self.at(place), self.at(place + 1));
            let block = &mut bytes[(number * u64::from(BLOCK_BYTES)) as usize..];
            block[..8].copy_from_slice(&(next * u64::from(BLOCK_BYTES)).to_le_bytes());
            block[8..16].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }
}

/// One operation: its query, and the progress of a process that makes the reads itself.
#[derive(Debug)]
pub(super) struct Operation {
    load: Load,
    /// The key, or the place in the cycle.
    wanted: u64,
    cursor: GetCursor,
    /// For linked blocks: the next read, the reads left, the number found.
    walk: (u64, u32, u64),
}

impl Operation {
    pub(super) fn new(load: Load) -> Operation {
        Operation { load, wanted: 0, cursor: GetCursor::new(), walk: (0, 0, 0) }
    }

    /// Begins another random operation; returns the argument of its function. The first read is at
    /// [`first`](Self::first).
    pub(super) fn begin(&mut self, random: &mut Rng, links: &Links) -> [u8; 8] {
        match self.load {
            Load::Chain(reads) => {
                self.wanted = random.u64(..BLOCKS);
                self.walk = (links.at(self.wanted) * u64::from(BLOCK_BYTES), reads, 0);
                u64::from(reads).to_le_bytes()
            }
            Load::Get => {
                self.wanted = random.u64(..(FANOUT as u64).pow(LEVELS));
                self.cursor.reset(self.wanted, 0);
                get_argument(self.wanted).unwrap_or_default()
            }
        }
    }

    /// Offset and size of the first read, in bytes.
    pub(super) const fn first(&self) -> (u64, u32) {
        match self.load {
            Load::Chain(_) => (self.walk.0, BLOCK_BYTES),
            Load::Get => (0, FIRST_READ_BYTES),
        }
    }

    /// The next read; None when the answer is complete.
    pub(super) fn read(&mut self) -> Option<(u64, u32)> {
        match self.load {
            Load::Chain(_) => (self.walk.1 > 0).then_some((self.walk.0, BLOCK_BYTES)),
            Load::Get => match self.cursor.step() {
                Step::Read(reads) => Some((reads[0].offset_bytes, reads[0].length_bytes)),
                Step::Done(_) => None,
            },
        }
    }

    /// Continues with the bytes of a read.
    pub(super) fn feed(&mut self, data: &[u8]) -> Result<()> {
        let word = |at: usize| data.get(at..at + 8).and_then(|word| word.try_into().ok());
        match (self.load, word(0).zip(word(8))) {
            (Load::Get, _) => self.cursor.feed(0, data)?,
            (Load::Chain(_), Some((next, number))) => {
                self.walk = (u64::from_le_bytes(next), self.walk.1 - 1, u64::from_le_bytes(number));
            }
            (Load::Chain(_), None) => return Err("a short block".into()),
        }
        Ok(())
    }

    /// Whether the process that makes the reads itself has found the right answer.
    pub(super) fn is_right(&mut self, links: &Links) -> bool {
        match self.load {
            Load::Chain(reads) => self.walk.2 == links.at(self.wanted + u64::from(reads) - 1),
            Load::Get => match self.cursor.step() {
                Step::Done(Some(value)) => is_value(value, self.wanted),
                _ => false,
            },
        }
    }

    /// Whether a function's answer is right.
    pub(super) fn is_answer(&self, answer: &[u8], links: &Links) -> bool {
        match self.load {
            Load::Chain(reads) => {
                answer == links.at(self.wanted + u64::from(reads) - 1).to_le_bytes()
            }
            Load::Get => {
                matches!(get_answer(answer), Ok(Some(value)) if is_value(value, self.wanted))
            }
        }
    }
}

/// Compares only the number at the beginning: more would distort the measurement.
fn is_value(value: &Value, key: u64) -> bool {
    value[..8] == key.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_one_cycle() {
        let links = Links::shuffled();
        let blocks = links.blocks();
        let mut operation = Operation::new(Load::Chain(5));
        operation.begin(&mut Rng::with_seed(7), &links);
        while let Some((offset, bytes)) = operation.read() {
            let block = &blocks[offset as usize..][..bytes as usize];
            operation.feed(block).expect("a block");
        }
        assert!(operation.is_right(&links));
        let mut sorted = links.order;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..BLOCKS));
    }
}
