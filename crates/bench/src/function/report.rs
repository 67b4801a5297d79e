//! The figures as JSON and as tables, beside those of Giulia Frascaria's thesis, "e2BPF: an Evaluation of In-Kernel
//! Data Processing with eBPF".

use super::calls::Cost;
use super::charges::charge::{Charge, UNDERCHARGE_MAX, Undercharged};
use super::helpers::{HelperCost, LENGTHS};
use super::loading::Loading;
use super::tail_call::TailCallCost;
use crate::legend::{self, Word};
use crate::measurement::spread_percent;
use serde::Serialize;
use std::fmt::Write as _;

/// Table 6.1 of the thesis: the time of Linux's verifier (Linux 5.7 in a virtual machine).
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Verification {
    /// Instructions that the verifier processes.
    pub(super) instructions: u32,
    pub(super) mean_ms: f64,
    deviation_ms: f64,
}

const fn row(instructions: u32, mean_ms: f64, deviation_ms: f64) -> Verification {
    Verification { instructions, mean_ms, deviation_ms }
}

pub(super) const VERIFICATION: [Verification; 5] = [
    row(60_000, 47.60, 6.52),
    row(125_000, 87.16, 6.53),
    row(250_000, 161.28, 5.78),
    row(500_000, 315.93, 8.46),
    row(1_000_000, 644.90, 8.94),
];

/// Below table 6.1: the time of Linux's JIT compiler, in µs.
const THESIS_JIT_US: f64 = 2.8;
/// Section 6.3: the time of a filter and reduction in the kernel, divided by that in user space, at least and at most.
const THESIS_FILTER_RATIO: [f64; 2] = [3.0, 5.0];

/// Published figures for comparison.
#[derive(Debug, Serialize)]
struct Thesis {
    verification: [Verification; 5],
    jit_us: f64,
    filter_over_native: [f64; 2],
}

/// All results.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    bench: &'static str,
    /// The compiler of the same C.
    compiler: Option<String>,
    pub(super) calls: Vec<Cost>,
    pub(super) loading: Vec<Loading>,
    pub(super) helpers: Vec<HelperCost>,
    pub(super) tail_call: Option<TailCallCost>,
    pub(super) charges: Vec<Charge>,
    pub(super) undercharged_most: Option<Undercharged>,
    thesis: Thesis,
}

const CALL_WORDS: [Word<'static>; 6] = [
    ("instr.", "instructions of the function; code B: bytes of machine code"),
    (
        "checked",
        "ns of a call as targets run it: native code that checks each access and pays for each loop",
    ),
    ("same C", "ns of the same source, compiled natively, without checks"),
    ("checked/C", "how many times as long checked native code takes as the same C; less is better"),
    ("10 to 90 %", "the same for the rounds, without the lowest and the highest tenth"),
    ("goal", "the ratio that the project aims for"),
];
const LOADING_WORDS: [Word<'static>; 4] = [
    ("parse", "reading the object: sections, relocations, source lines"),
    ("check", "decoding and checking the instructions; translate: making machine code of them"),
    ("together", "the sum of the three; an instruction: divided by the number of instructions"),
    ("± %", "maximum distance of eight of ten rounds from the median; the figures are medians"),
];
const HELPER_WORDS: [Word<'static>; 1] = [(
    "by its length",
    "two figures, in ns: a length that is a constant of the program, and one that is not; helpers that find, \
     compare or parse go through all bytes. Medians, of which eight of ten rounds are at most ± % away",
)];
const CHARGE_WORDS: [Word<'static>; 2] = [
    ("clock", "ns that it takes in the worst case; charged: ns that it pays for"),
    ("clock/charged", "above 1 it pays too little"),
];

impl Report {
    pub(super) fn new(compiler: Option<String>) -> Report {
        Report {
            bench: "function",
            compiler,
            calls: Vec::new(),
            loading: Vec::new(),
            helpers: Vec::new(),
            tail_call: None,
            charges: Vec::new(),
            undercharged_most: None,
            thesis: Thesis {
                verification: VERIFICATION,
                jit_us: THESIS_JIT_US,
                filter_over_native: THESIS_FILTER_RATIO,
            },
        }
    }

    /// The tables of all figures.
    pub(super) fn tables(&self) -> String {
        let mut text = String::new();
        if !self.calls.is_empty() {
            self.calls(&mut text);
        }
        if !self.loading.is_empty() {
            self.loading(&mut text);
        }
        if !self.helpers.is_empty() {
            self.helpers(&mut text);
        }
        if !self.charges.is_empty() {
            self.charges(&mut text);
        }
        text + &legend::end(&self.words(), self.sentence(), 0.0)
    }

