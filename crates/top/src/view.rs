//! Draws the screen.

use crate::app::{App, Dialog, Link};
use crate::figures::{Figures, Summary};
use crate::table::{Table, Unit, written};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Flex, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, Cell as Drawn, Clear, Padding, Paragraph, Row, Sparkline, Table as DrawnTable,
    TableState, Wrap,
};

/// Height of the curve, in lines.
const CURVE_LINES: u16 = 2;
/// Screens with fewer lines have no curve.
const CURVE_FROM_LINES: u16 = 14;
/// Least width of a column of words that needs as much.
const WORDS_MIN: u16 = 16;
/// Width between two columns.
const GAP: u16 = 2;

const KEYS: &str = "q quit  1-4 tables  s sort  r reverse  p pause  k kick  ? help";
const HELP: [&str; 13] = [
    "1 2 3 4, Tab, ← →   hosts, namespaces, functions, reactors",
    "↑ ↓ PgUp PgDn       choose a row",
    "s S                 sort by the next column, the previous one",
    "r                   reverse the order",
    "p, Space            pause the display",
    "k                   end all associations of the chosen host",
    "?                   this help",
    "q, Esc, Ctrl-C      quit",
    "",
    "Rates are those of the last interval. p99: latency at the target that 99 of",
    "100 commands did not exceed. hops: rounds of reads of chains. busy: part of",
    "the time in which reactors had something to do. moved: bytes read and",
    "written, by chains as well.",
];

/// Draws the whole screen.
pub(crate) fn draw(frame: &mut Frame<'_>, app: &App) {
    let curve = if frame.area().height >= CURVE_FROM_LINES { CURVE_LINES } else { 0 };
    let lines = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(curve),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ]);
    let [title, totals, curve, tabs, body, foot] = lines.areas(frame.area());
    frame.render_widget(title_line(app), title);
    if let Some(Figures { summary, .. }) = &app.figures {
        frame.render_widget(totals_line(summary), totals);
    }
    let newest: Vec<u64> = app.history.iter().rev().take(curve.width.into()).copied().collect();
    let rates: Vec<u64> = newest.into_iter().rev().collect();
    frame.render_widget(Sparkline::default().data(&rates).style(Color::Cyan), curve);
    frame.render_widget(tabs_line(app), tabs);
    match app.table() {
        Some(table) => draw_table(frame, app, table, body),
        None => frame.render_widget(waiting(app), body),
    }
    let words = app.message.as_deref().unwrap_or(KEYS);
    frame.render_widget(Line::from(words).dim(), foot);
    match &app.dialog {
        Some(Dialog::Help) => draw_dialog(frame, "Keys", &HELP.map(str::to_owned)),
        Some(Dialog::Kick(host)) => {
            let lines = [
                "End all associations of this host?".to_owned(),
                host.to_string(),
                "It may connect again: to keep it out, change its rule.".to_owned(),
                "y: end them; any other key: cancel".to_owned(),
            ];
            draw_dialog(frame, "Kick", &lines);
        }
        None => {}
    }
}

fn title_line(app: &App) -> Line<'static> {
    let mut spans = vec![Span::from("bpfof top").bold(), Span::from(format!("  {}", app.socket))];
    match &app.link {
        Link::Connecting => spans.push("  connecting…".yellow()),
        Link::Live => spans.push(format!("  every {} s", app.interval_s).dim()),
        Link::Lost(why) => spans.push(format!("  lost, trying again: {why}").red().bold()),
    }
    if app.paused {
        spans.push("  paused".yellow().bold());
    }
    Line::from(spans)
}

fn totals_line(summary: &Summary) -> Line<'static> {
    let rate =
        |value: Option<f64>, unit| value.map_or("–".to_owned(), |value| written(value, unit));
    let busy = Style::new().fg(if summary.busy > Some(0.9) { Color::Red } else { Color::Reset });
    let text = format!(
        "up {}  {} connections  {} operations/s  {} chains/s  {} hops/s  {}  memory {} of {}  ",
        duration(summary.up_s),
        summary.connections,
        rate(summary.operations_per_s, Unit::Rate),
        rate(summary.chains_per_s, Unit::Rate),
        rate(summary.hops_per_s, Unit::Rate),
        rate(summary.bytes_per_s, Unit::ByteRate),
        written(summary.memory_used_bytes as f64, Unit::Bytes),
        written(summary.memory_limit_bytes as f64, Unit::Bytes),
    );
    let busy = Span::styled(format!("{} busy", rate(summary.busy, Unit::Part)), busy);
    Line::from(vec![busy, Span::from("  "), Span::from(text)])
}

