//! Figures of gets by vectors: as JSON and as a table.

use crate::legend::{self, Word};
use crate::measurement::{Figures, cell, thousands};
use crate::steal;
use serde::Serialize;
use std::fmt::Write as _;

/// Messages of the size of the vectors and their answers, over loopback without a protocol.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Floor {
    /// Keys of all vectors that the messages correspond to.
    pub(super) keys_per_s: f64,
    pub(super) vector_over_floor: f64,
}

/// One size of vectors, with the same number of keys in flight by single gets and by plain reads.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Case {
    pub(super) bench: &'static str,
    pub(super) levels: u32,
    /// Hops of a chain, averaged.
    pub(super) hops: f64,
    pub(super) cached_levels: u32,
    pub(super) keys_in_flight: usize,
    /// Keys in one command.
    pub(super) batch: usize,
    pub(super) plain: Figures,
    pub(super) single: Figures,
    pub(super) vector: Figures,
    /// Keys a second: medians of the ratios of the repetitions.
    pub(super) vector_over_single: f64,
    pub(super) vector_over_plain: f64,
    /// 99th percentile of the time from the request of a key to its answer: below 1 is faster.
    pub(super) p99_vector_over_single: f64,
    /// None for a target that is not a child of this process or that polls, and for requests too large
    /// for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message_floor: Option<Floor>,
}

/// The case of the summary: keys in one command, and keys in flight.
const SUMMARY_OF: (usize, usize) = (32, 128);

/// Vectors of 32 with 128 keys in flight; null if not measured.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Summary {
    pub(super) vector_over_single: Option<f64>,
    pub(super) vector_over_plain: Option<f64>,
    pub(super) p99_vector_over_single: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    cases: Vec<Case>,
    summary: Summary,
}

/// The meaning of the table's words.
const WORDS: [Word<'static>; 11] = [
    (
        "in flight",
        "keys that are looked up at a time, on one connection, by one thread: as many in each way",
    ),
    legend::CACHE,
    ("hops", "dependent reads for one key"),
    ("plain", "one round trip over the network for each hop; single: one for the key"),
    ("vectors", "one round trip for a vector of keys"),
    legend::SPREAD,
    (
        "p50, p99",
        "from the request for a key to its answer; a vector answers when its slowest key is found",
    ),
    ("B/key", "bytes over the network for each key, both ways"),
    ("host µs", "processor time of one key at the host; target µs at the target"),
    (
        "gain",
        "keys a second by vectors over those by single gets, and over those by plain reads; and p99 by vectors over \
         p99 by single gets, where less than 1 is better",
    ),
    ("TCP alone", "messages of the same sizes over TCP without a protocol, in batches of up to 16"),
];

impl Report {
    pub(super) fn new(cases: Vec<Case>) -> Self {
        let summary = summarized(&cases).map(|case| Summary {
            vector_over_single: Some(case.vector_over_single),
            vector_over_plain: Some(case.vector_over_plain),
            p99_vector_over_single: Some(case.p99_vector_over_single),
        });
        Self { cases, summary: summary.unwrap_or_default() }
    }

    /// A table of all cases, with its legend and a quotable sentence.
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "{:<36} {:>5} {:<9} {:>10} {:>4} {:>9} {:>9} {:>8} {:>8} {:>9}\n",
            "case",
            "hops",
            "way",
            "keys/s",
            "± %",
            "p50 µs",
            "p99 µs",
            "B/key",
            "host µs",
            "target µs"
        );
        for case in &self.cases {
            case.rows(&mut text);
        }
        text + &legend::end(&WORDS, self.sentence(), steal::lost_most())
    }

    fn sentence(&self) -> Option<String> {
        let case = summarized(&self.cases).or(self.cases.last())?;
        Some(format!(
            "{} keys in flight, {:.0} hops each, in vectors of {}: {:.2} times as many a second as by single \
             gets, {:.2} times as many as by plain reads, {} against {} and {}; p99 {:.2} times that of single \
             gets.",
            case.keys_in_flight,
            case.hops,
            case.batch,
            case.vector_over_single,
            case.vector_over_plain,
            thousands(case.vector.ops_per_s),
            thousands(case.single.ops_per_s),
            thousands(case.plain.ops_per_s),
            case.p99_vector_over_single,
        ))
    }
}

