//! The reasons why there is no answer.

use bpfof_query::infer::SourceError;
use bpfof_query::output::OutputError;
use bpfof_query::{FinishError, Overflow, RunError};
use std::io;

/// The reason why there is no answer, with an exit status for scripts.
#[derive(Debug)]
pub enum Failure {
    /// The question is wrong: SQL, schema, files.
    Question(String),
    /// The question could not be answered.
    Other(String),
    /// Interrupted by Ctrl-C or SIGTERM.
    Interrupted,
    /// The answer is no longer read, as with `head`: not a failure.
    NoReader,
}

impl Failure {
    pub(crate) fn question(error: impl ToString) -> Self {
        Self::Question(error.to_string())
    }

    pub(crate) fn other(error: impl ToString) -> Self {
        Self::Other(error.to_string())
    }

    /// The message for the user, if any.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        match self {
            Self::Question(message) | Self::Other(message) => Some(message),
            Self::Interrupted => Some("interrupted"),
            Self::NoReader => None,
        }
    }

    /// The exit status.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Other(_) => 1,
            Self::Question(_) => 2,
            Self::Interrupted => 130,
            Self::NoReader => 0,
        }
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Missing(_) | SourceError::Files(_) | SourceError::Schema(_) => {
                Self::question(error)
            }
            SourceError::Read { .. } | SourceError::Contents { .. } => Self::other(error),
        }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Stopped => Self::Interrupted,
            RunError::Plan(error) => Self::question(error),
            other => Self::other(other),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::NoReader } else { Self::other(error) }
    }
}

impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Self {
        match error {
            OutputError::Io(error) => error.into(),
            other => Self::other(other),
        }
    }
}

impl From<FinishError> for Failure {
    fn from(error: FinishError) -> Self {
        Self::other(error)
    }
}

impl From<Overflow> for Failure {
    fn from(error: Overflow) -> Self {
        Self::other(error)
    }
}