fn duration(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn tabs_line(app: &App) -> Line<'static> {
    let tables = app.figures.iter().flat_map(|figures| &figures.tables).enumerate();
    let tab = |(index, table): (usize, &Table)| {
        let text = Span::from(format!(" {} {} ({}) ", index + 1, table.name, table.rows.len()));
        if index == app.tab { text.reversed() } else { text }
    };
    Line::from(tables.map(tab).collect::<Vec<_>>())
}

fn waiting(app: &App) -> Paragraph<'static> {
    let words = match &app.link {
        Link::Lost(why) => format!("{why}\n\nTrying again every {} s.", app.interval_s),
        Link::Connecting | Link::Live => String::new(),
    };
    Paragraph::new(words).wrap(Wrap { trim: false })
}

/// Draws as many whole columns, from the left, as there is room for: a cut figure would be a wrong one.
fn draw_table(frame: &mut Frame<'_>, app: &App, table: &Table, area: Rect) {
    let order = app.pane().order;
    let heads: Vec<String> = table
        .columns
        .iter()
        .enumerate()
        .map(|(index, column)| match (index == order.column, order.descending) {
            (false, _) => column.head.to_owned(),
            (true, true) => format!("{}▼", column.head),
            (true, false) => format!("{}▲", column.head),
        })
        .collect();
    let body: Vec<Vec<String>> = table
        .rows
        .iter()
        .map(|row| {
            table
                .columns
                .iter()
                .zip(&row.cells)
                .map(|(column, cell)| cell.text(column.unit))
                .collect()
        })
        .collect();
    let widths = widths(table, &heads, &body, area.width);
    let cell = |index: usize, text: &String| {
        let right = table.columns[index].unit != Unit::Text;
        let line = Line::from(fit(text, widths[index]));
        Drawn::from(if right { line.alignment(Alignment::Right) } else { line })
    };
    let row = |texts: &[String]| {
        Row::new(texts.iter().enumerate().take(widths.len()).map(|(index, text)| cell(index, text)))
    };
    let style = match app.link {
        Link::Live => Style::new(),
        // The figures of the last report, dimmed.
        Link::Connecting | Link::Lost(_) => Style::new().add_modifier(Modifier::DIM),
    };
    let drawn = DrawnTable::new(
        body.iter().map(|texts| row(texts)),
        widths.iter().copied().map(Constraint::Length),
    )
    .header(row(&heads).bold())
    .column_spacing(GAP)
    .style(style)
    .row_highlight_style(Modifier::REVERSED);
    let mut state = TableState::default().with_selected(app.selected());
    frame.render_stateful_widget(drawn, area, &mut state);
}

/// The widths of the columns that have room. Columns of words shrink in favour of figures, down to [`WORDS_MIN`].
fn widths(table: &Table, heads: &[String], body: &[Vec<String>], room: u16) -> Vec<u16> {
    let width = |index: usize| {
        let cells = body.iter().map(|row| &row[index]).chain([&heads[index]]);
        cells.map(|text| columns(text)).max().unwrap_or(0).min(u16::MAX.into()) as u16
    };
    let (mut widths, mut left) = (Vec::new(), room + GAP);
    for (index, column) in table.columns.iter().enumerate() {
        let wanted = width(index);
        let least = if column.unit == Unit::Text { wanted.min(WORDS_MIN) } else { wanted };
        match left.checked_sub(least.saturating_add(GAP)) {
            Some(rest) => left = rest,
            None => break,
        }
        widths.push(least);
    }
    for (index, given) in widths.iter_mut().enumerate() {
        let more = left.min(width(index) - *given);
        *given += more;
        left -= more;
    }
    widths
}

/// The columns of the terminal that a text takes: some characters take two, others none.
fn columns(text: &str) -> usize {
    Line::from(text).width()
}

/// Fits a text into a width. Names differ at their ends, so the middle is cut out.
fn fit(text: &str, width: u16) -> String {
    if columns(text) <= usize::from(width) {
        return text.to_owned();
    }
    let Some(kept) = usize::from(width).checked_sub(1) else { return String::new() };
    let line = Line::from(text);
    let parts: Vec<&str> = line.styled_graphemes(Style::new()).map(|part| part.symbol).collect();
    let head = fitting(parts.iter().copied(), kept / 3);
    let tail = fitting(parts.iter().rev().copied(), kept - kept / 3);
    format!("{}…{}", parts[..head].concat(), parts[parts.len() - tail..].concat())
}

/// How many of the first parts have room.
fn fitting<'a>(parts: impl Iterator<Item = &'a str>, mut room: usize) -> usize {
    parts.map_while(|part| room.checked_sub(columns(part)).map(|rest| room = rest)).count()
}

