//! The figures as tables.

use super::cases::Case;
use super::cpu_profile::{Shares, WayShares};
use super::curve::Curve;
use super::report::{Report, Summary};
use super::threads;
use crate::legend::{self, Word};
use crate::measurement::{Figures, cell, thousands};
use crate::steal;
use std::cmp::Reverse;

pub(super) const QUEUE_DEPTH: Word<'static> =
    ("QD", "queue depth: operations in flight, on one connection, by one thread");

/// The meaning of the tables' words.
const WORDS: [Word<'static>; 8] = [
    QUEUE_DEPTH,
    (
        "shared sends",
        "requests that are ready leave the host in one send; a send each: one system call for each read",
    ),
    (
        "TCP alone",
        "messages of the same sizes over TCP without a protocol, in batches of up to 16. Polled: its ends \
         never sleep; blocking: they do",
    ),
    legend::SPREAD,
    legend::QUANTILES,
    legend::PROCESSOR,
    ("due", "reads that are due at random times; their latency counts from when they were due"),
    ("req/send", "requests in one send"),
];

pub(super) fn print(report: &Report) {
    print_cases(report);
    print_curves(&report.curves);
    print_threads(&report.threads);
    print_shares(&report.shares);
    print_summary(&report.summary);
    let alone = report.cases.iter().filter(|_| report.has_baselines);
    print!("{}", legend::end(&WORDS, sentence(alone), steal::lost_most()));
}

fn header(what: &str) -> String {
    format!(
        "{what:<24} {:<19} {:>10} {:>4} {:>9} {:>9} {:>9} {:>9}",
        "way", "ops/s", "± %", "p50 µs", "p99 µs", "host µs", "target µs"
    )
}

fn line(label: &str, way: &str, figures: &Figures) -> String {
    format!(
        "{label:<24} {way:<19} {} {:>9} {:>9}",
        figures.cells(),
        cell(figures.host_cpu_us_per_op),
        cell(figures.target_cpu_us_per_op),
    )
}

fn print_cases(report: &Report) {
    println!("{}", header("closed loops"));
    for case in &report.cases {
        let label = format!("{} B, QD {}", case.size_bytes, case.queue_depth);
        println!("{}", line(&label, "shared sends", &case.lane));
        println!("{}", line("", "a send each", &case.single_send));
        let alone = [("polled", &case.floor_polled), ("blocking", &case.floor_blocking)];
        for (wait, floor) in alone {
            let Some(floor) = floor else { continue };
            let name = format!("TCP alone, {wait}");
            let p50 = floor.p50_us.map_or(String::new(), |p50| format!("{p50:.1}"));
            println!("{:<24} {name:<19} {:>10.0} {:>4} {p50:>9}", "", floor.messages_per_s, "");
        }
    }
    for mix in &report.mixes {
        let label =
            format!("{} B, QD {}, {} % writes", mix.size_bytes, mix.queue_depth, mix.writes);
        println!("{}", line(&label, "shared sends", &mix.lane));
        println!("{}", line("", "a send each", &mix.single_send));
    }
    for spread in &report.spreads {
        let label =
            format!("{} B, {} × QD {}", spread.size_bytes, spread.connections, spread.queue_depth);
        let way = if spread.own_targets { "a target each" } else { "to one target" };
        println!("{}", line(&label, way, &spread.figures));
    }
}

fn print_curves(curves: &[Curve]) {
    for curve in curves {
        println!(
            "{:<24} {:>10} {:>10} {:>9} {:>9} {:>9}",
            format!("due, {} B, {}", curve.size_bytes, curve.way()),
            "due/s",
            "ops/s",
            "p50 µs",
            "p99 µs",
            "p99.9 µs"
        );
        for point in &curve.points {
            println!(
                "{:<24} {:>10.0} {:>10.0} {:>9.1} {:>9.1} {:>9.1}",
                "", point.due_per_s, point.ops_per_s, point.p50_us, point.p99_us, point.p999_us
            );
        }
    }
}

fn print_threads(cases: &[threads::Case]) {
    if cases.is_empty() {
        return;
    }
    println!("{} {:>9}", header("threads"), "req/send");
    for case in cases {
        for (index, way) in case.ways.iter().enumerate() {
            let label = format!("{} × {} B", case.threads, case.size_bytes);
            let label = if index == 0 { label } else { String::new() };
            let line = line(&label, way.way.name(), &way.figures);
            println!("{line} {:>9.1}", way.requests_per_send);
        }
    }
}

/// i10's table 4, of a host with 16 processors: the first and the last line, with its block layer as the protocol. It
/// counts sleeping as "others".
const TABLE_4: [(&str, [Option<f64>; 7]); 2] = [
    ("i10: lane", [Some(8.0), Some(28.6), Some(27.0), Some(15.8), None, Some(3.5), Some(17.1)]),
    ("i10: all", [Some(14.4), Some(57.4), Some(3.6), Some(12.2), None, Some(2.8), Some(9.7)]),
];

fn print_shares(shares: &[WayShares]) {
    if shares.is_empty() {
        return;
    }
    println!(
        "{:<24} {:<19} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "% of processor time",
        "way",
        "program",
        "protocol",
        "net TX",
        "net RX",
        "sleep",
        "idle",
        "others"
    );
    for (label, of) in [
        ("host", (|way: &WayShares| Some(way.host)) as fn(&WayShares) -> Option<Shares>),
        ("target", |way: &WayShares| way.target),
    ] {
        let seen = shares.iter().filter_map(|way| Some((way.way.name(), of(way)?)));
        for (index, (way, shares)) in seen.enumerate() {
            let Shares { application, protocol, net_tx, net_rx, scheduling, idle, others } = shares;
            let shares = [application, protocol, net_tx, net_rx, scheduling, idle, others];
            print_share(if index == 0 { label } else { "" }, way, shares.map(Some));
        }
    }
    for (way, shares) in TABLE_4 {
        print_share("", way, shares);
    }
}

fn print_share(label: &str, way: &str, shares: [Option<f64>; 7]) {
    print!("{label:<24} {way:<19}");
    for share in shares {
        let share = share.map_or("-".to_owned(), |share| format!("{share:.1}"));
        print!(" {share:>8}");
    }
    println!();
}

fn print_summary(summary: &Summary) {
    println!();
    for (name, value) in [
        ("latency at depth 1 over that of TCP alone, polled", summary.qd1_over_pingpong_floor),
        ("4 KiB reads at depth 128 over TCP alone", summary.qd128_4k_over_batch_floor),
        ("512 B reads at depth 128 over TCP alone", summary.qd128_512_over_batch_floor),
        ("shared sends over a send each", summary.lane_caravan_doorbell_over_single_send),
        (
            "32 threads on a shared lane over a connection each",
            summary.threads32_shared_over_private,
        ),
    ] {
        if let Some(value) = value {
            println!("{name:<50} {value:.2}");
        }
    }
}

/// The deepest queue of the smallest reads, as a quotable sentence.
fn sentence<'a>(cases: impl Iterator<Item = &'a Case>) -> Option<String> {
    let case = cases.max_by_key(|case| (Reverse(case.size_bytes), case.queue_depth))?;
    Some(format!(
        "Reads of {} bytes at depth {}: {} a second, {:.0} % of what TCP alone does here with messages of \
         the same sizes.",
        case.size_bytes,
        case.queue_depth,
        thousands(case.lane.ops_per_s),
        100.0 * case.lane.ops_per_s / case.fastest_baseline()?,
    ))
}
