//! Why answers cannot be written.

use arrow_schema::ArrowError;
use std::io;

/// Why an answer cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The file or the pipe.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// An integer is too large for its column in Arrow.
    #[error(
        "{column} has the value {value}, which its Arrow type {kind} has no room for; write CSV or JSON"
    )]
    TooLarge {
        /// The column.
        column: String,
        /// The value.
        value: i128,
        /// The type.
        kind: String,
    },
    /// Arrow's own refusal.
    #[error(transparent)]
    Arrow(ArrowError),
}

impl From<ArrowError> for OutputError {
    fn from(error: ArrowError) -> Self {
        match error {
            ArrowError::IoError(_, error) => Self::Io(error),
            other => Self::Arrow(other),
        }
    }
}
