//! SQL: compiles one SELECT over files to a plan and the processing of its answer.
//!
//! [`Statement::parse`] parses the text and finds the files that it is about. When their columns are known,
//! [`Statement::bind`] makes a [`Question`]: a [`Plan`](crate::Plan), names, and the steps after the plan, which are
//! done on this machine: HAVING, ORDER BY, OFFSET, and arithmetic of aggregates. Unsupported SQL is refused by name,
//! with advice; nothing is ignored silently.

mod aggregate;
mod convert;
mod error;
mod expression;
mod question;
mod statement;
mod time;
mod typed;

pub use error::SqlError;
pub use question::{Answers, Question};
pub use statement::Statement;

#[cfg(test)]
mod tests;