    /// The meaning of the words in the tables that are present.
    fn words(&self) -> Vec<Word<'static>> {
        let tables = [
            (self.calls.is_empty(), CALL_WORDS.as_slice()),
            (self.loading.is_empty(), &LOADING_WORDS),
            (self.helpers.is_empty(), &HELPER_WORDS),
            (self.charges.is_empty(), &CHARGE_WORDS),
        ];
        tables
            .into_iter()
            .filter(|(is_empty, _)| !is_empty)
            .flat_map(|(_, words)| words)
            .copied()
            .collect()
    }

    /// A quotable sentence about the first table that is present.
    fn sentence(&self) -> Option<String> {
        let mut of_c: Vec<(f64, &str)> =
            self.calls.iter().filter_map(|cost| Some((cost.checked_over_c?, cost.name))).collect();
        of_c.sort_by(|a, b| a.0.total_cmp(&b.0));
        if let (Some((least, first)), Some((most, last))) = (of_c.first(), of_c.last()) {
            let range =
                if of_c.len() > 1 { format!("{least:.2} ({first}) to ") } else { String::new() };
            return Some(format!(
                "A storage function as checked native code takes {range}{most:.2} ({last}) times as long as the \
                 same C without checks."
            ));
        }
        if let Some(cost) = self.calls.last() {
            let faster = cost.interpreter_ns / cost.checked_ns;
            return Some(format!(
                "A call of {} as checked native code takes {:.0} ns, interpreted {faster:.0} times as long.",
                cost.name, cost.checked_ns
            ));
        }
        if let Some(loading) = self.loading.last() {
            return Some(format!(
                "Loading a function of {} instructions takes {:.1} ms.",
                loading.instructions,
                loading.total_us() / 1000.0
            ));
        }
        if let Some(cost) =
            self.helpers.iter().find(|cost| cost.bytes == LENGTHS[LENGTHS.len() - 1])
        {
            return Some(format!(
                "A call of {} on {} bytes takes {:.0} ns.",
                cost.helper, cost.bytes, cost.variable_ns
            ));
        }
        let Undercharged { name, undercharge } = self.undercharged_most.as_ref()?;
        Some(format!(
            "The most undercharged operation takes {undercharge:.2} times what it is charged: {name}."
        ))
    }

    fn calls(&self, text: &mut String) {
        let compiler = self.compiler.as_deref().unwrap_or("no compiler");
        let _ = writeln!(
            text,
            "A call, in ns. The same C: {compiler}, -O2.\n\
             {:<8} {:>7} {:>7} {:>12} {:>9} {:>9} {:>11} {:>12} {:>6}",
            "",
            "instr.",
            "code B",
            "interpreter",
            "checked",
            "same C",
            "checked/C",
            "10 to 90 %",
            "goal"
        );
        for cost in &self.calls {
            let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
            let _ = writeln!(
                text,
                "{:<8} {:>7} {:>7} {:>12.1} {:>9.1} {:>9} {:>11} {:>12} {:>6.1}",
                cost.name,
                cost.instructions,
                cost.native_bytes,
                cost.interpreter_ns,
                cost.checked_ns,
                or_none(cost.c_ns.map(|ns| format!("{ns:.1}"))),
                or_none(cost.checked_over_c.map(|ratio| format!("{ratio:.2}"))),
                or_none(cost.checked_over_c_range.map(|[low, high]| format!("{low:.2}-{high:.2}"))),
                cost.goal,
            );
        }
        for cost in &self.calls {
            let _ = writeln!(text, "{}: {}", cost.name, cost.about);
        }
        let [least, most] = THESIS_FILTER_RATIO;
        let _ = writeln!(
            text,
            "e2BPF: filter and reduction in the kernel take {least} to {most} times what they take in \
             user space (section 6.3)."
        );
    }

    fn loading(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\nLoading a program, in µs\n{:>12} {:>9} {:>9} {:>10} {:>10} {:>5} {:>15} {:>8}",
            "instructions",
            "parse",
            "check",
            "translate",
            "together",
            "± %",
            "an instruction",
            "code B"
        );
        for loading in &self.loading {
            let _ = writeln!(
                text,
                "{:>12} {:>9.1} {:>9.1} {:>10.1} {:>10.1} {:>5.0} {:>15.2} {:>8}",
                loading.instructions,
                loading.parse_us,
                loading.check_us,
                loading.translate_us,
                loading.total_us(),
                loading
                    .total_us_range
                    .map_or(0.0, |range| spread_percent(loading.total_us(), range)),
                loading.total_us() / loading.instructions as f64,
                loading.native_bytes,
            );
        }
        let _ = writeln!(
            text,
            "e2BPF: what Linux's verifier takes for the instructions it goes through (table 6.1), after \
             which\ntranslation takes {THESIS_JIT_US} µs:"
        );
        for Verification { instructions, mean_ms, .. } in VERIFICATION {
            let total_us = mean_ms * 1000.0;
            let each_us = total_us / f64::from(instructions);
            let _ = writeln!(text, "{instructions:>12} {total_us:>41.0} {each_us:>21.2}");
        }
    }

    fn helpers(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\nA call of a helper, in ns, by its length in bytes: as a constant of the program, as a \
             variable"
        );
        let _ = write!(text, "{:<14}", "");
        for bytes in LENGTHS {
            let _ = write!(text, " {bytes:>15}");
        }
        let both = |cost: &HelperCost| format!("{:.1} {:>7.1}", cost.constant_ns, cost.variable_ns);
        let same = |a: &HelperCost, b: &HelperCost| a.helper == b.helper;
        let (tabled, others): (Vec<_>, Vec<_>) = self
            .helpers
            .chunk_by(same)
            .partition(|row| row.iter().map(|cost| cost.bytes).eq(LENGTHS));
        for row in tabled {
            let _ = write!(text, "\n{:<14}", row[0].helper);
            for cost in row {
                let _ = write!(text, " {:>15}", both(cost));
            }
        }
        for row in others {
            let cells = row.iter().map(|cost| format!("{} bytes {}", cost.bytes, both(cost)));
            let cells: Vec<_> = cells.collect();
            let _ = write!(text, "\n{}: {}", row[0].helper, cells.join(", "));
        }
        let spread = self.helpers.iter().map(|cost| cost.spread_percent).fold(0.0, f64::max);
        let _ = write!(text, "\n± % of these figures: at most {spread:.0}");
        let _ = writeln!(
            text,
            "\ne2BPF: at most 256 bytes a call, 8 for a number; reading costs one or two orders of \
             magnitude more\nthan writing and converting (figure 6.3). Here data needs no helper to be \
             read."
        );
        if let Some(TailCallCost { alone_ns, after_tail_call_ns, tail_call_ns }) = &self.tail_call {
            let _ = writeln!(
                text,
                "\nA tail call: {tail_call_ns:.1} ns (a function takes {alone_ns:.1} ns alone, \
                 {after_tail_call_ns:.1} ns after one).\n\
                 e2BPF: no significant overhead (figure 6.4)."
            );
        }
    }

    fn charges(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\nCharges against the clock, in ns\n{:<64} {:>12} {:>12} {:>14}",
            "", "clock", "charged", "clock/charged"
        );
        for section in self.charges.chunk_by(|a, b| a.section == b.section) {
            let _ = writeln!(text, "{}", section[0].section);
            for Charge { name, clock_ns, charged_ns, undercharge, .. } in section {
                let mark = if *undercharge > UNDERCHARGE_MAX { " *" } else { "" };
                let _ = writeln!(
                    text,
                    "  {name:<62} {clock_ns:>12.2} {charged_ns:>12.2} {undercharge:>14.2}{mark}"
                );
            }
        }
        if let Some(Undercharged { name, undercharge }) = &self.undercharged_most {
            let _ = writeln!(
                text,
                "Undercharged most: {name}, {undercharge:.2}. Operations that take more than \
                 {UNDERCHARGE_MAX} times what they are charged are marked."
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legend::assert_explained;

    #[test]
    fn the_tables_explain_themselves() {
        let mut report = Report::new(Some("cc 1".to_owned()));
        let cost = |name, checked_ns: f64| Cost {
            name,
            about: "a test",
            instructions: 10,
            native_bytes: 100,
            interpreter_ns: 500.0,
            checked_ns,
            c_ns: Some(10.0),
            checked_over_c: Some(checked_ns / 10.0),
            checked_over_c_range: Some([1.0, 2.0]),
            goal: 1.5,
        };
        report.calls = vec![cost("node", 15.0), cost("filter", 12.0)];
        let sentence =
            "takes 1.20 (filter) to 1.50 (node) times as long as the same C without checks.";
        let words = ["instr.", "checked", "same C", "checked/C", "10 to 90 %", "goal"];
        assert_explained(&report.tables(), &words, sentence);
        report.calls.clear();
        report.loading.push(Loading {
            instructions: 64,
            parse_us: 100.0,
            check_us: 200.0,
            translate_us: 700.0,
            total_us_range: Some([900.0, 1250.0]),
            native_bytes: 10,
        });
        let text = report.tables();
        let sentence = "Loading a function of 64 instructions takes 1.0 ms.";
        assert_explained(&text, &["parse", "check", "together", "± %"], sentence);
        assert!(text.contains("1000.0    25 ") && !text.contains("same C"), "{text}");
    }
}