/// The case of the summary and the sentence.
fn summarized(cases: &[Case]) -> Option<&Case> {
    let mut of_shape = cases.iter().filter(|case| (case.batch, case.keys_in_flight) == SUMMARY_OF);
    of_shape.find(|case| case.cached_levels == 0)
}

impl Case {
    fn label(&self) -> String {
        format!(
            "vectors of {}, cache {}, {} in flight",
            self.batch, self.cached_levels, self.keys_in_flight
        )
    }

    fn rows(&self, text: &mut String) {
        let (mut label, mut hops) = (self.label(), format!("{:.1}", self.hops));
        let ways = [("plain", &self.plain), ("single", &self.single), ("vectors", &self.vector)];
        for (way, figures) in ways {
            let _ = writeln!(
                text,
                "{:<36} {:>5} {way:<9} {} {:>8.0} {:>8} {:>9}",
                std::mem::take(&mut label),
                std::mem::take(&mut hops),
                figures.cells(),
                figures.net_bytes_per_op,
                cell(figures.host_cpu_us_per_op),
                cell(figures.target_cpu_us_per_op),
            );
        }
        let Self { vector_over_single, vector_over_plain, p99_vector_over_single, .. } = self;
        let _ = writeln!(
            text,
            "{:<36} {:>5} {:<9} {vector_over_single:>9.2}× over single, {vector_over_plain:.2}× over \
             plain; p99 {p99_vector_over_single:.2}× that of single",
            "", "", "gain"
        );
        if let Some(floor) = &self.message_floor {
            let _ = writeln!(
                text,
                "{:<36} {:>5} {:<9} {:>10.0} keys/s, of which vectors do {:.0} %",
                "",
                "",
                "TCP alone",
                floor.keys_per_s,
                100.0 * floor.vector_over_floor
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legend::assert_explained;

    fn case(batch: usize, keys_in_flight: usize) -> Case {
        Case {
            bench: "kv-get-batch",
            levels: 6,
            hops: 7.0,
            cached_levels: 0,
            keys_in_flight,
            batch,
            plain: Figures::example(10_000.0),
            single: Figures::example(25_000.0),
            vector: Figures::example(50_000.0),
            vector_over_single: 2.0,
            vector_over_plain: 5.0,
            p99_vector_over_single: 0.9,
            message_floor: Some(Floor { keys_per_s: 100_000.0, vector_over_floor: 0.5 }),
        }
    }

    #[test]
    fn the_table_explains_itself() {
        let report = Report::new(vec![case(1, 128), case(32, 128), case(256, 256)]);
        let text = report.table();
        let words = ["in flight", "cache", "hops", "plain", "± %", "p50", "gain", "TCP alone"];
        let sentence =
            "128 keys in flight, 7 hops each, in vectors of 32: 2.00 times as many a second";
        assert_explained(&text, &words, sentence);
        assert!(
            text.contains("50,000 against 25,000 and 10,000") && text.contains(" 20 "),
            "{text}"
        );
        assert!(text.contains("vectors of 256, cache 0, 256 in flight"), "{text}");
    }

    #[test]
    fn the_summary_is_of_one_shape() {
        let json = |cases| serde_json::to_value(Report::new(cases)).expect("JSON");
        let report = json(vec![case(32, 128), case(256, 256)]);
        assert_eq!(report["summary"]["vector_over_single"], 2.0);
        assert_eq!(report["summary"]["vector_over_plain"], 5.0);
        assert_eq!(report["summary"]["p99_vector_over_single"], 0.9);
        assert_eq!(
            (&report["cases"][0]["batch"], &report["cases"][0]["keys_in_flight"]),
            (&32.into(), &128.into())
        );
        assert!(json(vec![case(32, 64)])["summary"]["vector_over_single"].is_null());
    }
}
