//! SQL: one SELECT over files, as a plan and what is done with its answer.
//!
//! [`Statement::parse`] takes the text apart and says which files it is about. When their columns are known,
//! [`Statement::bind`] makes a [`Question`] of it: a [`Plan`](crate::Plan), names, and what comes behind the
//! plan, done on this machine: HAVING, ORDER BY, OFFSET, and arithmetic of aggregates. What SQL has and this
//! has not is refused by its name, with what to do in its place; nothing is left out in silence.

mod aggregate;
mod convert;
mod error;
mod expression;
mod question;
mod statement;
mod time;

pub use error::SqlError;
pub use question::{Answers, Question};
pub use statement::Statement;

#[cfg(test)]
mod tests;
