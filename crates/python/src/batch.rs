//! Answers, passed to Python by Arrow's C data interface.

use crate::failure::Failure;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, to_ffi};
use arrow_array::{Array, RecordBatch, StructArray};
use bpfof_query::Table;
use bpfof_query::output;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::sync::Arc;

/// Rows with named columns. `pyarrow.record_batch(batch)` takes it without a copy, and so does any
/// other consumer of the Arrow PyCapsule interface.
#[pyclass(frozen, module = "bpfof._bpfof")]
#[derive(Debug)]
pub(crate) struct Batch(RecordBatch);

impl Batch {
    /// Makes a batch of an answer with at least one column.
    pub(crate) fn new(names: &[&str], table: &Table) -> Result<Self, Failure> {
        let schema = Arc::new(output::schema(names, table));
        Ok(Self(output::batch(&schema, table)?))
    }
}

#[pymethods]
impl Batch {
    /// Number of rows.
    fn __len__(&self) -> usize {
        self.0.num_rows()
    }

    /// Schema and array as capsules, as the Arrow PyCapsule interface defines them.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        // A consumer that requests another schema must cast afterwards, which the interface
        // permits.
        let _ = requested_schema;
        let rows = StructArray::from(self.0.clone());
        let exported: Result<(FFI_ArrowArray, FFI_ArrowSchema), _> = to_ffi(&rows.to_data());
        let (array, schema) = exported.map_err(Failure::question)?;
        let schema = PyCapsule::new_with_value(py, schema, c"arrow_schema")?;
        let array = PyCapsule::new_with_value(py, array, c"arrow_array")?;
        Ok((schema, array))
    }
}
