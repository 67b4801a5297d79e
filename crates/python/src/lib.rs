//! The native part of `import bpfof`, as the module `bpfof._bpfof`.
//!
//! The Python package (`bpfof/*.py`) has what users see: datasets, plans, files, errors. Here are the steps
//! that they are made of:
//!
//! - `source`: files and what they hold ([`bpfof_query::infer`]).
//! - `substrait`, `filter`: pyarrow's expressions as predicates.
//! - `plan`: what is asked, as bytes too, so that it can go to other processes.
//! - `session`: associations with targets, on which plans and their parts are run.
//! - `cost`: what they have cost.
//! - `rows`: rows that come bit by bit, made by a thread.
//! - `batch`: answers, by Arrow's C data interface.
//! - `files`, `key_value`: pushdown reads, and BPF-KV.
//! - `failure`: errors as exceptions; `watch`: Python's signals.
//!
//! All work is done without Python's lock. It is taken every 50 ms, but between chains of one call every 4096 of them,
//! to see whether Ctrl-C was pressed. A single read of a file is waited for, at most for the timeout of commands.

mod batch;
mod cost;
mod failure;
mod files;
mod filter;
mod key_value;
mod plan;
mod rows;
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

    /// `bpfof-query` with these arguments, of which the first is its name. Returns its exit status.
    #[pyfunction]
    fn query_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
        py.detach(|| bpfof_query_command::main(arguments))
    }
}
