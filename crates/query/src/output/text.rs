//! Answers as text.

use super::time;
use crate::plan::{AnswerKind, Kind, Table, Value};
use arrow_schema::DataType;
use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{self, Write};

/// Number of rows that determine the widths of columns; later rows are not aligned.
const ALIGNED_ROWS: usize = 1000;

fn is_text(kind: &AnswerKind) -> bool {
    matches!(kind, AnswerKind::Same(Kind::Utf8) | AnswerKind::Arrow(DataType::LargeUtf8))
}

/// Formats a date or a time; None for all other values.
fn time(value: &Value, kind: &AnswerKind) -> Option<String> {
    match (value, kind) {
        (Value::Int(value), AnswerKind::Arrow(data_type)) => time::text(*value, data_type),
        _ => None,
    }
}

/// Formats a number so that it can be read back without loss; None for missing values and for text.
fn number(value: &Value, kind: &AnswerKind) -> Option<String> {
    match value {
        Value::Null | Value::Text(_) => None,
        Value::Int(value) if *kind == AnswerKind::Arrow(DataType::Boolean) => {
            Some((*value != 0).to_string())
        }
        Value::Int(value) => Some(value.to_string()),
        Value::Float(value) if *kind == AnswerKind::Same(Kind::F32) => {
            Some(format!("{:?}", *value as f32))
        }
        Value::Float(value) => Some(format!("{value:?}")),
    }
}

/// Text without characters that could control a terminal or end the line.
#[must_use]
pub fn harmless(text: &str) -> Cow<'_, str> {
    if text.chars().any(char::is_control) {
        let each = |each: char| match each.is_control() {
            true => each.escape_default().to_string(),
            false => each.to_string(),
        };
        return text.chars().map(each).collect();
    }
    Cow::Borrowed(text)
}

pub(super) struct Aligned<W> {
    out: W,
    names: Vec<String>,
    kinds: Vec<AnswerKind>,
    /// Widths of the columns, once the first rows are written.
    widths: Option<Vec<usize>>,
    waiting: Vec<Vec<String>>,
}

impl<W: Write> Aligned<W> {
    pub(super) fn new(names: Vec<String>, out: W) -> Self {
        let names = names.iter().map(|name| harmless(name).into_owned()).collect();
        Self { out, names, kinds: Vec::new(), widths: None, waiting: Vec::new() }
    }

    pub(super) fn write(&mut self, table: &Table) -> io::Result<()> {
        self.kinds.clone_from(&table.kinds);
        for row in &table.rows {
            let cells = row.iter().zip(&table.kinds).map(|(value, kind)| match value {
                Value::Text(text) => harmless(text).into_owned(),
                other => {
                    let text = time(other, kind).or_else(|| number(other, kind));
                    text.unwrap_or_else(|| "NULL".to_owned())
                }
            });
            self.waiting.push(cells.collect());
            if self.widths.is_some() || self.waiting.len() == ALIGNED_ROWS {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let (widths, is_first) = match self.widths.take() {
            Some(widths) => (widths, false),
            None => {
                let of = |at: usize| {
                    let cells = self.waiting.iter().filter_map(|row| row.get(at));
                    cells.chain([&self.names[at]]).map(|cell| cell.chars().count()).max()
                };
                ((0..self.names.len()).map(|at| of(at).unwrap_or(0)).collect(), true)
            }
        };
        if is_first {
            self.line(&self.names.clone(), &widths)?;
            let rules: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
            writeln!(self.out, "{}", rules.join("  "))?;
        }
        for row in std::mem::take(&mut self.waiting) {
            self.line(&row, &widths)?;
        }
        self.widths = Some(widths);
        Ok(())
    }

    fn line(&mut self, cells: &[String], widths: &[usize]) -> io::Result<()> {
        let mut line = String::new();
        for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
            if at > 0 {
                line.push_str("  ");
            }
            let blanks = " ".repeat(width.saturating_sub(cell.chars().count()));
            match self.kinds.get(at).is_some_and(is_text) {
                true => line.extend([&**cell, &*blanks]),
                false => line.extend([&*blanks, &**cell]),
            }
        }
        writeln!(self.out, "{}", line.trim_end())
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        if self.widths.is_none() {
            self.flush()?;
        }
        self.out.flush()
    }
}

pub(super) struct Csv<W> {
    out: W,
    names: Option<Vec<String>>,
}

impl<W: Write> Csv<W> {
    pub(super) fn new(names: Vec<String>, out: W) -> Self {
        Self { out, names: Some(names) }
    }

