//! The parts of a target's report that are shown. Fields that a target does not have are 0.

use serde::Deserialize;
use std::collections::BTreeMap;

/// Everything.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub(crate) memory_limit_bytes: u64,
    pub(crate) memory_used_bytes: u64,
    pub(crate) reactors: Vec<Reactor>,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) functions: Vec<Function>,
    pub(crate) hosts: Vec<Host>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Reactor {
    pub(crate) index: usize,
    pub(crate) time_ns: u64,
    pub(crate) idle_ns: u64,
    pub(crate) connections: u64,
    pub(crate) chains_running: u64,
    pub(crate) chains_waiting: u64,
    /// By class.
    pub(crate) latencies: Vec<Latency>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Namespace {
    pub(crate) subsystem: String,
    pub(crate) nsid: u32,
    pub(crate) size_bytes: u64,
    pub(crate) read: Class,
    pub(crate) write: Class,
    pub(crate) flush: Class,
    pub(crate) chain: Class,
}

/// Commands of one class.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Class {
    pub(crate) latency: Latency,
    pub(crate) errors: u64,
    pub(crate) bytes: u64,
    pub(crate) hops: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    /// The end of each bucket in ns, ascending, and its number of commands.
    pub(crate) buckets: Vec<(u64, u64)>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Function {
    pub(crate) subsystem: String,
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) chains: u64,
    pub(crate) hops: u64,
    pub(crate) read_bytes: u64,
    pub(crate) faults: u64,
    pub(crate) aborts: u64,
    pub(crate) latency: Latency,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Host {
    /// Identifies it: two hosts may have the same name and address.
    pub(crate) serial: u64,
    pub(crate) nqn: String,
    pub(crate) address: Option<String>,
    pub(crate) connections: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) totals: Totals,
    /// By class.
    pub(crate) latencies: Vec<Latency>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Totals {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) chains: u64,
    pub(crate) hops: u64,
    pub(crate) chain_bytes: u64,
}

impl Report {
    /// Time since the target started, in s.
    pub(crate) fn up_s(&self) -> f64 {
        self.reactors.iter().map(|reactor| reactor.time_ns).max().unwrap_or(0) as f64 / 1e9
    }

    /// Time since an earlier report by the target's clock, in s; none if that report is from another target, or from an
    /// earlier run.
    pub(crate) fn seconds_since(&self, before: &Report) -> Option<f64> {
        let seconds = self.up_s() - before.up_s();
        (seconds > 0.0 && self.reactors.len() == before.reactors.len()).then_some(seconds)
    }

    pub(crate) fn connections(&self) -> u64 {
        self.reactors.iter().map(|reactor| reactor.connections).sum()
    }
}

impl Namespace {
    pub(crate) fn classes(&self) -> [&Class; 4] {
        [&self.read, &self.write, &self.flush, &self.chain]
    }
}

/// Upper limit for shown quantiles: the last bucket has no end. It begins at about a minute, or at about half a minute
/// if the buckets are powers of two.
const LONGEST_NS: u64 = 60_000_000_000;

/// The 99th percentile of the latencies since `before` in µs, all classes together.
pub(crate) fn p99_us(now: &[Latency], before: &[Latency]) -> Option<f64> {
    let mut new: BTreeMap<u64, u64> = BTreeMap::new();
    for (class, latency) in now.iter().enumerate() {
        let old = before.get(class).map_or(&[][..], |before| before.buckets.as_slice());
        for (end, count) in &latency.buckets {
            let old = old.iter().find(|(of, _)| of == end).map_or(0, |(_, count)| *count);
            *new.entry(*end).or_default() += count.saturating_sub(old);
        }
    }
    let count: u64 = new.values().sum();
    let wanted = (count as f64 * 0.99).ceil() as u64;
    let mut seen = 0;
    let found = new.into_iter().find(|(_, count)| {
        seen += count;
        seen >= wanted
    });
    found.filter(|_| count > 0).map(|(end, _)| end.min(LONGEST_NS) as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_is_new() {
        let of = |buckets: &[(u64, u64)]| Latency { count: 0, buckets: buckets.to_vec() };
        let before = [of(&[(1024, 1000)])];
        let now = [of(&[(1024, 1000), (4096, 99), (65_536, 1)])];
        assert_eq!((p99_us(&now, &before), p99_us(&now, &now)), (Some(4.096), None));
        let other = of(&[(u64::MAX, 2)]);
        assert_eq!(p99_us(&[now[0].clone(), other], &before), Some(60e6));
    }

    #[test]
    fn what_is_unknown_is_nothing() {
        let report: Report = serde_json::from_str(r#"{"hosts":[{"nqn":"a","new":1}],"later":{}}"#)
            .expect("a report");
        assert_eq!((report.hosts[0].nqn.as_str(), report.hosts[0].connections), ("a", 0));
        assert!(report.seconds_since(&Report::default()).is_none());
    }
}
