//! Several paths to one subsystem: an association by each portal of the address, and what is known of
//! them.
//!
//! # How it works
//! - `keeper`: a thread for each path connects it, keeps it alive, hears of changes of its ANA state, and
//!   connects it again when it is lost.
//! - `state`: what is known of each path and which is the best, without connections.
//! - `intent`: functions and file maps, which each association gets.
//! - `ledger`, `kept`: the requests of a lane, kept until their ends are told, and what becomes of
//!   one that a path has not carried out.
//! - `lane`: a [`Lane`](crate::Lane) that goes on by another path.
//!
//! A path is lost as soon as one of its connections is. Then all of them are ended, so that
//! from there on the target hears nothing from this host on that association: it gives it up when its
//! keep-alive timeout has passed, if it has not noticed before. What may be done when is in docs/paths.md.

mod intent;
mod keeper;
mod kept;
mod lane;
mod ledger;
mod state;

pub use state::PathState;

pub(crate) use lane::OnPaths;

use crate::association::Association;
use crate::{
    Error, FileMapObject, FunctionId, FunctionMap, LostReason, MapChange, Options, TargetUrl,
};
use bpfof_nvme::opcode::admin;
use bpfof_nvme::{Cqe, Installation, Sqe};
use intent::Intent;
use state::States;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Once one path is there, the others may take so long to be there as well, before the program goes on.
const OTHERS: Duration = Duration::from_millis(250);

/// A path to a subsystem, as [`Controller::paths`](crate::Controller::paths) tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathInfo {
    /// Its portal: host and port.
    pub address: String,
    /// What it is good for.
    pub state: PathState,
    /// Whether new requests take it.
    pub is_preferred: bool,
    /// Why it is not usable, in words; none while it is.
    pub reason: Option<String>,
}

impl PathInfo {
    /// That of an address with one portal.
    pub(crate) fn of_only(url: &TargetUrl, is_connected: bool) -> Self {
        let state = if is_connected { PathState::Optimized } else { PathState::Lost };
        let address = url.portals().next().map_or_else(String::new, |portal| portal.to_string());
        Self { address, state, is_preferred: is_connected, reason: None }
    }
}

/// An association of a path, and its number, which no other has.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) path: usize,
    pub(crate) number: u64,
    pub(crate) association: Arc<Association>,
}

/// The paths of a controller. Threads and lanes have them as long as they need them; with the
/// [owner](PathsOwner) they end.
#[derive(Debug)]
pub(crate) struct Paths {
    /// With all portals.
    url: TargetUrl,
    options: Options,
    /// Each with one of them.
    portals: Vec<TargetUrl>,
    table: Mutex<Table>,
    /// With the table: something in it has changed.
    changed: Condvar,
    /// Counts its changes.
    generation: AtomicU64,
    /// Held while something is done on all associations, or all that was done is done on another.
    intent: Mutex<Intent>,
}

#[derive(Debug)]
struct Table {
    states: States,
    links: Vec<Option<Link>>,
    /// What all paths must have in common, as the first that was connected has it.
    terms: Option<keeper::Terms>,
    last_number: u64,
    has_ended: bool,
}

impl Paths {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn intent(&self) -> MutexGuard<'_, Intent> {
        self.intent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn address(&self, path: usize) -> String {
        let portal = self.portals.get(path).and_then(|url| url.portals().next());
        portal.map_or_else(String::new, |portal| portal.to_string())
    }

    /// Wakes those who wait for a change. The table is locked.
    fn tell(&self, _: &MutexGuard<'_, Table>) {
        self.generation.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }

