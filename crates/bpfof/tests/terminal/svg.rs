//! A screen as an SVG picture: a line of text for each row, in runs of characters with the same look.

use std::fmt::Write as _;
use vt100::{Cell, Color, Screen};

/// Pixels of a character cell.
const WIDTH: f32 = 8.4;
const HEIGHT: f32 = 18.0;
/// Space around the screen, and for the title.
const MARGIN: f32 = 14.0;
const TITLE: f32 = 26.0;
const BACKGROUND: &str = "#1d2129";
const FOREGROUND: &str = "#d8dee6";
/// The sixteen ANSI colours, as in most dark terminals.
const COLOURS: [&str; 16] = [
    "#3b4252", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee6",
    "#5c6370", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#ffffff",
];

/// How characters look.
#[derive(PartialEq)]
struct Look {
    text: &'static str,
    ground: Option<&'static str>,
    bold: bool,
    dim: bool,
}

impl Look {
    fn of(cell: &Cell) -> Look {
        let (text, ground) = (colour(cell.fgcolor()), colour(cell.bgcolor()));
        let (text, ground) = match cell.inverse() {
            true => (ground.unwrap_or(BACKGROUND), Some(text.unwrap_or(FOREGROUND))),
            false => (text.unwrap_or(FOREGROUND), ground),
        };
        Look { text, ground, bold: cell.bold(), dim: cell.dim() }
    }
}

fn colour(colour: Color) -> Option<&'static str> {
    match colour {
        Color::Idx(index) => COLOURS.get(usize::from(index)).copied(),
        Color::Default | Color::Rgb(..) => None,
    }
}

pub(crate) fn draw(screen: &Screen, title: &str) -> String {
    let (rows, columns) = screen.size();
    let (width, height) = (
        f32::from(columns) * WIDTH + 2.0 * MARGIN,
        f32::from(rows) * HEIGHT + TITLE + 2.0 * MARGIN,
    );
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-size=\"14\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" role=\"img\">\n\
         <title>{title}</title>\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" fill=\"#8b95a5\">{title}</text>\n"
    );
    for row in 0..rows {
        let mut column = 0;
        while let Some(first) = screen.cell(row, column) {
            let (look, start) = (Look::of(first), column);
            let mut text = String::new();
            while let Some(cell) = screen.cell(row, column).filter(|cell| Look::of(cell) == look) {
                text += if cell.has_contents() { cell.contents() } else { " " };
                column += 1;
            }
            run(&mut picture, &look, &text, (row, start, column));
        }
    }
    picture + "</svg>\n"
}

fn run(picture: &mut String, look: &Look, text: &str, (row, start, end): (u16, u16, u16)) {
    let (x, y) = (MARGIN + f32::from(start) * WIDTH, TITLE + MARGIN + f32::from(row) * HEIGHT);
    let width = f32::from(end - start) * WIDTH;
    if let Some(ground) = look.ground {
        let _ = writeln!(
            picture,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{HEIGHT}\" fill=\"{ground}\"/>"
        );
    }
    if text.trim().is_empty() {
        return;
    }
    let more = [(look.bold, " font-weight=\"bold\""), (look.dim, " opacity=\"0.65\"")];
    let more: String =
        more.iter().filter(|(is_so, _)| *is_so).map(|(_, attribute)| *attribute).collect();
    let text = text.trim_end().replace('&', "&amp;").replace('<', "&lt;");
    let length = text.chars().count() as f32;
    let _ = writeln!(
        picture,
        "<text x=\"{x:.1}\" y=\"{:.1}\" fill=\"{}\"{more} xml:space=\"preserve\" textLength=\"{:.1}\">{text}</text>",
        y + HEIGHT - 5.0,
        look.text,
        length * WIDTH,
    );
}
