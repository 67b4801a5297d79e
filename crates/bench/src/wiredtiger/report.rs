//! The program's measurements, and the figures computed from them.

use crate::legend::{self, Word};
use crate::measurement::{median, range, spread_percent};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// A line of the program's output: one repetition of a workload in a mode.
#[derive(Clone, Deserialize)]
pub(super) struct Measurement {
    /// The version of WiredTiger.
    pub(super) wiredtiger: String,
    pub(super) workload: String,
    pub(super) mode: String,
    pub(super) operations: u64,
    pub(super) seconds: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) host_cpu_s: f64,
    pub(super) target_cpu_s: f64,
    pub(super) stolen: f64,
    pub(super) round_trips: u64,
    pub(super) values: u64,
    pub(super) failed: u64,
}

/// The configuration of table and cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Setting {
    pub(super) pages: String,
    /// Of keys and values; none where everything fits.
    pub(super) cache_percent: Option<u64>,
    pub(super) cache_bytes: u64,
    pub(super) latency_us: u64,
    pub(super) threads: u32,
}

/// Medians of the repetitions in one mode.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub(super) ops_per_s: f64,
    /// The least and the greatest of the repetitions.
    ops_per_s_range: [f64; 2],
    p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) host_cpu_us_per_op: f64,
    pub(super) target_cpu_us_per_op: f64,
    pub(super) round_trips_per_op: f64,
    /// Searches that a chain answered, as a share of all operations.
    values_per_op: f64,
    failed: u64,
    /// The largest share of all processors' time that a hypervisor took, of 1.
    stolen_max: f64,
}

/// The figures of a workload in both modes.
#[derive(Debug, Serialize)]
pub(super) struct Case {
    #[serde(skip)]
    pub(super) wiredtiger: String,
    #[serde(flatten)]
    pub(super) setting: Setting,
    pub(super) workload: String,
    pub(super) plain: Figures,
    pub(super) pushdown: Figures,
    /// Pushdown divided by plain.
    pub(super) ops_ratio: f64,
    /// Plain divided by pushdown.
    pub(super) p99_ratio: f64,
    /// Plain divided by pushdown, for both sides together.
    pub(super) cpu_ratio: f64,
}

/// The papers' measurements with WiredTiger, patched, LSM trees of 512-byte pages.
#[derive(Debug, Serialize)]
pub(super) struct Papers {
    xrp_ycsb_max_ops_ratio: f64,
    xrp_p99_less: f64,
    bpf_of_ycsb_a_ops_ratio: f64,
    bpf_of_uniform_max_ops_ratio: f64,
}

pub(super) const PAPERS: Papers = Papers {
    xrp_ycsb_max_ops_ratio: 1.25,
    xrp_p99_less: 0.40,
    bpf_of_ycsb_a_ops_ratio: 1.20,
    bpf_of_uniform_max_ops_ratio: 1.30,
};

/// The worst of the caches, in 512-byte pages unless said otherwise; missing if not measured.
#[derive(Debug, Default, Serialize)]
pub(super) struct Summary {
    uniform_ops_ratio: Option<f64>,
    zipfian_ops_ratio: Option<f64>,
    p99_ratio: Option<f64>,
    default_pages_ops_ratio: Option<f64>,
    /// Processor time of both sides saved with default pages, of 1.
    default_pages_cpu_less: Option<f64>,
    /// Where everything fits the cache.
    fitting_ops_ratio: Option<f64>,
    round_trips_plain: Option<f64>,
    round_trips_pushdown: Option<f64>,
    /// The worst of YCSB's a to f.
    ycsb_ops_ratio: Option<f64>,
}

fn figures(all: &[&Measurement]) -> Figures {
    let middle = |value: &dyn Fn(&Measurement) -> f64| {
        median(&all.iter().map(|one| value(one)).collect::<Vec<_>>())
    };
    let per_op =
        |value: fn(&Measurement) -> f64| middle(&|one| value(one) / one.operations.max(1) as f64);
    let rates: Vec<f64> = all.iter().map(|one| one.operations as f64 / one.seconds).collect();
    Figures {
        ops_per_s: median(&rates),
        ops_per_s_range: range(&rates),
        p50_us: middle(&|one| one.p50_us),
        p99_us: middle(&|one| one.p99_us),
        host_cpu_us_per_op: per_op(|one| one.host_cpu_s * 1e6),
        target_cpu_us_per_op: per_op(|one| one.target_cpu_s * 1e6),
        round_trips_per_op: per_op(|one| one.round_trips as f64),
        values_per_op: per_op(|one| one.values as f64),
        failed: all.iter().map(|one| one.failed).sum(),
        stolen_max: all.iter().map(|one| one.stolen).fold(0.0, f64::max),
    }
}

