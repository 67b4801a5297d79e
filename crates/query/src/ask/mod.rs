//! Plans over files: finds the target of each file, and runs all parts there.

mod place;
mod places;

use crate::error::RunError;
use crate::functions::{LoadedStages, Stages};
use crate::infer::Source;
use crate::partial::Partial;
use crate::parts::{Part, SourceFile};
use crate::plan::Plan;
use crate::run::Runner;
use crate::settings::{Settings, Stats};
use bpfof_host::files::{FileMaps, MapRefusal, NamespaceDevice};
use bpfof_host::{Controller, Error, Options, TargetUrl};
use places::Ended;
use std::collections::HashMap;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use place::{PlaceError, Reach, Where};

/// The reason why a session cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The place of a file is not known.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A target cannot be reached.
    #[error("the target {url}: {source}")]
    Target {
        /// Its address.
        url: Box<TargetUrl>,
        /// The reason.
        source: Error,
    },
    /// The named device is not usable.
    #[error(transparent)]
    Device(#[from] MapRefusal),
}

/// How long a target that could not be reached is not tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Associations with the targets of files. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Session {
    places: Vec<Arc<Place>>,
    /// By file: index of its place.
    of: HashMap<PathBuf, usize>,
}

/// A place where the stages run over some files.
#[derive(Debug)]
struct Place {
    at: Where,
    maps: FileMaps,
    loaded: LoadedStages,
    since: Instant,
    /// The reason why the target is not used, if it should be.
    lost: Option<String>,
}

/// The cost of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartCost {
    /// Counters.
    pub stats: Stats,
    /// The place where the stages ran.
    pub place: String,
    /// The reason why some of them did not run at the target, if they should have.
    pub lost: Option<String>,
}

/// The cost of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Counters.
    pub stats: Stats,
    /// The places where the stages ran, each once.
    pub places: Vec<String>,
    /// Chains that did not run at their target as they should have, and why: at most one entry for each place.
    pub lost: Vec<String>,
}

impl Session {
    /// Connects to the targets of all files. If `falls_back`, a target that cannot be reached causes a
    /// [warning](Self::warnings), and the stages run on this machine over plain reads.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn open(source: &Source, reach: &Reach, falls_back: bool) -> Result<Self, SessionError> {
        let mut session = Self::default();
        for SourceFile { path, .. } in &source.files {
            session.add(path, reach, falls_back)?;
        }
        Ok(session)
    }

    /// Adds a file. If the connection to its target was lost, connects again.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn add(
        &mut self,
        path: &Path,
        reach: &Reach,
        falls_back: bool,
    ) -> Result<(), SessionError> {
        let at = reach.place(path)?;
        if let (Where::Here(why), false) = (&at, falls_back) {
            let (path, why) = (path.to_owned(), why.clone());
            return Err(PlaceError::NoTarget { path, why }.into());
        }
        let known = self.places.iter().position(|known| known.at == at);
        let index = match known {
            Some(index) => {
                if self.places[index].is_worth_a_try(falls_back) {
                    self.places[index] = Arc::new(Place::connect(at, falls_back)?);
                }
                index
            }
            None => {
                self.places.push(Arc::new(Place::connect(at, falls_back)?));
                self.places.len() - 1
            }
        };
        self.of.insert(path.to_owned(), index);
        Ok(())
    }

    /// Takes over the places of these files from a copy of this session, to which they have been added. If both have
    /// connected to a target meanwhile, the connection of this session stays; one that it replaces goes to the copy.
    pub fn take_over(&mut self, copy: &mut Self, paths: &[&Path], falls_back: bool) {
        for path in paths {
            // Some may not have been added, because an error came before.
            let Some(index) = copy.of.get(*path).copied() else { continue };
            let place = &mut copy.places[index];
            let known = self.places.iter().position(|known| known.at == place.at);
            let at = known.unwrap_or(self.places.len());
            match self.places.get_mut(at) {
                Some(known)
                    if known.is_worth_a_try(falls_back)
                        || !known.maps.is_connected() && place.maps.is_connected() =>
                {
                    mem::swap(known, place);
                }
                Some(_) => {}
                None => self.places.push(Arc::clone(place)),
            }
            self.of.insert(path.to_path_buf(), at);
        }
    }

    /// Warnings for the user before a query: targets that do not run the stages, and why.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let places = self.places.iter();
        places.filter_map(|place| Some(place.warning(place.lost.as_deref()?))).collect()
    }

    /// The places where the stages run over the files, each once.
    pub fn places(&self) -> impl Iterator<Item = &Where> {
        self.places.iter().map(|place| &place.at)
    }

    /// The place of a file of this session.
    #[must_use]
    pub fn place_of(&self, path: &Path) -> Option<&Where> {
        self.of.get(path).map(|at| &self.places[*at].at)
    }

    /// The maps of a file of this session.
    #[must_use]
    pub fn maps_of(&self, path: &Path) -> Option<&FileMaps> {
        self.of.get(path).map(|at| &self.places[*at].maps)
    }

    /// Runs one part of a plan, of a file of this session. `on_progress` is as in [`Runner::run`].
    ///
    /// # Errors
    /// [`RunError`].
    pub fn run_part(
        &self,
        plan: &Plan,
        part: &Part,
        settings: Settings,
        on_progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(Partial, PartCost), RunError> {
        let place = &self.places[self.index_of(&part.path)?];
        let stages = place.stages();
        let mut runner = Runner::new(&stages, plan, settings)?;
        let partial = runner.run(part, on_progress)?;
        Ok((partial, place.cost(runner.stats(), runner.lost())))
    }

    /// The index of the place of a file.
    fn index_of(&self, path: &Path) -> Result<usize, RunError> {
        self.of.get(path).copied().ok_or_else(|| {
            let source = io::Error::new(io::ErrorKind::NotFound, "not a file of this session");
            RunError::Open { path: path.to_owned(), source }
        })
    }

    /// Runs all parts of a plan, at all places at once, with a thread for each place. `on_progress` is called regularly
    /// with the number of bytes processed, and returns whether to continue. `on_part` is called with the result of each
    /// part, or of several consecutive parts, in the order of the files, until they have as many rows as the plan
    /// limits. Both are called on this thread.
    ///
    /// # Errors
    /// [`RunError`] of a part, unless the parts before it have as many rows as the plan limits; or the error of
    /// `on_part`.
    pub fn run<E: From<RunError>>(
        &self,
        source: &Source,
        plan: &Plan,
        settings: Settings,
        on_progress: &mut dyn FnMut(u64) -> bool,
        on_part: &mut dyn FnMut(Partial) -> Result<(), E>,
    ) -> Result<Cost, E> {
        let of = |file: &SourceFile| self.index_of(&file.path).map(|at| (at, file.clone()));
        let files = source.files.iter().map(of).collect::<Result<Vec<_>, _>>()?;
        let places: Vec<_> = self.places.iter().map(|place| place.stages()).collect();
        let ended = places::run(&files, &places, (plan, settings), on_progress, on_part)?;
        let mut whole = Cost::default();
        for Ended { place, stats, lost } in ended {
            let place = &self.places[place];
            let PartCost { place: at, lost, .. } = place.cost(stats, lost.as_deref());
            whole.stats = whole.stats.plus(stats);
            whole.places.push(at);
            whole.lost.extend(lost.map(|why| place.warning(&why)));
        }
        Ok(whole)
    }
}

