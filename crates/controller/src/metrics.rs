//! What a reactor counts: commands by namespace and class, and how long they took.
//!
//! Only the reactor itself counts, in plain memory; whoever wants the figures asks it for a copy
//! ([`report`](crate::report)). Times are those of the reactor's turns: a command that is answered in the
//! turn in which it came took no time.

use crate::queue::State;
use serde::ser::{Serialize, SerializeStruct, Serializer};

/// Kinds of I/O commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    /// In a word, for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Class::Read => "read",
            Class::Write => "write",
            Class::Flush => "flush",
            Class::Chain => "chain",
        }
    }

    /// That of a command by what it waits for, and the place of its namespace.
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

/// Latencies in buckets, four to each power of two, the first of them of 256 ns.
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
    /// The last takes all that took longer than a minute.
    pub const BUCKETS: usize = 108;
    /// The shortest time that is told from 0, in ns, as a power of two.
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
    fn add(&mut self, ns: u64) {
        self.buckets[Self::bucket(ns)] += 1;
        self.sum_ns += ns;
    }

    fn merge(&mut self, other: &Histogram) {
        for (to, from) in self.buckets.iter_mut().zip(&other.buckets) {
            *to += from;
        }
        self.sum_ns += other.sum_ns;
    }

    /// The time below which all of a bucket are, in ns; of the last `u64::MAX`.
    #[must_use]
    pub const fn end_ns(bucket: usize) -> u64 {
        let next = bucket + 1;
        if next >= Self::BUCKETS {
            return u64::MAX;
        }
        let units = if next < 4 { next as u64 } else { (4 + next as u64 % 4) << (next / 4 - 1) };
        units << Self::SHIFT
    }

    /// How many took how long, by [bucket](Self::end_ns).
    #[must_use]
    pub const fn buckets(&self) -> &[u64; Self::BUCKETS] {
        &self.buckets
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The time of all together, in ns.
    #[must_use]
    pub const fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The time that a part of them (0 to 1) did not exceed, in ns: the end of a bucket, which is up to a
    /// quarter too long. None if there are none.
    #[must_use]
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        let wanted = (self.count() as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.buckets.iter().enumerate().find_map(|(bucket, count)| {
            seen += count;
            (seen >= wanted).then(|| Self::end_ns(bucket))
        })
    }

    /// What has been added since `before`.
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

impl Serialize for Histogram {
    /// Count, sum, quantiles, and the buckets that are not empty: their ends in ns and how many they have.
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
    /// From the turn in which a command came to the one in which it was answered.
    pub latency: Histogram,
    /// Those that ended with another status than success. One that is refused before a namespace is known is
    /// not among them.
    pub errors: u64,
    /// What was read or written, in bytes; of chains what they read.
    pub bytes: u64,
    /// Of chains.
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
    /// Counts a command of a class that has ended.
    #[inline]
    pub(crate) fn count(&mut self, class: Class, latency_ns: u64, ended: Ended) {
        let metrics = &mut self.0[class as usize];
        metrics.latency.add(latency_ns);
        metrics.errors += u64::from(!ended.is_ok);
        metrics.bytes += ended.bytes;
        metrics.hops += u64::from(ended.hops);
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
        }
    }

    #[test]
    fn quantiles_are_ends_of_buckets() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_ns(0.5), None);
        (0..99).for_each(|_| histogram.add(1000));
        let before = histogram.clone();
        histogram.add(1_000_000);
        assert_eq!(histogram.count(), 100);
        assert_eq!(histogram.sum_ns(), 99_000 + 1_000_000);
        assert_eq!(histogram.quantile_ns(0.99), Some(1024));
        let slowest = histogram.quantile_ns(1.0).expect("there are some");
        assert!((1_000_000..1_250_000).contains(&slowest));
        assert_eq!(histogram.since(&before).count(), 1);
    }
}
