//! Files, their format and columns.

use crate::batch::Batch;
use crate::failure::Failure;
use crate::seal::{sealed, unsealed};
use crate::watch::watched;
use bpfof_query::infer::{self, FormatName, Hints};
use bpfof_query::{
    Format, OwnStages, Partial, Plan, Predicate, Reduction, Scalar, Schema, SourceFile, listed,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;

/// Begins a serialised source.
const MAGIC: &[u8; 8] = b"bpfofSO1";

/// Files with the same format and columns.
#[pyclass(frozen, module = "bpfof._bpfof")]
#[derive(Debug)]
pub(crate) struct Source(pub(crate) infer::Source);

/// The parts that are sent to other processes.
type Parts = (Vec<SourceFile>, Schema, Format);

impl Source {
    /// The index of a column.
    pub(crate) fn column(&self, name: &str) -> Result<usize, Failure> {
        let columns = &self.0.schema.columns;
        columns.iter().position(|column| column.name == name).ok_or_else(|| {
            let names: Vec<&str> = columns.iter().map(|column| &*column.name).collect();
            Failure::question(format!(
                "there is no column {name}; the columns are {}",
                listed(&names)
            ))
        })
    }
}

#[pymethods]
impl Source {
    /// Finds files by paths and patterns, and their format and columns.
    #[new]
    #[pyo3(signature = (patterns, schema=None, format=None, delimiter=None, header=true))]
    fn find(
        py: Python<'_>,
        patterns: Vec<String>,
        schema: Option<String>,
        format: Option<&str>,
        delimiter: Option<&str>,
        header: bool,
    ) -> PyResult<Self> {
        let format = match format {
            None => None,
            Some("records") => Some(FormatName::Records),
            Some("npy") => Some(FormatName::Npy),
            Some("csv") => Some(FormatName::Csv),
            Some("arrow") => Some(FormatName::Arrow),
            Some(other) => {
                let what =
                    format!("format {other:?} is not \"records\", \"npy\", \"csv\" or \"arrow\"");
                return Err(Failure::question(what).into());
            }
        };
        let delimiter = match delimiter.map(str::as_bytes) {
            None => None,
            Some([byte]) if byte.is_ascii() => Some(*byte),
            Some(_) => return Err(Failure::question("a delimiter is one ASCII character").into()),
        };
        let hints = Hints { schema, format, delimiter, no_header: !header };
        let find = move |_: &_| infer::Source::find(&patterns, &hints).map_err(Failure::from);
        let mut source = watched(py, find)?;
        // A later query may run in another working directory.
        for file in &mut source.files {
            let absolute = std::path::absolute(&file.path);
            file.path = absolute.map_err(|error| Failure::file(&error, &file.path, &error))?;
        }
        Ok(Self(source))
    }

    /// The same files as they are now.
    fn now(&self, py: Python<'_>) -> PyResult<Self> {
        let source = self.0.clone();
        watched(py, move |_| source.now().map_err(Failure::from)).map(Self)
    }

    /// Restores a source from `to_bytes`.
    #[staticmethod]
    fn from_bytes(bytes: &[u8]) -> Result<Self, Failure> {
        let damaged = || Failure::damaged("source");
        let body = unsealed(MAGIC, bytes).ok_or_else(damaged)?;
        let parts: Result<Parts, _> = postcard::from_bytes(body);
        let (files, schema, format) = parts.map_err(|_| damaged())?;
        Ok(Self(infer::Source { files, schema, format }))
    }

    /// Serialises the source for another process.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>, Failure> {
        let infer::Source { files, schema, format } = &self.0;
        let body = postcard::to_stdvec(&(files, schema, format)).map_err(Failure::question)?;
        Ok(PyBytes::new(py, &sealed(MAGIC, &body)))
    }

    /// Each file with its size in bytes, in order.
    #[getter]
    fn files(&self) -> Vec<(PathBuf, u64)> {
        self.0.files.iter().map(|file| (file.path.clone(), file.bytes)).collect()
    }

    /// Columns that cannot be queried, each with the reason.
    #[getter]
    fn others(&self) -> Vec<(String, String)> {
        match &self.0.format {
            Format::Columns { others, .. } => {
                others.iter().map(|other| (other.name.clone(), other.why.clone())).collect()
            }
            Format::Fixed { .. } | Format::Csv { .. } => Vec::new(),
        }
    }

    /// Whether they are Arrow files.
    #[getter]
    fn is_arrow(&self) -> bool {
        matches!(self.0.format, Format::Columns { .. })
    }

    /// Selects files by path, each once for each path, even if this source has it twice.
    fn only(&self, paths: Vec<PathBuf>) -> Self {
        let infer::Source { files, schema, format } = &self.0;
        let file = |path: &PathBuf| files.iter().find(|file| file.path == *path).cloned();
        let files = paths.iter().filter_map(file).collect();
        Self(infer::Source { files, schema: schema.clone(), format: format.clone() })
    }

    /// A batch without rows, with all columns.
    fn empty(&self) -> Result<Batch, Failure> {
        let infer::Source { schema, format, .. } = &self.0;
        let names: Vec<&str> = schema.columns.iter().map(|column| &*column.name).collect();
        let columns = (0..names.len()).map(Scalar::Column).collect();
        let plan = Plan {
            schema: schema.clone(),
            format: format.clone(),
            filter: Predicate::Constant(true),
            reduction: Reduction::Rows { columns, limit: None },
            own: OwnStages::default(),
        };
        Batch::new(&names, &Partial::empty(&plan).finish(&plan)?)
    }
}
