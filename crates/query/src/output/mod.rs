//! Answers as a table for people, as CSV, JSON, or an Arrow file.

mod arrow;
mod error;
mod text;
mod time;

use crate::plan::Table;
use std::io::Write;

pub use arrow::{batch, schema};
pub use error::OutputError;
pub use text::harmless;

/// How answers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Columns that are aligned, with a line of names. What could change a terminal is escaped.
    Table,
    /// Comma-separated values with a header line; what is missing is empty, and in quotes if it is all of a line.
    Csv,
    /// An array of objects, one a line; NaN and infinities are text. A name that is there before gets a number.
    Json,
    /// An Arrow IPC file, uncompressed.
    Arrow,
}

/// Writes an answer, of which rows may come bit by bit.
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

    /// The answer comes bit by bit, and these columns may have integers beyond 64 bits. In Arrow, whose types are at
    /// the beginning, some of it is then kept before it is written, and an answer of which that is not all gets 38
    /// digits for them.
    #[must_use]
    pub fn stream(self, wide_integers: Vec<bool>) -> Self {
        let writer = match self.writer {
            Writer::Arrow(writer) => Writer::Arrow(Box::new(writer.stream(wide_integers, None))),
            other => other,
        };
        Self { writer, ..self }
    }

    /// Writes rows. It must be called at least once, if only to tell what the columns are.
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

    /// Ends the answer, and tells how many rows it has.
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
