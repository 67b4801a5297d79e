//! Queries, with the names of the answer's columns.

use crate::batch::Batch;
use crate::failure::Failure;
use crate::filter::{Filter, together};
use crate::seal::{HASH_BYTES, hash_of, sealed, unsealed};
use crate::source::Source;
use bpfof_query::{
    self as query, Aggregate, Measure, OwnStages, Part, Partial, Place, Reduction, Scalar,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Magic of serialised plans; changes with their format.
const PLAN_MAGIC: &[u8; 8] = b"bpfofPL2";
/// Magic of serialised partial results.
const PARTIAL_MAGIC: &[u8; 8] = b"bpfofPR1";

/// A query over files of the same format and columns.
#[pyclass(frozen, module = "bpfof._bpfof")]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) plan: query::Plan,
    pub(crate) names: Vec<String>,
}

/// A part of a file: path, size of the file, start and end of the part, the file's inode number, header hash and time
/// of modification.
pub(crate) type PartTuple = (PathBuf, u64, u64, u64, u64, u64, i64);

pub(crate) fn part(
    (path, file_bytes, start_bytes, end_bytes, inode, header_hash, modified_ns): PartTuple,
) -> Result<Part, Failure> {
    if start_bytes > end_bytes || end_bytes > file_bytes {
        return Err(Failure::question("a part must end after its start, and inside its file"));
    }
    Ok(Part { path, file_bytes, inode, header_hash, modified_ns, start_bytes, end_bytes })
}

impl Plan {
    fn new(
        source: &Source,
        filters: &[Filter],
        reduction: Reduction,
        names: Vec<String>,
    ) -> Result<Self, Failure> {
        if names.is_empty() {
            return Err(Failure::question("the query is empty: name a column or an aggregate"));
        }
        let plan = query::Plan {
            schema: source.0.schema.clone(),
            format: source.0.format.clone(),
            filter: together(filters),
            reduction,
            own: OwnStages::default(),
        };
        query::check(&plan)?;
        Ok(Self { plan, names })
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.names.iter().map(|name| &**name).collect()
    }

    fn body(&self) -> Result<Vec<u8>, Failure> {
        postcard::to_stdvec(self).map_err(Failure::question)
    }

    /// Distinguishes partial results of this plan from those of other plans.
    fn hash(&self) -> Result<[u8; HASH_BYTES], Failure> {
        Ok(hash_of(&self.body()?))
    }

    pub(crate) fn write_partial(&self, partial: &Partial) -> Result<Vec<u8>, Failure> {
        let beginning = [&PARTIAL_MAGIC[..], &self.hash()?].concat();
        postcard::to_extend(partial, beginning).map_err(Failure::question)
    }

    fn read_partial(&self, bytes: &[u8]) -> Result<Partial, Failure> {
        let damaged = || Failure::damaged("partial result of this plan");
        let rest = bytes.strip_prefix(PARTIAL_MAGIC).ok_or_else(damaged)?;
        let rest = rest.strip_prefix(&self.hash()?).ok_or_else(damaged)?;
        let partial: Partial = postcard::from_bytes(rest).map_err(|_| damaged())?;
        if partial.fits(&self.plan) { Ok(partial) } else { Err(damaged()) }
    }
}

/// A measure by pyarrow's name.
fn measure(name: &str, ddof: u8) -> Result<Measure, Failure> {
    Ok(match name {
        "count_all" => Measure::CountAll,
        "count" => Measure::Count,
        "sum" => Measure::Sum,
        "min" => Measure::Min,
        "max" => Measure::Max,
        "mean" => Measure::Mean,
        "variance" => Measure::Variance { ddof },
        "stddev" => Measure::Deviation { ddof },
        other => return Err(Failure::question(format!("there is no aggregate {other}"))),
    })
}

fn columns(source: &Source, names: &[String]) -> Result<Vec<Scalar>, Failure> {
    names.iter().map(|name| source.column(name).map(Scalar::Column)).collect()
}

#[pymethods]
impl Plan {
    /// The rows that pass.
    #[staticmethod]
    #[pyo3(signature = (source, filters, names, limit=None))]
    fn rows(
        source: &Source,
        filters: Vec<Filter>,
        names: Vec<String>,
        limit: Option<u64>,
    ) -> Result<Self, Failure> {
        let columns = columns(source, &names)?;
        Self::new(source, &filters, Reduction::Rows { columns, limit }, names)
    }