/// One case for each workload that was measured in both modes.
pub(super) fn cases(setting: &Setting, measured: &[Measurement]) -> Vec<Case> {
    let mut names: Vec<&str> = measured.iter().map(|one| one.workload.as_str()).collect();
    names.dedup();
    let case = |name: &&str| {
        let of = |mode: &str| -> Vec<&Measurement> {
            let is = |one: &&Measurement| one.workload == **name && one.mode == mode;
            measured.iter().filter(is).collect()
        };
        let (plain, pushdown) = (figures(&of("plain")), figures(&of("values")));
        let cpu = |one: &Figures| one.host_cpu_us_per_op + one.target_cpu_us_per_op;
        Case {
            wiredtiger: measured.first().map(|one| one.wiredtiger.clone()).unwrap_or_default(),
            setting: setting.clone(),
            workload: (*name).to_owned(),
            ops_ratio: pushdown.ops_per_s / plain.ops_per_s,
            p99_ratio: plain.p99_us / pushdown.p99_us,
            cpu_ratio: cpu(&plain) / cpu(&pushdown),
            plain,
            pushdown,
        }
    };
    names.iter().map(case).collect()
}

/// The summary, for the first of the latencies and of the numbers of threads.
pub(super) fn summary(cases: &[Case]) -> Summary {
    let counts = |case: &&Case| {
        let first = cases.first().map(|case| &case.setting);
        first.is_some_and(|first| {
            (case.setting.latency_us, case.setting.threads) == (first.latency_us, first.threads)
        })
    };
    let least = |pages: &str, workload: &str, fits: bool, value: fn(&Case) -> f64| {
        let is = |case: &&Case| {
            case.setting.pages == pages
                && case.workload == workload
                && case.setting.cache_percent.is_none() == fits
        };
        cases.iter().filter(counts).filter(is).map(value).reduce(f64::min)
    };
    let is_letter = |case: &&Case| case.workload.len() == 1;
    Summary {
        uniform_ops_ratio: least("512", "uniform", false, |case| case.ops_ratio),
        zipfian_ops_ratio: least("512", "zipf", false, |case| case.ops_ratio),
        p99_ratio: least("512", "uniform", false, |case| case.p99_ratio),
        default_pages_ops_ratio: least("default", "uniform", false, |case| case.ops_ratio),
        default_pages_cpu_less: least("default", "uniform", false, |case| {
            1.0 - 1.0 / case.cpu_ratio
        }),
        fitting_ops_ratio: least("512", "uniform", true, |case| case.ops_ratio),
        round_trips_plain: least("512", "uniform", false, |case| case.plain.round_trips_per_op),
        round_trips_pushdown: least("512", "uniform", false, |case| {
            case.pushdown.round_trips_per_op
        }),
        ycsb_ops_ratio: cases
            .iter()
            .filter(counts)
            .filter(is_letter)
            .map(|case| case.ops_ratio)
            .reduce(f64::min),
    }
}

/// The meaning of the table's words.
const WORDS: [Word<'static>; 8] = [
    ("pages", "their size in bytes; default: WiredTiger's default of 4 and 32 KiB"),
    ("cache MiB", "WiredTiger's cache; all: larger than all keys and values"),
    ("workload", "uniform and zipf (0.99) reads; a to f: YCSB's"),
    ("plain", "WiredTiger alone, with single reads on the same connections"),
    ("pushdown", "searches end at the target, in one round trip"),
    legend::SPREAD,
    (
        "gain",
        "how many times better pushdown is than plain: operations a second, p99, processor time",
    ),
    ("trips/op", "round trips of an operation, plain → pushdown"),
];

