//! `bpfof ctl slow`.

use crate::observed;
use bpfof_controller::{Class, CommandRecord};
use serde::Deserialize;
use serde_json::Value;

/// Heads of the columns.
pub(crate) const HEADS: [&str; 6] = ["took", "command", "hops", "ago", "host", "waited for"];

/// Rows of the table of the slowest commands.
///
/// # Errors
/// It is not a list of commands.
pub(crate) fn rows(slowest: &Value) -> Result<Vec<Vec<String>>, serde_json::Error> {
    let all = Vec::<CommandRecord>::deserialize(slowest)?;
    Ok(all.iter().map(row).collect())
}

fn row(of: &CommandRecord) -> Vec<String> {
    let hops = if of.class == Class::Chain { of.hop_count.to_string() } else { "–".to_owned() };
    let failed = if of.outcome == "success" { "" } else { " (failed)" };
    vec![
        observed::time(of.duration_ns),
        format!("{}{failed}", observed::name(of)),
        hops,
        format!("{:.0} s", of.age_ms as f64 / 1000.0),
        observed::plain(&of.host),
        observed::waits(of),
    ]
}

/// The slowest commands, hop by hop.
///
/// # Errors
/// As for [`rows`].
pub(crate) fn hop_by_hop(slowest: &Value) -> Result<String, serde_json::Error> {
    let all = Vec::<CommandRecord>::deserialize(slowest)?;
    Ok(all.iter().map(observed::chain).collect::<Vec<_>>().join("\n"))
}