    fn line<'a>(&mut self, cells: impl Iterator<Item = Cow<'a, str>>) -> io::Result<()> {
        let mut line = String::new();
        for (at, cell) in cells.enumerate() {
            if at > 0 {
                line.push(',');
            }
            line.push_str(&cell);
        }
        // Readers ignore empty lines.
        if line.is_empty() {
            line.push_str("\"\"");
        }
        writeln!(self.out, "{line}")
    }

    pub(super) fn write(&mut self, table: &Table) -> io::Result<()> {
        self.header()?;
        for row in &table.rows {
            self.line(row.iter().zip(&table.kinds).map(|(value, kind)| match value {
                Value::Text(text) => quoted(text),
                other => {
                    let text = time(other, kind).or_else(|| number(other, kind));
                    Cow::Owned(text.unwrap_or_default())
                }
            }))?;
        }
        Ok(())
    }

    fn header(&mut self) -> io::Result<()> {
        match self.names.take() {
            Some(names) => self.line(names.iter().map(|name| quoted(name))),
            None => Ok(()),
        }
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.header()?;
        self.out.flush()
    }
}

/// Formats text for CSV. Empty text has quotes, so that it differs from a missing value.
fn quoted(text: &str) -> Cow<'_, str> {
    if text.is_empty() || text.contains([',', '"', '\n', '\r']) {
        return Cow::Owned(format!("\"{}\"", text.replace('"', "\"\"")));
    }
    Cow::Borrowed(text)
}

pub(super) struct Json<W> {
    out: W,
    /// The names in JSON.
    names: Vec<String>,
    has_begun: bool,
}

impl<W: Write> Json<W> {
    pub(super) fn new(names: &[String], out: W) -> Self {
        Self {
            out,
            names: distinct(names).iter().map(|name| json_text(name)).collect(),
            has_begun: false,
        }
    }

    pub(super) fn write(&mut self, table: &Table) -> io::Result<()> {
        for row in &table.rows {
            let mut line = String::from(if self.has_begun { ",{" } else { "[{" });
            self.has_begun = true;
            for (at, ((value, kind), name)) in
                row.iter().zip(&table.kinds).zip(&self.names).enumerate()
            {
                if at > 0 {
                    line.push(',');
                }
                line.push_str(name);
                line.push(':');
                line.push_str(&match value {
                    Value::Text(text) => json_text(text),
                    Value::Float(number) if !number.is_finite() => json_text(&number.to_string()),
                    other => match time(other, kind) {
                        Some(time) => json_text(&time),
                        None => number(other, kind).unwrap_or_else(|| "null".to_owned()),
                    },
                });
            }
            line.push('}');
            writeln!(self.out, "{line}")?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        writeln!(self.out, "{}", if self.has_begun { "]" } else { "[]" })?;
        self.out.flush()
    }
}

/// The names; a name that occurs before gets a number, because an object must not repeat a key.
fn distinct(names: &[String]) -> Vec<String> {
    let mut taken: HashSet<String> = names.iter().cloned().collect();
    let mut met = HashSet::new();
    let mut own = Vec::with_capacity(names.len());
    for name in names {
        if met.insert(name) {
            own.push(name.clone());
            continue;
        }
        let mut numbered = (2_usize..).map(|number| format!("{name}_{number}"));
        let free = numbered.find(|name| !taken.contains(name)).unwrap_or_default();
        taken.insert(free.clone());
        own.push(free);
    }
    own
}

fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
