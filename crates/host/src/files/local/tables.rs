//! The engine's tables on this machine.

use bpfof_chain::{Function, Tables};
use std::sync::Arc;

/// These tables with a function that they do not have, and without those that nobody can call any
/// more.
pub(super) fn with_function(tables: &Tables, function: &Arc<Function>) -> Tables {
    let is_unused = |known: &&Arc<Function>| Arc::strong_count(known) == 1;
    let unused: Vec<u32> =
        tables.functions().iter().filter(is_unused).map(|known| known.id).collect();
    let tables = tables.with_function(Arc::clone(function));
    unused.iter().fold(tables, |tables, id| tables.without_function(*id))
}
