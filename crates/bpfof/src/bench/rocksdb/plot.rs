//! The figures as pictures: by workload, by number of threads, by share of sampled Gets.

use super::driver::Mode;
use super::report::{Case, ModeFigures, Part};
use crate::bench::plot::{COLOURS, use_font};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::path::Path;

/// Size of a picture, or of one of several below each other, in pixels.
const SIZE: (u32, u32) = (1100, 420);
/// Not the loop device: its latency is another one than the drive's.
const MODES: [Mode; 3] = [Mode::Plain, Mode::Blocks, Mode::Chains];

type Drawn = Result<(), Box<dyn Error>>;
type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;

/// A line of a picture.
struct Line {
    name: String,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

/// Draws what was measured into a folder.
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
    let root = BitMapBackend::new(&path, (SIZE.0, SIZE.1 * panels.len().max(1) as u32));
    let root = root.into_drawing_area();
    root.fill(&WHITE)?;
    for (area, panel) in root.split_evenly((panels.len().max(1), 1)).iter().zip(&panels) {
        workloads(area, panel)?;
    }
    root.present()?;
    let threads: Vec<&Case> = of(Part::Threads).collect();
    if !threads.is_empty() {
        let lines = MODES.into_iter().map(|mode| {
            let points = threads.iter().filter_map(|case| case.of(mode));
            let point =
                |of: &ModeFigures| (of.figures.ops_per_s / 1000.0, of.figures.p99_us / 1000.0);
            Line {
                name: mode.name().to_owned(),
                colour: colour(mode),
                points: points.map(point).collect(),
            }
        });
        let title = "Uniform reads by 1 and more threads: 99th percentile against throughput";
        let axes = ["1000 operations per second", "ms"];
        lines_in(
            &folder.join("rocksdb-threads.png"),
            title,
            axes,
            &lines.collect::<Vec<_>>(),
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
        Mode::Chains => RGBColor(30, 110, 190),
    }
}

/// Bars for each workload of one setting.
fn workloads(area: &Area<'_>, cases: &[&Case]) -> Drawn {
    let setting = &cases[0].setting;
    let cache = if setting.cache_bytes > 0 { "with a block cache" } else { "no block cache" };
    let title =
        format!("RocksDB, drive of {} µs, {cache}: operations per second", setting.latency_us);
    let all = cases.iter().flat_map(|case| &case.modes).filter(|of| MODES.contains(&of.mode));
    let most = all.map(|mode| mode.figures.ops_per_s).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..cases.len() as f64, 0.0..most * 1.15)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_labels(6)
        .label_style(("sans", 14))
        .y_label_formatter(&|value| format!("{:.0}k", value / 1000.0))
        .draw()?;
    let text = ("sans", 13).into_font().color(&BLACK);
    let plotting = chart.plotting_area();
    let width = 0.8 / MODES.len() as f64;
    for (group, case) in cases.iter().enumerate() {
        for (index, mode) in MODES.into_iter().enumerate() {
            let Some(figures) = case.of(mode) else { continue };
            let left = group as f64 + 0.1 + index as f64 * width;
            let corners = [(left, 0.0), (left + width, figures.figures.ops_per_s)];
            plotting.draw(&Rectangle::new(corners, colour(mode).filled()))?;
        }
        let gain = case.ratio.as_ref().map(|ratio| format!("{:.1}×", ratio.ops_per_s));
        let (x, y) = plotting.map_coordinate(&(group as f64 + 0.1, 0.0));
        let base = area.get_base_pixel();
        for (line, label) in [Some(case.workload.clone()), gain].into_iter().flatten().enumerate() {
            let at = (x - base.0, y - base.1 + 6 + 15 * line as i32);
            area.draw(&Text::new(label, at, text.clone()))?;
        }
    }
    for (index, mode) in MODES.into_iter().enumerate() {
        let (x, y) = (790 + 95 * index as i32, 40);
        area.draw(&Rectangle::new([(x, y), (x + 12, y + 12)], colour(mode).filled()))?;
        area.draw(&Text::new(mode.name(), (x + 18, y), text.clone()))?;
    }
    Ok(())
}

/// Throughput of chains by share of Gets that RocksDB does itself, at even distances.
fn sampling(path: &Path, cases: &[&Case]) -> Drawn {
    let mut lines: Vec<Line> = Vec::new();
    let mut rates: Vec<f64> = Vec::new();
    for case in cases {
        let Some(figures) = case.of(Mode::Chains) else { continue };
        let rate = case.setting.sample_rate.unwrap_or(0.0);
        if rates.last() != Some(&rate) {
            rates.push(rate);
        }
        let point = ((rates.len() - 1) as f64, figures.figures.ops_per_s / 1000.0);
        match lines.iter_mut().find(|line| line.name == case.workload) {
            Some(line) => line.points.push(point),
            None => {
                let colour = COLOURS[lines.len() % COLOURS.len()];
                lines.push(Line { name: case.workload.clone(), colour, points: vec![point] });
            }
        }
    }
    let title = "Chains, with a block cache: throughput by share of Gets left to RocksDB";
    let axes = ["share", "1000 operations per second"];
    let percent = |place: &f64| match rates.get(*place as usize) {
        Some(rate) if place.fract() == 0.0 => format!("{} %", rate * 100.0),
        _ => String::new(),
    };
    lines_in(path, title, axes, &lines, &percent)
}

fn lines_in(
    path: &Path,
    title: &str,
    [x_name, y_name]: [&str; 2],
    lines: &[Line],
    x_label: &dyn Fn(&f64) -> String,
) -> Drawn {
    let root = BitMapBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let points = || lines.iter().flat_map(|line| &line.points);
    // With room for the names on the right.
    let most_x = points().map(|point| point.0).fold(1e-3, f64::max) * 1.15;
    let most_y = points().map(|point| point.1).fold(1e-3, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..most_x, 0.0..most_y)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_desc(x_name)
        .y_desc(y_name)
        .x_label_formatter(&x_label)
        .label_style(("sans", 14))
        .axis_desc_style(("sans", 14))
        .draw()?;
    for Line { name, colour, points } in lines.iter().filter(|line| !line.points.is_empty()) {
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style).point_size(4))?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .label_font(("sans", 14))
        .draw()?;
    root.present()?;
    Ok(())
}
