//! Writes a database from front to back, in constant memory, in chunks that suit direct I/O.

use crate::format::{
    BLOCK_BYTES, BadLevels, FANOUT, Layout, NODE_BYTES, POINTER_ON_DISK, VALUE_BYTES,
    VALUES_PER_BLOCK, Value, value_text, write_node,
};
use std::io;
use std::ops::ControlFlow;

/// Size in bytes, and alignment in the file, of a sink's chunks; the first and the last of a run
/// may be shorter, in whole blocks. 1 MiB fills the queue of any device.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Takes a chunk and the file offset, in bytes, where it belongs.
pub type Sink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> io::Result<()>;

/// Called after each chunk with the written bytes and the total; may stop the creation.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// Which part of a database to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    layout: Layout,
    subtrees: u64,
    has_numbers: bool,
}

/// An impossible [`Extent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtentError {
    /// The number of levels is out of range.
    #[error(transparent)]
    Levels(#[from] BadLevels),
    /// The root does not have that many subtrees.
    #[error("a part of a BPF-KV database is 1 to {FANOUT} subtrees of the root, not {0}")]
    Subtrees(u32),
    /// The root is a leaf.
    #[error("a BPF-KV database of one level has no subtrees to create it in part")]
    OneLevel,
}

/// Why a database was not written.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The sink failed.
    #[error("writing the database at byte {offset_bytes}: {source}")]
    Sink {
        /// Offset of the chunk that could not be written, in bytes.
        offset_bytes: u64,
        /// The sink's error.
        source: io::Error,
    },
    /// The progress callback stopped the creation.
    #[error("the creation of the database was stopped")]
    Stopped,
}

impl Extent {
    /// A whole database of `levels` levels, with text for values as the original tool writes it.
    ///
    /// # Errors
    /// [`BadLevels`].
    pub fn full(levels: u32) -> Result<Extent, BadLevels> {
        Ok(Extent { layout: Layout::new(levels)?, subtrees: FANOUT as u64, has_numbers: false })
    }

    /// The root, its first `subtrees` children with all nodes below them, and their values, each at
    /// its place in the whole database. The rest of the file is a hole: keys there are reported as
    /// corruption, because the nodes that lead into it are zeroes. These zeroes are written,
    /// because an older database may be there.
    ///
    /// # Errors
    /// [`ExtentError`].
    pub fn part(levels: u32, subtrees: u32) -> Result<Extent, ExtentError> {
        let layout = Layout::new(levels)?;
        if !(1..=FANOUT as u32).contains(&subtrees) {
            return Err(ExtentError::Subtrees(subtrees));
        }
        if levels == 1 && subtrees < FANOUT as u32 {
            return Err(ExtentError::OneLevel);
        }
        Ok(Extent { layout, subtrees: u64::from(subtrees), has_numbers: false })
    }

    /// The same with values that begin with their number, for aggregates
    /// ([`value_number`](crate::format::value_number)).
    #[must_use]
    pub fn with_numbers(self) -> Extent {
        Extent { has_numbers: true, ..self }
    }

    /// The layout of the whole database. The file must have its size, even if only a part is
    /// written.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Number of keys that can be read: 0 .. keys.
    pub fn keys(&self) -> u64 {
        self.subtrees * self.layout.keys_below(1)
    }

    /// Bytes that are written.
    pub fn written_bytes(&self) -> u64 {
        let nodes = |level| self.nodes(level) + self.blank_nodes(level);
        let nodes: u64 = (0..self.layout.levels()).map(nodes).sum();
        (nodes + self.log_blocks()) * BLOCK_BYTES
    }

    fn nodes(&self, level: u32) -> u64 {
        if level == 0 { 1 } else { self.subtrees * self.layout.nodes_in_level(level - 1) }
    }

    /// Nodes after the written ones of a level to which written nodes point: the root, and the last
    /// leaf.
    fn blank_nodes(&self, level: u32) -> u64 {
        let missing = FANOUT as u64 - self.subtrees;
        match level {
            1 => missing,
            _ if level + 1 == self.layout.levels() => missing.min(1),
            _ => 0,
        }
    }

