//! Counters of a reactor: commands and their latencies, by namespace and class.
//!
//! Only the reactor itself counts, in plain memory; other threads ask it for a copy ([`report`](crate::report)). The
//! clock is read once for each round of at most 16 operations: a command that is answered in the round in which it came
//! has latency 0.

use crate::queue::State;
use serde::ser::{Serialize, SerializeStruct, Serializer};

/// Kinds of I/O commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Read, Verify, Compare.
    Read,
    /// Write.
    Write,
    /// Flush, Write Zeroes, Dataset Management.
    Flush,
    /// Pushdown, Pushdown Short, and each chain of a Pushdown Vector.
    Chain,
}

impl Class {
    /// All of them, in the order of their numbers.
    pub const ALL: [Class; 4] = [Class::Read, Class::Write, Class::Flush, Class::Chain];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Class::Read => "read",
            Class::Write => "write",
            Class::Flush => "flush",
            Class::Chain => "chain",
        }
    }

    /// The class of a command by its state, and the place of its namespace.
    #[inline]
    pub(crate) fn of(state: &State) -> Option<(Class, usize)> {
        match *state {
            State::Read { namespace, .. }
            | State::Compare { namespace, .. }
            | State::Verify { namespace, .. } => Some((Class::Read, namespace)),
            State::Write { namespace, .. } => Some((Class::Write, namespace)),
            State::Chain { namespace, .. } | State::Vector { namespace, .. } => {
                Some((Class::Chain, namespace))
            }
            ref other => other.namespace().map(|namespace| (Class::Flush, namespace)),
        }
    }
}

/// Latencies in buckets, four for each power of two; the first bucket is 256 ns wide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; Histogram::BUCKETS],
    sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: [0; Histogram::BUCKETS], sum_ns: 0 }
    }
}

impl Histogram {
    /// Number of buckets. The last one takes all latencies above a minute.
    pub const BUCKETS: usize = 108;
    /// Binary logarithm of the width of the first bucket in ns.
    const SHIFT: u32 = 8;

    #[inline]
    fn bucket(ns: u64) -> usize {
        let units = ns >> Self::SHIFT;
        if units < 4 {
            return units as usize;
        }
        let exponent = units.ilog2() as usize;
        let index = (exponent - 1) * 4 + (units >> (exponent - 2) & 3) as usize;
        index.min(Self::BUCKETS - 1)
    }

    #[inline]
    fn add(&mut self, bucket: usize, ns: u64) {
        self.buckets[bucket] += 1;
        self.sum_ns += ns;
    }

    fn merge(&mut self, other: &Histogram) {
        for (to, from) in self.buckets.iter_mut().zip(&other.buckets) {
            *to += from;
        }
        self.sum_ns += other.sum_ns;
    }

    /// The upper end of a bucket in ns, exclusive; `u64::MAX` for the last one.
    #[must_use]
    pub const fn end_ns(bucket: usize) -> u64 {
        let next = bucket + 1;
        if next >= Self::BUCKETS {
            return u64::MAX;
        }
        let units = if next < 4 { next as u64 } else { (4 + next as u64 % 4) << (next / 4 - 1) };
        units << Self::SHIFT
    }

    /// The counts by [bucket](Self::end_ns).
    #[must_use]
    pub const fn buckets(&self) -> &[u64; Self::BUCKETS] {
        &self.buckets
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The sum of all latencies in ns.
    #[must_use]
    pub const fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The latency that this part (0 to 1) of all did not exceed, in ns: the end of a bucket, which is up to a quarter
    /// too long. The last bucket has no end: its begin stands for it. None if there are none.
    #[must_use]
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        let wanted = (self.count() as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.buckets.iter().enumerate().find_map(|(bucket, count)| {
            seen += count;
            (seen >= wanted).then(|| Self::end_ns(bucket.min(Self::BUCKETS - 2)))
        })
    }

    /// The latencies that have been added since `before`.
    #[must_use]
    pub fn since(&self, before: &Histogram) -> Histogram {
        let mut since = self.clone();
        for (to, from) in since.buckets.iter_mut().zip(&before.buckets) {
            *to = to.saturating_sub(*from);
        }
        since.sum_ns = since.sum_ns.saturating_sub(before.sum_ns);
        since
    }
}

/// Latencies in buckets of a power of two; the first is 1.024 µs wide. Each holds four buckets of a [`Histogram`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Octaves {
    buckets: [u64; Octaves::BUCKETS],
    sum_ns: u64,
}

