//! The cost of queries, for Python.

use bpfof_query::ask::Cost;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Converts a cost for Python.
pub(crate) fn cost_of(py: Python<'_>, cost: Cost) -> PyResult<Bound<'_, PyDict>> {
    let Cost { stats, places, lost } = cost;
    let cost = PyDict::new(py);
    cost.set_item("scanned_bytes", stats.scanned_bytes)?;
    cost.set_item("rows", stats.rows)?;
    cost.set_item("passed", stats.passed)?;
    cost.set_item("sent_bytes", stats.sent_bytes)?;
    cost.set_item("received_bytes", stats.received_bytes)?;
    cost.set_item("chains", stats.chains)?;
    cost.set_item("chains_at_target", stats.chains_at_target)?;
    cost.set_item("hops", stats.hops)?;
    cost.set_item("again", stats.again)?;
    cost.set_item("places", places)?;
    cost.set_item("lost", lost)?;
    Ok(cost)
}
