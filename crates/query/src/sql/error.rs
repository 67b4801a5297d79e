//! What is wrong with a statement.

use crate::names::shortened;

/// What to do with SQL that is not supported.
pub(super) const USE_AN_ENGINE: &str =
    "filter and reduce here, and do the rest in an engine such as DuckDB over the answer (--arrow)";

/// Why a statement is refused, with what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SqlError {
    /// It is no SQL.
    #[error("not understood as SQL: {0}")]
    Syntax(String),
    /// It is SQL that is not supported.
    #[error("{what} is not supported: {instead}")]
    Unsupported {
        /// Which part.
        what: String,
        /// What to do in its place.
        instead: String,
    },
    /// A column that the files do not have.
    #[error("there is no column {name}; the columns are {known}")]
    Column {
        /// How it was called.
        name: String,
        /// Those that there are.
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

/// A part of a statement for a message, cut if it is long.
pub(super) fn quoted(part: impl ToString) -> String {
    shortened(&part.to_string())
}
