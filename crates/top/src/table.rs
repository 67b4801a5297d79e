//! Tables of figures: each column has a unit, and rows are sorted by one column.

use serde_json::{Map, Value};
use std::cmp::Ordering;

/// The unit of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Words.
    Text,
    /// A number.
    Count,
    /// A number a second.
    Rate,
    /// Bytes.
    Bytes,
    /// Bytes a second.
    ByteRate,
    /// Microseconds.
    Time,
    /// A fraction of 1, shown in percent.
    Part,
    /// A number with one decimal.
    Ratio,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// The name in JSON.
    pub(crate) key: &'static str,
    pub(crate) head: &'static str,
    pub(crate) unit: Unit,
}

/// The content of a row in one column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Text(String),
    Figure(f64),
    /// Not known yet, or undefined.
    Nothing,
}

/// One host, namespace, function or reactor.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Identifies the row, also in later reports.
    pub(crate) key: String,
    /// One for each column.
    pub(crate) cells: Vec<Cell>,
}

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Row>,
}

/// The column by which rows are sorted, and the direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) column: usize,
    pub(crate) descending: bool,
}

impl From<Option<f64>> for Cell {
    fn from(figure: Option<f64>) -> Cell {
        figure.map_or(Cell::Nothing, Cell::Figure)
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Cell {
        Cell::Figure(count as f64)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        // Names from hosts must not control the terminal, nor look like other names.
        Cell::Text(text.replace(bpfof_nvme::is_unprintable, "?"))
    }
}

impl Cell {
    fn compare(&self, other: &Cell) -> Ordering {
        match (self, other) {
            (Cell::Text(one), Cell::Text(other)) => one.cmp(other),
            (Cell::Figure(one), Cell::Figure(other)) => one.total_cmp(other),
            (one, other) => one.rank().cmp(&other.rank()),
        }
    }

    /// Cells without a value come before all others.
    const fn rank(&self) -> u8 {
        match self {
            Cell::Nothing => 0,
            Cell::Figure(_) => 1,
            Cell::Text(_) => 2,
        }
    }

    /// The cell as people read it.
    pub(crate) fn text(&self, unit: Unit) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Figure(figure) => written(*figure, unit),
            Cell::Nothing => "–".to_owned(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Cell::Text(text) => text.as_str().into(),
            Cell::Figure(figure) => (*figure).into(),
            Cell::Nothing => Value::Null,
        }
    }
}

impl Table {
    /// Sorts by a column; rows that are equal there stay as they are.
    pub(crate) fn sort(&mut self, order: Order) {
        self.rows.sort_by(|one, other| {
            let compared = one.cells[order.column].compare(&other.cells[order.column]);
            if order.descending { compared.reverse() } else { compared }
        });
    }

    pub(crate) fn json(&self) -> Value {
        let row = |row: &Row| -> Value {
            let cells = self.columns.iter().zip(&row.cells);
            cells
                .map(|(column, cell)| (column.key.to_owned(), cell.json()))
                .collect::<Map<_, _>>()
                .into()
        };
        self.rows.iter().map(row).collect()
    }

    /// The table as lines; each column is as wide as its widest cell.
    pub(crate) fn lines(&self) -> Vec<String> {
        let heads = self.columns.iter().map(|column| column.head.to_owned()).collect();
        let body = self.rows.iter().map(|row| {
            self.columns
                .iter()
                .zip(&row.cells)
                .map(|(column, cell)| cell.text(column.unit))
                .collect()
        });
        let all: Vec<Vec<String>> = std::iter::once(heads).chain(body).collect();
        let width = |at: usize| all.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells =
                row.iter().zip(&widths).zip(self.columns).map(
                    |((cell, width), column)| match column.unit {
                        Unit::Text => format!("{cell:<width$}"),
                        _ => format!("{cell:>width$}"),
                    },
                );
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        all.iter().map(line).collect()
    }
}

/// A figure as people read it.
pub(crate) fn written(figure: f64, unit: Unit) -> String {
    match unit {
        Unit::Text | Unit::Count | Unit::Rate => grouped(figure),
        Unit::Bytes => bytes(figure),
        Unit::ByteRate => bytes(figure) + "/s",
        Unit::Time if figure < 1000.0 => format!("{figure:.1} µs"),
        Unit::Time if figure < 1e6 => format!("{:.1} ms", figure / 1e3),
        Unit::Time => format!("{:.1} s", figure / 1e6),
        Unit::Part => format!("{:.1} %", figure * 100.0),
        Unit::Ratio => format!("{figure:.1}"),
    }
}

/// Groups digits as in 1,234,567; fractions below 10 have one decimal.
fn grouped(figure: f64) -> String {
    if figure < 10.0 && figure.fract() != 0.0 {
        return format!("{figure:.1}");
    }
    let digits = format!("{figure:.0}");
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024.0 {
        return format!("{bytes:.0} B");
    }
    let mut value = bytes / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while value >= 1000.0
        && let Some(next) = units.next()
    {
        value /= 1024.0;
        unit = Some(next);
    }
    format!("{value:.1} {}", unit.copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [
        Column { key: "name", head: "name", unit: Unit::Text },
        Column { key: "reads_per_s", head: "reads/s", unit: Unit::Rate },
        Column { key: "p99_us", head: "p99", unit: Unit::Time },
    ];

    fn table() -> Table {
        let row = |name: &str, rate, time: Option<f64>| Row {
            key: name.to_owned(),
            cells: vec![name.into(), Cell::Figure(rate), time.into()],
        };
        let rows = vec![
            row("b", 5.0, None),
            row("a", 12_345.6, Some(1500.0)),
            row("c\x1b[2J\u{202e}", 0.4, Some(9.0)),
        ];
        Table { name: "things", columns: &COLUMNS, rows }
    }

    #[test]
    fn rows_are_sorted_by_any_column() {
        let mut table = table();
        let mut order = |column, descending| -> String {
            table.sort(Order { column, descending });
            table.rows.iter().map(|row| row.key.chars().next().unwrap_or(' ')).collect()
        };
        assert_eq!(
            (order(0, false), order(1, true), order(2, false)),
            ("abc".into(), "abc".into(), "bca".into())
        );
    }

    #[test]
    fn figures_have_units_and_names_no_control_characters() {
        let expected = [
            "name    reads/s     p99",
            "b             5       –",
            "a        12,346  1.5 ms",
            "c?[2J?      0.4  9.0 µs",
        ];
        assert_eq!(table().lines(), expected);
        let json = table().json();
        assert_eq!((&json[1]["reads_per_s"], &json[0]["p99_us"]), (&12_345.6.into(), &Value::Null));
    }

    #[test]
    fn bytes_have_at_most_four_digits() {
        let all = [0.0, 1023.0, 1024.0, 1_023_000.0, 5e9, 3e15].map(bytes);
        assert_eq!(all, ["0 B", "1023 B", "1.0 KiB", "999.0 KiB", "4.7 GiB", "2.7 PiB"]);
    }
}
