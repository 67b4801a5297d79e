//! The figures as a picture: a row for each aggressor, with latencies from left to right.

use super::report::{Case, Figures, Report};
use crate::plot::{Area, COLOURS, Drawn, PANEL, use_font};
use plotters::prelude::*;
use std::path::Path;

/// The range of latencies in the picture, in µs.
const FROM_US: f64 = 5.0;
const TO_US: f64 = 200_000.0;

/// Draws reads and gets below each other.
pub(super) fn draw(path: &Path, report: &Report) -> Drawn {
    use_font()?;
    let root = BitMapBackend::new(path, (PANEL.0, 2 * PANEL.1)).into_drawing_area();
    root.fill(&WHITE)?;
    let (reads, gets) = root.split_vertically(PANEL.1);
    let rows = |of: fn(&Case) -> (Figures, Figures)| -> Vec<_> {
        let row = |case: &Case| {
            let (beside, idle) = of(case);
            (case.aggressor.clone(), beside, idle)
        };
        report.cases.iter().map(row).collect()
    };
    panel(
        &reads,
        "A read of 4 KiB beside each aggressor",
        &rows(|case| (case.read, case.read_idle)),
    )?;
    panel(
        &gets,
        "A get, pushed down, beside each aggressor",
        &rows(|case| (case.get, case.get_idle)),
    )?;
    root.present()?;
    Ok(())
}

/// A bar from the median to the 99th percentile and a line to the maximum: grey for the victim alone, blue for the
/// victim beside the aggressor.
fn panel(area: &Area<'_>, title: &str, rows: &[(String, Figures, Figures)]) -> Drawn {
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!("{title}: p50 to p99, line to the maximum; blue: beside it, grey: alone"),
            ("sans", 18),
        )
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(110)
        .build_cartesian_2d((FROM_US..TO_US).log_scale(), 0.0..rows.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_desc("latency in µs, less is better")
        .label_style(("sans", 14))
        .axis_desc_style(("sans", 14))
        .draw()?;
    let plotting = chart.plotting_area();
    let text = ("sans", 14).into_font().color(&BLACK);
    let base = area.get_base_pixel();
    for (index, (name, beside, idle)) in rows.iter().enumerate() {
        let top = (rows.len() - index) as f64;
        for (figures, colour, below) in [(idle, COLOURS[4], 0.15), (beside, COLOURS[0], 0.5)] {
            let (middle, end) = (top - below - 0.17, top - below - 0.34);
            let bar =
                [(figures.p50_us, top - below), (figures.p99_us.max(figures.p50_us * 1.02), end)];
            plotting.draw(&Rectangle::new(bar, colour.filled()))?;
            let line = [(figures.p99_us, middle), (figures.max_us, middle)];
            plotting.draw(&PathElement::new(line, colour.stroke_width(2)))?;
        }
        let (_, y) = plotting.map_coordinate(&(FROM_US, top - 0.35));
        area.draw(&Text::new(name.clone(), (16, y - base.1), text.clone()))?;
    }
    Ok(())
}
