//! The figures as pictures.

use super::curve::{Curve, Point};
use super::report::Report;
use super::threads::Way;
use crate::plot::{COLOURS, Drawn, Group, Line, PANEL, bars, lines, use_font};
use plotters::prelude::*;
use std::path::Path;

/// Draws the figures into a folder.
pub(super) fn draw(folder: &Path, report: &Report) -> Drawn {
    use_font()?;
    if !report.curves.is_empty() {
        curves(&folder.join("net-curve.png"), &report.curves)?;
    }
    if !report.threads.is_empty() {
        let kinds = Way::ALL.map(Way::name);
        let groups = report.threads.iter().map(|case| Group {
            labels: vec![format!("threads: {}", case.threads)],
            values: case.ways.iter().map(|way| Some(&way.figures)).collect(),
        });
        let title = "Blocking threads on one processor: reads per second";
        picture(&folder.join("net-threads.png"), title, &kinds, groups.collect())?;
    }
    if !report.mixes.is_empty() {
        let groups = report.mixes.iter().map(|mix| Group {
            labels: vec![format!("{} % writes", mix.writes)],
            values: vec![Some(&mix.lane), Some(&mix.single_send)],
        });
        let title = "Reads and writes: operations per second";
        let kinds = ["shared sends", "a send each"];
        picture(&folder.join("net-mixes.png"), title, &kinds, groups.collect())?;
    }
    if !report.spreads.is_empty() {
        let numbers = report.spreads.iter().map(|spread| spread.connections);
        let mut numbers: Vec<usize> = numbers.collect();
        numbers.sort_unstable();
        numbers.dedup();
        let of = |connections, own_targets| {
            let mut all = report.spreads.iter();
            let found = all.find(|spread| {
                spread.connections == connections && spread.own_targets == own_targets
            });
            found.map(|spread| &spread.figures)
        };
        let groups = numbers.iter().map(|&number| Group {
            labels: vec![format!("connections: {number}")],
            values: vec![of(number, false), of(number, true)],
        });
        let title = "Several connections of one processor: reads per second";
        let kinds = ["to one target", "a target each"];
        picture(&folder.join("net-spread.png"), title, &kinds, groups.collect())?;
    }
    Ok(())
}

fn picture(path: &Path, title: &str, kinds: &[&'static str], groups: Vec<Group<'_>>) -> Drawn {
    let kinds: Vec<_> = kinds.iter().copied().zip(COLOURS).collect();
    let root = BitMapBackend::new(path, PANEL).into_drawing_area();
    root.fill(&WHITE)?;
    bars(&root, title, &kinds, &groups)?;
    root.present()?;
    Ok(())
}

/// Draws each way as far as it keeps up: beyond, latency depends only on the duration of the measurement.
fn curves(path: &Path, curves: &[Curve]) -> Drawn {
    let mut drawn = Vec::new();
    for curve in curves {
        let kept_up = || curve.points.iter().filter(|point| point.keeps_up);
        let at = |point: &Point| point.ops_per_s / 1000.0;
        let p50 = kept_up().map(|point| (at(point), point.p50_us));
        let p99 = kept_up().map(|point| (at(point), point.p99_us));
        for (quantile, points) in [("p50", p50.collect()), ("p99", p99.collect())] {
            let colour = COLOURS[drawn.len() % COLOURS.len()];
            drawn.push(Line { name: format!("{}, {quantile}", curve.way()), colour, points });
        }
    }
    let title = "Reads that are due at random times: latency against throughput";
    let axes =
        ["1000 reads per second, as far as each way keeps up", "latency in µs, less is better"];
    lines(path, title, axes, &drawn, &|value| format!("{value:.0}"))
}
