//! Associations with targets, on which plans are run.

use crate::batch::Batch;
use crate::cost::cost_of;
use crate::failure::Failure;
use crate::filter::{Filter, together};
use crate::plan::{PartTuple, Plan, part};
use crate::rows::Rows;
use crate::source::Source;
use crate::watch::{Unlocked, watched};
use bpfof_host::{HostsFile, TargetUrl};
use bpfof_query::ask::{self, Cost, PartCost, Reach};
use bpfof_query::infer;
use bpfof_query::sql::{Question, Statement};
use bpfof_query::{OwnStageName, OwnStages, Partial, Place, Settings, SourceFile, split};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// How files are accessed, and the connections made so far.
#[pyclass(frozen, module = "bpfof._bpfof")]
#[derive(Debug)]
pub(crate) struct Session(Unlocked<Connections>);

/// The part that the threads of queries share.
#[derive(Clone, Debug)]
struct Connections {
    reach: Reach,
    settings: Settings,
    shared: Arc<Mutex<ask::Session>>,
}

/// Parses an address, and adds the settings of the user's file.
pub(crate) fn address(text: &str) -> Result<TargetUrl, String> {
    let mut url: TargetUrl = text.parse().map_err(|error| format!("{text}: {error}"))?;
    if let Some(file) = HostsFile::of_user().map_err(|error| error.to_string())? {
        file.complete(&mut url).map_err(|error| error.to_string())?;
    }
    Ok(url)
}

/// How files are accessed, from the user's arguments.
pub(crate) fn reach(
    target: Option<&str>,
    device: Option<PathBuf>,
    here: bool,
) -> Result<Reach, Failure> {
    match (target, device, here) {
        (None, None, true) => Ok(Reach::Here),
        (None, None, false) => Ok(Reach::Mounts { address }),
        (Some(url), Some(device), false) => {
            let url = Box::new(address(url).map_err(Failure::question)?);
            Ok(Reach::Target { url, device })
        }
        (_, _, true) => Err(Failure::question("here=True cannot be used with target and device")),
        _ => Err(Failure::question(
            "give target and device together: the address of a target, and the device of its namespace on \
             this machine",
        )),
    }
}

impl Connections {
    /// Adds these files to the session, and returns a copy.
    fn with<'a>(&self, paths: impl Iterator<Item = &'a Path>) -> Result<ask::Session, Failure> {
        let (paths, falls_back) = (paths.collect::<Vec<_>>(), self.settings.falls_back);
        let lock = || self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        // Connects and disconnects without the lock: a slow target delays only queries of its own files.
        let mut copy = lock().clone();
        let added = paths.iter().try_for_each(|path| copy.add(path, &self.reach, falls_back));
        let session = {
            let mut shared = lock();
            shared.take_over(&mut copy, &paths, falls_back);
            shared.clone()
        };
        added?;
        Ok(session)
    }

    fn over(&self, source: &infer::Source) -> Result<ask::Session, Failure> {
        self.with(source.files.iter().map(|file| &*file.path))
    }
}

/// A step: description, whether stages do it, and if not, why.
type StepTuple = (String, bool, Option<String>);

/// Binds a statement to a source, restricted to rows that also meet the filters.
fn question(
    source: &infer::Source,
    filters: &[Filter],
    text: &str,
    (filter, reduction): &(Option<String>, Option<String>),
) -> Result<Question, Failure> {
    let statement = Statement::parse_over_table(text)?;
    let filter =
        filter.as_deref().map(OwnStageName::filter).transpose().map_err(Failure::question)?;
    let reduction =
        reduction.as_deref().map(OwnStageName::reduction).transpose().map_err(Failure::question)?;
    let mut schema = source.schema.clone();
    let own = OwnStages::read(filter.as_ref(), reduction.as_ref(), &mut schema);
    let own = own.map_err(Failure::question)?;
    let mut question = statement.bind_with(&schema, &source.format, own)?;
    question.restrict(&together(filters));
    split(question.plan())?;
    Ok(question)
}

#[pymethods]
impl Session {
    /// Does not connect to anything yet.
    #[new]
    #[pyo3(signature = (target=None, device=None, here=false, fallback=true, chains=32))]
    fn new(
        target: Option<&str>,
        device: Option<PathBuf>,
        here: bool,
        fallback: bool,
        chains: usize,
    ) -> Result<Self, Failure> {
        if !(1..=256).contains(&chains) {
            return Err(Failure::question("chains must be 1 to 256"));
        }
        let reach = reach(target, device, here)?;
        // Without a target there is nothing to fall back from.
        let falls_back = fallback || here;
        let settings = Settings { chains, falls_back, ..Settings::default() };
        Ok(Self(Unlocked::new(Connections { reach, settings, shared: Arc::default() })))
    }

