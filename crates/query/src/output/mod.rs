//! Writes answers as a table for people, as CSV, JSON, or an Arrow file.

mod arrow;
mod error;
mod text;
mod time;

use crate::plan::Table;
use std::io::Write;

pub use arrow::{batch, schema};
pub use error::OutputError;
pub use text::harmless;

/// The format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Aligned columns, with a line of names. Characters that could control a terminal are escaped.
    Table,
    /// Comma-separated values with a header line. A missing value is empty; in quotes if it is alone in its line.
    Csv,
    /// An array of objects, one a line; NaN and infinities are text. A repeated name gets a number.
    Json,
    /// An Arrow IPC file, uncompressed.
    Arrow,
}

/// Writes an answer, whose rows may come in several tables.
pub struct Output<W: Write> {
    writer: Writer<W>,
    rows: u64,
}

enum Writer<W: Write> {
    Table(text::Aligned<W>),
    Csv(text::Csv<W>),
    Json(text::Json<W>),
    Arrow(Box<arrow::Arrow<W>>),
}

impl<W: Write> Output<W> {
    /// An answer with columns of these names.
    pub fn new(style: Style, names: &[&str], out: W) -> Self {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let writer = match style {
            Style::Table => Writer::Table(text::Aligned::new(names, out)),
            Style::Csv => Writer::Csv(text::Csv::new(names, out)),
            Style::Json => Writer::Json(text::Json::new(&names, out)),
            Style::Arrow => Writer::Arrow(Box::new(arrow::Arrow::new(names, out))),
        };
        Self { writer, rows: 0 }
    }

    /// The answer is streamed, and these columns may have integers beyond 64 bits. In Arrow, whose types come first,
    /// rows are then kept before any are written. If the answer is longer than that, these columns get 38 digits.
    #[must_use]
    pub fn stream(self, wide_integers: Vec<bool>) -> Self {
        let writer = match self.writer {
            Writer::Arrow(writer) => Writer::Arrow(Box::new(writer.stream(wide_integers, None))),
            other => other,
        };
        Self { writer, ..self }
    }

    /// Writes rows. Must be called at least once, if only to define the columns.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn write(&mut self, table: &Table) -> Result<(), OutputError> {
        self.rows += table.rows.len() as u64;
        match &mut self.writer {
            Writer::Table(writer) => writer.write(table)?,
            Writer::Csv(writer) => writer.write(table)?,
            Writer::Json(writer) => writer.write(table)?,
            Writer::Arrow(writer) => writer.write(table)?,
        }
        Ok(())
    }

    /// Completes the answer, and returns its number of rows.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn finish(self) -> Result<u64, OutputError> {
        match self.writer {
            Writer::Table(writer) => writer.finish()?,
            Writer::Csv(writer) => writer.finish()?,
            Writer::Json(writer) => writer.finish()?,
            Writer::Arrow(writer) => writer.finish()?,
        }
        Ok(self.rows)
    }
}

#[cfg(test)]
mod tests;
