//! The batches of a part, and its ranges. Rows are numbered from the part's first batch on.

use super::file::{ArrowFile, Block, FileError, Place, read_batch};
use crate::parts::{Part, Range};
use crate::plan::ColumnBuffers;
use std::fs::File;
use std::ops;

/// Maximum rows of a range: columns may have a bit for a row, or none, and a chain's budget of time is limited.
const RANGE_MAX_ROWS: u64 = 4 << 20;
/// Maximum bytes of an argument for the batches of a range. A single batch always fits.
const BATCHES_MAX_BYTES: usize = 2048;

/// A batch that has at least one row of the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The numbers of its rows.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// File offset of a byte of the batch.
    pub(crate) at: u64,
}

/// Batches of a part; empty for files that are not Arrow files.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    /// The columns whose places are known: indices in the schema, ascending.
    columns: Vec<usize>,
    batches: Vec<Batch>,
    /// By batch and column: the column's place.
    places: Vec<Place>,
    /// The rows of the part.
    rows: ops::Range<u64>,
    part_bytes: u64,
    /// Total bytes of the columns in these batches.
    columns_bytes: u64,
}

impl Batches {
    /// Reads the places of these columns in the batches of a part. A row of a batch belongs to the part if its share of
    /// the batch's bytes begins in the part. An error comes with the file offset of the batch, or 0.
    pub(crate) fn read(
        file: &File,
        part: &Part,
        known: &[ColumnBuffers],
        columns: Vec<usize>,
    ) -> Result<Self, (u64, FileError)> {
        let contents = ArrowFile::read(file, part.file_bytes).map_err(|error| (0, error))?;
        if contents.columns != known {
            let what = "its columns have changed since it was examined: run the query again";
            return Err((0, FileError::Contents(what.to_owned())));
        }
        let wanted: Vec<&ColumnBuffers> = columns.iter().map(|index| &known[*index]).collect();
        let mut all = Self {
            columns,
            part_bytes: part.end_bytes.saturating_sub(part.start_bytes),
            ..Self::default()
        };
        let (mut metadata, mut number) = (Vec::new(), 0_u64);
        let (start, end) = (part.start_bytes, part.end_bytes);
        let is_here = |block: &&Block| block.end() > start && block.offset < end;
        for block in contents.blocks.iter().filter(is_here) {
            let mut add = |place| all.places.push(place);
            let rows = read_batch(file, block, &wanted, &mut metadata, &mut add)
                .map_err(|error| (block.offset, error))?;
            let (from, to) = (row_at(block, rows, start), row_at(block, rows, end));
            if from == to {
                all.places.truncate(all.batches.len() * all.columns.len());
                continue;
            }
            if all.batches.is_empty() {
                all.rows.start = from;
            }
            let first = number;
            number = number.saturating_add(rows);
            all.rows.end = first + to;
            all.batches.push(Batch { start: first, end: number, at: block.offset });
        }
        all.columns_bytes = all.bytes_of_columns(&wanted);
        Ok(all)
    }

    fn bytes_of_columns(&self, wanted: &[&ColumnBuffers]) -> u64 {
        let of = |(batch, places): (&Batch, &[Place])| -> u64 {
            let rows = batch.end - batch.start;
            let of = |(place, column): (&Place, &&ColumnBuffers)| {
                let width = column.data_type.primitive_width().unwrap_or(match column.data_type {
                    arrow_schema::DataType::Boolean => 0,
                    arrow_schema::DataType::LargeUtf8 => 8,
                    _ => 4,
                });
                let bits = if width == 0 { rows / 8 } else { 0 };
                let valid = if place.valid == 0 { 0 } else { rows / 8 };
                rows * width as u64 + bits + valid + place.texts_bytes
            };
            places.iter().zip(wanted).map(of).sum()
        };
        let places = self.places.chunks(self.columns.len().max(1));
        self.batches.iter().zip(places).map(of).sum()
    }

    /// Cuts the part into ranges of at most this many bytes of its columns, and at most as many batches as fit into an
    /// argument.
    pub(crate) fn ranges(&self, range_max_bytes: u64) -> Vec<Range> {
        let all: u64 = self.batches.iter().map(|batch| batch.end - batch.start).sum();
        let bytes = u128::from(self.columns_bytes.max(1));
        let rows = u128::from(range_max_bytes) * u128::from(all) / bytes;
        let rows = u64::try_from(rows).unwrap_or(u64::MAX).clamp(1, RANGE_MAX_ROWS);
        // A batch, and four places for each column.
        let most = (BATCHES_MAX_BYTES / (16 + 32 * self.columns.len())).max(1);
        let mut ranges = Vec::new();
        let mut batch = 0;
        let mut start = self.rows.start;
        while start < self.rows.end {
            while self.batches[batch].end <= start {
                batch += 1;
            }
            let last = self.batches[(batch + most).min(self.batches.len()) - 1];
            let end = (start + rows).min(last.end).min(self.rows.end);
            ranges.push(Range { start, end, file_end: self.rows.end, skips: false });
            start = end;
        }
        ranges
    }

    /// The indices of the batches that have rows of a range.
    pub(crate) fn of_range(&self, range: &Range) -> ops::Range<usize> {
        let from = self.batches.partition_point(|batch| batch.end <= range.start);
        let to = self.batches.partition_point(|batch| batch.start < range.end);
        from..to.max(from)
    }

    pub(crate) fn batch(&self, index: usize) -> Batch {
        self.batches[index]
    }

    /// The place of a column of the schema in a batch.
    pub(crate) fn place(&self, batch: usize, column: usize) -> Place {
        let at = self.columns.binary_search(&column);
        let at = at.map(|at| self.places.get(batch * self.columns.len() + at));
        at.ok().flatten().copied().unwrap_or_default()
    }

    /// File offset of a byte of the first batch of a range.
    pub(crate) fn first_byte(&self, range: &Range) -> u64 {
        self.batches.get(self.of_range(range).start).map_or(0, |batch| batch.at)
    }

    /// File offset of the batch that contains a row.
    pub(crate) fn offset_of(&self, row: u64) -> u64 {
        self.first_byte(&Range { start: row, end: row + 1, file_end: 0, skips: false })
    }

    /// Bytes of the columns that correspond to a number of rows.
    pub(crate) fn scanned_bytes(&self, rows: u64) -> u64 {
        let all = self.batches.iter().map(|batch| batch.end - batch.start).sum();
        share(rows, self.columns_bytes, all)
    }

    /// Bytes of the part that correspond to a number of rows.
    pub(crate) fn done_bytes(&self, rows: u64) -> u64 {
        share(rows, self.part_bytes, self.rows.end - self.rows.start)
    }
}

/// `of` times `part` / `whole`.
fn share(part: u64, of: u64, whole: u64) -> u64 {
    let share = u128::from(part) * u128::from(of) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// The first row of a batch whose share begins at or behind this file offset.
fn row_at(block: &Block, rows: u64, offset: u64) -> u64 {
    let bytes = u128::from((block.end() - block.offset).max(1));
    let before = u128::from(offset.clamp(block.offset, block.end()) - block.offset);
    let row = (before * u128::from(rows)).div_ceil(bytes);
    u64::try_from(row).unwrap_or(rows).min(rows)
}
