//! Arrow IPC files: their columns, and the places of the buffers of each batch.
//!
//! A file is a header, batches, and a footer, which describes the columns and gives the places of the batches
//! (<https://arrow.apache.org/docs/format/Columnar.html>). The footer and the metadata of each batch are read here; the
//! buffers only by the source stage. The contents of files are not trusted: every size and place is compared with the
//! file's size before it is used.
//!
//! - `file`: footers, and batches one by one. `types`: the types of fields.
//! - `batches`: the batches of a part, and its ranges of row numbers. `argument`: the source stage's argument.

mod argument;
mod batches;
mod file;
mod types;

pub(crate) use argument::{Pieces, ROWS_MAX, width};
pub(crate) use batches::Batches;
pub(crate) use file::{ArrowFile, FileError};
