//! The figures of BPF-KV as a picture.

use super::report::Case;
use crate::plot::{Drawn, use_font};
use plotters::prelude::*;
use std::path::Path;

/// Size of the picture in pixels.
const SIZE: (u32, u32) = (1100, 640);
const PLAIN: RGBColor = RGBColor(150, 160, 175);
const PUSHDOWN: RGBColor = RGBColor(30, 110, 190);

/// Draws the cases to `path`.
pub(crate) fn draw(path: &Path, title: &str, cases: &[Case]) -> Drawn {
    use_font()?;
    let root = BitMapBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let most = cases
        .iter()
        .flat_map(|case| [case.plain.ops_per_s_range[1], case.pushdown.ops_per_s_range[1]])
        .fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans", 24))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(230)
        .build_cartesian_2d(0.0..most * 1.22, 0.0..cases.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_axis()
        .disable_y_mesh()
        .x_labels(8)
        .x_desc("operations a second, more is better; the line at a bar's end: slowest to fastest repetition")
        .label_style(("sans", 14))
        .axis_desc_style(("sans", 14))
        .x_label_formatter(&|value| format!("{:.0}k", value / 1000.0))
        .draw()?;
    let text = ("sans", 15).into_font().color(&BLACK);
    let plotting = chart.plotting_area();
    for (index, case) in cases.iter().enumerate() {
        let top = (cases.len() - index) as f64;
        let bars = [(&case.plain, PLAIN, 0.12), (&case.pushdown, PUSHDOWN, 0.5)];
        for (figures, colour, below) in bars {
            let corners = [(0.0, top - below), (figures.ops_per_s, top - below - 0.36)];
            plotting.draw(&Rectangle::new(corners, colour.filled()))?;
            let [least, most] = figures.ops_per_s_range.map(|x| (x, top - below - 0.18));
            plotting.draw(&PathElement::new([least, most], BLACK.stroke_width(2)))?;
        }
        let note =
            format!("{:.0}k ops/s, {:.1}×", case.pushdown.ops_per_s / 1000.0, case.ratio.ops_per_s);
        let at = (case.pushdown.ops_per_s_range[1] + most * 0.01, top - 0.55);
        plotting.draw(&Text::new(note, at, text.clone()))?;
        let (_, y) = plotting.map_coordinate(&(0.0, top - 0.4));
        root.draw(&Text::new(case.label(), (16, y), text.clone()))?;
    }
    for (index, (name, colour)) in
        [("plain: one round trip a hop", PLAIN), ("pushdown: one round trip", PUSHDOWN)]
            .into_iter()
            .enumerate()
    {
        let (x, y) = (760, 56 + 22 * index as i32);
        root.draw(&Rectangle::new([(x, y), (x + 14, y + 14)], colour.filled()))?;
        root.draw(&Text::new(name, (x + 22, y), text.clone()))?;
    }
    root.present()?;
    Ok(())
}
