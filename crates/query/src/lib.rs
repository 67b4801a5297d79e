//! Filters and reductions over large files, run near the data by storage functions.
//!
//! # How data flows
//! A [`Plan`] says what is asked. [`split()`] decides what of it the stages at the target do and
//! what is done here, and why; [`parts()`] cuts files into parts. [`Runner::run`] runs one: many
//! chains, whose answers are one [`Partial`]. Partials are [`merge`](Partial::merge)d, and the last
//! one is [`finish`](Partial::finish)ed into a [`Table`].
//!
//! - `plan`: what is asked, and what is answered.
//! - `split`, `conditions`: what stages can do.
//! - `stages`, `wire`, `order_form`: their argument and their answers.
//! - `columns`: where the buffers of Arrow files are.
//! - `convert`: casts, and parts of dates and times.
//! - `own`: stages of the user's own; `names`: columns in messages.
//! - `parts`, `run`, `chains`, `blocks`, `functions`: files, ranges, chains, how much they read at a time, and the
//!   stages as functions there.
//! - `sql`: statements as plans; `infer`: what files hold; `output`: answers as text and Arrow;
//!   `ask`: files with their targets, and all parts of a plan run over them.
//! - `eval`, `partial`, `measures`, `exact`: what is done here, to rows that stages answer; `here`: to rows
//!   from elsewhere.
//!
//! # What this crate does not do
//! No joins, no windows, no queries in queries: a statement that needs them is refused with what to do. It
//! draws no progress and reads no keys: commands and bindings do.

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