    /// Keys and aggregates of each group; an aggregate is a name, degrees of freedom, and a column.
    #[staticmethod]
    fn groups(
        source: &Source,
        filters: Vec<Filter>,
        keys: Vec<String>,
        wanted: Vec<(String, u8, Option<String>)>,
        names: Vec<String>,
    ) -> Result<Self, Failure> {
        let aggregate = |(name, ddof, column): &(String, u8, Option<String>)| {
            let of = match column {
                Some(column) => Scalar::Column(source.column(column)?),
                None => Scalar::Literal(query::Value::Int(1)),
            };
            Ok(Aggregate { measure: measure(name, *ddof)?, of })
        };
        let aggregates = wanted.iter().map(aggregate).collect::<Result<_, Failure>>()?;
        let keys = columns(source, &keys)?;
        Self::new(source, &filters, Reduction::Groups { keys, aggregates }, names)
    }

    /// The first rows in the order of a column.
    #[staticmethod]
    fn top(
        source: &Source,
        filters: Vec<Filter>,
        by: &str,
        descending: bool,
        count: u32,
        names: Vec<String>,
    ) -> Result<Self, Failure> {
        let by = Scalar::Column(source.column(by)?);
        let columns = columns(source, &names)?;
        Self::new(source, &filters, Reduction::Top { by, descending, count, columns }, names)
    }

    /// The number of values in each interval.
    #[staticmethod]
    fn histogram(
        source: &Source,
        filters: Vec<Filter>,
        of: &str,
        low: f64,
        high: f64,
        bins: u32,
    ) -> Result<Self, Failure> {
        let of = Scalar::Column(source.column(of)?);
        let names = ["low", "high", "count"].map(str::to_owned).to_vec();
        Self::new(source, &filters, Reduction::Histogram { of, low, high, bins }, names)
    }

    /// Restores a plan from `to_bytes`.
    #[staticmethod]
    fn from_bytes(bytes: &[u8]) -> Result<Self, Failure> {
        let damaged = || Failure::damaged("plan");
        let body = unsealed(PLAN_MAGIC, bytes).ok_or_else(damaged)?;
        let plan: Self = postcard::from_bytes(body).map_err(|_| damaged())?;
        query::check(&plan.plan)?;
        Ok(plan)
    }

    /// Serialises the plan for another process.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>, Failure> {
        let body = self.body()?;
        Ok(PyBytes::new(py, &sealed(PLAN_MAGIC, &body)))
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        Ok((py.get_type::<Self>().getattr("from_bytes")?, (self.to_bytes(py)?,)))
    }

    /// Cuts the files of a source into parts of about this many bytes.
    fn parts(&self, source: &Source, part_max_bytes: u64) -> Vec<PartTuple> {
        let parts = query::parts(&self.plan, &source.0.files, part_max_bytes.max(1));
        let tuple = |part: Part| {
            let Part { path, file_bytes, inode, header_hash, modified_ns, start_bytes, end_bytes } =
                part;
            (path, file_bytes, start_bytes, end_bytes, inode, header_hash, modified_ns)
        };
        parts.into_iter().map(tuple).collect()
    }

    /// Merges partial results, in the order of the files.
    fn merge<'py>(
        &self,
        py: Python<'py>,
        partials: Vec<Bound<'py, PyBytes>>,
    ) -> Result<Bound<'py, PyBytes>, Failure> {
        let partials: Vec<&[u8]> = partials.iter().map(|bytes| bytes.as_bytes()).collect();
        let merged = py.detach(|| {
            let mut all = Partial::empty(&self.plan);
            for bytes in partials {
                all.merge(&self.plan, self.read_partial(bytes)?)?;
            }
            self.write_partial(&all)
        })?;
        Ok(PyBytes::new(py, &merged))
    }

    /// Reduces rows that stages need not have filtered: an Arrow IPC stream, with columns by name.
    fn reduce<'py>(&self, py: Python<'py>, stream: &[u8]) -> Result<Bound<'py, PyBytes>, Failure> {
        let partial = py.detach(|| self.write_partial(&Partial::of_rows(&self.plan, stream)?))?;
        Ok(PyBytes::new(py, &partial))
    }

    /// Computes the answer from the merged partial results of all parts.
    fn finish(&self, py: Python<'_>, partial: &[u8]) -> Result<Batch, Failure> {
        py.detach(|| {
            let table = self.read_partial(partial)?.finish(&self.plan)?;
            Batch::new(&self.names(), &table)
        })
    }

    /// The steps: description, whether stages do it, and if not, why.
    fn steps(&self) -> Result<Vec<(String, bool, Option<String>)>, Failure> {
        let steps = query::split(&self.plan)?.steps.into_iter();
        Ok(steps.map(|step| (step.what, step.place == Place::Stages, step.why_here)).collect())
    }

    /// Names of the columns that stages use.
    fn looks_at(&self) -> Result<Vec<String>, Failure> {
        let columns = query::split(&self.plan)?.columns.into_iter();
        Ok(columns.map(|at| self.plan.schema.columns[at].name.clone()).collect())
    }
}