impl Octaves {
    /// Number of buckets. The last one takes all latencies above half a minute.
    pub const BUCKETS: usize = Histogram::BUCKETS / 4;

    /// Adds a command that has been counted in a [`Histogram`].
    #[inline]
    pub(crate) fn add(&mut self, counted: Counted) {
        self.buckets[counted.bucket / 4] += 1;
        self.sum_ns += counted.latency_ns;
    }

    pub(crate) fn merge(&mut self, other: &Octaves) {
        for (to, from) in self.buckets.iter_mut().zip(&other.buckets) {
            *to += from;
        }
        self.sum_ns += other.sum_ns;
    }

    /// The upper end of a bucket in ns, exclusive; `u64::MAX` for the last one.
    #[must_use]
    pub const fn end_ns(bucket: usize) -> u64 {
        Histogram::end_ns(4 * bucket + 3)
    }

    /// The counts by [bucket](Self::end_ns).
    #[must_use]
    pub const fn buckets(&self) -> &[u64; Self::BUCKETS] {
        &self.buckets
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The sum of all latencies in ns.
    #[must_use]
    pub const fn sum_ns(&self) -> u64 {
        self.sum_ns
    }
}

impl From<&Histogram> for Octaves {
    fn from(fine: &Histogram) -> Self {
        let mut buckets = [0; Self::BUCKETS];
        for (bucket, count) in fine.buckets.iter().enumerate() {
            buckets[bucket / 4] += count;
        }
        Octaves { buckets, sum_ns: fine.sum_ns }
    }
}

impl Serialize for Octaves {
    /// Count, sum, and the buckets that are not empty: their ends in ns and their counts.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let buckets = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        let buckets: Vec<(u64, u64)> =
            buckets.map(|(bucket, count)| (Self::end_ns(bucket), *count)).collect();
        let mut fields = serializer.serialize_struct("Octaves", 3)?;
        fields.serialize_field("count", &self.count())?;
        fields.serialize_field("sum_us", &(self.sum_ns as f64 / 1000.0))?;
        fields.serialize_field("buckets", &buckets)?;
        fields.end()
    }
}

/// [`Octaves`] by class, in the order of [`Class::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ClassLatencies([Octaves; Class::ALL.len()]);

impl ClassLatencies {
    /// The latencies of a class.
    #[must_use]
    pub const fn class(&self, class: Class) -> &Octaves {
        &self.0[class as usize]
    }

    #[inline]
    pub(crate) fn add(&mut self, counted: Counted) {
        self.0[counted.class as usize].add(counted);
    }

    /// Adds the latencies of another.
    pub fn merge(&mut self, other: &ClassLatencies) {
        for (to, from) in self.0.iter_mut().zip(&other.0) {
            to.merge(from);
        }
    }

    /// Adds the latencies of a namespace.
    pub(crate) fn merge_namespace(&mut self, metrics: &NamespaceMetrics) {
        for (to, from) in self.0.iter_mut().zip(&metrics.0) {
            to.merge(&Octaves::from(&from.latency));
        }
    }
}

/// A command that has been counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    pub(crate) class: Class,
    /// Its bucket in a [`Histogram`].
    bucket: usize,
    pub(crate) latency_ns: u64,
}

/// Latencies of functions, by number of the subsystem and function id; 0 stands for all functions of a subsystem that
/// are not kept.
#[derive(Debug, Default)]
pub(crate) struct FunctionLatencies(Vec<((usize, u32), Octaves)>);

impl FunctionLatencies {
    /// Counts a chain of a function.
    #[inline]
    pub(crate) fn add(&mut self, function: (usize, u32), counted: Counted) {
        match self.0.iter_mut().find(|(known, _)| *known == function) {
            Some((_, latency)) => latency.add(counted),
            None => self.add_first(function, counted),
        }
    }

    #[cold]
    fn add_first(&mut self, function: (usize, u32), counted: Counted) {
        let mut latency = Octaves::default();
        latency.add(counted);
        self.0.push((function, latency));
    }

