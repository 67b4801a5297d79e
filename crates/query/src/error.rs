//! Why a query has no answer.

use crate::eval::Overflow;
use crate::split::PlanError;
use crate::wire::Damaged;
use bpfof_host::files::ReadError;
use std::path::PathBuf;

/// Why a part has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The plan has no meaning.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The target refuses a stage, or is lost.
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
        /// Where the chain began.
        offset_bytes: u64,
        /// Why.
        source: ReadError,
    },
    /// What is in the file is not what the schema says.
    #[error("{path}, at byte {offset_bytes}: {what}")]
    Data {
        /// The file.
        path: PathBuf,
        /// Where the row begins.
        offset_bytes: u64,
        /// What is wrong, and what to do.
        what: String,
    },
    /// A number of several parts together has no room.
    #[error(transparent)]
    Overflow(#[from] Overflow),
    /// A number has no room.
    #[error("{path}, from byte {offset_bytes} on: {source}")]
    OverflowIn {
        /// The file.
        path: PathBuf,
        /// Behind which byte.
        offset_bytes: u64,
        /// Which number.
        source: Overflow,
    },
    /// A stage has answered what no stage answers.
    #[error("an answer that makes no sense: is another version of a stage installed?")]
    Damaged,
    /// A reduction of the user's own has answered something else than it says.
    #[error(
        "{name}: it answered {bytes} bytes for {rows} rows of {row_bytes} each: the count and the size that it ends with \
         (bpfof_go_on) do not fit to the columns that it is said to answer"
    )]
    OwnAnswer {
        /// The stage.
        name: String,
        /// Bytes of rows in the answer.
        bytes: usize,
        /// How many rows it says there are.
        rows: u32,
        /// Bytes of a row: 8 for each column.
        row_bytes: usize,
    },
    /// It was asked to stop.
    #[error("interrupted")]
    Stopped,
}

impl From<Damaged> for RunError {
    fn from(Damaged: Damaged) -> Self {
        Self::Damaged
    }
}
