//! The resubmission engine: runs chains of dependent reads (XRP §4, BPF-oF §4.2).
//!
//! Sans-I/O: the caller starts a chain with [`Engine::start`], performs the [`DeviceRead`]s that the engine emits, puts
//! their data where they say, and reports each with [`Engine::completed`], until the chain has an [`Outcome`]. One
//! engine belongs to one thread. Running chains share, lock and allocate nothing, except for functions that trace and
//! for function maps: each operation on a function map takes its mutex.
//!
//! - `file_map`, `bucket_index`: file maps, which turn file offsets into device offsets and carry a version.
//! - [`tables`]: the functions and file maps of one association, replaced as a whole; `map_table`: its file maps;
//!   `function_table`: its functions and their maps (`function`); `frees`: a thread that frees values that take long to
//!   free.
//! - `chain`: the values a chain starts with and ends in; [`engine`]: chains, hops, fan-out and budgets.
//! - [`trace`]: lines that functions leave for their author.
//!
//! # What this crate does not do
//!
//! It knows no sockets and no devices, and of NVMe only the statuses that report its errors. It does not schedule
//! chains fairly between connections: chains run in the order of their completions, which the caller determines.

#![forbid(unsafe_code)]

mod bucket_index;
mod chain;
mod cost;
pub mod engine;
pub mod file_map;
mod free_arenas;
mod frees;
mod function;
mod function_table;
mod installed;
mod map_table;
mod suspended;
pub mod tables;
pub mod trace;

pub use chain::{
    Answer, ChainError, ChainId, DeviceRead, FileRead, FileVersion, InvalidOutput, Limits, Outcome,
    Progress, Start, Usage,
};
pub use engine::Engine;
pub use file_map::{Extent, FileMap, MapError};
pub use frees::free_elsewhere;
pub use function::{Counted, Function, FunctionMap, FunctionMaps, Peers};
pub use suspended::Suspended;
pub use tables::{Tables, WHOLE_NAMESPACE};
pub use trace::Trace;
