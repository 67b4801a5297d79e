//! The figures as JSON and as a table.

use super::aggressor::Aggressor;
use super::victim::{Slowest, Window};
use crate::legend::{self, Word};
use crate::measurement::{latencies, median, range, spread_percent, thousands};
use clap::ValueEnum;
use hdrhistogram::{CreationError, Histogram};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// The name of all aggressors at once.
const EVERYTHING: &str = "everything";
/// The name of the scanning aggressor.
const SCANS: &str = "scans";

/// The measurement windows of the repetitions.
pub(super) struct Sample {
    reads: Latencies,
    gets: Latencies,
}

struct Latencies {
    all: Histogram<u64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    p99_due_us: Vec<f64>,
}

/// Latencies in µs: medians over the repetitions, and the longest of all.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) count: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Of the repetitions with the lowest and with the highest percentile.
    pub(super) p99_us_range: [f64; 2],
    /// The 99th percentile of operations that are due at regular times, one for each median: the victim waits for one
    /// before it begins the next, so that it sees a pause only once, whatever would have been due meanwhile.
    pub(super) p99_due_us: f64,
    pub(super) max_us: f64,
}

/// The victim alone, and beside one aggressor.
#[derive(Debug, Serialize)]
pub(super) struct Case {
    pub(super) aggressor: String,
    pub(super) read_idle: Figures,
    pub(super) read: Figures,
    pub(super) get_idle: Figures,
    pub(super) get: Figures,
    /// The slowest Function Load of a small function, and the slowest Connect with an I/O queue.
    pub(super) load_max_ms: f64,
    pub(super) connect_max_ms: f64,
    /// From SIGTERM to the end of the target, while the aggressor runs.
    pub(super) stop_s: f64,
    /// Operations of the aggressor: chains that ended, functions loaded, connections.
    pub(super) aggressor_operations: u64,
}

/// The target's resident memory, under all aggressors and after they stopped.
#[derive(Debug, Serialize)]
pub(super) struct Memory {
    memory_max: String,
    seconds: u32,
    idle_mib: f64,
    max_mib: f64,
    left_mib: f64,
    /// Time until it was within 64 MiB of its use at rest; 60 if it was not.
    given_back_s: f64,
}

/// The figures with goals: the worst beside one aggressor. All at once are reported separately.
#[derive(Debug, Serialize)]
struct Summary {
    read_p99_worst_us: f64,
    read_p99_due_worst_us: f64,
    read_max_worst_us: f64,
    get_p99_worst_us: f64,
    get_p99_due_worst_us: f64,
    get_max_worst_us: f64,
    /// The aggressor beside which the 99th percentile of reads was worst.
    worst_aggressor: String,
    load_max_worst_ms: f64,
    connect_max_worst_ms: f64,
    stop_worst_s: f64,
    /// The 99th percentile of reads beside scans, divided by that of the victim alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    scans_read_p99_over_idle: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    everything_read_p99_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    everything_get_p99_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_max_mib: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_given_back_s: Option<f64>,
}

/// All results.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    bench: &'static str,
    /// Whether all aggressors have the victim's address; otherwise each host has its own.
    together: bool,
    pub(super) cases: Vec<Case>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
    /// The largest share of the processors' time that a hypervisor took from a measurement, of 1.
    pub(super) lost: f64,
    summary: Summary,
}

impl Sample {
    pub(super) fn new() -> Result<Sample, CreationError> {
        let new = || -> Result<_, CreationError> {
            let (p50_us, p99_us, p99_due_us) = (Vec::new(), Vec::new(), Vec::new());
            Ok(Latencies { all: latencies()?, p50_us, p99_us, p99_due_us })
        };
        Ok(Sample { reads: new()?, gets: new()? })
    }

    pub(super) fn add(&mut self, window: &Window) {
        self.reads.add(&window.reads);
        self.gets.add(&window.gets);
    }
}

impl Latencies {
    fn add(&mut self, window: &Histogram<u64>) {
        let quantile_us = |quantile| window.value_at_quantile(quantile) as f64 / 1000.0;
        self.p50_us.push(quantile_us(0.5));
        self.p99_us.push(quantile_us(0.99));
        let due = window.clone_correct(window.value_at_quantile(0.5));
        self.p99_due_us.push(due.value_at_quantile(0.99) as f64 / 1000.0);
        // All histograms have the bounds of `latencies`.
        self.all += window;
    }

