//! The reasons why files cannot be queried.

use std::io;
use std::path::PathBuf;

/// The reason why files cannot be queried, with advice.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// No file has this name or matches this pattern.
    #[error("there is no file {0}")]
    Missing(String),
    /// A pattern is invalid, there are too many files, or their format is not known or not supported.
    #[error("{0}")]
    Files(String),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The contents of a file are invalid.
    #[error("{}: {what}", path.display())]
    Contents {
        /// The file.
        path: PathBuf,
        /// The defect, with advice.
        what: String,
    },
    /// The user's schema is invalid.
    #[error("the schema: {0}")]
    Schema(String),
}
