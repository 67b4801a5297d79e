//! Figures of a case: as JSON, as a table, as a plot.

use crate::measurement::{Figures, Ratio};
use serde::Serialize;
use std::fmt::Write as _;

/// Messages of the size of those pushed down, over loopback without a protocol.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MessageFloor {
    pub(crate) messages_per_s: f64,
    /// Operations a second, pushed down, over messages.
    pub(crate) pushdown_over_floor: f64,
    /// Messages over plain operations: the ratio if pushdown were as fast as they.
    pub(crate) ratio_at_floor: f64,
}

/// One case, both paths.
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
        let what = match (self.bench, self.keys) {
            ("kv-range", Some(keys)) => format!("range {keys}"),
            ("kv-aggregate", Some(keys)) => format!("sum of {keys}"),
            _ => "get".to_owned(),
        };
        format!("{what}, cache {}, QD {}", self.cached_levels, self.queue_depth)
    }
}

/// A table of all cases, for people.
pub(crate) fn table(cases: &[Case]) -> String {
    let mut text = format!(
        "{:<26} {:>5} {:<9} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
        "case", "hops", "path", "ops/s", "p50 µs", "p99 µs", "net B/op", "host µs", "target µs"
    );
    for case in cases {
        for (name, figures) in [("plain", &case.plain), ("pushdown", &case.pushdown)] {
            let (label, hops) = match name {
                "plain" => (case.label(), format!("{:.1}", case.hops)),
                _ => (String::new(), String::new()),
            };
            let cpu = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
            let _ = writeln!(
                text,
                "{label:<26} {hops:>5} {name:<9} {:>10.0} {:>9.1} {:>9.1} {:>9.0} {:>9} {:>9}",
                figures.ops_per_s,
                figures.p50_us,
                figures.p99_us,
                figures.net_bytes_per_op,
                cpu(figures.host_cpu_us_per_op),
                cpu(figures.target_cpu_us_per_op),
            );
        }
        let Ratio { ops_per_s, p99, net_bytes } = case.ratio;
        let _ = writeln!(
            text,
            "{:<26} {:>5} {:<9} {:>9.2}× {:>9} {:>8.2}× {:>8.1}×",
            "", "", "gain", ops_per_s, "", p99, net_bytes
        );
        if let Some(floor) = &case.message_floor {
            let _ = writeln!(
                text,
                "{:<26} {:>5} {:<9} {:>10.0} a second without a protocol, {:.2}× plain",
                "", "", "messages", floor.messages_per_s, floor.ratio_at_floor
            );
        }
    }
    text
}