    fn figures(&self) -> Figures {
        Figures {
            count: self.all.len(),
            p50_us: median(&self.p50_us),
            p99_us: median(&self.p99_us),
            p99_us_range: range(&self.p99_us),
            p99_due_us: median(&self.p99_due_us),
            max_us: self.all.max() as f64 / 1000.0,
        }
    }
}

impl Case {
    pub(super) fn new(
        aggressor: String,
        (idle, beside): (&Sample, &Sample),
        slowest: Slowest,
        stopped: Duration,
        aggressor_operations: u64,
    ) -> Case {
        Case {
            aggressor,
            read_idle: idle.reads.figures(),
            read: beside.reads.figures(),
            get_idle: idle.gets.figures(),
            get: beside.gets.figures(),
            load_max_ms: slowest.load.as_secs_f64() * 1000.0,
            connect_max_ms: slowest.connect.as_secs_f64() * 1000.0,
            stop_s: stopped.as_secs_f64(),
            aggressor_operations,
        }
    }

    fn read_p99_over_idle(&self) -> f64 {
        self.read.p99_us / self.read_idle.p99_us
    }
}

impl Memory {
    pub(super) fn new(
        memory_max: &str,
        seconds: u32,
        bytes: [u64; 3],
        given_back: Duration,
    ) -> Memory {
        let [idle_mib, max_mib, left_mib] = bytes.map(|bytes| bytes as f64 / f64::from(1 << 20));
        let given_back_s = given_back.as_secs_f64();
        Memory {
            memory_max: memory_max.to_owned(),
            seconds,
            idle_mib,
            max_mib,
            left_mib,
            given_back_s,
        }
    }
}

impl Report {
    pub(super) fn new(
        together: bool,
        cases: Vec<Case>,
        memory: Option<Memory>,
        lost: f64,
    ) -> Report {
        let named = |name: &str| cases.iter().find(|case| case.aggressor == name);
        let everything = named(EVERYTHING);
        let alone = cases.len() > usize::from(everything.is_some());
        let single = || cases.iter().filter(move |case| !alone || case.aggressor != EVERYTHING);
        let most = |of: fn(&Case) -> f64| single().map(of).fold(0.0, f64::max);
        let by_p99 = |a: &&Case, b: &&Case| a.read.p99_us.total_cmp(&b.read.p99_us);
        let worst = single().max_by(by_p99);
        let summary = Summary {
            read_p99_worst_us: most(|case| case.read.p99_us),
            read_p99_due_worst_us: most(|case| case.read.p99_due_us),
            read_max_worst_us: most(|case| case.read.max_us),
            get_p99_worst_us: most(|case| case.get.p99_us),
            get_p99_due_worst_us: most(|case| case.get.p99_due_us),
            get_max_worst_us: most(|case| case.get.max_us),
            worst_aggressor: worst.map(|case| case.aggressor.clone()).unwrap_or_default(),
            load_max_worst_ms: most(|case| case.load_max_ms),
            connect_max_worst_ms: most(|case| case.connect_max_ms),
            stop_worst_s: most(|case| case.stop_s),
            scans_read_p99_over_idle: named(SCANS).map(Case::read_p99_over_idle),
            everything_read_p99_us: everything.map(|case| case.read.p99_us),
            everything_get_p99_us: everything.map(|case| case.get.p99_us),
            memory_max_mib: memory.as_ref().map(|memory| memory.max_mib),
            memory_given_back_s: memory.as_ref().map(|memory| memory.given_back_s),
        };
        Report { bench: "fair", together, cases, memory, lost, summary }
    }