    /// The last block is written as a whole, as in the whole database.
    fn log_blocks(&self) -> u64 {
        self.keys().div_ceil(VALUES_PER_BLOCK)
    }
}

/// Writes a database into `sink`: the nodes level by level, then the log, at ascending offsets.
///
/// # Errors
/// [`CreateError`].
pub fn write_database(
    extent: &Extent,
    sink: Sink<'_>,
    progress: Progress<'_>,
) -> Result<(), CreateError> {
    let mut writer = Writer {
        sink,
        progress,
        chunk: vec![0; CHUNK_BYTES].into_boxed_slice(),
        offset_bytes: 0,
        used_bytes: 0,
        written_bytes: 0,
        total_bytes: extent.written_bytes(),
    };
    for level in 0..extent.layout.levels() {
        write_level(extent, level, &mut writer)?;
    }
    write_log(extent, &mut writer)
}

fn write_level(extent: &Extent, level: u32, writer: &mut Writer<'_>) -> Result<(), CreateError> {
    let layout = &extent.layout;
    let leaf = level + 1 == layout.levels();
    let keys_below_node = layout.keys_below(level);
    let keys_below_slot = keys_below_node / FANOUT as u64;
    // Children and values are numbered in order: those of the next node continue here.
    let (mut target, target_bytes) = if leaf {
        (layout.log_offset_bytes(), VALUE_BYTES as u64)
    } else {
        (layout.node_offset_bytes(level + 1, 0), NODE_BYTES as u64)
    };
    let last = layout.nodes_in_level(level) - 1;
    writer.run_at(layout.node_offset_bytes(level, 0))?;
    for index in 0..extent.nodes(level) {
        let next = if index == last { 0 } else { layout.node_offset_bytes(level, index + 1) };
        let key = |slot| index * keys_below_node + slot * keys_below_slot;
        let pointer = |slot| (target + slot * target_bytes) | POINTER_ON_DISK;
        write_node(writer.block(), next, leaf, key, pointer);
        writer.advance()?;
        target += FANOUT as u64 * target_bytes;
    }
    for _ in 0..extent.blank_nodes(level) {
        writer.block().fill(0);
        writer.advance()?;
    }
    writer.flush()
}

fn write_log(extent: &Extent, writer: &mut Writer<'_>) -> Result<(), CreateError> {
    let (mut text, mut number) = (value_text(0), 0_u64);
    writer.run_at(extent.layout.log_offset_bytes())?;
    for _ in 0..extent.log_blocks() {
        for value in writer.block().as_chunks_mut::<VALUE_BYTES>().0 {
            *value = text;
            if extent.has_numbers {
                value[..8].copy_from_slice(&number.to_le_bytes());
            }
            increment(&mut text);
            number += 1;
        }
        writer.advance()?;
    }
    writer.flush()
}

/// Adds 1 to the number in a value's text.
fn increment(text: &mut Value) {
    for digit in text[..VALUE_BYTES - 1].iter_mut().rev() {
        match *digit {
            b'9' => *digit = b'0',
            b' ' => {
                *digit = b'1';
                return;
            }
            _ => {
                *digit += 1;
                return;
            }
        }
    }
}

/// Gathers blocks into chunks.
struct Writer<'a> {
    sink: Sink<'a>,
    progress: Progress<'a>,
    chunk: Box<[u8]>,
    /// File offset of the chunk.
    offset_bytes: u64,
    used_bytes: usize,
    written_bytes: u64,
    total_bytes: u64,
}

