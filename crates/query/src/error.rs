//! The reasons why a query has no answer.

use crate::eval::Overflow;
use crate::split::PlanError;
use crate::wire::Damaged;
use bpfof_host::files::ReadError;
use std::path::PathBuf;

/// The reason why a part has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The plan is invalid.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The target refuses a stage, or the connection is lost.
    #[error(transparent)]
    Host(#[from] bpfof_host::Error),
    /// A file cannot be opened.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A chain failed.
    #[error("{path}, from byte {offset_bytes} on: {source}")]
    Chain {
        /// The file.
        path: PathBuf,
        /// File offset of the beginning of the chain's range.
        offset_bytes: u64,
        /// The reason.
        source: ReadError,
    },
    /// The contents of the file do not match the schema.
    #[error("{path}, at byte {offset_bytes}: {what}")]
    Data {
        /// The file.
        path: PathBuf,
        /// File offset of the row.
        offset_bytes: u64,
        /// The defect, with advice.
        what: String,
    },
    /// A number does not fit when parts are merged.
    #[error(transparent)]
    Overflow(#[from] Overflow),
    /// A number does not fit.
    #[error("{path}, from byte {offset_bytes} on: {source}")]
    OverflowIn {
        /// The file.
        path: PathBuf,
        /// The number is from a row behind this byte.
        offset_bytes: u64,
        /// The number.
        source: Overflow,
    },
    /// An answer that no stage gives.
    #[error("an answer of a stage is invalid: is another version of the stage installed?")]
    Damaged,
    /// The user's own reduction has answered something other than declared.
    #[error(
        "{name}: the stage answered {bytes} bytes for {rows} rows of {row_bytes} each: the count and the size that \
         it ends with (bpfof_go_on) do not match the columns that it is declared to answer"
    )]
    OwnAnswer {
        /// The stage.
        name: String,
        /// Bytes of rows in the answer.
        bytes: usize,
        /// The number of rows that it declares.
        rows: u32,
        /// Size of a row in bytes: 8 for each column.
        row_bytes: usize,
    },
    /// The caller has asked to stop.
    #[error("interrupted")]
    Stopped,
}

impl From<Damaged> for RunError {
    fn from(Damaged: Damaged) -> Self {
        Self::Damaged
    }
}