    /// The figures as a table.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "A victim beside each aggressor, {}: µs (p50 p99 ± % due max), and of the victim alone in brackets\n\
             {:<11} {:>50} {:>50} {:>8} {:>8} {:>7}",
            if self.together { "of its address" } else { "of other addresses" },
            "",
            "a read of 4 KiB",
            "a get, pushed down",
            "load ms",
            "conn. ms",
            "stop s"
        );
        let cell = |beside: &Figures, idle: &Figures| {
            let of = |f: &Figures| {
                let spread = spread_percent(f.p99_us, f.p99_us_range);
                let Figures { p50_us, p99_us, p99_due_us, max_us, .. } = *f;
                format!("{p50_us:.0} {p99_us:.0} ±{spread:.0} {p99_due_us:.0} {max_us:.0}")
            };
            format!("{} ({})", of(beside), of(idle))
        };
        for case in &self.cases {
            let _ = writeln!(
                text,
                "{:<11} {:>50} {:>50} {:>8.1} {:>8.1} {:>7.2}",
                case.aggressor,
                cell(&case.read, &case.read_idle),
                cell(&case.get, &case.get_idle),
                case.load_max_ms,
                case.connect_max_ms,
                case.stop_s
            );
        }
        if let Some(times) = self.summary.scans_read_p99_over_idle {
            let _ = writeln!(
                text,
                "Beside scans the p99 of reads is {times:.2} times that of the victim alone."
            );
        }
        if let Some(memory) = &self.memory {
            let _ = writeln!(
                text,
                "Everything for {} s at a target with --memory-max {}: {:.0} MiB resident before, at \
                 most {:.0} MiB,\nand {:.0} MiB {:.1} s after the aggressors ended.",
                memory.seconds,
                memory.memory_max,
                memory.idle_mib,
                memory.max_mib,
                memory.left_mib,
                memory.given_back_s
            );
        }
        self.explain(&mut text);
        text
    }

    fn explain(&self, text: &mut String) {
        let values = Aggressor::value_variants().iter().filter_map(Aggressor::to_possible_value);
        let values: Vec<_> = values
            .filter(|value| self.cases.iter().any(|case| case.aggressor == value.get_name()))
            .map(|value| (value.get_name().to_owned(), value.get_help().map(ToString::to_string)))
            .collect();
        let aggressors =
            values.iter().map(|(name, help)| (name.as_str(), help.as_deref().unwrap_or("")));
        let words: Vec<Word<'_>> = aggressors.chain(WORDS).collect();
        *text += &legend::end(&words, self.sentence(), self.lost);
    }

    /// The worst case beside one aggressor, as a quotable sentence.
    fn sentence(&self) -> Option<String> {
        let Summary { worst_aggressor, .. } = &self.summary;
        let worst = self.cases.iter().find(|case| case.aggressor == *worst_aggressor)?;
        Some(format!(
            "Beside the worst aggressor ({worst_aggressor}) 99 of 100 reads of 4 KiB take at most {} µs, alone \
             {} µs; gets that are pushed down {} µs, alone {} µs.",
            thousands(worst.read.p99_us),
            thousands(worst.read_idle.p99_us),
            thousands(worst.get.p99_us),
            thousands(worst.get_idle.p99_us),
        ))
    }
}

/// The meaning of the table's words, after the names of aggressors.
const WORDS: [Word<'static>; 7] = [
    (
        "p50, p99",
        "latency that half of the victim's operations, and 99 of a hundred, do not exceed: medians",
    ),
    ("± %", "distance of the repetitions with the lowest and the highest p99 from the median"),
    (
        "due",
        "p99 of operations that are due at regular times, one each p50: operations that a pause delays count",
    ),
    ("max", "the slowest operation of all repetitions"),
    ("load ms", "the slowest load of a small function by the victim"),
    ("conn. ms", "the slowest connection of the victim with one I/O queue"),
    ("stop s", "from SIGTERM to the end of the target, with the aggressor at it"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legend::assert_explained;

    #[test]
    fn the_table_explains_itself() {
        let figures = |p99_us: f64| Figures {
            count: 10,
            p50_us: p99_us / 2.0,
            p99_us,
            p99_us_range: [p99_us * 0.8, p99_us * 1.1],
            p99_due_us: p99_us * 2.0,
            max_us: p99_us * 3.0,
        };
        let case = |aggressor: &str, p99_us| Case {
            aggressor: aggressor.to_owned(),
            read_idle: figures(20.0),
            read: figures(p99_us),
            get_idle: figures(30.0),
            get: figures(p99_us + 10.0),
            load_max_ms: 1.0,
            connect_max_ms: 2.0,
            stop_s: 0.1,
            aggressor_operations: 5,
        };
        let cases = vec![case("scans", 100.0), case("storm", 200.0), case(EVERYTHING, 900.0)];
        let text = Report::new(false, cases, None, 0.0).table();
        let words = [
            "scans",
            "storm",
            "everything",
            "p50",
            "± %",
            "due",
            "max",
            "load ms",
            "conn. ms",
            "stop s",
        ];
        let sentence = "Beside the worst aggressor (storm) 99 of 100 reads of 4 KiB take at most 200 µs, alone \
             20 µs; gets that are pushed down 210 µs, alone 30 µs.";
        assert_explained(&text, &words, sentence);
        assert!(text.contains("Beside scans the p99 of reads is 5.00 times"), "{text}");
        assert!(text.contains("100 200 ±20 400 600 (10 20 ±20 40 60)"), "{text}");
        assert!(!text.contains("silent"), "{text}");
    }
}