impl Writer<'_> {
    /// Starts a run of blocks, unless it continues the last one.
    fn run_at(&mut self, offset_bytes: u64) -> Result<(), CreateError> {
        if self.offset_bytes + self.used_bytes as u64 != offset_bytes {
            self.flush()?;
            self.offset_bytes = offset_bytes;
        }
        Ok(())
    }

    /// The block to write next.
    fn block(&mut self) -> &mut [u8; NODE_BYTES] {
        self.chunk[self.used_bytes..]
            .first_chunk_mut()
            .expect("a full chunk is flushed, and chunks are whole blocks")
    }

    /// Ends the block.
    fn advance(&mut self) -> Result<(), CreateError> {
        self.used_bytes += NODE_BYTES;
        let end_bytes = self.offset_bytes + self.used_bytes as u64;
        if end_bytes.is_multiple_of(CHUNK_BYTES as u64) { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), CreateError> {
        if self.used_bytes == 0 {
            return Ok(());
        }
        (self.sink)(self.offset_bytes, &self.chunk[..self.used_bytes])
            .map_err(|source| CreateError::Sink { offset_bytes: self.offset_bytes, source })?;
        self.offset_bytes += self.used_bytes as u64;
        self.written_bytes += self.used_bytes as u64;
        self.used_bytes = 0;
        match (self.progress)(self.written_bytes, self.total_bytes) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(CreateError::Stopped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::value_number;

    #[test]
    fn increment_counts() {
        let mut text = value_text(0);
        for number in 1..12_345 {
            increment(&mut text);
            assert_eq!(text, value_text(number));
        }
    }

    #[test]
    fn databases_of_numbers_have_them() {
        let extent = Extent::full(2).unwrap().with_numbers();
        let mut file = vec![0; extent.layout().file_bytes() as usize];
        let mut sink = |offset: u64, bytes: &[u8]| {
            file[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        };
        write_database(&extent, &mut sink, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let log = &file[extent.layout().log_offset_bytes() as usize..];
        let values = log.as_chunks::<VALUE_BYTES>().0.iter().zip(0..extent.keys());
        for (value, key) in values {
            assert_eq!(*value, value_number(key));
        }
    }

    #[test]
    fn chunks_ascend_and_progress_ends_at_the_total() {
        for extent in [Extent::full(4).unwrap(), Extent::part(4, 3).unwrap()] {
            let (mut end, mut told, mut total_told) = (0, 0, 0);
            let mut chunks = 0;
            write_database(
                &extent,
                &mut |offset, bytes| {
                    assert!(offset >= end && bytes.len() <= CHUNK_BYTES);
                    end = offset + bytes.len() as u64;
                    chunks += 1;
                    Ok(())
                },
                &mut |done, total| {
                    assert!(done > told && done <= total);
                    (told, total_told) = (done, total);
                    ControlFlow::Continue(())
                },
            )
            .unwrap();
            assert_eq!((told, total_told), (extent.written_bytes(), extent.written_bytes()));
            assert!(chunks <= told / CHUNK_BYTES as u64 + 2 * 5);
        }
        let full = Extent::full(4).unwrap();
        assert_eq!(full.written_bytes(), full.layout().file_bytes());
        assert_eq!(full, Extent::part(4, 31).unwrap());
    }

    #[test]
    fn refusals_are_typed() {
        assert_eq!(Extent::full(0), Err(BadLevels(0)));
        assert_eq!(Extent::part(3, 0), Err(ExtentError::Subtrees(0)));
        assert_eq!(Extent::part(3, 32), Err(ExtentError::Subtrees(32)));
        assert_eq!(Extent::part(1, 5), Err(ExtentError::OneLevel));
        let extent = Extent::full(2).unwrap();
        let stopped =
            write_database(&extent, &mut |_, _| Ok(()), &mut |_, _| ControlFlow::Break(()));
        assert!(matches!(stopped, Err(CreateError::Stopped)));
        let mut full = |_, _: &[u8]| Err(io::ErrorKind::StorageFull.into());
        let failed = write_database(&extent, &mut full, &mut |_, _| ControlFlow::Continue(()));
        assert!(matches!(failed, Err(CreateError::Sink { offset_bytes: 0, .. })));
    }
}
