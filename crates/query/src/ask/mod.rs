//! Plans over files: a target for each file, and all parts run there.

mod place;

use crate::error::RunError;
use crate::functions::Stages;
use crate::infer::Source;
use crate::partial::Partial;
use crate::parts::parts;
use crate::plan::{Plan, Reduction};
use crate::run::Runner;
use crate::settings::{Settings, Stats};
use bpfof_host::files::{FileMaps, MapRefusal, NamespaceDevice};
use bpfof_host::{Controller, Error, Options, TargetUrl};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

pub use place::{PlaceError, Reach, Where};

/// Bytes of a part whose rows are answered: they are in memory together.
const ROWS_PART_BYTES: u64 = 64 << 20;
/// Bytes of a part that is reduced.
const PART_BYTES: u64 = 1 << 30;

/// Why a session cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Where files are is not known.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A target cannot be reached.
    #[error("the target {url}: {source}")]
    Target {
        /// Its address.
        url: Box<TargetUrl>,
        /// Why.
        source: Error,
    },
    /// The device that was named is none.
    #[error(transparent)]
    Device(#[from] MapRefusal),
}

/// Associations with the targets of files.
#[derive(Debug)]
pub struct Session {
    places: Vec<(Where, FileMaps)>,
    /// Of each file: which of the places.
    of: HashMap<PathBuf, usize>,
    warnings: Vec<String>,
}

impl Session {
    /// Connects to the targets of all files. If `falls_back`, one that cannot be reached is a
    /// [warning](Self::warnings), and the stages run on this machine over plain reads.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn open(source: &Source, reach: &Reach, falls_back: bool) -> Result<Self, SessionError> {
        let mut session = Self { places: Vec::new(), of: HashMap::new(), warnings: Vec::new() };
        for (path, _) in &source.files {
            let place = reach.place(path)?;
            if let (Where::Here(why), false) = (&place, falls_back) {
                return Err(PlaceError::NoTarget { path: path.clone(), why: why.clone() }.into());
            }
            let known = session.places.iter().position(|(known, _)| *known == place);
            let at = match known {
                Some(at) => at,
                None => {
                    let maps = session.connect(&place, falls_back)?;
                    session.places.push((place, maps));
                    session.places.len() - 1
                }
            };
            session.of.insert(path.clone(), at);
        }
        Ok(session)
    }

    fn connect(&mut self, place: &Where, falls_back: bool) -> Result<FileMaps, SessionError> {
        let Where::Target { url, device } = place else { return Ok(FileMaps::local()) };
        let device = NamespaceDevice::new(device)?;
        let maps = Controller::connect(url, Options::default())
            .and_then(|controller| FileMaps::new(controller, url.nsid, device));
        match maps {
            Ok(maps) => {
                if !maps.has_target() {
                    self.warnings.push(format!("{url} has no pushdown: the stages run here"));
                }
                Ok(maps)
            }
            Err(error) if falls_back => {
                self.warnings
                    .push(format!("{url}: {error}: the stages run here, over plain reads"));
                Ok(FileMaps::local())
            }
            Err(source) => Err(SessionError::Target { url: url.clone(), source }),
        }
    }

    /// What the user should know.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Where the stages run over the files, each place once.
    pub fn places(&self) -> impl Iterator<Item = &Where> {
        self.places.iter().map(|(place, _)| place)
    }

    /// The place of a file of this session.
    #[must_use]
    pub fn place_of(&self, path: &Path) -> Option<&Where> {
        self.of.get(path).map(|at| &self.places[*at].0)
    }

    /// The maps of a file of this session.
    #[must_use]
    pub fn maps_of(&self, path: &Path) -> Option<&FileMaps> {
        self.of.get(path).map(|at| &self.places[*at].1)
    }

    /// Runs all parts of a plan, in the order of the files. `on_progress` is told now and then how many bytes
    /// are done, and says whether to go on; `on_part` gets what each part comes to, and says whether more is
    /// wanted.
    ///
    /// # Errors
    /// [`RunError`], or that of `on_part`.
    pub fn run<E: From<RunError>>(
        &self,
        source: &Source,
        plan: &Plan,
        settings: Settings,
        on_progress: &mut dyn FnMut(u64) -> bool,
        on_part: &mut dyn FnMut(Partial) -> Result<ControlFlow<()>, E>,
    ) -> Result<Stats, E> {
        let stages: Vec<Stages<'_>> =
            self.places.iter().map(|(_, maps)| Stages::new(maps)).collect();
        let mut runners: Vec<Option<Runner<'_>>> = self.places.iter().map(|_| None).collect();
        let answers_rows = matches!(plan.reduction, Reduction::Rows { .. });
        let part_bytes = if answers_rows { ROWS_PART_BYTES } else { PART_BYTES };
        let mut done = 0;
        for part in parts(plan, &source.files, part_bytes) {
            let Some(&at) = self.of.get(&part.path) else { continue };
            let runner = match &mut runners[at] {
                Some(runner) => runner,
                none => none.insert(Runner::new(&stages[at], plan, settings)?),
            };
            let partial = runner.run(&part, &mut |bytes| on_progress(done + bytes))?;
            done += part.end_bytes - part.start_bytes;
            if !on_progress(done) {
                return Err(RunError::Stopped.into());
            }
            if on_part(partial)?.is_break() {
                break;
            }
        }
        let all = runners.iter().flatten().map(Runner::stats);
        Ok(all.fold(Stats::default(), Stats::plus))
    }
}

impl Stats {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            scanned_bytes: self.scanned_bytes + other.scanned_bytes,
            rows: self.rows + other.rows,
            passed: self.passed + other.passed,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            received_bytes: self.received_bytes + other.received_bytes,
            chains: self.chains + other.chains,
            chains_at_target: self.chains_at_target + other.chains_at_target,
            hops: self.hops + other.hops,
            again: self.again + other.again,
        }
    }
}