impl Place {
    fn connect(at: Where, falls_back: bool) -> Result<Self, SessionError> {
        let (maps, lost) = match &at {
            Where::Here(_) => (FileMaps::local(), None),
            Where::Target { url, device } => {
                let device = NamespaceDevice::new(device)?;
                let maps = Controller::connect(url, Options::default())
                    .and_then(|controller| FileMaps::new(controller, url.nsid, device));
                match maps {
                    Ok(maps) => {
                        let has_none = "the target has no pushdown: the stages run here";
                        let lost = (!maps.has_target()).then(|| has_none.to_owned());
                        (maps, lost)
                    }
                    Err(error) if falls_back => {
                        let why = format!("{error}: the stages run here, over plain reads");
                        (FileMaps::local(), Some(why))
                    }
                    Err(source) => return Err(SessionError::Target { url: url.clone(), source }),
                }
            }
        };
        Ok(Self { at, maps, loaded: LoadedStages::default(), since: Instant::now(), lost })
    }

    /// Whether to connect to its target once more.
    fn is_worth_a_try(&self, falls_back: bool) -> bool {
        let is_connected = self.maps.is_connected() && !self.loaded.is_given_up();
        let is_local = matches!(self.at, Where::Here(_)) || is_connected;
        let is_new = self.lost.is_some() && falls_back && self.since.elapsed() < TRY_AGAIN_AFTER;
        !is_local && !is_new
    }

    fn stages(&self) -> Stages<'_> {
        Stages::kept(&self.maps, &self.loaded)
    }

    fn warning(&self, why: &str) -> String {
        match &self.at {
            Where::Here(_) => format!("this machine: {why}"),
            Where::Target { url, .. } => format!("{url}: {why}"),
        }
    }

    fn cost(&self, stats: Stats, lost: Option<&str>) -> PartCost {
        let here = stats.chains - stats.chains_at_target;
        let lost = match (&self.at, &self.lost, lost) {
            (Where::Here(_), ..) => None,
            (_, Some(why), _) => Some(why.clone()),
            (.., Some(why)) => {
                Some(format!("{why}: {here} of {} chains ran here, over plain reads", stats.chains))
            }
            _ if here == 0 => None,
            _ if !self.maps.is_connected() => Some(format!(
                "the connection was lost: {here} of {} chains ran here, over plain reads",
                stats.chains
            )),
            _ => Some(format!(
                "{here} of {} chains ran here: the target did not have a map of the file, or the file changed",
                stats.chains
            )),
        };
        PartCost { stats, place: self.at.to_string(), lost }
    }
}

impl Stats {
    /// The sum of both.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_copy_that_has_connected_counts() {
        let mut session = Session::default();
        let paths = ["a", "b"].map(Path::new);
        let mut copies = paths.map(|path| {
            let mut copy = session.clone();
            copy.add(path, &Reach::Here, true).expect("a place");
            copy
        });
        for (copy, path) in copies.iter_mut().zip(paths) {
            session.take_over(copy, &[path, Path::new("not added")], true);
        }
        assert_eq!(session.places.len(), 1);
        assert!(Arc::ptr_eq(&session.places[0], &copies[0].places[0]));
        assert!(paths.iter().all(|path| session.place_of(path).is_some()));
        assert_eq!(session.of.len(), 2);
    }
}
