//! Errors of statements.

use crate::names::shortened;

/// Advice for unsupported SQL.
pub(super) const USE_AN_ENGINE: &str =
    "filter and reduce here, and do the rest in an engine such as DuckDB over the answer (--arrow)";

/// The reason why a statement is refused, with advice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SqlError {
    /// It is not SQL.
    #[error("not understood as SQL: {0}")]
    Syntax(String),
    /// It is SQL that is not supported.
    #[error("{what} is not supported: {instead}")]
    Unsupported {
        /// The unsupported part.
        what: String,
        /// Advice.
        instead: String,
    },
    /// A column that the files do not have.
    #[error("there is no column {name}; the columns are {known}")]
    Column {
        /// The name in the statement.
        name: String,
        /// The columns that exist.
        known: String,
    },
    /// Its parts do not fit together.
    #[error("{0}")]
    Meaning(String),
}

impl SqlError {
    pub(super) fn unsupported(what: impl ToString, instead: impl ToString) -> Self {
        Self::Unsupported { what: quoted(what), instead: instead.to_string() }
    }
}

/// A part of a statement for a message, truncated if it is long.
pub(super) fn quoted(part: impl ToString) -> String {
    shortened(&part.to_string())
}
