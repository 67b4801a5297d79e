//! The figures, beside those of the paper.

use super::database::Database;
use super::methods::{Method, Run};
use crate::legend::{self, Word};
use crate::measurement::{median, range, spread_percent, thousands};
use crate::steal;
use serde::Serialize;
use std::fmt::Write as _;

/// XRP's table 3: average latencies in µs of SPDK, io_uring, read() and XRP, by index reads.
const PAPER: [[f64; 4]; 6] = [
    [5.2, 13.6, 13.4, 10.7],
    [7.8, 20.2, 20.6, 14.2],
    [11.2, 28.0, 27.4, 18.0],
    [14.3, 35.0, 34.0, 21.7],
    [17.2, 42.4, 41.5, 25.4],
    [20.2, 49.3, 48.8, 29.3],
];

/// One method's figures: medians over the repetitions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) average_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) gets_per_s: f64,
    /// Slowest and fastest repetition.
    pub(super) gets_per_s_range: [f64; 2],
    /// Processor time, kernel included, in µs a get.
    pub(super) cpu_us: Option<f64>,
}

impl Figures {
    fn spread_percent(&self) -> f64 {
        spread_percent(self.gets_per_s, self.gets_per_s_range)
    }
}

/// The figures of one depth and number of lookups in flight.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Case {
    bench: &'static str,
    /// Levels of the tree that are read; a get reads the value as well.
    index_reads: u32,
    queue_depth: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    read: Option<Figures>,
    io_uring: Option<Figures>,
    ours: Option<Figures>,
    /// From XRP's table 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    paper: Option<Paper>,
}

/// Average latencies in µs.
#[derive(Clone, Copy, Debug, Serialize)]
struct Paper {
    spdk_us: f64,
    io_uring_us: f64,
    read_us: f64,
    xrp_us: f64,
}

/// Figures of the repetitions of one method.
#[derive(Default)]
pub(super) struct Samples {
    average_us: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    gets_per_s: Vec<f64>,
    cpu_us: Vec<f64>,
}

impl Samples {
    pub(super) fn add(&mut self, run: &Run) {
        let operations = run.operations as f64;
        self.average_us.push(run.latency.mean() / 1000.0);
        self.p50_us.push(run.latency.value_at_quantile(0.5) as f64 / 1000.0);
        self.p99_us.push(run.latency.value_at_quantile(0.99) as f64 / 1000.0);
        self.gets_per_s.push(operations / run.elapsed.as_secs_f64());
        self.cpu_us.extend(run.cpu_ns.map(|ns| ns as f64 / 1000.0 / operations));
    }

    fn figures(&self) -> Figures {
        Figures {
            average_us: median(&self.average_us),
            p50_us: median(&self.p50_us),
            p99_us: median(&self.p99_us),
            gets_per_s: median(&self.gets_per_s),
            gets_per_s_range: range(&self.gets_per_s),
            cpu_us: (!self.cpu_us.is_empty()).then(|| median(&self.cpu_us)),
        }
    }
}

impl Case {
    pub(super) fn new(
        depth: u32,
        queue_depth: usize,
        methods: &[Method],
        samples: &[Samples],
    ) -> Case {
        let of = |method| {
            let at = methods.iter().position(|known| *known == method)?;
            samples.get(at).map(Samples::figures)
        };
        let row = PAPER.get(depth as usize - 1).filter(|_| queue_depth == 1);
        let paper = row.map(|[spdk_us, io_uring_us, read_us, xrp_us]| Paper {
            spdk_us: *spdk_us,
            io_uring_us: *io_uring_us,
            read_us: *read_us,
            xrp_us: *xrp_us,
        });
        let (read, io_uring, ours) = (of(Method::Read), of(Method::Uring), of(Method::Ours));
        Case { bench: "kv-get-local", index_reads: depth, queue_depth, read, io_uring, ours, paper }
    }
}

/// Tables of all cases.
pub(super) fn tables(cases: &[Case], database: &Database) -> String {
    let mut text = format!(
        "BPF-KV in {}: random gets by direct reads of {} bytes.\n",
        database.name(),
        database.block_bytes.max(512),
    );
    let alone: Vec<&Case> = cases.iter().filter(|case| case.queue_depth == 1).collect();
    if !alone.is_empty() {
        latency(&mut text, &alone);
        processor(&mut text, &alone);
    }
    let mut depths: Vec<usize> = cases.iter().map(|case| case.queue_depth).collect();
    depths.retain(|depth| *depth > 1);
    depths.dedup();
    for depth in depths {
        let cases: Vec<&Case> = cases.iter().filter(|case| case.queue_depth == depth).collect();
        throughput(&mut text, depth, &cases);
    }
    text + &legend::end(&WORDS, sentence(cases), steal::lost_most())
}

/// The meaning of the tables' words.
const WORDS: [Word<'static>; 7] = [
    ("# ops", "index reads of a get, each after the other; one more follows, for the value"),
    ("read()", "one call into the kernel for each read"),
    ("io_uring", "a loop in this program that submits the reads of a get one after another"),
    (
        "ours",
        "one call of read_pushdown, whose storage function runs in this process on an io_uring: the same code for \
         local files and targets, many gets in one call into the kernel, registered files and buffers",
    ),
    (
        "XRP",
        "its function runs in the driver, below the kernel's file system and block layer; reads of the other three \
         go through these layers",
    ),
    ("± %", "distance of the fastest and the slowest repetition from the median, in gets a second"),
    ("ours/read()", "below 1 ours takes less; ours/io_uring: above 1 ours does more gets a second"),
];

