//! Figures of gets by threads: as JSON and as a table.

use crate::legend::{self, Word};
use crate::measurement::{Figures, cell, thousands};
use crate::steal;
use serde::Serialize;
use std::fmt::Write as _;

/// Threads on one lane.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Shared {
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// Keys in one send of the host, averaged.
    pub(super) keys_per_send: f64,
}

/// The figures of one number of threads.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Case {
    pub(super) bench: &'static str,
    pub(super) levels: u32,
    pub(super) threads: usize,
    pub(super) private: Figures,
    pub(super) shared: Shared,
    pub(super) gathered: Shared,
    /// Keys a second: medians of the ratios of the repetitions.
    pub(super) gathered_over_shared: f64,
    pub(super) gathered_over_private: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    cases: Vec<Case>,
}

/// The meaning of the table's words.
const WORDS: [Word<'static>; 7] = [
    ("threads", "each looks up one key at a time and waits for it, by one command"),
    (
        "a connection each",
        "one connection for each thread, and waits that sleep at once if there are several threads; shared lane: one \
         connection for all threads, and waits that spin first",
    ),
    ("+ vectors", "keys that several threads send together are one command"),
    legend::SPREAD,
    legend::QUANTILES,
    legend::PROCESSOR,
    ("keys/send", "keys in one send"),
];

impl Report {
    pub(super) const fn new(cases: Vec<Case>) -> Self {
        Self { cases }
    }

    /// A table of all cases, with its legend and a quotable sentence.
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "{:<10} {:<18} {:>10} {:>4} {:>9} {:>9} {:>8} {:>9} {:>9}\n",
            "threads",
            "way",
            "keys/s",
            "± %",
            "p50 µs",
            "p99 µs",
            "host µs",
            "target µs",
            "keys/send"
        );
        for case in &self.cases {
            case.rows(&mut text);
        }
        text + &legend::end(&WORDS, self.sentence(), steal::lost_most())
    }

    fn sentence(&self) -> Option<String> {
        let case = self.cases.iter().max_by_key(|case| case.threads)?;
        Some(format!(
            "{} threads that share a lane look up {:.2} times as many keys a second if the lane combines them into \
             vectors, {:.2} times as many as with a connection each: {} against {} and {}.",
            case.threads,
            case.gathered_over_shared,
            case.gathered_over_private,
            thousands(case.gathered.figures.ops_per_s),
            thousands(case.shared.figures.ops_per_s),
            thousands(case.private.ops_per_s),
        ))
    }
}

impl Case {
    fn rows(&self, text: &mut String) {
        let mut threads = self.threads.to_string();
        let ways = [
            ("a connection each", &self.private, 1.0),
            ("shared lane", &self.shared.figures, self.shared.keys_per_send),
            ("+ vectors", &self.gathered.figures, self.gathered.keys_per_send),
        ];
        for (way, figures, keys_per_send) in ways {
            let _ = writeln!(
                text,
                "{:<10} {way:<18} {} {:>8} {:>9} {keys_per_send:>9.1}",
                std::mem::take(&mut threads),
                figures.cells(),
                cell(figures.host_cpu_us_per_op),
                cell(figures.target_cpu_us_per_op),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legend::assert_explained;

    #[test]
    fn the_table_explains_itself() {
        let figures =
            |ops_per_s| Figures { target_cpu_us_per_op: Some(0.5), ..Figures::example(ops_per_s) };
        let shared = |ops_per_s| Shared { figures: figures(ops_per_s), keys_per_send: 15.9 };
        let case = |threads| Case {
            bench: "kv-get-threads",
            levels: 6,
            threads,
            private: figures(10_000.0),
            shared: shared(40_000.0),
            gathered: shared(50_000.0),
            gathered_over_shared: 1.25,
            gathered_over_private: 5.0,
        };
        let text = Report::new(vec![case(32), case(4)]).table();
        let words =
            ["threads", "a connection each", "+ vectors", "± %", "p50", "host µs", "keys/send"];
        let sentence = "32 threads that share a lane look up 1.25 times as many keys a second";
        assert_explained(&text, &words, sentence);
        assert!(text.contains("50,000 against 40,000 and 10,000"), "{text}");
        assert!(text.contains(" 0.50 ") && text.contains(" 15.9"), "{text}");
    }
}
