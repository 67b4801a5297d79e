//! The figures as JSON and as a table.

use super::counter::Unit;
use super::load::Load;
use super::sample::{Sample, slope};
use super::worker::Way;
use crate::measurement::{median, range, thousands};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One way's figures for one case: medians over the repetitions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    /// For one operation: instructions, or ns with one in flight (with more, time divided by operations).
    each: f64,
    /// The least and the most of the repetitions.
    each_range: [f64; 2],
    /// In µs, over all repetitions. Meaningless in a virtual machine.
    p99_us: f64,
    operations: u64,
    wrong_answers: u64,
}

impl Figures {
    pub(super) fn of(samples: &[Sample]) -> Figures {
        let each: Vec<f64> = samples.iter().map(Sample::each).collect();
        let mut latency: Option<Histogram<u64>> = None;
        for sample in samples {
            match &mut latency {
                None => latency = Some(sample.done.latency.clone()),
                // All histograms have the same bounds.
                Some(all) => all.add(&sample.done.latency).unwrap_or_default(),
            }
        }
        Figures {
            each: median(&each),
            each_range: range(&each),
            p99_us: latency.map_or(0.0, |all| all.value_at_quantile(0.99) as f64 / 1000.0),
            operations: samples.iter().map(|sample| sample.done.operations).sum(),
            wrong_answers: samples.iter().map(|sample| sample.done.wrong).sum(),
        }
    }
}

/// One kind of chain, with a number in flight.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Case {
    bench: &'static str,
    load: Load,
    reads: u32,
    in_flight: usize,
    ways: BTreeMap<&'static str, Figures>,
}

impl Case {
    pub(super) fn new(load: Load, in_flight: usize, figures: Vec<(Way, Figures)>) -> Case {
        let ways = figures.into_iter().map(|(way, figures)| (way.name(), figures)).collect();
        Case { bench: "xrp", load, reads: load.reads(), in_flight, ways }
    }

    fn each(&self, way: Way) -> Option<f64> {
        self.ways.get(way.name()).map(|figures| figures.each)
    }
}

/// All results.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The unit of the operations' figures and of the summary.
    unit: Unit,
    cases: Vec<Case>,
    summary: BTreeMap<String, f64>,
}

impl Report {
    pub(super) fn new(unit: Unit, cases: Vec<Case>) -> Report {
        let name = match unit {
            Unit::Instructions => "instructions",
            Unit::Nanoseconds => "ns",
        };
        let mut summary = BTreeMap::new();
        for (way, suffix) in [
            (Way::Interrupt, ""),
            (Way::WorkItem, "_work_item"),
            (Way::Passthrough, "_passthrough"),
            (Way::IoUring, "_io_uring"),
            (Way::Pread, "_pread"),
        ] {
            summary.insert(format!("hop_{name}{suffix}"), hop(&cases, way).round());
            let get = cases.iter().find(|case| case.load == Load::Get);
            let get = get.and_then(|case| case.each(way)).unwrap_or(f64::NAN);
            summary.insert(format!("get4_{name}{suffix}"), get.round());
        }
        let mut report = Report { unit, cases, summary };
        let wrong = report.wrong_answers();
        report.summary.insert("wrong_answers".to_owned(), wrong as f64);
        report
    }

    pub(super) fn wrong_answers(&self) -> u64 {
        self.cases.iter().flat_map(|case| case.ways.values()).map(|way| way.wrong_answers).sum()
    }

    /// The tables.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{} of one chain (for the whole machine, including its kernel), median of the repetitions{}\n\n",
            self.unit.name(),
            match self.unit {
                Unit::Instructions => "",
                Unit::Nanoseconds =>
                    "; with several in flight, the time divided by the number of chains",
            }
        );
        let _ = write!(text, "{:<22}{:>9}", "reads of a chain", "in flight");
        for way in Way::ALL {
            let _ = write!(text, "{:>13}", way.name());
        }
        text.push('\n');
        for case in &self.cases {
            let what = match case.load {
                Load::Chain(reads) => reads.to_string(),
                Load::Get => format!("{} (BPF-KV get)", case.reads),
            };
            let _ = write!(text, "{what:<22}{:>9}", case.in_flight);
            for way in Way::ALL {
                let _ = write!(text, "{:>13}", case.each(way).map(thousands).unwrap_or_default());
            }
            text.push('\n');
        }
        let _ = write!(text, "{:<31}", "one more read");
        for way in Way::ALL {
            let _ = write!(text, "{:>13}", thousands(hop(&self.cases, way)));
        }
        let [interrupt, passthrough] =
            [Way::Interrupt, Way::Passthrough].map(|way| hop(&self.cases, way));
        let _ = writeln!(
            text,
            "\n\nOne more read costs a single chain {} {} in the interrupt, and {} by NVMe \
             passthrough: {:.1} times as much.",
            thousands(interrupt),
            self.unit.name(),
            thousands(passthrough),
            passthrough / interrupt
        );
        text
    }
}

/// The cost of one more read for a chain that runs alone.
fn hop(cases: &[Case], way: Way) -> f64 {
    let points: Vec<(f64, f64)> = cases
        .iter()
        .filter(|case| case.load != Load::Get && case.in_flight == 1)
        .filter_map(|case| Some((f64::from(case.reads), case.each(way)?)))
        .collect();
    slope(&points)
}
