//! The figures as tables, beside those of the paper.

use super::driver::Mode;
use super::report::{Case, Configuration, ModeFigures, Part, Report, Setting, Values};
use crate::legend::{self, Word};
use crate::measurement::{Ratio, thousands};
use std::fmt::Write as _;

/// Latencies of the drives that correspond to the paper's.
const OPTANE_US: u64 = 3;
const NAND_US: u64 = 90;

/// Table 1 of the paper, over TCP: requests a second; and for each request processor time in mCPU, that is ms, kB on
/// the network, and energy in what the paper calls mW.
const TABLE_1: [(&str, [f64; 4]); 2] = [
    ("paper, NVMe-oF/TCP", [48279.0, 0.10, 12.07, 3.63]),
    ("paper, BPF-oF/TCP", [69935.0, 0.06, 9.27, 2.33]),
];

/// All tables.
pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    let mut before = None;
    for case in &report.cases {
        if before != Some(case.setting) {
            let _ = writeln!(text, "{}", heading(&case.setting));
        }
        before = Some(case.setting);
        rows(&mut text, case);
    }
    table_1(&mut text, &report.cases);
    let modes = || report.cases.iter().flat_map(|case| &case.modes);
    if !modes().any(|mode| mode.energy_mj_per_op.is_some()) {
        text += "energy: not reported by this machine (/sys/class/powercap)\n";
    }
    let stolen_most = modes().map(|mode| mode.stolen_most).fold(0.0, f64::max);
    text + &legend::end(&WORDS, sentence(&report.cases), stolen_most)
}

/// The meaning of the tables' words.
const WORDS: [Word<'static>; 13] = [
    ("µs, cache", "of a table: the latency of the simulated drive, and RocksDB's block cache"),
    ("uniform", "Gets of random keys by that many threads (×); 5050: half of them updates"),
    (
        "a to f",
        "YCSB's workloads; twitter…: of Twitter's clusters; multiget:N, scan:N: N keys an operation",
    ),
    (
        "plain",
        "RocksDB reads the tables, one block after the other, on the connections that chains use",
    ),
    ("chains", "Gets are pushed down: one round trip"),
    ("single", "as chains, but with one command for each key of a MultiGet"),
    ("blocks", "a Get fetches at once all blocks that may have its key"),
    ("local", "RocksDB reads a loop device of this machine: no network, and no drive's latency"),
    legend::SPREAD,
    legend::QUANTILES,
    (
        "net B",
        "bytes over the network for each operation; blocks/op: blocks of tables that it needed",
    ),
    legend::PROCESSOR,
    ("gain", "how many times better chains are than plain: operations a second, p99, bytes"),
];

/// Uniform reads with the first setting, or the first case with both modes, as a quotable sentence.
fn sentence(cases: &[Case]) -> Option<String> {
    let has_gain = |case: &&Case| case.ratio.is_some();
    let uniform = cases.iter().filter(has_gain).find(|case| case.workload == "uniform");
    let case = uniform.or(cases.iter().find(has_gain))?;
    let ratio = case.ratio.as_ref()?;
    let per_second = |mode| Some(thousands(case.of(mode)?.figures.ops_per_s));
    Some(format!(
        "RocksDB on a drive of {} µs, {}, workload {}: {:.1} times as many operations a second by chains as by \
         plain reads, {} against {}, with {:.0} times fewer bytes on the network.",
        case.setting.latency_us,
        cache(&case.setting),
        case.workload,
        ratio.ops_per_s,
        per_second(Mode::Chains)?,
        per_second(Mode::Plain)?,
        ratio.net_bytes,
    ))
}

fn cache(setting: &Setting) -> String {
    match setting.cache_bytes {
        0 => "no cache".to_owned(),
        bytes => format!("cache {bytes} bytes"),
    }
}

/// Describes a setting.
pub(super) fn setting(setting: &Setting) -> String {
    let Setting { part, latency_us, configuration, values, sample_rate, .. } = *setting;
    let what = match (part, configuration) {
        (Part::Workloads, _) => "workloads".to_owned(),
        (Part::Threads, _) => "uniform reads by more and more threads".to_owned(),
        (Part::Networks, _) => format!("network of {} µs", setting.network_us),
        (Part::Batches, _) => "MultiGet of more and more keys".to_owned(),
        (Part::Sampling, _) => {
            format!("{} % of Gets for the cache", sample_rate.unwrap_or(0.0) * 100.0)
        }
        (Part::Configurations, Configuration::Bloom) => "Bloom filters".to_owned(),
        (Part::Configurations, _) => "index blocks in the cache".to_owned(),
        (Part::Values, _) => match values {
            Values::Merge => "keys with a merge operand".to_owned(),
            Values::Blob => "values in blob files".to_owned(),
            Values::Plain => "values in tables".to_owned(),
        },
    };
    format!("{what}, {latency_us} µs, {}", cache(setting))
}