fn draw_dialog(frame: &mut Frame<'_>, title: &str, lines: &[String]) {
    let width = lines.iter().map(|line| columns(line)).max().unwrap_or(0) as u16 + 4;
    let screen = frame.area();
    let width = width.min(screen.width);
    let inside = usize::from(width.saturating_sub(4).max(1));
    let wrapped = lines.iter().map(|line| match columns(line) {
        wide if wide <= inside => 1,
        // One more, as lines end between words.
        wide => wide.div_ceil(inside) + 1,
    });
    let height = (wrapped.sum::<usize>() as u16 + 2).min(screen.height);
    let [column] = Layout::horizontal([Constraint::Length(width)]).flex(Flex::Center).areas(screen);
    let [area] = Layout::vertical([Constraint::Length(height)]).flex(Flex::Center).areas(column);
    let text = Paragraph::new(lines.join("\n")).wrap(Wrap { trim: false });
    let block = Block::bordered().title(format!(" {title} ")).padding(Padding::horizontal(1));
    frame.render_widget(Clear, area);
    frame.render_widget(text.block(block), area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::Host;
    use crate::report::Report;
    use crossterm::event::{KeyCode, KeyEvent};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff";

    fn app() -> App {
        app_with(HOST)
    }

    fn app_with(nqn: &str) -> App {
        let mut app = App::new("/run/control.sock".into(), 1.0);
        let report = |seconds: u64| -> Report {
            let value = json!({
                "memory_limit_bytes": 1 << 30, "memory_used_bytes": 1 << 20,
                "reactors": [{ "time_ns": seconds * 1_000_000_000, "idle_ns": seconds * 250_000_000 }],
                "hosts": [{ "nqn": nqn, "address": "10.0.0.1", "connections": 2,
                            "totals": { "chains": seconds * 1234, "hops": seconds * 1234 * 6 } }],
            });
            serde_json::from_value(value).expect("a report")
        };
        app.told(report(1));
        app.told(report(2));
        app
    }

    fn screen(app: &App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, app)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn figures_are_whole_or_not_there() {
        let wide = screen(&app(), 200, 20);
        for word in
            ["75.0 % busy", "1 hosts (1)", HOST, "chains/s▼", "1,234", "7,404", "6.0", "memory"]
        {
            assert!(wide.contains(word), "{word}\n{wide}");
        }
        let narrow = screen(&app(), 50, 20);
        assert!(narrow.contains("nqn.20…9-aabbccddeeff") && narrow.contains("1,234"), "{narrow}");
        assert!(!narrow.contains("hops/chain") && !narrow.contains("writes"), "{narrow}");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let cases = [
            ("例例例例例", 10, "例例例例例"),
            ("例例例例終", 6, "…例終"),
            ("ab例例例例終", 9, "ab…例例終"),
            ("例", 1, "…"),
            ("例", 0, ""),
        ];
        for (text, width, fitted) in cases {
            assert_eq!(fit(text, width), fitted);
        }
        let shown = screen(&app_with(&("例".repeat(20) + "終")), 200, 20);
        assert!(shown.contains('終') && !shown.contains('…'), "{shown}");
    }

    #[test]
    fn a_dialog_is_shown_to_its_end() {
        let mut app = app();
        let host = Host { nqn: HOST.to_owned(), address: Some("10.0.0.1".to_owned()) };
        app.dialog = Some(Dialog::Kick(host));
        let shown = screen(&app, 31, 20);
        assert!(shown.contains("cancel"), "{shown}");
    }

    #[test]
    fn every_size_is_drawn() {
        let mut app = app();
        let host = Host { nqn: HOST.to_owned(), address: Some("10.0.0.1".to_owned()) };
        for dialog in [None, Some(Dialog::Help), Some(Dialog::Kick(host))] {
            app.dialog = dialog;
            for (width, height) in [(1, 1), (3, 2), (20, 5), (80, 24), (400, 100)] {
                screen(&app, width, height);
            }
        }
        assert!(screen(&app, 100, 30).contains("End all associations of this host?"));
    }

    #[test]
    fn the_state_is_told() {
        let mut app = app();
        app.key(KeyEvent::from(KeyCode::Char('p')));
        assert!(screen(&app, 100, 20).contains("every 1 s  paused"));
        app.lost("no such file".into());
        let lost = screen(&app, 100, 20);
        assert!(
            lost.contains("lost, trying again: no such file") && lost.contains("1,234"),
            "{lost}"
        );
        app.key(KeyEvent::from(KeyCode::Char('?')));
        assert!(screen(&app, 100, 24).contains("end all associations of the chosen host"));
    }
}