    /// Forgets functions that are not kept any more.
    pub(crate) fn retain(&mut self, is_kept: impl Fn((usize, u32)) -> bool) {
        self.0.retain(|(function, _)| is_kept(*function));
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = ((usize, u32), &Octaves)> {
        self.0.iter().map(|(function, latency)| (*function, latency))
    }
}

impl Serialize for Histogram {
    /// Count, sum, quantiles, and the buckets that are not empty: their ends in ns and their counts.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let us = |part| self.quantile_ns(part).map(|ns| ns as f64 / 1000.0);
        let buckets = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        let buckets: Vec<(u64, u64)> =
            buckets.map(|(bucket, count)| (Self::end_ns(bucket), *count)).collect();
        let mut fields = serializer.serialize_struct("Histogram", 6)?;
        fields.serialize_field("count", &self.count())?;
        fields.serialize_field("sum_us", &(self.sum_ns as f64 / 1000.0))?;
        fields.serialize_field("p50_us", &us(0.5))?;
        fields.serialize_field("p99_us", &us(0.99))?;
        fields.serialize_field("p999_us", &us(0.999))?;
        fields.serialize_field("buckets", &buckets)?;
        fields.end()
    }
}

/// Commands of one class in one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ClassMetrics {
    /// Time from the arrival of a command to its answer.
    pub latency: Histogram,
    /// Commands that ended with an error status, without those that are refused before they begin or because their data
    /// came damaged.
    pub errors: u64,
    /// Bytes read or written; for chains, the bytes that they read at the target.
    pub bytes: u64,
    /// Hops of chains.
    pub hops: u64,
}

impl ClassMetrics {
    fn merge(&mut self, other: &ClassMetrics) {
        self.latency.merge(&other.latency);
        self.errors += other.errors;
        self.bytes += other.bytes;
        self.hops += other.hops;
    }
}

/// How a command has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ended {
    pub(crate) is_ok: bool,
    pub(crate) bytes: u64,
    pub(crate) hops: u32,
}

/// Commands of one namespace by class, in the order of [`Class::ALL`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamespaceMetrics(pub(crate) [ClassMetrics; Class::ALL.len()]);

impl NamespaceMetrics {
    /// Counts an ended command of a class.
    #[inline(always)]
    pub(crate) fn count(&mut self, class: Class, latency_ns: u64, ended: Ended) -> Counted {
        let metrics = &mut self.0[class as usize];
        let bucket = Histogram::bucket(latency_ns);
        metrics.latency.add(bucket, latency_ns);
        metrics.errors += u64::from(!ended.is_ok);
        metrics.bytes += ended.bytes;
        metrics.hops += u64::from(ended.hops);
        Counted { class, bucket, latency_ns }
    }

    pub(crate) fn merge(&mut self, other: &NamespaceMetrics) {
        for (to, from) in self.0.iter_mut().zip(&other.0) {
            to.merge(from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_follow_each_other() {
        let ends: Vec<u64> = (0..Histogram::BUCKETS).map(Histogram::end_ns).collect();
        assert_eq!(ends[..6], [256, 512, 768, 1024, 1280, 1536]);
        assert!(ends.is_sorted_by(|a, b| a < b));
        assert!((60_000_000_000..61_000_000_000).contains(&ends[Histogram::BUCKETS - 2]));
    }

    proptest! {
        #[test]
        fn a_time_is_in_its_bucket(ns: u64, shift in 0..64u32) {
            let ns = ns >> shift;
            let bucket = Histogram::bucket(ns);
            prop_assert!(ns < Histogram::end_ns(bucket) || ns == u64::MAX);
            prop_assert!(bucket == 0 || ns >= Histogram::end_ns(bucket - 1));
            let mut octaves = Octaves::default();
            octaves.add(Counted { class: Class::Read, bucket, latency_ns: 0 });
            let octave = octaves.buckets.iter().position(|count| *count == 1).expect("it is there");
            prop_assert!(ns < Octaves::end_ns(octave) || ns == u64::MAX);
            prop_assert!(octave == 0 || ns >= Octaves::end_ns(octave - 1));
        }
    }

    #[test]
    fn quantiles_are_ends_of_buckets() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_ns(0.5), None);
        let add = |histogram: &mut Histogram, ns| histogram.add(Histogram::bucket(ns), ns);
        (0..99).for_each(|_| add(&mut histogram, 1000));
        let before = histogram.clone();
        add(&mut histogram, 1_000_000);
        assert_eq!(histogram.count(), 100);
        assert_eq!(histogram.sum_ns(), 99_000 + 1_000_000);
        assert_eq!(histogram.quantile_ns(0.99), Some(1024));
        let slowest = histogram.quantile_ns(1.0).expect("there are some");
        assert!((1_000_000..1_250_000).contains(&slowest));
        assert_eq!(histogram.since(&before).count(), 1);
        let rest = u64::MAX - histogram.sum_ns();
        add(&mut histogram, rest);
        let longest = Histogram::end_ns(Histogram::BUCKETS - 2);
        assert_eq!(histogram.quantile_ns(1.0), Some(longest));
    }
}
