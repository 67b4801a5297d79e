//! Errors as exceptions, whose classes are in `bpfof.errors`.

use bpfof_host::files::{MapRefusal, ReadError};
use bpfof_host::{CommandError, Error};
use bpfof_kv::SessionError as KeyValueError;
use bpfof_query::ask::{PlaceError, SessionError};
use bpfof_query::infer::SourceError;
use bpfof_query::output::OutputError;
use bpfof_query::sql::SqlError;
use bpfof_query::{FinishError, Overflow, PlanError, RowsError, RunError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

/// An exception to be raised.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Its class in `bpfof.errors`.
    class: &'static str,
    message: String,
    path: Option<PathBuf>,
    offset_bytes: Option<u64>,
    errno: Option<i32>,
    /// The status that ended a chain, and dword 0 of its completion.
    status: Option<(u32, u32)>,
}

impl Failure {
    fn new(class: &'static str, message: impl Display) -> Self {
        let message = message.to_string();
        Self { class, message, path: None, offset_bytes: None, errno: None, status: None }
    }

    /// An invalid question.
    pub(crate) fn question(message: impl Display) -> Self {
        Self::new("QuestionError", message)
    }

    /// Bytes from another process are damaged, or of another version.
    pub(crate) fn damaged(what: &str) -> Self {
        Self::question(format!(
            "this is not a {what} of this version of bpfof: use the same version in all processes"
        ))
    }

    fn target(message: impl Display) -> Self {
        Self::new("TargetError", message)
    }

    pub(crate) fn file(message: impl Display, path: &Path, error: &io::Error) -> Self {
        Self { errno: error.raw_os_error(), ..Self::new("FileError", message).at(path, None) }
    }

    fn at(self, path: &Path, offset_bytes: Option<u64>) -> Self {
        Self { path: Some(path.to_owned()), offset_bytes, ..self }
    }

    fn of_command(error: &CommandError, message: impl Display) -> Self {
        let status = u32::from(error.status.sct()) << 8 | u32::from(error.status.sc());
        Self { status: Some((status, error.dw0)), ..Self::new("FunctionError", message) }
    }

    /// The reason why a chain of a valid request has no answer.
    pub(crate) fn of_end(error: &ReadError, has_target: bool) -> Self {
        match error {
            // No executor is left to run it: the target is lost.
            ReadError::Request(_) if has_target => Self::target(error),
            other => Self::of_read(other, other),
        }
    }

    /// The reason why a chain has no answer.
    pub(crate) fn of_read(error: &ReadError, message: impl Display) -> Self {
        match error {
            ReadError::Command(command) => Self::of_command(command, message),
            ReadError::Plain { path, source } => Self::file(message, path, source),
            ReadError::Request(_) => Self::question(message),
            ReadError::Stale
            | ReadError::Remembers { .. }
            | ReadError::TimedOut
            | ReadError::Target(_) => Self::target(message),
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        Python::attach(|py| {
            let raised = || -> PyResult<PyErr> {
                let class = py.import("bpfof.errors")?.getattr(failure.class)?;
                let details = PyDict::new(py);
                details.set_item("path", failure.path)?;
                details.set_item("offset", failure.offset_bytes)?;
                if let Some(errno) = failure.errno {
                    details.set_item("errno", errno)?;
                }
                if let Some((status, value)) = failure.status {
                    details.set_item("status", status)?;
                    details.set_item("value", value)?;
                }
                let raised = class.call((failure.message,), Some(&details))?;
                Ok(PyErr::from_value(raised))
            };
            raised().unwrap_or_else(|error| error)
        })
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let message = error.to_string();
        match error {
            RunError::Plan(error) => error.into(),
            RunError::Host(_) | RunError::Damaged | RunError::Stopped => Self::target(message),
            RunError::Open { path, source } => Self::file(message, &path, &source),
            RunError::Chain { path, offset_bytes, source } => {
                Self::of_read(&source, message).at(&path, Some(offset_bytes))
            }
            RunError::Data { path, offset_bytes, .. } => {
                Self::new("DataError", message).at(&path, Some(offset_bytes))
            }
            RunError::OwnAnswer { .. } => Self::new("FunctionError", message),
            RunError::Overflow(error) => error.into(),
            RunError::OverflowIn { path, offset_bytes, .. } => {
                Self::new("TooLargeError", message).at(&path, Some(offset_bytes))
            }
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        Self::question(error)
    }
}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Self {
        Self::question(error)
    }
}

impl From<Overflow> for Failure {
    fn from(error: Overflow) -> Self {
        Self::new("TooLargeError", error)
    }
}

impl From<FinishError> for Failure {
    fn from(error: FinishError) -> Self {
        match error {
            FinishError::OfAnother => Self::question(error),
            FinishError::Overflow(overflow) => overflow.into(),
        }
    }
}

impl From<RowsError> for Failure {
    fn from(error: RowsError) -> Self {
        match error {
            RowsError::Overflow(overflow) => overflow.into(),
            error => Self::question(error),
        }
    }
}

impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Self {
        let message = error.to_string();
        match error {
            OutputError::TooLarge { .. } | OutputError::TooMuchText { .. } => {
                Self::new("TooLargeError", message)
            }
            OutputError::Io(error) => {
                Self { errno: error.raw_os_error(), ..Self::new("FileError", message) }
            }
            OutputError::Arrow(_) => Self::question(message),
        }
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        let message = error.to_string();
        match error {
            SourceError::Missing(_) => {
                let missing = Some(2); // ENOENT
                Self { errno: missing, ..Self::new("FileError", message) }
            }
            SourceError::Read { path, source } => Self::file(message, &path, &source),
            SourceError::Contents { path, .. } => Self::new("DataError", message).at(&path, None),
            SourceError::Files(_) | SourceError::Schema(_) => Self::question(message),
        }
    }
}

impl From<PlaceError> for Failure {
    fn from(error: PlaceError) -> Self {
        let message = error.to_string();
        match error {
            PlaceError::Variable(_) | PlaceError::Address(_) => Self::question(message),
            PlaceError::File { path, source } => Self::file(message, &path, &source),
            PlaceError::NoTarget { path, .. } => Self::target(message).at(&path, None),
        }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Place(error) => error.into(),
            error => Self::target(error),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match &error {
            Error::Command { command: "Pushdown" | "Pushdown Vector", source } => {
                Self::of_command(source, &error)
            }
            Error::FunctionRejected(_) => Self::question(error),
            _ => Self::target(error),
        }
    }
}

impl From<MapRefusal> for Failure {
    fn from(error: MapRefusal) -> Self {
        Self::target(error)
    }
}

impl From<KeyValueError> for Failure {
    fn from(error: KeyValueError) -> Self {
        let message = error.to_string();
        match error {
            KeyValueError::Host(error) => error.into(),
            KeyValueError::Detect(_) | KeyValueError::Corrupt(_) => Self::new("DataError", message),
            KeyValueError::Aborted(_) | KeyValueError::Answer(_) => {
                Self::new("FunctionError", message)
            }
            KeyValueError::Cache(_) | KeyValueError::Read(_) => Self::target(message),
        }
    }
}
