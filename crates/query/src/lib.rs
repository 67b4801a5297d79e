//! Filters and reductions over large files, run near the data by storage functions.
//!
//! # How data flows
//! A [`Plan`] says what is asked. [`split()`] decides what of it the stages at the target do and
//! what is done here, and why; [`parts()`] cuts files into parts. [`Runner::run`] runs one: many
//! chains, whose answers are one [`Partial`]. Partials are [`merge`](Partial::merge)d, and the last
//! one is [`finish`](Partial::finish)ed into a [`Table`].

pub mod infer;
pub mod output;
pub mod plan;
pub mod sql;

mod eval;
mod partial;
mod parts;
mod run;
mod split;

pub use eval::Overflow;
pub use partial::{FinishError, Partial};
pub use parts::{Part, parts};
pub use plan::{
    Aggregate, AnswerKind, Arithmetic, CSV_NULLS, Column, Compare, Field, Format, Kind, Measure,
    Plan, Predicate, Reduction, Scalar, Schema, Table, Value,
};
pub use run::{RunError, Runner, Settings, Stats};
pub use split::{Place, PlanError, Split, Step, split};
