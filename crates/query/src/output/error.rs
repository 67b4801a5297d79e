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
    /// The texts of a column are too long together for one batch of Arrow.
    #[error(
        "{column} has {bytes} bytes of text, and Arrow's utf8 has room for {most} in one batch: ask for fewer rows, or \
         for parts of the files"
    )]
    TooMuchText {
        /// The column.
        column: String,
        /// Bytes of all its texts.
        bytes: usize,
        /// Bytes that there is room for.
        most: usize,
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
