//! The native part of `import bpfof`, as the module `bpfof._bpfof`.
//!
//! The Python package (`bpfof/*.py`) has the public interface: datasets, plans, files, errors. This module has their
//! building blocks:
//!
//! - `source`: files, their format and columns ([`bpfof_query::infer`]).
//! - `substrait`, `filter`: pyarrow's expressions as predicates.
//! - `plan`: queries, also as bytes for other processes.
//! - `session`: associations with targets, on which plans and their parts are run.
//! - `cost`: the cost of queries.
//! - `rows`: streams of rows, made by a thread.
//! - `batch`: answers, by Arrow's C data interface.
//! - `files`, `key_value`: pushdown reads, and BPF-KV.
//! - `failure`: errors as exceptions; `watch`: Python's signals.
//!
//! All work is done without Python's lock. The lock is taken to check for Ctrl-C: every 50 ms, or every 4096 chains of
//! a call. A single read of a file cannot be interrupted; it takes at most the timeout of commands.

mod batch;
mod cost;
mod failure;
mod files;
mod filter;
mod key_value;
mod plan;
mod rows;
mod seal;
mod session;
mod source;
mod substrait;
mod watch;

#[pyo3::pymodule]
mod _bpfof {
    use pyo3::prelude::*;
    use std::ffi::OsString;

    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::files::{Files, Function};
    #[pymodule_export]
    use crate::filter::Filter;
    #[pymodule_export]
    use crate::key_value::KeyValue;
    #[pymodule_export]
    use crate::plan::Plan;
    #[pymodule_export]
    use crate::rows::Rows;
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::source::Source;

    /// Runs `bpfof-query` with these arguments, the first of which is its name. Returns its exit status.
    #[pyfunction]
    fn query_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
        py.detach(|| bpfof_query_command::main(arguments))
    }
}
