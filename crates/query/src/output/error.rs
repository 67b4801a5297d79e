//! The reasons why answers cannot be written.

use arrow_schema::ArrowError;
use std::io;

/// The reason why an answer cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The file or the pipe failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// An integer is too large for its column in Arrow.
    #[error(
        "{column} has the value {value}, which does not fit its Arrow type {kind}; write CSV or JSON"
    )]
    TooLarge {
        /// The column.
        column: String,
        /// The value.
        value: i128,
        /// The type.
        kind: String,
    },
    /// The texts of a column together are too long for one Arrow batch.
    #[error(
        "{column} has {bytes} bytes of text, but Arrow's utf8 can hold {most} in one batch: ask for fewer rows, or for \
         parts of the files"
    )]
    TooMuchText {
        /// The column.
        column: String,
        /// Bytes of all its texts.
        bytes: usize,
        /// Bytes that fit.
        most: usize,
    },
    /// An error of Arrow.
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
