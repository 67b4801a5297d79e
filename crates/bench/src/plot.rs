//! Pictures, as PNG: bars and lines for all benchmarks.

use crate::measurement::Figures;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::path::Path;

/// Fonts of Debian's fonts-dejavu-core, which `make setup` installs.
const FONT: &str = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf";

/// Colours of a picture's lines, easy to tell apart.
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(30, 110, 190),
    RGBColor(210, 105, 30),
    RGBColor(60, 150, 90),
    RGBColor(150, 80, 160),
    RGBColor(120, 130, 145),
    RGBColor(190, 50, 60),
];

/// Size of a picture, or of one of several below each other, in pixels.
pub(crate) const PANEL: (u32, u32) = (1100, 420);

pub(crate) type Drawn = Result<(), Box<dyn std::error::Error>>;
pub(crate) type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;

/// A line of a picture.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) colour: RGBColor,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Bars that are drawn together.
pub(crate) struct Group<'a> {
    /// Labels below the bars, one below the other.
    pub(crate) labels: Vec<String>,
    /// One value for each kind of bar; its operations a second are drawn.
    pub(crate) values: Vec<Option<&'a Figures>>,
}

/// Makes the folder of the pictures, if there is to be one, and finds out whether there is the font: before minutes are
/// spent on measuring.
pub(crate) fn prepare(folder: Option<&Path>) -> Drawn {
    let Some(folder) = folder else { return Ok(()) };
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    use_font()
}

/// Registers the font as "sans".
pub(crate) fn use_font() -> Drawn {
    let font = std::fs::read(FONT)
        .map_err(|error| format!("cannot read {FONT}: {error}; install fonts-dejavu-core"))?;
    register_font("sans", FontStyle::Normal, Box::leak(font.into_boxed_slice()))
        .map_err(|_| format!("{FONT} is not a usable font"))?;
    Ok(())
}

/// Draws groups of bars, one of each kind, with the kinds' names on top; a line at each bar's end extends from the
/// slowest repetition to the fastest.
pub(crate) fn bars(
    area: &Area<'_>,
    title: &str,
    kinds: &[(&str, RGBColor)],
    groups: &[Group<'_>],
) -> Drawn {
    let all = groups.iter().flat_map(|group| &group.values).flatten();
    let most = all.map(|figures| figures.ops_per_s_range[1]).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..groups.len() as f64, 0.0..most * 1.15)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_labels(6)
        .label_style(("sans", 14))
        .axis_desc_style(("sans", 14))
        .y_desc("a second, more is better; line: spread")
        .y_label_formatter(&|value| format!("{:.0}k", value / 1000.0))
        .draw()?;
    let text = ("sans", 13).into_font().color(&BLACK);
    let plotting = chart.plotting_area();
    let width = 0.8 / kinds.len() as f64;
    for (place, group) in groups.iter().enumerate() {
        for (index, (value, (_, colour))) in group.values.iter().zip(kinds).enumerate() {
            let Some(Figures { ops_per_s, ops_per_s_range, .. }) = value else { continue };
            let left = place as f64 + 0.1 + index as f64 * width;
            let corners = [(left, 0.0), (left + width, *ops_per_s)];
            plotting.draw(&Rectangle::new(corners, colour.filled()))?;
            let ends = ops_per_s_range.map(|end| (left + width / 2.0, end));
            plotting.draw(&PathElement::new(ends, BLACK.stroke_width(2)))?;
        }
        let (x, y) = plotting.map_coordinate(&(place as f64 + 0.1, 0.0));
        let base = area.get_base_pixel();
        for (line, label) in group.labels.iter().enumerate() {
            let at = (x - base.0, y - base.1 + 6 + 15 * line as i32);
            area.draw(&Text::new(label.clone(), at, text.clone()))?;
        }
    }
    let mut x = 1075 - kinds.iter().map(|(name, _)| name_width(name)).sum::<i32>();
    for (name, colour) in kinds {
        area.draw(&Rectangle::new([(x, 40), (x + 12, 52)], colour.filled()))?;
        area.draw(&Text::new(*name, (x + 18, 40), text.clone()))?;
        x += name_width(name);
    }
    Ok(())
}

/// The approximate width in pixels of a kind's name and its square.
fn name_width(name: &str) -> i32 {
    40 + 7 * name.len() as i32
}

/// Draws lines to `path`, their names beside them.
pub(crate) fn lines(
    path: &Path,
    title: &str,
    [x_name, y_name]: [&str; 2],
    lines: &[Line],
    x_label: &dyn Fn(&f64) -> String,
) -> Drawn {
    let root = BitMapBackend::new(path, PANEL).into_drawing_area();
    root.fill(&WHITE)?;
    let points = || lines.iter().flat_map(|line| &line.points);
    // Leaves room for the names on the right.
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
