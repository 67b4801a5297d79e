//! Filters and reductions over large files, run near the data by storage functions.
//!
//! # How data flows
//! A [`Plan`] is a query. [`split()`] decides which parts of it the stages at the target do and which are done on the
//! host, and why; [`parts()`] cuts files into parts. [`Runner::run`] runs one part: many chains, whose answers become
//! one [`Partial`]. Partials are [`merge`](Partial::merge)d, and the final one is [`finish`](Partial::finish)ed into a
//! [`Table`].
//!
//! - `plan`: queries and answers.
//! - `split`, `conditions`: the work that stages can do.
//! - `stages`, `wire`, `order_form`: the stages' argument and their answers.
//! - `columns`: the places of the buffers of Arrow files.
//! - `convert`: casts, and parts of dates and times.
//! - `own`: the user's own stages; `names`: names of columns in messages.
//! - `parts`, `run`, `chains`, `blocks`, `functions`: files, ranges, chains, the size of their reads, and the
//!   stages as functions at the target.
//! - `sql`: compiles statements to plans; `infer`: formats and columns of files; `output`: answers as text and
//!   Arrow; `ask`: files with their targets, and running all parts of a plan over them.
//! - `eval`, `partial`, `measures`, `exact`: the work on the host, over rows that stages answer; `here`: over
//!   rows from elsewhere.
//!
//! # What this crate does not do
//! No joins, no windows, no nested queries: a statement that needs them is refused with advice. It does not draw
//! progress or read keys: commands and bindings do.

pub mod ask;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod infer;
pub mod output;
pub mod plan;
pub mod sql;

mod blocks;
mod chains;
mod columns;
mod conditions;
mod convert;
mod describe;
mod error;
mod eval;
mod exact;
mod functions;
mod here;
mod maps;
mod measures;
mod names;
mod order_form;
mod own;
mod partial;
mod parts;
mod run;
mod settings;
mod split;
mod stages;
mod wire;

pub use error::RunError;
pub use eval::Overflow;
pub use functions::{Stages, install_stages};
pub use here::RowsError;
pub use names::listed;
pub use own::{OwnStageError, OwnStageName};
pub use partial::{FinishError, Partial};
pub use parts::{Part, SourceFile, parts};
pub use plan::{
    Aggregate, AnswerKind, Arithmetic, CSV_NULLS, Column, ColumnBuffers, Compare, Conversion,
    Field, Format, Kind, Measure, OtherColumn, OwnReduction, OwnStage, OwnStages, Plan, Predicate,
    Reduction, Scalar, Schema, Table, TimePart, Value,
};
pub use run::{Argument, Runner};
pub use settings::{Settings, Stats};
pub use split::{Place, PlanError, Split, Step, check, split};
pub use stages::{STAGES, Stage};