/// The cases as a table, with explanations.
pub(super) fn text(wiredtiger: &str, cases: &[Case]) -> String {
    let mut text = format!(
        "WiredTiger {wiredtiger}\n{:<8} {:>9} {:>6} {:>8}  {:<9} {:>11} {:>5} {:>14} {:>5} {:>6} {:>9} {:>9} {:>12}\n",
        "pages",
        "cache MiB",
        "drive",
        "threads",
        "workload",
        "plain ops/s",
        "± %",
        "pushdown ops/s",
        "± %",
        "gain",
        "p99 gain",
        "CPU gain",
        "trips/op"
    );
    for case in cases {
        let Case { setting, workload, plain, pushdown, ops_ratio, p99_ratio, cpu_ratio, .. } = case;
        let cache = setting.cache_percent.map(|_| format!("{:.1}", mib(setting.cache_bytes)));
        let cache = cache.as_deref().unwrap_or("all");
        let spread = |of: &Figures| spread_percent(of.ops_per_s, of.ops_per_s_range);
        let _ = writeln!(
            text,
            "{:<8} {cache:>9} {:>3} µs {:>8}  {workload:<9} {:>11.0} {:>5.0} {:>14.0} {:>5.0} {ops_ratio:>6.2} \
             {p99_ratio:>9.2} {cpu_ratio:>9.2} {:>12}",
            setting.pages,
            setting.latency_us,
            setting.threads,
            plain.ops_per_s,
            spread(plain),
            pushdown.ops_per_s,
            spread(pushdown),
            format!("{:.2} → {:.2}", plain.round_trips_per_op, pushdown.round_trips_per_op),
        );
    }
    text += "\nThe papers' WiredTiger, patched, with LSM trees: XRP up to 1.25 times as many operations and 40 % off the \
             99th percentile; BPF-oF 1.2 times in YCSB A, up to 1.3 times for uniform reads.\n";
    let failed: u64 = cases.iter().map(|case| case.plain.failed + case.pushdown.failed).sum();
    if failed > 0 {
        let _ = writeln!(text, "{failed} chains failed; WiredTiger read those values itself.");
    }
    let stolen = cases.iter().map(|case| case.plain.stolen_max.max(case.pushdown.stolen_max));
    let stolen = 100.0 * stolen.fold(0.0, f64::max);
    text += &legend::end(&WORDS, sentence(cases), 0.0);
    if stolen > 0.0 {
        let _ = writeln!(
            text,
            "\nA hypervisor took up to {stolen:.1} % of the processors' time from a measurement."
        );
    }
    text
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Uniform reads, or the first case, as a quotable sentence.
fn sentence(cases: &[Case]) -> Option<String> {
    let uniform = cases.iter().find(|case| case.workload == "uniform");
    let case = uniform.or(cases.first())?;
    Some(format!(
        "WiredTiger on a drive of {} µs, pages {}, a cache of {:.1} MiB, workload {}: {:.1} times as many operations a second \
         by chains as by plain reads.",
        case.setting.latency_us,
        case.setting.pages,
        mib(case.setting.cache_bytes),
        case.workload,
        case.ops_ratio,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(mode: &str, operations: u64, p99_us: f64, round_trips: u64) -> Measurement {
        Measurement {
            wiredtiger: "11.3.1".to_owned(),
            workload: "uniform".to_owned(),
            mode: mode.to_owned(),
            operations,
            seconds: 2.0,
            p50_us: p99_us / 2.0,
            p99_us,
            host_cpu_s: 1.0,
            target_cpu_s: 1.0,
            stolen: 0.0,
            round_trips,
            values: 0,
            failed: 0,
        }
    }

    #[test]
    fn even_numbers_of_measurements_have_the_middle_as_median() {
        let all = [measurement("plain", 1000, 90.0, 2500), measurement("plain", 3000, 30.0, 3000)];
        let found = figures(&all.each_ref());
        assert_eq!((found.ops_per_s, found.p99_us), (1000.0, 60.0));
        assert_eq!(found.ops_per_s_range, [500.0, 1500.0]);
    }

    #[test]
    fn ratios_are_of_medians_and_the_summary_has_the_least() {
        let setting = |percent| Setting {
            pages: "512".to_owned(),
            cache_percent: Some(percent),
            cache_bytes: 1,
            latency_us: 3,
            threads: 8,
        };
        let measured = [
            measurement("plain", 1000, 90.0, 2500),
            measurement("values", 3000, 30.0, 3000),
            measurement("plain", 100, 900.0, 250),
            measurement("values", 9000, 10.0, 9000),
            measurement("plain", 1200, 80.0, 3000),
            measurement("values", 3600, 20.0, 3600),
        ];
        let mut all = cases(&setting(1), &measured);
        all.extend(cases(&setting(5), &measured[..2]));
        assert_eq!(all.len(), 2);
        assert!((all[0].ops_ratio - 3.6).abs() < 1e-9 && (all[0].p99_ratio - 4.5).abs() < 1e-9);
        // Measurements with another drive are ignored.
        let other = Setting { latency_us: 90, ..setting(1) };
        all.extend(cases(&other, &[measured[0].clone(), measured[0].clone()]));
        let summary = summary(&all);
        assert!(summary.uniform_ops_ratio.is_some_and(|ratio| (ratio - 3.0).abs() < 1e-9));
        assert!(summary.round_trips_plain.is_some_and(|trips| (trips - 2.5).abs() < 1e-9));
        assert!(summary.zipfian_ops_ratio.is_none() && summary.fitting_ops_ratio.is_none());
        assert!(summary.ycsb_ops_ratio.is_none());
        let text = text("11.3.1", &all);
        let words = ["pages", "cache MiB", "± %", "gain", "trips/op"];
        legend::assert_explained(&text, &words, "3.6 times as many operations");
    }
}
