//! Queries for ranges, and their results.

use crate::format::{NO_KEY, Value};

/// A range whose begin is above its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the range begins at {begin}, above its end {end}")]
pub struct InvertedRange {
    /// Begin of the refused range.
    pub begin: u64,
    /// End of the refused range.
    pub end: u64,
}

/// A range of keys: `[begin, end)` unless changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    begin: u64,
    end: u64,
    begin_excluded: bool,
    end_included: bool,
}

impl KeyRange {
    /// The range `[begin, end)`, empty if they are equal.
    ///
    /// # Errors
    /// [`InvertedRange`] if `begin` is above `end`.
    pub fn new(begin: u64, end: u64) -> Result<KeyRange, InvertedRange> {
        if begin > end {
            return Err(InvertedRange { begin, end });
        }
        Ok(KeyRange { begin, end, begin_excluded: false, end_included: false })
    }

    /// The same range without `begin`.
    pub fn exclude_begin(mut self) -> KeyRange {
        self.begin_excluded = true;
        self
    }

    /// The same range with `end`.
    pub fn include_end(mut self) -> KeyRange {
        self.end_included = true;
        self
    }

    /// The first and the last key of the range, `None` if it holds no key. `u64::MAX` is not a key,
    /// so the last is below it.
    pub fn bounds(&self) -> Option<(u64, u64)> {
        let first = if self.begin_excluded { self.begin.checked_add(1)? } else { self.begin };
        let included = self.end_included && self.end != NO_KEY;
        let last = if included { self.end } else { self.end.checked_sub(1)? };
        (first <= last).then_some((first, last))
    }
}

/// A key and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: u64,
    /// Its value.
    pub value: Value,
}

/// The aggregate to compute over the values of a range (XRP §5.1); each value's first 8 bytes are a
/// little-endian signed integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// The number of keys; values are not read.
    Count,
    /// The sum.
    Sum,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The mean.
    Average,
}

impl Aggregate {
    /// Whether the values must be read.
    pub fn reads_values(self) -> bool {
        self != Aggregate::Count
    }
}

/// All aggregates of a range. After [`Aggregate::Count`] only `count` is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of keys.
    pub count: u64,
    /// The exact sum: 2^64 values of 64 bits cannot overflow it.
    pub sum: i128,
    /// The smallest and the largest number, `None` without values.
    pub min_max: Option<(i64, i64)>,
}

impl Summary {
    /// The mean, `None` without values.
    pub fn average(&self) -> Option<f64> {
        self.min_max.map(|_| self.sum as f64 / self.count as f64)
    }

    /// Adds one value.
    pub(crate) fn add_value(&mut self, value: &Value) {
        let [a, b, c, d, e, f, g, h, ..] = *value;
        let number = i64::from_le_bytes([a, b, c, d, e, f, g, h]);
        self.count += 1;
        self.sum = self.sum.wrapping_add(i128::from(number));
        self.include(number, number);
    }

    /// Adds the summary of another part of the range.
    pub(crate) fn merge(&mut self, other: &Summary) {
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.wrapping_add(other.sum);
        if let Some((min, max)) = other.min_max {
            self.include(min, max);
        }
    }

    fn include(&mut self, min: i64, max: i64) {
        let (low, high) = self.min_max.unwrap_or((min, max));
        self.min_max = Some((low.min(min), high.max(max)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_follow_the_flags() {
        let range = |begin, end| KeyRange::new(begin, end).unwrap();
        assert_eq!(range(3, 7).bounds(), Some((3, 6)));
        assert_eq!(range(3, 7).exclude_begin().include_end().bounds(), Some((4, 7)));
        assert_eq!(range(3, 3).bounds(), None);
        assert_eq!(range(3, 3).include_end().bounds(), Some((3, 3)));
        assert_eq!(range(3, 4).exclude_begin().bounds(), None);
        assert_eq!(range(0, 0).bounds(), None);
        assert_eq!(range(NO_KEY, NO_KEY).exclude_begin().include_end().bounds(), None);
        assert_eq!(range(NO_KEY, NO_KEY).include_end().bounds(), None);
        assert_eq!(range(5, NO_KEY).include_end().bounds(), Some((5, NO_KEY - 1)));
        assert_eq!(KeyRange::new(2, 1), Err(InvertedRange { begin: 2, end: 1 }));
    }

    #[test]
    fn sums_are_exact() {
        let mut value = [0; 64];
        let mut summary = Summary::default();
        for number in [i64::MAX, i64::MAX, i64::MIN, -1] {
            value[..8].copy_from_slice(&number.to_le_bytes());
            summary.add_value(&value);
        }
        assert_eq!(summary.sum, i128::from(i64::MAX) * 2 + i128::from(i64::MIN) - 1);
        assert_eq!(summary.min_max, Some((i64::MIN, i64::MAX)));
    }
}
