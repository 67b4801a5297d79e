//! The files of the race: sorted tables whose values contain their file, key and generation.

use bpfof_sorted::{Root, Shape, TableWriter};
use std::path::{Path, PathBuf};

/// Files whose contents change: rewritten, truncated, punched, appended to.
pub(crate) const CHANGED: u64 = 32;
/// Files that are replaced by others of the same name, or deleted and made again.
pub(crate) const REPLACED: u64 = 24;
/// Keys of one file, which begin at `file * KEYS`.
pub(crate) const KEYS: u64 = 600;
/// The file number in values of fake tables, which fill free blocks.
pub(crate) const POISON: u64 = 0xDEAD;

const VALUE_BYTES: usize = 80;

/// The contents of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) file: u64,
    pub(crate) key: u64,
    pub(crate) generation: u64,
}

impl Value {
    fn encode(self) -> Vec<u8> {
        let words = [self.file, self.key, self.generation];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        // The filler reveals torn values, and is never 0 as in unwritten blocks.
        let filler = (self.file ^ self.key ^ self.generation) as u8 ^ 0x5A;
        bytes.resize(VALUE_BYTES, filler);
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Value> {
        let words = bytes.as_chunks::<8>().0;
        let word = |at: usize| words.get(at).map(|word| u64::from_le_bytes(*word));
        let value = Value { file: word(0)?, key: word(1)?, generation: word(2)? };
        (value.encode() == bytes).then_some(value)
    }
}

/// Table `file` of a generation, with values that name the file `says`.
pub(crate) fn table_of(file: u64, generation: u64, says: u64) -> (Vec<u8>, Root) {
    let mut writer = TableWriter::new(Shape { data_block_bytes: 1500, fanout: 8 });
    for key in file * KEYS..(file + 1) * KEYS {
        let value = Value { file: says, key, generation };
        writer.add(key, Some(&value.encode())).expect("in order");
    }
    writer.finish()
}

pub(crate) fn table(file: u64, generation: u64) -> Vec<u8> {
    table_of(file, generation, file).0
}

/// All generations of a file have the same shape.
pub(crate) fn root(file: u64) -> Root {
    table_of(file, 0, file).1
}

pub(crate) fn path(mount: &Path, file: u64) -> PathBuf {
    mount.join(format!("file-{file}"))
}

/// The generation of the first value in a file's bytes.
pub(crate) fn generation_of(bytes: &[u8]) -> Option<u64> {
    let first_value = bytes.get(16..20)?.first_chunk().map(|at| u32::from_le_bytes(*at))? as usize;
    Value::parse(bytes.get(first_value..first_value + VALUE_BYTES)?).map(|value| value.generation)
}
