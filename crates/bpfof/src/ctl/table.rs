//! Output as tables.

use serde_json::Value;

/// A value for people: a text without its quotes.
pub(super) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A table whose columns are as wide as their widest cells; all but the first are aligned right.
pub(super) fn table(heads: &[&str], rows: Vec<Vec<String>>) -> String {
    let all: Vec<Vec<String>> =
        [heads.iter().map(|head| (*head).to_owned()).collect()].into_iter().chain(rows).collect();
    let width = |column: usize| {
        all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..heads.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells =
            row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    all.iter().map(line).collect()
}
