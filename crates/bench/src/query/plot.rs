//! The figures as pictures, in a folder.

use super::measure::Row;
use super::report::{Report, Stack, groups};
use crate::plot::{COLOURS, Drawn, Line, PANEL, lines};
use plotters::prelude::*;
use std::path::Path;

/// Layers of a stack, from the bottom, with colours.
const LAYERS: [(&str, RGBColor); 5] = [
    ("load, once", COLOURS[4]),
    ("I/O", COLOURS[2]),
    ("filter-reduce at the target", COLOURS[0]),
    ("transfer", COLOURS[3]),
    ("filter-reduce at the host", COLOURS[1]),
];

/// Draws the figures.
pub(super) fn draw(folder: &Path, report: &Report) -> Drawn {
    let by_path = |part, x: fn(&Row) -> Option<f64>, y: fn(&Row) -> f64, query: &str| {
        let mut all: Vec<Line> = Vec::new();
        for group in groups(report.part(part).filter(|row| row.query == query)) {
            for row in group {
                let Some(at) = x(row) else { continue };
                let known = all.iter().position(|line| line.name == row.path);
                let index = known.unwrap_or(all.len());
                if known.is_none() {
                    let colour = COLOURS[index % COLOURS.len()];
                    all.push(Line { name: row.path.to_owned(), colour, points: Vec::new() });
                }
                all[index].points.push((at, y(row)));
                all[index].points.sort_by(|a, b| a.0.total_cmp(&b.0));
            }
        }
        all
    };
    let percent = |row: &Row| row.selectivity.map(|part| part * 100.0);
    let both = |row: &Row| row.both_cpu_s() / (row.file_bytes as f64 * 1e-9);
    let label = |x: &f64| format!("{x:.0}");
    let selectivity = by_path("selectivity", percent, both, "fold");
    if !selectivity.is_empty() {
        lines(
            &folder.join("selectivity.png"),
            "Processor time of both sides for a fold of records: less is better",
            ["rows that pass, in percent", "s for a GB"],
            &selectivity,
            &label,
        )?;
    }
    let kib = |row: &Row| row.block_bytes.map(|bytes| f64::from(bytes) / 1024.0);
    let hop_us = |row: &Row| row.target_cpu_s * 1e6 / row.hops.max(1) as f64;
    let composed = by_path("composed", kib, hop_us, "fold of a half");
    if !composed.is_empty() {
        lines(
            &folder.join("composed.png"),
            "One function against the same work by tail calls (e2BPF, figure 6.4): less is better",
            ["KiB of a read", "µs of the target's processor for a hop"],
            &composed,
            &label,
        )?;
    }
    if !report.stacked.is_empty() {
        stacks(&folder.join("stacked.png"), &report.stacked)?;
    }
    Ok(())
}

/// For each size and filter factor two bars: pushed down, and plain.
fn stacks(path: &Path, all: &[Stack]) -> Drawn {
    let root = BitMapBackend::new(path, (PANEL.0, PANEL.1)).into_drawing_area();
    root.fill(&WHITE)?;
    let columns = |stack: &Stack| {
        let pushed = [stack.load_ms, stack.io_ms, stack.filter_reduce_ms, 0.0, 0.0];
        let plain = [0.0, stack.io_ms, 0.0, stack.plain_transfer_ms, stack.plain_filter_reduce_ms];
        [pushed, plain]
    };
    let most = all.iter().flat_map(columns).map(|column| column.iter().sum::<f64>());
    let most = most.fold(1e-3, f64::max);
    let mut chart = ChartBuilder::on(&root)
        .caption(
            "One query: left pushed down, right plainly (e2BPF, figures 6.7 and 6.8): less is better",
            ("sans", 20),
        )
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..all.len() as f64, 0.0..most * 1.1)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(all.len())
        .x_desc("MiB of the file / percent filtered")
        .y_desc("ms")
        .x_label_formatter(&|x| {
            let stack = all.get(*x as usize).filter(|_| x.fract() == 0.0);
            stack.map_or_else(String::new, |stack| {
                if stack.filter_factor == 0 {
                    format!("{}", stack.file_bytes >> 20)
                } else {
                    String::new()
                }
            })
        })
        .label_style(("sans", 13))
        .axis_desc_style(("sans", 14))
        .draw()?;
    for (layer, (name, colour)) in LAYERS.iter().enumerate() {
        let bars = all.iter().enumerate().flat_map(|(place, stack)| {
            columns(stack).into_iter().enumerate().map(move |(side, column)| {
                let left = place as f64 + 0.08 + 0.42 * side as f64;
                let base: f64 = column[..layer].iter().sum();
                Rectangle::new([(left, base), (left + 0.4, base + column[layer])], colour.filled())
            })
        });
        let colour = *colour;
        chart
            .draw_series(bars)?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .label_font(("sans", 14))
        .draw()?;
    root.present()?;
    Ok(())
}
