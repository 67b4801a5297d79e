//! Scans over records of one size: filter, reduce, and return the records that pass
//! (`functions/filter_reduce.h`).

use crate::bytes::Bytes;
use crate::{Damage, Place, READ_MAX_BYTES, ReadAt};

/// The storage function `filter_reduce`, an ELF object.
pub const FILTER_REDUCE_OBJECT: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/filter_reduce.bpf.o"));
/// The most conditions of one scan.
pub const CONDITIONS_MAX: usize = 4;
/// Bytes of an answer before its records.
pub const ANSWER_BYTES: usize = 56;

const RECORDS_MAX: u32 = 512;
const REQUEST_BYTES: usize = 24 + CONDITIONS_MAX * 24;

/// The place of a number in each record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Offset in the record in bytes.
    pub offset_bytes: u16,
    /// 1, 2, 4 or 8.
    pub width_bytes: u8,
    /// Two's complement.
    pub is_signed: bool,
    /// Whether the most significant byte comes first.
    pub is_big_endian: bool,
}

impl Column {
    /// An unsigned little-endian number.
    #[must_use]
    pub const fn unsigned(offset_bytes: u16, width_bytes: u8) -> Column {
        Column { offset_bytes, width_bytes, is_signed: false, is_big_endian: false }
    }

    /// A signed little-endian number.
    #[must_use]
    pub const fn signed(offset_bytes: u16, width_bytes: u8) -> Column {
        Column { is_signed: true, ..Column::unsigned(offset_bytes, width_bytes) }
    }

    fn encode(self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.offset_bytes.to_le_bytes());
        to.push(self.width_bytes);
        to.push(u8::from(self.is_signed) | u8::from(self.is_big_endian) << 1);
    }

    fn fits(self, record_bytes: u32) -> bool {
        let end = u32::from(self.offset_bytes) + u32::from(self.width_bytes);
        matches!(self.width_bytes, 1 | 2 | 4 | 8) && end <= record_bytes
    }

    /// The number in a record; None if the record is too short.
    fn load(self, record: &[u8]) -> Option<i128> {
        let width = usize::from(self.width_bytes);
        let bytes = Bytes::at(record, usize::from(self.offset_bytes))?.take(width)?;
        let fold = |number, byte: &u8| number << 8 | i128::from(*byte);
        let number = if self.is_big_endian {
            bytes.iter().fold(0, fold)
        } else {
            bytes.iter().rev().fold(0, fold)
        };
        let beyond = 1_i128 << (8 * width);
        Some(if self.is_signed && number >= beyond / 2 { number - beyond } else { number })
    }

    /// The least and the greatest 64-bit number.
    const fn domain(self) -> (i128, i128) {
        if self.is_signed { (i64::MIN as i128, i64::MAX as i128) } else { (0, u64::MAX as i128) }
    }

    /// Converts a number of an answer.
    const fn number(self, bits: u64) -> i128 {
        if self.is_signed { bits as i64 as i128 } else { bits as i128 }
    }
}

/// A comparison of a column with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// =
    Equal,
    /// ≠
    NotEqual,
    /// <
    Less,
    /// ≤
    AtMost,
    /// >
    Greater,
    /// ≥
    AtLeast,
}

/// A condition on records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    column: Column,
    low: i128,
    high: i128,
    outside: bool,
}

impl Condition {
    /// Compares the column with a number, which need not be a possible value of the column.
    #[must_use]
    pub const fn new(column: Column, compare: Compare, number: i128) -> Condition {
        let (low, high) = match compare {
            Compare::Equal | Compare::NotEqual => (number, number),
            Compare::Less => (i128::MIN, number.saturating_sub(1)),
            Compare::AtMost => (i128::MIN, number),
            Compare::Greater => (number.saturating_add(1), i128::MAX),
            Compare::AtLeast => (number, i128::MAX),
        };
        Condition { column, low, high, outside: matches!(compare, Compare::NotEqual) }
    }

    /// The column is from `low` to `high`, both inclusive.
    #[must_use]
    pub const fn between(column: Column, low: i128, high: i128) -> Condition {
        Condition { column, low, high, outside: false }
    }

    fn encode(self, to: &mut Vec<u8>) {
        let (least, greatest) = self.column.domain();
        let (low, high) = (self.low.max(least), self.high.min(greatest));
        // An empty interval is the outside of the whole domain.
        let nothing = low > high;
        let (low, high) = if nothing { (least, greatest) } else { (low, high) };
        to.extend_from_slice(&(low as u64).to_le_bytes());
        to.extend_from_slice(&(high as u64).to_le_bytes());
        self.column.encode(to);
        to.extend_from_slice(&u32::from(self.outside != nothing).to_le_bytes());
    }

    fn is_met(self, record: &[u8]) -> bool {
        let number = self.column.load(record);
        number.is_some_and(|number| (self.low <= number && number <= self.high) != self.outside)
    }
}

/// The totals of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records that passed.
    pub count: u64,
    /// The exact sum of the column.
    pub sum: i128,
    /// The column's least and greatest value; None if no record passed, or no column was requested.
    pub range: Option<(i128, i128)>,
}

impl Totals {
    /// Adds the totals of another part. Totals of records do not overflow; those of a false answer saturate.
    pub fn add(&mut self, other: &Totals) {
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.range = match (self.range, other.range) {
            (Some((low, high)), Some((other_low, other_high))) => {
                Some((low.min(other_low), high.max(other_high)))
            }
            (one, other) => one.or(other),
        };
    }
}