    /// Counts what has changed: who has seen this number has seen it.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Whether the controller is gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.table().has_ended
    }

    /// The best path; none if no path is usable.
    pub(crate) fn best(&self) -> Option<Link> {
        let table = self.table();
        let best = table.states.best()?;
        table.links.get(best)?.clone()
    }

    /// The same, after waiting for it until `end`.
    fn wait_best(&self, end: Instant) -> Result<Link, Error> {
        let mut table = self.table();
        loop {
            let best = table.states.best();
            if let Some(link) = best.and_then(|best| table.links.get(best)?.clone()) {
                return Ok(link);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || table.has_ended {
                return Err(Error::NoPath(self.reasons(&table)));
            }
            table =
                self.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until something changes after `generation`, or for `at_most`.
    pub(crate) fn wait_change(&self, generation: u64, at_most: Duration) {
        let table = self.table();
        if self.generation() == generation {
            // Woken for nothing is no harm.
            drop(self.changed.wait_timeout(table, at_most));
        }
    }

    /// Each path's reason.
    fn reasons(&self, table: &Table) -> String {
        let reasons = (0..self.portals.len()).map(|path| {
            let state = table.states.state(path);
            let reason = table.states.reason(path).map(|reason| format!(": {reason}"));
            format!("{} is {state}{}", self.address(path), reason.unwrap_or_default())
        });
        reasons.collect::<Vec<_>>().join("; ")
    }

    /// Ends an association, because it was lost or is of no use. Until when the target may still carry
    /// out what was sent; `None` if nobody knows.
    pub(crate) fn lost(&self, link: &Link, reason: &dyn ToString) -> Option<Instant> {
        let over = link.association.end();
        let mut table = self.table();
        let reason = reason.to_string();
        if table.states.lost((link.path, link.number), reason.clone(), Instant::now()) {
            if let Some(place) = table.links.get_mut(link.path) {
                *place = None;
            }
            let others = match table.states.best() {
                _ if table.has_ended => return over,
                Some(best) => format!("requests go on by {}", self.address(best)),
                None => "there is no other path".to_owned(),
            };
            log::warn!(
                "{}: path {} is lost: {reason}; {others}",
                self.url,
                self.address(link.path)
            );
            self.tell(&table);
        }
        over
    }

    /// A path has refused a request.
    pub(crate) fn refused(&self, link: &Link, error: &crate::CommandError) {
        let mut table = self.table();
        if table.states.refused((link.path, link.number), error, Instant::now()) {
            log::warn!("{}: path {} refuses requests: {error}", self.url, self.address(link.path));
            self.tell(&table);
        }
    }

    /// Carries out an admin command by the best path; again by another if that is lost and the command
    /// changes nothing.
    pub(crate) fn call(
        &self,
        sqe: Sqe,
        data_out: &[u8],
        data_in_max_bytes: u32,
    ) -> Result<(Cqe, Vec<u8>), Error> {
        let end = Instant::now() + self.options.connect_timeout;
        loop {
            let link = self.wait_best(end)?;
            let answer = link.association.call(sqe, data_out, data_in_max_bytes);
            let Err(error) = &answer else { return answer };
            let Some(reason) = error.lost() else { return answer };
            self.lost(&link, &reason);
            if !changes_nothing(sqe.opcode) {
                return answer;
            }
        }
    }

    /// Does something on each association that there is, the best first, with the intent. What the first
    /// has done the others must do as well: those that cannot are of no use.
    fn on_each<T: Copy>(
        &self,
        mut act: impl FnMut(&mut Intent, &Arc<Association>, Option<T>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let end = Instant::now() + self.options.connect_timeout;
        loop {
            // Before the intent is locked: who brings a path to life has to lock it.
            self.wait_best(end)?;
            let mut intent = self.intent();
            let links: Vec<Link> = {
                let table = self.table();
                let paths = table.states.connected();
                paths.into_iter().filter_map(|path| table.links.get(path)?.clone()).collect()
            };
            let mut done = None;
            for link in &links {
                match act(&mut intent, &link.association, done) {
                    Ok(result) => done = done.or(Some(result)),
                    Err(error) if error.lost().is_none() && done.is_none() => return Err(error),
                    Err(error) => {
                        self.lost(link, &error);
                    }
                }
            }
            if let Some(done) = done {
                return Ok(done);
            }
        }
    }

    pub(crate) fn load(&self, object: &[u8], entry: u32) -> Result<FunctionId, Error> {
        self.on_each(|intent, association, known| intent.load(association, known, (object, entry)))
    }

    pub(crate) fn install(
        &self,
        object: &[u8],
        installation: Installation,
    ) -> Result<FunctionId, Error> {
        self.on_each(|intent, association, known| {
            intent.install(association, known, object, installation)
        })
    }

    pub(crate) fn unload(&self, id: FunctionId) -> Result<(), Error> {
        self.on_each(|intent, association, done: Option<()>| {
            intent.unload(association, id, done.is_none())
        })
    }

    /// On all associations: chains read by the map that their versions name, whichever path they take.
    pub(crate) fn set_file_map(&self, map: &FileMapObject) -> Result<(), Error> {
        let set = self.on_each(|intent, association, done: Option<()>| {
            let set = crate::Controller::of(Arc::clone(association)).set_file_map(map);
            match &set {
                Ok(()) => intent.note_file(map),
                Err(_) if done.is_none() => intent.forget_file(map.file),
                Err(_) => {}
            }
            set
        });
        if set.is_err() && map.version == 0 {
            self.intent().forget_file(map.file);
        }
        set
    }
}

impl Paths {
    /// Whether a function map is of an association of these.
    pub(crate) fn has(&self, map: &FunctionMap) -> bool {
        let table = self.table();
        let mut links = table.links.iter().flatten();
        links.any(|link| link.association.identify.cntlid == map.address.controller)
    }

    /// Changes an entry of a function map on all associations: by `change` on the first, and so that it is
    /// alike on the others. False as for [`Controller::map_change`](crate::Controller::map_change).
    pub(crate) fn change_map(
        &self,
        name: &str,
        change: MapChange,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, Error> {
        self.on_each(|intent, association, done: Option<bool>| {
            let then = if change == MapChange::Delete { change } else { MapChange::Set };
            match done {
                Some(false) => Ok(false),
                Some(true) => intent.change_map(association, name, then, (key, value)),
                None => intent.change_map(association, name, change, (key, value)),
            }
        })
    }
}

/// Whether an admin command may be carried out twice.
fn changes_nothing(opcode: u8) -> bool {
    matches!(
        opcode,
        admin::IDENTIFY
            | admin::GET_LOG_PAGE
            | admin::GET_FEATURES
            | admin::FUNCTION_REPORT
            | admin::PUSHDOWN_IDENTIFY
            | admin::MAP_REPORT
            | admin::MAP_GET
            | admin::MAP_READ
    )
}

/// The paths of a controller, which end when this is dropped.
#[derive(Debug)]
pub(crate) struct PathsOwner(Arc<Paths>);

impl PathsOwner {
    /// Starts a thread for each portal, and waits until the best path there is can be told.
    ///
    /// # Errors
    /// [`Error::NoPath`]; [`Error::SeveralPortals`].
    pub(crate) fn start(
        url: &TargetUrl,
        options: &Options,
    ) -> Result<(Arc<Association>, PathsOwner), Error> {
        if options.pushdown_only {
            return Err(Error::SeveralPortals("a restricted association has one"));
        }
        if options.connector.is_some() {
            return Err(Error::SeveralPortals("a target of this process has one"));
        }
        let mut options = options.clone();
        options.keep_alive = options.path_timeout.max(Duration::from_millis(100));
        let portals: Vec<TargetUrl> = url.portals().map(|portal| url.by(portal)).collect();
        let paths = portals.len();
        let table = Table {
            states: States::new(paths, Instant::now()),
            links: vec![None; paths],
            terms: None,
            last_number: 0,
            has_ended: false,
        };
        let owner = PathsOwner(Arc::new(Paths {
            url: url.clone(),
            options,
            portals,
            table: Mutex::new(table),
            changed: Condvar::new(),
            generation: AtomicU64::new(0),
            intent: Mutex::default(),
        }));
        for path in 0..paths {
            keeper::start(&owner.0, path).map_err(Error::Thread)?;
        }
        let link = owner.0.wait_first()?;
        Ok((link.association, owner))
    }

    pub(crate) fn shared(&self) -> &Arc<Paths> {
        &self.0
    }

    pub(crate) fn info(&self) -> Vec<PathInfo> {
        let table = self.0.table();
        let best = table.states.best();
        (0..self.0.portals.len())
            .map(|path| PathInfo {
                address: self.0.address(path),
                state: table.states.state(path),
                is_preferred: best == Some(path),
                reason: table.states.reason(path).map(str::to_owned),
            })
            .collect()
    }

    /// Shuts all controllers down in order.
    pub(crate) fn shut_down(&self) -> Result<(), Error> {
        let links = self.0.close();
        links.iter().map(|link| link.association.shut_down()).fold(Ok(()), Result::and)
    }
}

impl std::ops::Deref for PathsOwner {
    type Target = Paths;

    fn deref(&self) -> &Paths {
        &self.0
    }
}

impl Drop for PathsOwner {
    fn drop(&mut self) {
        for link in self.0.close() {
            self.0.lost(&link, &LostReason::HungUp);
        }
    }
}

impl Paths {
    /// No path is connected any more; those that are.
    fn close(&self) -> Vec<Link> {
        let mut table = self.table();
        table.has_ended = true;
        self.tell(&table);
        table.links.iter().flatten().cloned().collect()
    }

    /// Waits for the first path, and a little for the others, of which one may be better.
    fn wait_first(&self) -> Result<Link, Error> {
        let mut table = self.table();
        let mut first = None;
        while !table.states.all_tried() {
            let best = table.states.best();
            if best.is_some() && first.is_none() {
                first = Some(Instant::now());
            }
            // Each path's own limit is the connect timeout.
            let left = first.map_or(OTHERS, |first| OTHERS.saturating_sub(first.elapsed()));
            if best == Some(0) || left.is_zero() {
                break;
            }
            table =
                self.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if table.links.iter().all(Option::is_none) {
            return Err(Error::NoPath(self.reasons(&table)));
        }
        drop(table);
        // Where none is usable, one that is connected may become so.
        self.wait_best(Instant::now() + self.options.connect_timeout)
    }
}
