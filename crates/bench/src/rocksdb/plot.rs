//! The figures as pictures: by workload, by number of threads, by share of sampled Gets.

use super::driver::Mode;
use super::report::{Case, ModeFigures, Part};
use crate::plot::{Area, COLOURS, Drawn, Group, Line, PANEL, bars, lines, use_font};
use plotters::prelude::*;
use std::path::Path;

/// Not the loop device: its latency differs from the drive's.
const MODES: [Mode; 3] = [Mode::Plain, Mode::Blocks, Mode::Chains];

/// Draws the figures into a folder.
pub(super) fn draw(folder: &Path, cases: &[Case]) -> Drawn {
    use_font()?;
    let of = |part| cases.iter().filter(move |case| case.setting.part == part);
    let mut panels: Vec<Vec<&Case>> = Vec::new();
    for case in of(Part::Workloads) {
        match panels.last_mut() {
            Some(panel) if panel[0].setting == case.setting => panel.push(case),
            _ => panels.push(vec![case]),
        }
    }
    let path = folder.join("rocksdb-workloads.png");
    let root = BitMapBackend::new(&path, (PANEL.0, PANEL.1 * panels.len().max(1) as u32));
    let root = root.into_drawing_area();
    root.fill(&WHITE)?;
    for (area, panel) in root.split_evenly((panels.len().max(1), 1)).iter().zip(&panels) {
        workloads(area, panel)?;
    }
    root.present()?;
    let threads: Vec<&Case> = of(Part::Threads).collect();
    if !threads.is_empty() {
        let of_modes = MODES.into_iter().map(|mode| {
            let points = threads.iter().filter_map(|case| case.of(mode));
            let point =
                |of: &ModeFigures| (of.figures.ops_per_s / 1000.0, of.figures.p99_us / 1000.0);
            Line {
                name: legend(mode).to_owned(),
                colour: colour(mode),
                points: points.map(point).collect(),
            }
        });
        let title = "Uniform reads by 1 and more threads: 99th percentile against throughput";
        let axes = ["1000 operations per second", "99th percentile in ms, less is better"];
        lines(
            &folder.join("rocksdb-threads.png"),
            title,
            axes,
            &of_modes.collect::<Vec<_>>(),
            &|value| format!("{value:.1}"),
        )?;
    }
    let sampled: Vec<&Case> = of(Part::Sampling).collect();
    if !sampled.is_empty() {
        sampling(&folder.join("rocksdb-sampling.png"), &sampled)?;
    }
    Ok(())
}

fn colour(mode: Mode) -> RGBColor {
    match mode {
        Mode::Plain | Mode::Local => RGBColor(150, 160, 175),
        Mode::Blocks => RGBColor(210, 105, 30),
        Mode::Chains | Mode::Single => RGBColor(30, 110, 190),
    }
}

fn legend(mode: Mode) -> &'static str {
    match mode {
        Mode::Plain | Mode::Local => "plain: a round trip a block",
        Mode::Blocks => "blocks: all at once",
        Mode::Chains | Mode::Single => "chains: pushed down",
    }
}

/// Bars for each workload with one setting.
fn workloads(area: &Area<'_>, cases: &[&Case]) -> Drawn {
    let setting = &cases[0].setting;
    let cache = if setting.cache_bytes > 0 { "with a block cache" } else { "no block cache" };
    let title = format!(
        "RocksDB, drive of {} µs, {cache}: operations per second; below: gain of chains",
        setting.latency_us
    );
    let groups = cases.iter().map(|case| {
        let gain = case.ratio.as_ref().map(|ratio| format!("{:.1}×", ratio.ops_per_s));
        let of = |mode| case.of(mode).map(|figures| &figures.figures);
        Group {
            labels: [Some(case.workload.clone()), gain].into_iter().flatten().collect(),
            values: MODES.into_iter().map(of).collect(),
        }
    });
    bars(area, &title, &MODES.map(|mode| (legend(mode), colour(mode))), &groups.collect::<Vec<_>>())
}

/// Throughput of chains by the share of Gets that RocksDB serves, at even distances.
fn sampling(path: &Path, cases: &[&Case]) -> Drawn {
    let mut of_workloads: Vec<Line> = Vec::new();
    let mut rates: Vec<f64> = Vec::new();
    for case in cases {
        let Some(figures) = case.of(Mode::Chains) else { continue };
        let rate = case.setting.sample_rate.unwrap_or(0.0);
        if rates.last() != Some(&rate) {
            rates.push(rate);
        }
        let point = ((rates.len() - 1) as f64, figures.figures.ops_per_s / 1000.0);
        match of_workloads.iter_mut().find(|line| line.name == case.workload) {
            Some(line) => line.points.push(point),
            None => {
                let colour = COLOURS[of_workloads.len() % COLOURS.len()];
                of_workloads.push(Line {
                    name: case.workload.clone(),
                    colour,
                    points: vec![point],
                });
            }
        }
    }
    let title = "Chains, with a block cache: throughput by share of Gets left to RocksDB";
    let axes = ["share of Gets left to RocksDB", "1000 operations per second, more is better"];
    let percent = |place: &f64| match rates.get(*place as usize) {
        Some(rate) if place.fract() == 0.0 => format!("{} %", rate * 100.0),
        _ => String::new(),
    };
    lines(path, title, axes, &of_workloads, &percent)
}
