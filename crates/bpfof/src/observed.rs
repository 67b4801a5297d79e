//! Formats commands that a target reports: one line each, and chains hop by hop.

use bpfof_controller::{Class, CommandRecord, HopRecord};
use bpfof_nvme::is_unprintable;
use std::fmt::Write as _;

/// A time in ns, in the unit that reads best.
pub(crate) fn time(ns: u64) -> String {
    let us = ns as f64 / 1000.0;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..100_000 => format!("{us:.1} µs"),
        100_000..1_000_000 => format!("{us:.0} µs"),
        1_000_000..100_000_000 => format!("{:.2} ms", us / 1000.0),
        _ => format!("{:.2} s", us / 1_000_000.0),
    }
}

/// Text from hosts, without control characters that would change the terminal.
pub(crate) fn plain(text: &str) -> String {
    text.replace(is_unprintable, "\u{fffd}")
}

/// The name of a command: of its function, or of its class.
pub(crate) fn name(of: &CommandRecord) -> String {
    match &of.function {
        Some((name, _)) if !name.is_empty() => plain(name),
        Some((_, id)) => format!("function {id:#x}"),
        None => of.class.name().to_owned(),
    }
}

/// What a command has waited for, longest first; parts below a hundredth are left out.
pub(crate) fn waits(of: &CommandRecord) -> String {
    let function = if of.hops.iter().any(|hop| hop.function_ns.is_some()) {
        "function"
    } else {
        "function ≤"
    };
    let mut parts = [
        ("arena", of.arena_ns),
        ("data of the host", of.data_ns),
        ("device", of.device_ns),
        (function, of.function_ns),
        ("its turn", of.queued_ns),
        ("output", of.output_ns.unwrap_or(0)),
    ];
    parts.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let least = (of.duration_ns + of.output_ns.unwrap_or(0)) / 100;
    let parts = parts.iter().filter(|(_, ns)| *ns > least);
    let parts: Vec<String> = parts.map(|(name, ns)| format!("{name} {}", time(*ns))).collect();
    parts.join(", ")
}

/// A chain with its hops, as lines.
pub(crate) fn chain(of: &CommandRecord) -> String {
    let mut text = String::new();
    let seconds = of.begun_ns as f64 / 1e9;
    let hops = match of.class {
        Class::Chain => format!("{} hops, ", of.hop_count),
        _ => String::new(),
    };
    let _ = writeln!(
        text,
        "{seconds:.6} s  {}  {}  {hops}{} bytes  namespace {}  {}  queue {} from {}  reactor {}  {}",
        name(of),
        time(of.duration_ns),
        of.bytes,
        of.nsid,
        plain(&of.host),
        of.queue,
        of.peer,
        of.reactor,
        plain(&of.outcome),
    );
    let _ = writeln!(text, "    waited for: {}", waits(of));
    if !of.hops.is_empty() {
        let heads = ["hop", "at", "device", "turn", "function", "units"];
        let heads = heads.map(|head| format!("{head:>10}")).concat();
        let _ = writeln!(text, "{heads}  reads (file:offset+size)");
        for (number, hop) in of.hops.iter().enumerate() {
            let _ = writeln!(text, "{}", line(number + 1, hop));
        }
    }
    if (of.hop_count as usize) > of.hops.len() && !of.hops.is_empty() {
        let _ = writeln!(text, "{:>10} more", of.hop_count as usize - of.hops.len());
    }
    text
}

fn line(number: usize, hop: &HopRecord) -> String {
    let function = hop.function_ns.map_or("–".to_owned(), time);
    let cells = [
        number.to_string(),
        time(hop.since_start_ns),
        time(hop.device_ns),
        time(hop.queued_ns),
        function,
        hop.units.to_string(),
    ];
    let reads = hop
        .reads
        .iter()
        .map(|read| format!("{}:{}+{}", read.file, read.offset_bytes, read.size_bytes));
    let reads: Vec<String> = reads.collect();
    format!("{}  {}", cells.map(|cell| format!("{cell:>10}")).concat(), reads.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_their_unit() {
        let times = [0, 999, 1000, 250_400, 5_000_000, 2_500_000_000].map(time);
        assert_eq!(times, ["0 ns", "999 ns", "1.0 µs", "250 µs", "5.00 ms", "2.50 s"]);
        assert_eq!(plain("a\u{1b}[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}
