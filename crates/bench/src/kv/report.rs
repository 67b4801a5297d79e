//! Figures of a case: as JSON, as a table, as a plot.

use crate::legend::{self, Word};
use crate::measurement::{Figures, Ratio, cell, thousands};
use crate::steal;
use serde::Serialize;
use std::fmt::Write as _;

/// Messages of the size of the pushed-down ones, over loopback without a protocol.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MessageFloor {
    pub(crate) messages_per_s: f64,
    /// Pushed-down operations a second, divided by messages a second.
    pub(crate) pushdown_over_floor: f64,
    /// Messages divided by plain operations: the ratio if pushdown were as fast as messages.
    pub(crate) ratio_at_floor: f64,
}

/// The figures of one case on both paths.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Case {
    pub(crate) bench: &'static str,
    pub(crate) levels: u32,
    /// Hops of a chain, averaged.
    pub(crate) hops: f64,
    pub(crate) cached_levels: u32,
    pub(crate) queue_depth: usize,
    /// Keys of a range or aggregate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keys: Option<u64>,
    pub(crate) plain: Figures,
    pub(crate) pushdown: Figures,
    pub(crate) ratio: Ratio,
    /// None for a target that is not a child of this process or that polls, and for requests too large
    /// for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message_floor: Option<MessageFloor>,
}

impl MessageFloor {
    pub(crate) fn of(messages_per_s: f64, plain: &Figures, pushdown: &Figures) -> MessageFloor {
        MessageFloor {
            messages_per_s,
            pushdown_over_floor: pushdown.ops_per_s / messages_per_s,
            ratio_at_floor: messages_per_s / plain.ops_per_s,
        }
    }
}

impl Case {
    /// A short name for rows and labels.
    pub(crate) fn label(&self) -> String {
        format!("{}, cache {}, depth {}", self.work(), self.cached_levels, self.queue_depth)
    }

    /// The operation.
    fn work(&self) -> String {
        match (self.bench, self.keys) {
            ("kv-range", Some(keys)) => format!("range of {keys}"),
            ("kv-aggregate", Some(keys)) => format!("sum of {keys}"),
            _ => "get".to_owned(),
        }
    }
}

/// The meaning of the table's words.
const WORDS: [Word<'static>; 10] = [
    legend::DEPTH,
    legend::CACHE,
    ("hops", "dependent reads of one operation"),
    ("plain", "one round trip over the network for each hop; pushdown: one for the operation"),
    legend::SPREAD,
    legend::QUANTILES,
    ("B/op", "bytes over the network for each operation, both ways"),
    legend::PROCESSOR,
    ("gain", "how many times better pushdown is: operations a second, p99, bytes"),
    ("TCP alone", "messages of the same sizes over TCP without a protocol, in batches of up to 16"),
];

/// A table of all cases, with its legend and a quotable sentence.
pub(crate) fn table(cases: &[Case]) -> String {
    let mut text = format!(
        "{:<30} {:>5} {:<9} {:>10} {:>4} {:>9} {:>9} {:>8} {:>8} {:>9}\n",
        "case", "hops", "path", "ops/s", "± %", "p50 µs", "p99 µs", "B/op", "host µs", "target µs"
    );
    for case in cases {
        for (name, figures) in [("plain", &case.plain), ("pushdown", &case.pushdown)] {
            let (label, hops) = match name {
                "plain" => (case.label(), format!("{:.1}", case.hops)),
                _ => (String::new(), String::new()),
            };
            let _ = writeln!(
                text,
                "{label:<30} {hops:>5} {name:<9} {} {:>8.0} {:>8} {:>9}",
                figures.cells(),
                figures.net_bytes_per_op,
                cell(figures.host_cpu_us_per_op),
                cell(figures.target_cpu_us_per_op),
            );
        }
        let Ratio { ops_per_s, p99, net_bytes } = case.ratio;
        let _ = writeln!(
            text,
            "{:<30} {:>5} {:<9} {:>9.2}× {:>4} {:>9} {:>8.2}× {:>7.1}×",
            "", "", "gain", ops_per_s, "", "", p99, net_bytes
        );
        if let Some(floor) = &case.message_floor {
            let _ = writeln!(
                text,
                "{:<30} {:>5} {:<9} {:>10.0} messages/s, {:.2}× plain operations",
                "", "", "TCP alone", floor.messages_per_s, floor.ratio_at_floor
            );
        }
    }
    text + &legend::end(&WORDS, sentence(cases), steal::lost_most())
}

/// The gets without a cache at the largest depth, or else the last case, as a sentence.
fn sentence(cases: &[Case]) -> Option<String> {
    let is_get = |case: &&Case| case.bench == "kv-get" && case.cached_levels == 0;
    let deepest = cases.iter().filter(is_get).max_by_key(|case| case.queue_depth);
    let case = deepest.or(cases.last())?;
    Some(format!(
        "A {} of {:.0} hops at depth {}, pushed down: {:.2} times as many a second as by plain reads, {} against \
         {}, with {:.1} times fewer bytes on the network.",
        case.work(),
        case.hops,
        case.queue_depth,
        case.ratio.ops_per_s,
        thousands(case.pushdown.ops_per_s),
        thousands(case.plain.ops_per_s),
        case.ratio.net_bytes,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legend::assert_explained;

    fn case(queue_depth: usize, cached_levels: u32) -> Case {
        let (plain, pushdown) = (Figures::example(10_000.0), Figures::example(25_000.0));
        let ratio = Ratio::of(&plain, &pushdown);
        Case {
            bench: "kv-get",
            levels: 6,
            hops: 7.0,
            cached_levels,
            queue_depth,
            keys: None,
            plain,
            pushdown,
            ratio,
            message_floor: None,
        }
    }

    #[test]
    fn the_table_explains_itself() {
        let text = table(&[case(1, 0), case(32, 0), case(64, 3)]);
        assert!(text.contains("get, cache 0, depth 32") && text.contains(" 20 "), "{text}");
        let words = [
            "depth",
            "cache",
            "hops",
            "plain",
            "± %",
            "p50",
            "B/op",
            "host µs",
            "gain",
            "TCP alone",
        ];
        let sentence = "A get of 7 hops at depth 32, pushed down: 2.50 times as many a second as by plain reads, \
                        25,000 against 10,000, ";
        assert_explained(&text, &words, sentence);
    }
}
