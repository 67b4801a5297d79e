//! What part of the rows comes to: merged in any order, and finished into a table.

use crate::plan::{Plan, Table};
use serde::{Deserialize, Serialize};

/// What the rows of some parts come to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Partial {}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FinishError {
    /// The partials are of another plan.
    #[error("partial results of another query")]
    OfAnother,
}

impl Partial {
    /// That of no rows.
    #[must_use]
    pub fn empty(plan: &Plan) -> Self {
        let _ = plan;
        Self {}
    }

    /// Adds what comes behind, in the order of the files.
    ///
    /// # Errors
    /// It is of another plan.
    pub fn merge(&mut self, plan: &Plan, behind: Self) -> Result<(), FinishError> {
        let _ = (plan, behind);
        Ok(())
    }

    /// The answer.
    ///
    /// # Errors
    /// It is of another plan.
    pub fn finish(self, plan: &Plan) -> Result<Table, FinishError> {
        let _ = plan;
        Err(FinishError::OfAnother)
    }
}
