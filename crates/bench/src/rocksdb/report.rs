//! Figures of the cases: medians over the repetitions, ratios, the summary.

use super::driver::{Measurement, Mode};
use crate::measurement::{Figures, Ratio, Samples, median};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// The part of the benchmark, and the figure of the paper, to which a case belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Part {
    /// Figures 6b, 6c, 7c, 7d: throughput by workload.
    Workloads,
    /// Figure 6a: latency against throughput.
    Threads,
    /// MultiGet by its number of keys.
    Batches,
    /// Uniform reads over networks of longer round trips.
    Networks,
    /// Figure 8.
    Sampling,
    /// Figure 10.
    Configurations,
    /// Gets of merged values, and of values in blob files.
    Values,
}

/// Where a database stores its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Values {
    /// In its tables.
    Plain,
    /// In tables of the last level, with a merge operand for each in a level above.
    Merge,
    /// In blob files.
    Blob,
}

impl Values {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Values::Plain => "plain",
            Values::Merge => "merge",
            Values::Blob => "blob",
        }
    }
}

/// Configurations of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Configuration {
    /// Tables hold their indices; there are no Bloom filters.
    Default,
    Bloom,
    /// Index blocks are evicted from the block cache like others.
    EvictableIndex,
}

/// The common properties of one run of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Setting {
    pub(super) part: Part,
    pub(super) latency_us: u64,
    /// How much longer the network's round trip is than this machine's.
    pub(super) network_us: u64,
    pub(super) cache_bytes: u64,
    pub(super) configuration: Configuration,
    pub(super) values: Values,
    /// Share of Gets that RocksDB serves itself for its cache, of 1; none if the library chooses.
    pub(super) sample_rate: Option<f64>,
}

/// The figures of one mode of a case.
#[derive(Serialize)]
pub(super) struct ModeFigures {
    pub(super) mode: Mode,
    #[serde(flatten)]
    pub(super) figures: Figures,
    pub(super) p999_us: f64,
    /// Share of all processors' time that a hypervisor gave to others, of 1, in the repetition that lost most.
    pub(super) stolen_most: f64,
    /// Blocks that RocksDB has read, from any source; for a Get served by a chain the attempt counts that found the
    /// block missing in memory.
    pub(super) rocksdb_blocks_per_op: f64,
    pub(super) chain_blocks_per_op: f64,
    /// None if the processors do not report energy.
    pub(super) energy_mj_per_op: Option<f64>,
    /// Counts of Gets by the way they were served, over all repetitions.
    pub(super) gets: BTreeMap<String, u64>,
}

impl ModeFigures {
    /// Processor time of host and target together, in µs an operation.
    pub(super) fn cpu_us_per_op(&self) -> Option<f64> {
        Some(self.figures.host_cpu_us_per_op? + self.figures.target_cpu_us_per_op?)
    }

    /// Blocks that an operation has needed.
    pub(super) fn blocks_per_op(&self) -> f64 {
        match self.mode {
            Mode::Chains | Mode::Single if self.chain_blocks_per_op > 0.0 => {
                self.chain_blocks_per_op
            }
            _ => self.rocksdb_blocks_per_op,
        }
    }
}

/// One workload with one number of threads and one setting.
#[derive(Serialize)]
pub(super) struct Case {
    #[serde(flatten)]
    pub(super) setting: Setting,
    pub(super) workload: String,
    /// Keys of one operation, for MultiGet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) batch: Option<u32>,
    pub(super) threads: u32,
    pub(super) modes: Vec<ModeFigures>,
    /// How many times better chains are than plain reads.
    pub(super) ratio: Option<Ratio>,
}

impl Case {
    pub(super) fn of(&self, mode: Mode) -> Option<&ModeFigures> {
        self.modes.iter().find(|figures| figures.mode == mode)
    }
}

/// The figures with goals: how many times better chains are than plain reads; none if not measured.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    /// Uniform reads without cache at the first of the latencies.
    uniform_ops_ratio: Option<f64>,
    uniform_p99_ratio: Option<f64>,
    /// The least of YCSB A, B, C, D and F, also at that latency.
    ycsb_min_ops_ratio: Option<f64>,
    ycsb_e_ops_ratio: Option<f64>,
    /// Processor time of host and target, and bytes on the network, for uniform reads.
    cpu_per_op_ratio: Option<f64>,
    net_bytes_ratio: Option<f64>,
    /// MultiGet of 32 keys, with vectors: against plain reads, and against a command for each key.
    multiget32_over_plain: Option<f64>,
    multiget32_over_before: Option<f64>,
    /// Uniform reads of merged values, and of values in blob files.
    merge_over_plain: Option<f64>,
    blob_over_plain: Option<f64>,
}

/// All results.
#[derive(Serialize)]
pub(super) struct Report {
    /// The database's composition.
    pub(super) database: Value,
    pub(super) cases: Vec<Case>,
    /// Last, so that it is at the end of the file.
    pub(super) summary: Summary,
}