/// The result of one chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The file offset up to which the result is complete.
    pub next_bytes: u64,
    /// More records pass than requested, or than scratch has room for: continue at `next_bytes`.
    pub more: bool,
    /// The totals of the records before `next_bytes`.
    pub totals: Totals,
    /// The records that passed, concatenated, if they were requested.
    pub records: Vec<u8>,
}

/// A filter and a reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Size of a record in bytes.
    pub record_bytes: u32,
    /// File offset at which the records end.
    pub end_bytes: u64,
    /// The conditions, all of which a record must meet; at most [`CONDITIONS_MAX`].
    pub conditions: Vec<Condition>,
    /// The column to sum and to compare.
    pub column: Option<Column>,
    /// The most records to return; 0: none.
    pub records_max: u32,
}

impl Scan {
    /// The first read of a chain that starts at this file offset; None if there are no records.
    #[must_use]
    pub fn first(&self, from_bytes: u64) -> Option<Place> {
        let left = self.end_bytes.checked_sub(from_bytes).filter(|left| *left > 0)?;
        let size_bytes = left.min(u64::from(self.step_bytes())) as u32;
        Some(Place { offset_bytes: from_bytes, size_bytes })
    }

    /// Bytes of one read.
    fn step_bytes(&self) -> u32 {
        let size = self.record_bytes.max(1);
        (READ_MAX_BYTES as u32 / size).clamp(1, RECORDS_MAX) * size
    }

    /// The argument of `filter_reduce`.
    #[must_use]
    pub fn argument(&self) -> Vec<u8> {
        let mut argument = Vec::with_capacity(REQUEST_BYTES);
        argument.extend_from_slice(&self.end_bytes.to_le_bytes());
        argument.extend_from_slice(&self.record_bytes.to_le_bytes());
        argument.extend_from_slice(&(self.conditions.len() as u32).to_le_bytes());
        self.column.unwrap_or(Column::unsigned(0, 0)).encode(&mut argument);
        argument.extend_from_slice(&self.records_max.to_le_bytes());
        for condition in self.conditions.iter().take(CONDITIONS_MAX) {
            condition.encode(&mut argument);
        }
        argument.resize(REQUEST_BYTES, 0);
        argument
    }

    /// Parses an answer of `filter_reduce` to the chain of this scan that began at `from_bytes`; None if it is
    /// malformed. A part with [`more`](Part::more) ends after `from_bytes` and before the end of the records.
    #[must_use]
    pub fn parse(&self, from_bytes: u64, answer: &[u8]) -> Option<Part> {
        let mut answer = Bytes(answer);
        let (next_bytes, more, records) = (answer.u64()?, answer.u32()?, answer.u32()?);
        let (count, low, high) = (answer.u64()?, answer.u64()?, answer.u64()?);
        let (min, max) = (answer.u64()?, answer.u64()?);
        let column = self.column.filter(|_| count > 0);
        let totals = Totals {
            count,
            sum: i128::from(high as i64) << 64 | i128::from(low),
            range: column.map(|column| (column.number(min), column.number(max))),
        };
        let size = u64::from(records) * u64::from(self.record_bytes);
        let ends_well = match more {
            0 => next_bytes == self.end_bytes,
            1 => from_bytes < next_bytes && next_bytes < self.end_bytes,
            _ => false,
        };
        if !ends_well || answer.0.len() as u64 != size {
            return None;
        }
        Some(Part { next_bytes, more: more == 1, totals, records: answer.0.to_vec() })
    }

    fn is_good(&self, from_bytes: u64, scratch_bytes: usize) -> bool {
        let mut columns = self.conditions.iter().map(|condition| condition.column);
        let size = u64::from(self.record_bytes);
        let left = self.end_bytes.checked_sub(from_bytes).filter(|left| *left > 0);
        self.conditions.len() <= CONDITIONS_MAX
            && columns.all(|column| column.fits(self.record_bytes))
            && self.column.is_none_or(|column| column.fits(self.record_bytes))
            && (1..=READ_MAX_BYTES as u64).contains(&size)
            && left.is_some_and(|left| left.is_multiple_of(size))
            && scratch_bytes >= REQUEST_BYTES
            && (self.records_max == 0 || size <= (scratch_bytes - ANSWER_BYTES) as u64)
    }

    /// The same scan over plain reads, with room for as many records as a chain with
    /// `scratch_bytes` of scratch has.
    ///
    /// # Errors
    /// [`Damage::Request`], [`Damage::Unreadable`].
    pub fn plain(
        &self,
        from_bytes: u64,
        scratch_bytes: usize,
        read: &mut ReadAt<'_>,
    ) -> Result<Part, Damage> {
        if !self.is_good(from_bytes, scratch_bytes) {
            return Err(Damage::Request);
        }
        let mut part = Part {
            next_bytes: from_bytes,
            more: false,
            totals: Totals::default(),
            records: Vec::new(),
        };
        let size = self.record_bytes as usize;
        let room = ((scratch_bytes - ANSWER_BYTES) / size).min(self.records_max as usize) * size;
        while let Some(place) = self.first(part.next_bytes) {
            for record in place.read(read)?.chunks_exact(size) {
                if self.conditions.iter().all(|condition| condition.is_met(record)) {
                    if self.records_max > 0 && part.records.len() == room {
                        part.more = true;
                        return Ok(part);
                    }
                    if self.records_max > 0 {
                        part.records.extend_from_slice(record);
                    }
                    let number = self.column.and_then(|column| column.load(record));
                    part.totals.add(&Totals {
                        count: 1,
                        sum: number.unwrap_or(0),
                        range: number.map(|number| (number, number)),
                    });
                }
                part.next_bytes += size as u64;
            }
        }
        Ok(part)
    }
}
