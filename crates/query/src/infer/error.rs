//! Why files cannot be asked.

use std::io;
use std::path::PathBuf;

/// Why files cannot be asked, with what to do.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// There is no file of this name, and none that it is a pattern of.
    #[error("there is no file {0}")]
    Missing(String),
    /// A pattern is wrong, or files are too many, or of a kind that their names do not tell or that is not read.
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
    /// What is in a file is not what it should be.
    #[error("{}: {what}", path.display())]
    Contents {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        what: String,
    },
    /// The schema that the user gives is wrong.
    #[error("the schema: {0}")]
    Schema(String),
}