    /// Runs all parts of a plan; returns the answer and its cost.
    fn run<'py>(
        &self,
        py: Python<'py>,
        source: &Source,
        plan: &Plan,
    ) -> PyResult<(Batch, Bound<'py, PyDict>)> {
        let (this, source, plan) = (self.0.clone(), source.0.clone(), plan.clone());
        let work = watched(py, move |stop| {
            let session = this.over(&source)?;
            let mut whole = Partial::empty(&plan.plan);
            let cost = session.run::<Failure>(
                &source,
                &plan.plan,
                this.settings,
                &mut |_| stop.goes_on(),
                &mut |partial| {
                    whole.merge(&plan.plan, partial)?;
                    Ok(())
                },
            )?;
            let batch = Batch::new(&plan.names(), &whole.finish(&plan.plan)?)?;
            Ok::<_, Failure>((batch, cost))
        });
        let (batch, cost) = work?;
        Ok((batch, cost_of(py, cost)?))
    }

    /// Runs one part of a plan; returns its partial result as bytes, and its cost.
    fn run_part<'py>(
        &self,
        py: Python<'py>,
        plan: &Plan,
        asked: PartTuple,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyDict>)> {
        let (this, plan) = (self.0.clone(), plan.clone());
        let work = watched(py, move |stop| {
            let part = part(asked)?;
            let session = this.with(std::iter::once(&*part.path))?;
            let go_on = &mut |_| stop.goes_on();
            let (partial, cost) = session.run_part(&plan.plan, &part, this.settings, go_on)?;
            Ok::<_, Failure>((plan.write_partial(&partial)?, cost))
        });
        let (bytes, PartCost { stats, place, lost }) = work?;
        let cost = Cost { stats, places: vec![place], lost: lost.into_iter().collect() };
        Ok((PyBytes::new(py, &bytes), cost_of(py, cost)?))
    }

    /// Streams the rows of a plan.
    fn rows(&self, py: Python<'_>, source: &Source, plan: &Plan) -> PyResult<Rows> {
        let (this, files) = (self.0.clone(), source.0.clone());
        let session = watched(py, move |_| this.over(&files))?;
        Ok(Rows::start(session, source.0.clone(), plan, self.0.settings))
    }

    /// The answer of a statement over the files of a source: `SELECT … FROM t`. The user's own stages are specified as
    /// in the shell.
    #[pyo3(signature = (source, filters, text, own=(None, None)))]
    fn sql<'py>(
        &self,
        py: Python<'py>,
        source: &Source,
        filters: Vec<Filter>,
        text: &str,
        own: (Option<String>, Option<String>),
    ) -> PyResult<(Batch, Bound<'py, PyDict>)> {
        let (this, source, text) = (self.0.clone(), source.0.clone(), text.to_owned());
        let work = watched(py, move |stop| {
            let question = question(&source, &filters, &text, &own)?;
            let session = this.over(&source)?;
            let plan = question.plan();
            let (mut whole, mut answers) = (Partial::empty(plan), question.answers());
            let cost = session.run::<Failure>(
                &source,
                plan,
                this.settings,
                &mut |_| stop.goes_on(),
                &mut |partial| {
                    whole.merge(plan, partial)?;
                    Ok(())
                },
            )?;
            let answer = answers.next(whole.finish(plan)?)?;
            let batch = Batch::new(&question.names(), &answer)?;
            Ok::<_, Failure>((batch, cost))
        });
        let (batch, cost) = work?;
        Ok((batch, cost_of(py, cost)?))
    }

    /// The steps of a statement, and the columns that stages use.
    #[staticmethod]
    #[pyo3(signature = (source, filters, text, own=(None, None)))]
    fn sql_steps(
        py: Python<'_>,
        source: &Source,
        filters: Vec<Filter>,
        text: &str,
        own: (Option<String>, Option<String>),
    ) -> PyResult<(Vec<StepTuple>, Vec<String>)> {
        let (source, text) = (source.0.clone(), text.to_owned());
        watched(py, move |_| {
            let question = question(&source, &filters, &text, &own)?;
            let split = split(question.plan())?;
            let steps = split.steps.into_iter();
            let steps = steps.map(|step| (step.what, step.place == Place::Stages, step.why_here));
            let behind = question.steps_behind().into_iter().map(|what| (what, false, None));
            let columns = &source.schema.columns;
            let looked_at = split.columns.iter().map(|at| columns[*at].name.clone()).collect();
            Ok::<_, Failure>((steps.chain(behind).collect(), looked_at))
        })
    }

    /// The places where the stages would run over the files, each once. Does not connect to them.
    fn places(&self, py: Python<'_>, source: &Source) -> PyResult<Vec<String>> {
        let (reach, files) = (self.0.reach.clone(), source.0.files.clone());
        watched(py, move |_| {
            let mut places = Vec::new();
            for SourceFile { path, .. } in &files {
                let place = reach.place(path)?.to_string();
                if !places.contains(&place) {
                    places.push(place);
                }
            }
            Ok::<_, Failure>(places)
        })
    }
}