/// Figures of the repetitions of one mode.
#[derive(Default)]
struct ModeSamples {
    samples: Samples,
    p999_us: Vec<f64>,
    stolen_most: f64,
    rocksdb_blocks: Vec<f64>,
    chain_blocks: Vec<f64>,
    energy_mj: Vec<f64>,
    gets: BTreeMap<String, u64>,
}

impl ModeSamples {
    fn add(&mut self, measured: &Measurement) {
        let operations = measured.operations as f64;
        let network = measured.sent_bytes.zip(measured.received_bytes);
        let samples = &mut self.samples;
        samples.ops_per_s.push(operations / measured.seconds);
        samples.p50_us.push(measured.p50_us);
        samples.p99_us.push(measured.p99_us);
        samples.net_bytes.extend(network.map(|(sent, got)| (sent + got) as f64 / operations));
        samples.host_us.push(measured.host_cpu_s * 1e6 / operations);
        samples.target_us.extend(measured.target_cpu_s.map(|used| used * 1e6 / operations));
        self.p999_us.push(measured.p999_us);
        self.stolen_most = self.stolen_most.max(measured.stolen);
        self.rocksdb_blocks.push(measured.rocksdb_blocks as f64 / operations);
        self.chain_blocks.push(measured.chain_blocks as f64 / operations);
        self.energy_mj.extend(measured.energy_j.map(|used| used * 1e3 / operations));
        for (way, count) in &measured.gets {
            *self.gets.entry(way.clone()).or_default() += count;
        }
    }

    fn figures(self, mode: Mode) -> ModeFigures {
        let energy = &self.energy_mj;
        ModeFigures {
            mode,
            figures: self.samples.figures(),
            p999_us: median(&self.p999_us),
            stolen_most: self.stolen_most,
            rocksdb_blocks_per_op: median(&self.rocksdb_blocks),
            chain_blocks_per_op: median(&self.chain_blocks),
            energy_mj_per_op: (!energy.is_empty()).then(|| median(energy)),
            gets: self.gets,
        }
    }
}

/// Samples of a case.
struct CaseSamples<'a> {
    workload: &'a str,
    threads: u32,
    modes: Vec<(Mode, ModeSamples)>,
}

impl CaseSamples<'_> {
    fn add(&mut self, measured: &Measurement) {
        let mode = measured.mode;
        let index = self.modes.iter().position(|(of, _)| *of == mode).unwrap_or_else(|| {
            self.modes.push((mode, ModeSamples::default()));
            self.modes.len() - 1
        });
        self.modes[index].1.add(measured);
    }

    fn case(self, setting: Setting) -> Case {
        let CaseSamples { workload, threads, modes } = self;
        let modes = modes.into_iter().map(|(mode, samples)| samples.figures(mode)).collect();
        let batch = workload.strip_prefix("multiget:").and_then(|keys| keys.parse().ok());
        let workload = workload.to_owned();
        let mut case = Case { setting, workload, batch, threads, modes, ratio: None };
        case.ratio = case
            .of(Mode::Plain)
            .zip(case.of(Mode::Chains))
            .map(|(plain, chains)| Ratio::of(&plain.figures, &chains.figures));
        case
    }
}

/// The cases of one run of the driver, in the order in which they were measured.
pub(super) fn cases(setting: Setting, measured: &[Measurement]) -> Vec<Case> {
    let mut found: Vec<CaseSamples<'_>> = Vec::new();
    for one in measured {
        let (workload, threads) = (one.workload.as_str(), one.threads);
        let index = found
            .iter()
            .position(|case| case.workload == workload && case.threads == threads)
            .unwrap_or_else(|| {
                found.push(CaseSamples { workload, threads, modes: Vec::new() });
                found.len() - 1
            });
        found[index].add(one);
    }
    found.into_iter().map(|case| case.case(setting)).collect()
}

