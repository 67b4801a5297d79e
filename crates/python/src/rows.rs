//! Streams of rows: a thread makes batches, a few ahead of the consumer.

use crate::batch::Batch;
use crate::cost::cost_of;
use crate::failure::Failure;
use crate::plan::Plan;
use crate::watch::LOOK_AGAIN;
use bpfof_query::ask::{Cost, Session};
use bpfof_query::infer::Source;
use bpfof_query::{self as query, Partial, Reduction, RunError, Settings};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Number of batches that are made ahead.
const AHEAD: usize = 2;

/// An iterator of batches. Dropping it stops the work.
#[pyclass(frozen, module = "bpfof._bpfof")]
#[derive(Debug)]
pub(crate) struct Rows {
    batches: Mutex<Receiver<Message>>,
    /// The thread that makes the batches; None once it has ended.
    maker: Mutex<Option<JoinHandle<()>>>,
    stop: Arc<AtomicBool>,
    cost: Mutex<Option<Cost>>,
    /// Process id of the thread's process: a child after fork() does not have the thread.
    process: u32,
}

#[derive(Debug)]
enum Message {
    Batch(Batch),
    Failed(Failure),
    Done(Cost),
}

/// The reason why the work ends early.
enum Ended {
    Failed(Failure),
    /// The consumer is gone.
    Left,
}

impl From<RunError> for Ended {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Stopped => Self::Left,
            error => Self::Failed(error.into()),
        }
    }
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

struct Maker {
    session: Session,
    source: Source,
    plan: query::Plan,
    names: Vec<String>,
    settings: Settings,
    to: SyncSender<Message>,
    stop: Arc<AtomicBool>,
}

impl Maker {
    fn make(&self) -> Result<Cost, Ended> {
        let Self { session, source, plan, settings, to, stop, .. } = self;
        let mut left = match plan.reduction {
            Reduction::Rows { limit, .. } => limit.unwrap_or(u64::MAX),
            _ => u64::MAX,
        };
        let names: Vec<&str> = self.names.iter().map(|name| &**name).collect();
        session.run::<Ended>(
            source,
            plan,
            *settings,
            &mut |_| !stop.load(Ordering::Relaxed),
            &mut |partial: Partial| {
                let mut table = partial.finish(plan).map_err(Failure::from)?;
                table.rows.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                left -= table.rows.len() as u64;
                if !table.rows.is_empty() {
                    let batch = Batch::new(&names, &table)?;
                    to.send(Message::Batch(batch)).map_err(|_| Ended::Left)?;
                }
                Ok(())
            },
        )
    }
}

impl Rows {
    pub(crate) fn start(session: Session, source: Source, plan: &Plan, settings: Settings) -> Self {
        let (to, batches) = sync_channel(AHEAD);
        let stop = Arc::new(AtomicBool::new(false));
        let (plan, names) = (plan.plan.clone(), plan.names.clone());
        let stops = Arc::clone(&stop);
        let maker = Maker { session, source, plan, names, settings, to, stop: stops };
        let worker = std::thread::spawn(move || {
            let last = match maker.make() {
                Ok(cost) => Message::Done(cost),
                Err(Ended::Failed(failure)) => Message::Failed(failure),
                Err(Ended::Left) => return,
            };
            // The consumer may be gone.
            let _ = maker.to.send(last);
        });
        let maker = Mutex::new(Some(worker));
        let (cost, process) = (Mutex::new(None), std::process::id());
        Self { batches: Mutex::new(batches), maker, stop, cost, process }
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[pymethods]
impl Rows {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        if std::process::id() != self.process {
            let what = "these rows were queried before fork(): run the query again in the child";
            return Err(Failure::question(what).into());
        }
        loop {
            let received = py.detach(|| {
                let batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
                batches.recv_timeout(LOOK_AGAIN)
            });
            match received {
                Ok(Message::Batch(batch)) => return Ok(Some(batch)),
                Ok(Message::Failed(failure)) => return Err(failure.into()),
                Ok(Message::Done(cost)) => {
                    *self.cost.lock().unwrap_or_else(PoisonError::into_inner) = Some(cost);
                    return Ok(None);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let maker = self.maker.lock().unwrap_or_else(PoisonError::into_inner).take();
                    return match py.detach(|| maker.map(JoinHandle::join)) {
                        Some(Err(panic)) => std::panic::resume_unwind(panic),
                        Some(Ok(())) | None => Ok(None),
                    };
                }
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            }
        }
    }

    /// The cost; None before all rows have been taken.
    #[getter]
    fn cost<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let cost = self.cost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        cost.map(|cost| cost_of(py, cost)).transpose()
    }
}
