//! Errors of databases at a target or in a file.

use bpfkv::create::CreateError;
use bpfkv::pushdown::{BadAnswer, describe_abort};
use bpfkv::{CacheError, Corrupt, detect};
use bpfof_host::{CommandError, Error, RequestError, Status};
use std::io;
use std::path::PathBuf;

/// Why a database on a target could not be opened or queried.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The connection or a command failed.
    #[error(transparent)]
    Host(#[from] Error),
    /// There is no database on the namespace.
    #[error(transparent)]
    Detect(#[from] detect::DetectError),
    /// The top levels of the tree could not be cached.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A plain read found a damaged node.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The target's answer is not one of BPF-KV's storage functions.
    #[error(transparent)]
    Answer(#[from] BadAnswer),
    /// The storage function aborted the chain, for this reason.
    #[error("{0}")]
    Aborted(String),
    /// A plain read failed.
    #[error(transparent)]
    Read(io::Error),
}

/// Why a database was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file could not be created or written out.
    #[error("cannot create {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The namespace has no room for the database.
    #[error(
        "namespace {nsid} has {have_bytes} bytes; a database of {levels} levels needs {need_bytes}: \
         make the namespace larger or give fewer --levels"
    )]
    TooSmall {
        /// The namespace.
        nsid: u32,
        /// Its size in bytes.
        have_bytes: u64,
        /// Levels of the database.
        levels: u32,
        /// Size of the database in bytes.
        need_bytes: u64,
    },
    /// The connection or a command failed.
    #[error(transparent)]
    Host(#[from] Error),
    /// Writing failed.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Writing was stopped.
    #[error("interrupted: {0}")]
    Interrupted(String),
    /// The last blocks could not be written.
    #[error(transparent)]
    End(io::Error),
}

impl WriteError {
    /// The error of a creation; `left` says what a stopped creation leaves behind.
    pub(crate) fn of(error: CreateError, left: impl FnOnce() -> String) -> Self {
        match error {
            CreateError::Stopped => Self::Interrupted(left()),
            error => Self::Create(error),
        }
    }
}

/// The error of a failed chain, in BPF-KV's terms if the function aborted it.
pub(crate) fn explain(error: Error) -> SessionError {
    if let Error::Command { source, .. } = &error
        && let Some(text) = abort_text(source)
    {
        return SessionError::Aborted(text);
    }
    SessionError::Host(error)
}

/// The same for one chain of many.
pub(crate) fn explain_chain(source: CommandError) -> SessionError {
    explain(Error::Command { command: "Pushdown", source })
}

/// The text of a request's error, in BPF-KV's terms if the storage function aborted the chain.
pub fn explain_request(error: RequestError) -> String {
    match &error {
        RequestError::Command(command) => abort_text(command).unwrap_or_else(|| error.to_string()),
        _ => error.to_string(),
    }
}

/// The same for a command, or for a chain of a vector.
pub fn explain_command(error: &CommandError) -> String {
    abort_text(error).unwrap_or_else(|| error.to_string())
}

fn abort_text(error: &CommandError) -> Option<String> {
    error.status.same_code(Status::FUNCTION_ABORT).then(|| describe_abort(error.dw0))
}
