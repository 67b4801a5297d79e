//! Arrow IPC files: which columns they have, and where the buffers of each batch are.
//!
//! A file is a header, batches, and a footer, which tells the columns and where the batches are
//! (<https://arrow.apache.org/docs/format/Columnar.html>). The footer and what is in front of each batch
//! are read here; the buffers only by the source stage. All of it is what somebody wrote: every
//! size and place is held against the file's before it is used.
//!
//! - `file`: footers, and batches one by one. `types`: what fields are here.
//! - `batches`: those of a part, and its ranges, in numbers of rows. `argument`: what the source stage is told.

mod argument;
mod batches;
mod file;
mod types;

pub(crate) use argument::{Pieces, ROWS_MAX, width};
pub(crate) use batches::Batches;
pub(crate) use file::{ArrowFile, FileError};
