//! The argument of the source stage that describes buffers (`functions/query/columns.h`).

use super::batches::Batches;
use crate::parts::Range;
use crate::plan::ColumnBuffers;
use crate::wire::Writer;
use arrow_schema::DataType;

const PIECES_MAX: usize = 48;
/// Size of the structure before the pieces.
const HEAD_BYTES: usize = 16 + 8 * 16 + 8 + 16 + 12;
/// Maximum bytes that a hop may read, and size of a logical block.
const HOP_MAX_BYTES: u64 = 65_536;
const BLOCK_BYTES: u64 = 4096;
/// With more pieces than this, a hop may not read all of them.
const PIECES_OF_A_HOP: usize = 8;
/// Maximum rows of a batch of the stages: a piece of 8 bytes a row must fit into a hop.
pub(crate) const ROWS_MAX: usize = 7160;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Nothing = 0,
    Valid = 1,
    Numbers = 2,
    Bits = 3,
    Offsets = 4,
    Texts = 5,
}

/// The pieces that the source reads for each column of a program.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// Index of the column in the program, and in the schema.
    plain: Vec<(usize, usize, What)>,
    texts: Vec<(usize, usize)>,
    /// Bits that a row takes in the plain pieces.
    row_bits: u64,
}

impl Pieces {
    /// Makes the pieces of these columns of the schema; `nullable` tells whether values of each may
    /// be missing.
    pub(crate) fn new(known: &[ColumnBuffers], columns: &[usize], nullable: &[bool]) -> Self {
        let mut pieces = Self::default();
        for (place, (index, nullable)) in columns.iter().zip(nullable).enumerate() {
            let (what, bits) = match known[*index].data_type {
                DataType::Boolean => (What::Bits, 1),
                DataType::Utf8 | DataType::LargeUtf8 => (What::Offsets, width(&known[*index]) * 8),
                _ => (What::Numbers, width(&known[*index]) * 8),
            };
            if *nullable {
                pieces.plain.push((place, *index, What::Valid));
                pieces.row_bits += 1;
            }
            pieces.plain.push((place, *index, what));
            pieces.row_bits += u64::from(bits);
            if what == What::Offsets {
                pieces.texts.push((place, *index));
            }
        }
        if columns.is_empty() {
            pieces.plain.push((0, 0, What::Nothing));
        }
        pieces
    }

    /// Number of rows that fit into a hop of this many bytes.
    pub(crate) fn rows_of(&self, bytes: u64) -> u64 {
        (bytes * 8 / self.row_bits.max(1)).max(1)
    }

    /// Number of rows that it is useful to read at a time, at most `rows_max`.
    pub(crate) fn rows_at_a_time(&self, rows_max: usize) -> u32 {
        let pieces = self.plain.len();
        let rows = match pieces {
            ..=PIECES_OF_A_HOP => self.rows_of(HOP_MAX_BYTES - BLOCK_BYTES * pieces as u64),
            _ => u64::MAX,
        };
        rows.min(rows_max as u64) as u32
    }

    /// In which of a program's columns values are missing, in the batches of a range.
    pub(crate) fn missing(&self, batches: &Batches, range: &Range, columns: usize) -> Vec<bool> {
        let mut missing = vec![false; columns];
        for (place, index, _) in self.plain.iter().filter(|(_, _, what)| *what == What::Valid) {
            let mut all = batches.of_range(range);
            missing[*place] = all.any(|batch| batches.place(batch, *index).valid != 0);
        }
        missing
    }

    /// Writes the description of a range, of which the stage reads at most `block` rows at a time.
    pub(crate) fn write(
        &self,
        batches: &Batches,
        range: &Range,
        block: u32,
        missing: &[bool],
        to: &mut Writer,
    ) {
        let start = to.len();
        let all = batches.of_range(range);
        let is_read = |(place, _, what): &&(usize, usize, What)| {
            *what != What::Valid || missing.get(*place) == Some(&true)
        };
        let plain: Vec<_> = self.plain.iter().filter(is_read).collect();
        let batch_bytes = 16 + 8 * (plain.len() + 2 * self.texts.len());
        let batches_at = start + HEAD_BYTES + 2 * PIECES_MAX;
        let batches_at = batches_at.next_multiple_of(8);
        to.u64(range.start).u32(0).u32(self.step(batches, range, block));
        to.skip(8 * 16 + 8 + 16);
        to.u8(0).u8(0).u8((plain.len() + self.texts.len()) as u8).u8(plain.len() as u8);
        to.u16(0).u16(all.len() as u16).u16(batches_at as u16).u16(batch_bytes as u16);
        for (place, _, what) in &plain {
            to.u8(*place as u8).u8(*what as u8);
        }
        for (place, _) in &self.texts {
            to.u8(*place as u8).u8(What::Texts as u8);
        }
        to.skip(batches_at - to.len());
        for at in all {
            let batch = batches.batch(at);
            to.u64(batch.start).u64(batch.end);
            for (_, index, what) in &plain {
                let place = batches.place(at, *index);
                to.u64(match what {
                    What::Nothing => batch.at,
                    What::Valid => place.valid,
                    _ => place.values,
                });
            }
            for (_, index) in &self.texts {
                to.u64(batches.place(at, *index).texts);
            }
            for (_, index) in &self.texts {
                to.u64(batches.place(at, *index).texts_bytes);
            }
        }
    }

    /// Number of rows to begin with: their texts, if of average length, fit into a hop.
    fn step(&self, batches: &Batches, range: &Range, block: u32) -> u32 {
        if self.texts.is_empty() {
            return block;
        }
        let (mut rows, mut bytes) = (0_u64, 0_u64);
        for at in batches.of_range(range) {
            let batch = batches.batch(at);
            rows = rows.saturating_add(batch.end - batch.start);
            for (_, index) in &self.texts {
                bytes = bytes.saturating_add(batches.place(at, *index).texts_bytes);
            }
        }
        let room = HOP_MAX_BYTES.saturating_sub(BLOCK_BYTES * (1 + self.texts.len() as u64));
        let fitting = u128::from(room) * u128::from(rows) / u128::from(bytes.max(1));
        u32::try_from(fitting).unwrap_or(u32::MAX).clamp(1, block)
    }
}

/// Size of a number, or of the offset of a text, in bytes; 0 for bits.
pub(crate) fn width(column: &ColumnBuffers) -> u32 {
    match column.data_type {
        DataType::Boolean => 0,
        DataType::Utf8 => 4,
        DataType::LargeUtf8 => 8,
        ref other => other.primitive_width().unwrap_or(0) as u32,
    }
}
