//! What of a plan the stages at the target do, and what is done here.

use crate::plan::{Plan, Predicate};
use serde::{Deserialize, Serialize};

/// Where a step of a query is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// By stages at the target, or in place of it on this machine.
    Stages,
    /// By this crate, over the rows that the stages answer.
    Here,
}

/// A step of a query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What is done, in a few words.
    pub what: String,
    /// Where.
    pub place: Place,
    /// Why it cannot be done by the stages; None if it is.
    pub why_here: Option<String>,
}

/// How the work on a plan is divided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// The conditions that stages apply.
    pub pushed: Predicate,
    /// Those that are applied here, to the rows that the stages let pass.
    pub rest: Predicate,
    /// Whether stages reduce; otherwise they answer rows, and all further work is done here.
    pub reduces: bool,
    /// The columns that the stages look at or answer, ascending.
    pub columns: Vec<usize>,
    /// The steps in order.
    pub steps: Vec<Step>,
}

/// A plan that has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// With what is wrong.
    #[error("{0}")]
    Invalid(String),
}

/// Divides the work on `plan`.
///
/// # Errors
/// The plan has no meaning.
pub fn split(plan: &Plan) -> Result<Split, PlanError> {
    let _ = plan;
    Err(PlanError::Invalid("not yet".to_owned()))
}