/// The summary, for the first of the latencies.
pub(super) fn summary(cases: &[Case], latency_us: u64) -> Summary {
    let find = |workload: &str| {
        cases.iter().find(|case| {
            let Setting { part, latency_us: latency, cache_bytes, .. } = case.setting;
            part == Part::Workloads
                && latency == latency_us
                && cache_bytes == 0
                && case.workload == workload
        })
    };
    let ratio = |workload: &str| find(workload)?.ratio.as_ref();
    let ops = |workload: &str| Some(ratio(workload)?.ops_per_s);
    let cpu = |mode: Mode| find("uniform")?.of(mode)?.cpu_us_per_op();
    let batch = cases
        .iter()
        .find(|case| case.setting.part == Part::Batches && case.workload == "multiget:32");
    let batch_ops = |mode: Mode| Some(batch?.of(mode)?.figures.ops_per_s);
    let multiget32_over = |mode: Mode| Some(batch_ops(Mode::Chains)? / batch_ops(mode)?);
    let values_over_plain = |values: Values| {
        let is_it =
            |case: &&Case| case.setting.part == Part::Values && case.setting.values == values;
        Some(cases.iter().find(is_it)?.ratio.as_ref()?.ops_per_s)
    };
    let ycsb: Vec<f64> = ["a", "b", "c", "d", "f"].into_iter().filter_map(ops).collect();
    Summary {
        uniform_ops_ratio: ops("uniform"),
        uniform_p99_ratio: ratio("uniform").map(|ratio| ratio.p99),
        ycsb_min_ops_ratio: ycsb.into_iter().reduce(f64::min),
        ycsb_e_ops_ratio: ops("e"),
        cpu_per_op_ratio: cpu(Mode::Plain)
            .zip(cpu(Mode::Chains))
            .map(|(plain, chains)| plain / chains),
        net_bytes_ratio: ratio("uniform").map(|ratio| ratio.net_bytes),
        multiget32_over_plain: multiget32_over(Mode::Plain),
        multiget32_over_before: multiget32_over(Mode::Single),
        merge_over_plain: values_over_plain(Values::Merge),
        blob_over_plain: values_over_plain(Values::Blob),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of the driver, with the fields that identify the case and those that ratios are computed from.
    fn line(workload: &str, mode: &str, operations: u64, p99_us: f64) -> Measurement {
        let line = serde_json::json!({
            "workload": workload, "mode": mode, "threads": 16, "operations": operations,
            "seconds": 2.0, "p50_us": 1.0, "p99_us": p99_us, "p999_us": 3.0, "stolen": 0.01, "host_cpu_s": 0.5,
            "target_cpu_s": 0.5, "energy_j": null, "rocksdb_blocks": 5 * operations,
            "chain_blocks": 0, "sent_bytes": 100 * operations, "received_bytes": 300 * operations,
            "gets": { "target": operations },
        });
        serde_json::from_value(line).expect("a line")
    }

    fn setting(part: Part) -> Setting {
        Setting {
            part,
            latency_us: 3,
            network_us: 0,
            cache_bytes: 0,
            configuration: Configuration::Default,
            values: Values::Plain,
            sample_rate: None,
        }
    }

    #[test]
    fn repetitions_become_medians_and_ratios() {
        let mut measured = Vec::new();
        for more in [0, 20, 10] {
            measured.push(line("uniform", "plain", 100 + more, 40.0));
            measured.push(line("uniform", "chains", 200 + 2 * more, 20.0));
        }
        measured.push(line("a", "plain", 100, 1.0));
        measured.push(line("a", "chains", 150, 1.0));
        measured.push(line("b", "plain", 100, 1.0));
        measured.push(line("b", "chains", 120, 1.0));
        let cases = cases(setting(Part::Workloads), &measured);
        let workloads: Vec<_> = cases.iter().map(|case| case.workload.as_str()).collect();
        assert_eq!(workloads, ["uniform", "a", "b"]);
        let plain = cases[0].of(Mode::Plain).expect("measured");
        assert_eq!(plain.figures.ops_per_s, 55.0);
        assert_eq!(plain.figures.ops_per_s_range, [50.0, 60.0]);
        assert_eq!(plain.figures.net_bytes_per_op, 400.0);
        assert_eq!((plain.blocks_per_op(), plain.gets["target"]), (5.0, 330));
        let expected = Summary {
            uniform_ops_ratio: Some(2.0),
            uniform_p99_ratio: Some(2.0),
            ycsb_min_ops_ratio: Some(1.2),
            ycsb_e_ops_ratio: None,
            cpu_per_op_ratio: Some(2.0),
            net_bytes_ratio: Some(1.0),
            multiget32_over_plain: None,
            multiget32_over_before: None,
            merge_over_plain: None,
            blob_over_plain: None,
        };
        assert_eq!(summary(&cases, 3), expected);
        assert_eq!(summary(&cases, 90).uniform_ops_ratio, None);
    }

    #[test]
    fn multiget_of_32_keys_is_compared_with_both() {
        let mut measured = Vec::new();
        for (keys, faster) in [(16, 1), (32, 2)] {
            let workload = format!("multiget:{keys}");
            measured.push(line(&workload, "plain", 100, 1.0));
            measured.push(line(&workload, "single", 200, 1.0));
            measured.push(line(&workload, "chains", 300 * faster, 1.0));
        }
        let cases = cases(setting(Part::Batches), &measured);
        assert_eq!(cases.iter().map(|case| case.batch).collect::<Vec<_>>(), [Some(16), Some(32)]);
        let summary = summary(&cases, 3);
        assert_eq!(summary.multiget32_over_plain, Some(6.0));
        assert_eq!(summary.multiget32_over_before, Some(3.0));
    }

    #[test]
    fn merges_and_blobs_are_compared_with_plain_reads() {
        let mut found = Vec::new();
        for (values, chains) in [(Values::Merge, 300), (Values::Blob, 250)] {
            let setting = Setting { values, ..setting(Part::Values) };
            let measured =
                [line("uniform", "plain", 100, 1.0), line("uniform", "chains", chains, 1.0)];
            found.extend(cases(setting, &measured));
        }
        let summary = summary(&found, 3);
        assert_eq!((summary.merge_over_plain, summary.blob_over_plain), (Some(3.0), Some(2.5)));
        assert_eq!(summary.uniform_ops_ratio, None);
    }
}
