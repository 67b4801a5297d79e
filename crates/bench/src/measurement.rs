//! Runs of closed loops, and the figures computed from their repetitions.

use hdrhistogram::{CreationError, Histogram};
use serde::Serialize;
use std::time::Duration;

/// The results of one run of a closed loop.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) operations: u64,
    pub(crate) elapsed: Duration,
    pub(crate) network_bytes: u64,
    /// For lookups: hops at the target (pushdown), or rounds of reads (plain).
    pub(crate) hops: u64,
    /// Latencies in ns.
    pub(crate) latency: Histogram<u64>,
}

/// One path's figures: medians over the repetitions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) ops_per_s: f64,
    /// Slowest and fastest repetition.
    pub(crate) ops_per_s_range: [f64; 2],
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) net_bytes_per_op: f64,
    pub(crate) host_cpu_us_per_op: Option<f64>,
    /// None for a target that is not a child of this process.
    pub(crate) target_cpu_us_per_op: Option<f64>,
}

impl Figures {
    /// The larger deviation of a repetition from the median, in percent.
    pub(crate) fn spread_percent(&self) -> f64 {
        spread_percent(self.ops_per_s, self.ops_per_s_range)
    }

    /// Cells of a table: operations a second, their spread, p50 and p99.
    pub(crate) fn cells(&self) -> String {
        let Figures { ops_per_s, p50_us, p99_us, .. } = self;
        format!("{ops_per_s:>10.0} {:>4.0} {p50_us:>9.1} {p99_us:>9.1}", self.spread_percent())
    }

    /// Figures for the tests of reports: a spread of 20 %, and no processor times.
    #[cfg(test)]
    pub(crate) fn example(ops_per_s: f64) -> Figures {
        Figures {
            ops_per_s,
            ops_per_s_range: [ops_per_s * 0.9, ops_per_s * 1.2],
            p50_us: 1.0,
            p99_us: 2.0,
            net_bytes_per_op: 100.0,
            host_cpu_us_per_op: None,
            target_cpu_us_per_op: None,
        }
    }
}

/// The larger deviation of a repetition from the median, in percent of the median.
pub(crate) fn spread_percent(median: f64, [least, most]: [f64; 2]) -> f64 {
    100.0 * (most - median).max(median - least) / median
}

/// The least and the most.
pub(crate) fn range(values: &[f64]) -> [f64; 2] {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    [least, values.iter().copied().fold(0.0, f64::max)]
}

/// How many times better pushdown is than plain reads: above 1 is a gain, in every field.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) ops_per_s: f64,
    pub(crate) p99: f64,
    pub(crate) net_bytes: f64,
}

impl Ratio {
    pub(crate) fn of(plain: &Figures, pushdown: &Figures) -> Ratio {
        Ratio {
            ops_per_s: pushdown.ops_per_s / plain.ops_per_s,
            p99: plain.p99_us / pushdown.p99_us,
            net_bytes: plain.net_bytes_per_op / pushdown.net_bytes_per_op,
        }
    }
}

/// The repetitions of a measurement, behind a shorter one, number 0, that warms up and does not count: number, whether it
/// is that one, and time.
pub(crate) fn repetitions(
    count: u32,
    time: Duration,
) -> impl Iterator<Item = (u32, bool, Duration)> {
    (0..=count).map(move |number| match number {
        0 => (number, true, time / 5),
        _ => (number, false, time),
    })
}

/// The tenth and the ninetieth percentile; None without values.
pub(crate) fn tenths(values: &[f64]) -> Option<[f64; 2]> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |part: usize| sorted.get(sorted.len() * part / 10).copied();
    at(1).zip(at(9)).map(|(low, high)| [low, high])
}

/// Processor time of host and target, in ns.
pub(crate) type CpuTimes = (Option<u64>, Option<u64>);

/// The difference between two readings.
pub(crate) fn spent(before: CpuTimes, after: CpuTimes) -> CpuTimes {
    let spent = |before: Option<u64>, after: Option<u64>| Some(after?.saturating_sub(before?));
    (spent(before.0, after.0), spent(before.1, after.1))
}

/// Figures of the repetitions of one path.
#[derive(Default)]
pub(crate) struct Samples {
    pub(crate) ops_per_s: Vec<f64>,
    pub(crate) p50_us: Vec<f64>,
    pub(crate) p99_us: Vec<f64>,
    pub(crate) net_bytes: Vec<f64>,
    pub(crate) hops: Vec<f64>,
    pub(crate) host_us: Vec<f64>,
    pub(crate) target_us: Vec<f64>,
}

impl Samples {
    pub(crate) fn add(&mut self, run: &Run, (host_ns, target_ns): CpuTimes) {
        let operations = run.operations as f64;
        self.ops_per_s.push(operations / run.elapsed.as_secs_f64());
        self.p50_us.push(run.latency.value_at_quantile(0.5) as f64 / 1000.0);
        self.p99_us.push(run.latency.value_at_quantile(0.99) as f64 / 1000.0);
        self.net_bytes.push(run.network_bytes as f64 / operations);
        self.hops.push(run.hops as f64 / operations);
        self.host_us.extend(host_ns.map(|ns| ns as f64 / 1000.0 / operations));
        self.target_us.extend(target_ns.map(|ns| ns as f64 / 1000.0 / operations));
    }

    pub(crate) fn figures(&self) -> Figures {
        let optional = |values: &Vec<f64>| (!values.is_empty()).then(|| median(values));
        Figures {
            ops_per_s: median(&self.ops_per_s),
            ops_per_s_range: range(&self.ops_per_s),
            p50_us: median(&self.p50_us),
            p99_us: median(&self.p99_us),
            net_bytes_per_op: median(&self.net_bytes),
            host_cpu_us_per_op: optional(&self.host_us),
            target_cpu_us_per_op: optional(&self.target_us),
        }
    }
}

/// An empty histogram of latencies in ns, up to a minute.
pub(crate) fn latencies() -> Result<Histogram<u64>, CreationError> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3)
}

/// A readable number, large ones in whole thousands: 1,003,000.
pub(crate) fn thousands(value: f64) -> String {
    let unit = if value < 10_000.0 { 1.0 } else { 1000.0 };
    let digits = format!("{:.0}", (value / unit).round() * unit);
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// A cell of a table: processor time in µs, or another number that may be missing.
pub(crate) fn cell(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

/// For an even number of values, the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.get(sorted.len() / 2), sorted.len()) {
        (None, _) => f64::NAN,
        (Some(upper), length) if length % 2 == 0 => (upper + sorted[length / 2 - 1]) / 2.0,
        (Some(middle), _) => *middle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_those_of_the_farther_side() {
        let values = [3.0, 1.0, 2.0, 10.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        assert_eq!((range(&values), tenths(&values)), ([1.0, 10.0], Some([2.0, 10.0])));
        assert_eq!((tenths(&[7.0]), tenths(&[])), (Some([7.0, 7.0]), None));
        assert_eq!(spread_percent(4.0, [3.0, 4.5]), 25.0);
    }

    #[test]
    fn thousands_are_grouped() {
        let written = [0.4, 499.0, 1234.0, 268_939.0, 1_002_951.0].map(thousands);
        assert_eq!(written, ["0", "499", "1,234", "269,000", "1,003,000"]);
    }
}
