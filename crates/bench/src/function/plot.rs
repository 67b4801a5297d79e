//! The figures as a picture: calls, loading, helpers.

use super::calls::Cost;
use super::helpers::HelperCost;
use super::loading::Loading;
use super::report::{Report, VERIFICATION};
use crate::plot::{Area, COLOURS, Drawn, use_font};
use plotters::prelude::*;
use std::path::Path;

/// Size of each of the three panels in pixels.
const SIZE: (u32, u32) = (640, 520);

/// Draws the figures to `path`, side by side.
pub(super) fn draw(path: &Path, report: &Report) -> Drawn {
    use_font()?;
    let filled = [report.calls.len(), report.loading.len(), report.helpers.len()];
    let pictures = filled.iter().filter(|count| **count > 0).count().max(1);
    let root = BitMapBackend::new(path, (SIZE.0 * pictures as u32, SIZE.1)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut areas = root.split_evenly((1, pictures)).into_iter();
    let mut next = || areas.next().expect("as many as there are pictures");
    if !report.calls.is_empty() {
        calls(&next(), &report.calls)?;
    }
    if !report.loading.is_empty() {
        loading(&next(), &report.loading)?;
    }
    if !report.helpers.is_empty() {
        helpers(&next(), &report.helpers)?;
    }
    root.present()?;
    Ok(())
}

/// Bars, with those of each function side by side.
fn calls(area: &Area<'_>, costs: &[Cost]) -> Drawn {
    let bars = |cost: &Cost| {
        [
            ("same C, cc -O2", cost.c_ns),
            ("checked native code", Some(cost.checked_ns)),
            ("interpreter", Some(cost.interpreter_ns)),
        ]
    };
    let all = costs.iter().flat_map(|cost| bars(cost).map(|(_, ns)| ns.unwrap_or(1.0)));
    let most = all.fold(10.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("A call, in ns (less is better)", ("sans", 22))
        .margin(14)
        .x_label_area_size(34)
        .y_label_area_size(62)
        .build_cartesian_2d(0.0..costs.len() as f64, (1.0..most * 6.0).log_scale())?;
    let name = |at: &f64| {
        let name = costs.get(*at as usize).map_or("", |cost| cost.name);
        if at.fract() == 0.5 { name.to_owned() } else { String::new() }
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * costs.len() + 1)
        .x_label_formatter(&name)
        .label_style(("sans", 14))
        .draw()?;
    for (series, colour) in COLOURS.into_iter().enumerate().take(3) {
        let shape = move |at: f64, ns: f64| {
            let from = at + 0.14 + 0.25 * series as f64;
            Rectangle::new([(from, 1.0), (from + 0.22, ns)], colour.filled())
        };
        let drawn = costs
            .iter()
            .enumerate()
            .filter_map(|(index, cost)| bars(cost)[series].1.map(|ns| shape(index as f64, ns)));
        chart
            .draw_series(drawn)?
            .label(bars(&costs[0])[series].0)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans", 14))
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(())
}

/// Lines with names.
type Lines = Vec<(String, Vec<(f64, f64)>)>;

/// Draws lines on logarithmic scales.
fn lines(
    area: &Area<'_>,
    caption: &str,
    x_name: &str,
    (x, y): ([f64; 2], [f64; 2]),
    lines: Lines,
) -> Drawn {
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans", 22))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(62)
        .build_cartesian_2d((x[0]..x[1]).log_scale(), (y[0]..y[1]).log_scale())?;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_desc(x_name)
        .x_label_formatter(&|value| format!("{value}"))
        .y_label_formatter(&|value| format!("{value}"))
        .label_style(("sans", 14))
        .draw()?;
    for ((name, points), colour) in lines.into_iter().zip(COLOURS) {
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans", 14))
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(())
}

fn loading(area: &Area<'_>, loading: &[Loading]) -> Drawn {
    let line = |name: &str, figure: &dyn Fn(&Loading) -> f64| {
        let point = |loading: &Loading| (loading.instructions as f64, figure(loading).max(0.1));
        (name.to_owned(), loading.iter().map(point).collect())
    };
    let verifier = VERIFICATION.map(|row| (f64::from(row.instructions), row.mean_ms * 1000.0));
    lines(
        area,
        "Loading, in µs (less is better)",
        "instructions of the function",
        ([10.0, 2e6], [0.1, 1e7]),
        vec![
            line("translate", &|loading| loading.translate_us),
            line("check", &|loading| loading.check_us),
            line("parse", &|loading| loading.parse_us),
            ("Linux's verifier (e2BPF, table 6.1)".to_owned(), verifier.to_vec()),
        ],
    )
}

fn helpers(area: &Area<'_>, costs: &[HelperCost]) -> Drawn {
    let mut drawn: Lines = Vec::new();
    for cost in costs {
        let point = (cost.bytes as f64, cost.variable_ns.max(0.1));
        match drawn.last_mut() {
            Some((name, points)) if name == cost.helper => points.push(point),
            _ => drawn.push((cost.helper.to_owned(), vec![point])),
        }
    }
    lines(
        area,
        "A call of a helper, in ns (less is better)",
        "bytes of a call",
        ([6.0, 6000.0], [1.0, 1e4]),
        drawn,
    )
}