/// The line above a table, with the paper's result.
fn heading(of: &Setting) -> String {
    let Setting { part, latency_us, cache_bytes, configuration, .. } = *of;
    let paper = match (part, configuration, latency_us, cache_bytes) {
        (Part::Workloads, _, NAND_US, 0) => " (paper, NAND: 1.4 to 2.2 times, tail up to 2)",
        (Part::Workloads, _, NAND_US, _) => " (paper, NAND: 1.2 to 1.7 times)",
        (Part::Workloads, _, OPTANE_US, _) => " (paper, Optane: 2 to 2.8 times, tail up to 2.6)",
        (_, Configuration::Bloom, ..) => " (paper, NAND: up to 2 times)",
        (_, Configuration::EvictableIndex, ..) => " (paper, NAND: 1.8 times)",
        _ => "",
    };
    format!(
        "\n{}{paper}\n{:<18} {:<8} {:>8} {:>8} {:>9} {:>9} {:>8} {:>8} {:>9} {:>9}",
        setting(of),
        "workload",
        "mode",
        "ops/s",
        "± %",
        "p50 µs",
        "p99 µs",
        "net B",
        "host µs",
        "target µs",
        "blocks/op"
    )
}

fn rows(text: &mut String, case: &Case) {
    let full = match case.setting.part {
        Part::Threads => format!("{} × {}", case.workload, case.threads),
        _ => case.workload.clone(),
    };
    for (index, mode) in case.modes.iter().enumerate() {
        let label = if index == 0 { full.as_str() } else { "" };
        row(text, label, mode);
    }
    if let Some(Ratio { ops_per_s, p99, net_bytes }) = case.ratio {
        let _ = writeln!(
            text,
            "{:<18} {:<8} {ops_per_s:>7.2}× {:>8} {:>9} {p99:>8.2}× {net_bytes:>7.1}×",
            "", "gain", "", ""
        );
    }
}

fn row(text: &mut String, label: &str, mode: &ModeFigures) {
    let figures = &mode.figures;
    let spread = figures.spread_percent();
    let cpu = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
    let net = match mode.mode {
        Mode::Local => "-".to_owned(),
        _ => format!("{:.0}", figures.net_bytes_per_op),
    };
    let _ = writeln!(
        text,
        "{label:<18} {:<8} {:>8.0} {spread:>8.0} {:>9.1} {:>9.1} {net:>8} {:>8} {:>9} {:>9.1}",
        mode.mode.name(),
        figures.ops_per_s,
        figures.p50_us,
        figures.p99_us,
        cpu(figures.host_cpu_us_per_op),
        cpu(figures.target_cpu_us_per_op),
        mode.blocks_per_op(),
    );
}

/// The cost of a request: uniform reads with a cache on a NAND drive.
fn table_1(text: &mut String, cases: &[Case]) {
    let is_it = |case: &&Case| {
        case.setting.part == Part::Workloads
            && case.setting.latency_us == NAND_US
            && case.setting.cache_bytes > 0
            && case.workload == "uniform"
    };
    let Some(case) = cases.iter().find(is_it) else { return };
    let _ = writeln!(
        text,
        "\nuniform reads, {NAND_US} µs, with a cache, a request (paper's table 1)\n{:<20} {:>8} {:>12} {:>12} {:>10}",
        "", "ops/s", "CPU ms", "network kB", "energy mJ"
    );
    for (name, [ops, cpu, network, energy]) in TABLE_1 {
        let _ = writeln!(text, "{name:<20} {ops:>8.0} {cpu:>12.3} {network:>12.2} {energy:>10.2}");
    }
    for mode in [Mode::Plain, Mode::Chains] {
        let Some(figures) = case.of(mode) else { continue };
        let optional = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let _ = writeln!(
            text,
            "{:<20} {:>8.0} {:>12} {:>12.2} {:>10}",
            format!("here, {}", mode.name()),
            figures.figures.ops_per_s,
            optional(figures.cpu_us_per_op().map(|us| us / 1000.0), 3),
            figures.figures.net_bytes_per_op / 1000.0,
            optional(figures.energy_mj_per_op, 2),
        );
    }
}