/// The deepest tree with the most gets in flight, as a quotable sentence.
fn sentence(cases: &[Case]) -> Option<String> {
    let case = cases.iter().max_by_key(|case| (case.queue_depth, case.index_reads))?;
    let (ours, reads) = (case.ours.as_ref()?, case.index_reads + 1);
    let (other, figures) = match (&case.read, &case.io_uring) {
        (Some(read), _) => ("read()", read),
        (None, Some(io_uring)) => ("a plain io_uring loop", io_uring),
        (None, None) => return None,
    };
    Some(format!(
        "Gets of {reads} reads on this machine, {} in flight: {} a second by one call each, {:.2} times as many as \
         by {other}.",
        case.queue_depth,
        thousands(ours.gets_per_s),
        ours.gets_per_s / figures.gets_per_s,
    ))
}

/// The comparison with XRP's table 3.
fn latency(text: &mut String, cases: &[&Case]) {
    let _ = writeln!(
        text,
        "\n{:5} {:56} {:>11}   XRP, table 3 (Optane 5800X, Linux 5.12)\n\
         {:5} {:>18} {:>18} {:>18} {:>11} {:>8} {:>8} {:>6} {:>6} {:>11}",
        "",
        "Average latency in µs (99th percentile) ± % here",
        "",
        "# ops",
        "read()",
        "io_uring",
        "ours",
        "ours/read()",
        "read()",
        "io_uring",
        "XRP",
        "SPDK",
        "XRP/read()",
    );
    let cell = |figures: &Option<Figures>| {
        figures.as_ref().map_or("-".to_owned(), |figures| {
            let Figures { average_us, p99_us, .. } = figures;
            format!("{average_us:.1} ({p99_us:.1}) ±{:.0}", figures.spread_percent())
        })
    };
    for case in cases {
        let _ = write!(
            text,
            "{:<5} {:>18} {:>18} {:>18} {:>11}",
            case.index_reads,
            cell(&case.read),
            cell(&case.io_uring),
            cell(&case.ours),
            ratio(&case.ours, &case.read, |figures| figures.average_us),
        );
        if let Some(Paper { spdk_us, io_uring_us, read_us, xrp_us }) = case.paper {
            let _ = write!(
                text,
                " {read_us:>8.1} {io_uring_us:>8.1} {xrp_us:>6.1} {spdk_us:>6.1} {:>11.2}",
                xrp_us / read_us
            );
        }
        text.push('\n');
    }
}

fn processor(text: &mut String, cases: &[&Case]) {
    let _ = writeln!(
        text,
        "\n{:5} Processor time in µs a get, kernel included\n{:5} {:>18} {:>18} {:>18} {:>11}",
        "", "# ops", "read()", "io_uring", "ours", "ours/read()"
    );
    let cpu = |figures: &Figures| figures.cpu_us.unwrap_or(f64::NAN);
    let cell = |figures: &Option<Figures>| {
        figures.as_ref().map_or("-".to_owned(), |figures| format!("{:.1}", cpu(figures)))
    };
    for case in cases {
        let _ = writeln!(
            text,
            "{:<5} {:>18} {:>18} {:>18} {:>11}",
            case.index_reads,
            cell(&case.read),
            cell(&case.io_uring),
            cell(&case.ours),
            ratio(&case.ours, &case.read, cpu),
        );
    }
}

fn throughput(text: &mut String, depth: usize, cases: &[&Case]) {
    let _ = writeln!(
        text,
        "\n{:5} Gets per second, {depth} in flight (processor time in µs a get) ± %\n\
         {:5} {:>18} {:>18} {:>18} {:>13}",
        "", "# ops", "", "io_uring", "ours", "ours/io_uring"
    );
    let cell = |figures: &Option<Figures>| {
        figures.as_ref().map_or("-".to_owned(), |figures| {
            let cpu_us = figures.cpu_us.unwrap_or(f64::NAN);
            format!("{:.0} ({cpu_us:.1}) ±{:.0}", figures.gets_per_s, figures.spread_percent())
        })
    };
    for case in cases {
        let _ = writeln!(
            text,
            "{:<5} {:>18} {:>18} {:>18} {:>13}",
            case.index_reads,
            "",
            cell(&case.io_uring),
            cell(&case.ours),
            ratio(&case.ours, &case.io_uring, |figures| figures.gets_per_s),
        );
    }
}

fn ratio(
    one: &Option<Figures>,
    other: &Option<Figures>,
    figure: impl Fn(&Figures) -> f64,
) -> String {
    match (one, other) {
        (Some(one), Some(other)) => format!("{:.2}", figure(one) / figure(other)),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(gets_per_s: f64) -> Option<Figures> {
        Some(Figures {
            average_us: 1e6 / gets_per_s,
            p50_us: 1.0,
            p99_us: 2.0,
            gets_per_s,
            gets_per_s_range: [gets_per_s * 0.9, gets_per_s * 1.2],
            cpu_us: Some(1.0),
        })
    }

    #[test]
    fn the_sentence_is_about_the_most_gets_in_flight() {
        let case = |index_reads, queue_depth, read: Option<Figures>, ours| Case {
            bench: "kv-get-local",
            index_reads,
            queue_depth,
            read,
            io_uring: figures(20_000.0),
            ours: figures(ours),
            paper: None,
        };
        let alone = case(6, 1, figures(10_000.0), 12_000.0);
        let said = sentence(std::slice::from_ref(&alone)).unwrap_or_default();
        assert!(
            said.contains("Gets of 7 reads on this machine, 1 in flight: 12,000 a second"),
            "{said}"
        );
        assert!(said.contains("1.20 times as many as by read()."), "{said}");
        let said = sentence(&[alone, case(6, 32, None, 30_000.0)]).unwrap_or_default();
        assert!(
            said.contains("32 in flight: 30,000")
                && said.contains("1.50 times as many as by a plain"),
            "{said}"
        );
    }
}
