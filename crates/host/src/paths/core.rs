//! The existing associations, one for each path, and the states of the paths.

use super::info::PathInfo;
use super::state::{PathState, States};
use super::terms::Terms;
use crate::association::{Association, DataLimits, TRANSFER_MAX_BYTES};
use crate::deadline::deadline;
use crate::lane_plan::LanePlan;
use crate::queue::Queue;
use crate::{CommandError, Error, LostReason, NamespaceInfo, Options, TargetUrl};
use bpfof_nvme::opcode::admin;
use bpfof_nvme::{Cqe, Sqe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// After the first path is connected, how long to wait for the others before the program continues.
const OTHERS: Duration = Duration::from_millis(250);

/// An association of a path, with its unique number.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) path: usize,
    pub(crate) number: u64,
    pub(crate) association: Arc<Association>,
}

/// The paths of a controller, shared with threads and lanes. They end when the owner is dropped.
#[derive(Debug)]
pub(crate) struct Paths {
    /// The address with all portals.
    url: TargetUrl,
    options: Options,
    /// The addresses with one portal each.
    portals: Vec<TargetUrl>,
    table: Mutex<Table>,
    /// Signalled when the table has changed.
    changed: Condvar,
    /// Counts changes of the table.
    generation: AtomicU64,
}

#[derive(Debug)]
struct Table {
    states: States,
    links: Vec<Option<Link>>,
    /// The properties that all paths must have in common: those of the first path that came up, and the namespace of
    /// the first path that had it.
    terms: Option<Terms>,
    last_number: u64,
    has_ended: bool,
}

impl Table {
    /// The terms with which a new path with `terms` must agree.
    fn common(&self, terms: &Terms) -> Option<Terms> {
        let is_alone = self.links.iter().flatten().next().is_none();
        self.terms.map(|common| if is_alone { common.renewed(terms) } else { common })
    }

    fn compare(&self, terms: &Terms) -> Result<(), Error> {
        let missing = self.common(terms).and_then(|common| common.missing_in(terms));
        missing.map_or(Ok(()), |why| Err(Error::OtherTarget(why)))
    }
}

impl Paths {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn address(&self, path: usize) -> String {
        let portal = self.portals.get(path).and_then(|url| url.portals().next());
        portal.map_or_else(String::new, |portal| portal.to_string())
    }

    /// Wakes the threads that wait for a change. The table must be locked.
    fn tell(&self, _: &MutexGuard<'_, Table>) {
        self.generation.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }

    /// The number of changes so far. A caller that reads it before the table misses no change.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Whether the controller has been dropped.
    pub(crate) fn has_ended(&self) -> bool {
        self.table().has_ended
    }

    /// The best path; None if no path is usable.
    pub(crate) fn best(&self) -> Option<Link> {
        let table = self.table();
        let best = table.states.best()?;
        table.links.get(best)?.clone()
    }

    /// The same, but waits until `end` for a usable path.
    pub(super) fn wait_best(&self, end: Instant) -> Result<Link, Error> {
        let mut table = self.table();
        loop {
            let best = table.states.best();
            if let Some(link) = best.and_then(|best| table.links.get(best)?.clone()) {
                return Ok(link);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || table.has_ended {
                return Err(self.no_path_of(&table));
            }
            table =
                self.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The paths that requests may use, the best first.
    pub(crate) fn usable(&self) -> Vec<Link> {
        let table = self.table();
        let mut paths = table.states.connected();
        paths.retain(|path| table.states.state(*path).is_usable());
        paths.into_iter().filter_map(|path| table.links.get(path)?.clone()).collect()
    }

    /// Whether requests may use this link.
    pub(super) fn is_usable(&self, link: &Link) -> bool {
        let table = self.table();
        let now = table.links.get(link.path).and_then(Option::as_ref);
        now.is_some_and(|now| now.number == link.number)
            && table.states.state(link.path).is_usable()
    }

    /// Connects an I/O queue on a path, for a lane whose next queue may be on any other path.
    pub(crate) fn open_queue(
        &self,
        link: &Link,
        namespaces: &Arc<[NamespaceInfo]>,
    ) -> Result<(Queue, u16, LanePlan), Error> {
        let limits = self.limits().unwrap_or_else(|| link.association.data_limits());
        link.association.open_queue_as_path(namespaces, limits)
    }

    /// The data limits that the queues of all paths share.
    fn limits(&self) -> Option<DataLimits> {
        self.table().terms.map(|terms| terms.limits)
    }

    /// Most data of one command, in bytes.
    pub(super) fn max_transfer_bytes(&self) -> u32 {
        self.limits().map_or(TRANSFER_MAX_BYTES, |limits| limits.transfer_bytes)
    }

    /// Waits until something changes after `generation`, or for `at_most`.
    pub(crate) fn wait_change(&self, generation: u64, at_most: Duration) {
        let table = self.table();
        if self.generation() == generation {
            // A spurious wake-up does no harm.
            drop(self.changed.wait_timeout(table, at_most));
        }
    }

    /// The error that no path is usable, with the reasons.
    pub(super) fn no_path(&self) -> Error {
        self.no_path_of(&self.table())
    }

    fn no_path_of(&self, table: &Table) -> Error {
        let reasons = (0..self.portals.len()).map(|path| {
            let state = table.states.state(path);
            let reason = table.states.reason(path).map(|reason| format!(": {reason}"));
            format!("{} is {state}{}", self.address(path), reason.unwrap_or_default())
        });
        let reasons = reasons.collect::<Vec<_>>().join("; ");
        Error::NoPath { reasons, is_denied: table.states.is_denied() }
    }

    /// Ends an association that was lost or cannot be used. Returns the time until which the target may still carry out
    /// requests; `None` if that is unknown.
    pub(crate) fn lost(&self, link: &Link, reason: &dyn ToString) -> Option<Instant> {
        let mut table = self.table();
        let reason = reason.to_string();
        if table.states.lost((link.path, link.number), reason.clone(), Instant::now()) {
            if let Some(place) = table.links.get_mut(link.path) {
                *place = None;
            }
            let others = match table.states.best() {
                Some(best) => format!("requests continue over {}", self.address(best)),
                None => "there is no other usable path".to_owned(),
            };
            if !table.has_ended {
                let address = self.address(link.path);
                log::warn!("{}: path {address} is lost: {reason}; {others}", self.url);
                self.tell(&table);
            }
        }
        drop(table);
        // Only now: a thread that noticed the end earlier would report its own reason first.
        link.association.end()
    }

    /// A path has refused a request.
    pub(crate) fn refused(&self, link: &Link, error: &CommandError) {
        let mut table = self.table();
        if table.states.refused((link.path, link.number), error, Instant::now()) {
            log::warn!("{}: path {} refuses requests: {error}", self.url, self.address(link.path));
            self.tell(&table);
        }
    }

    /// A path has refused a lane's new connection.
    pub(crate) fn refused_queue(&self, link: &Link, error: &Error) {
        let address = self.address(link.path);
        log::warn!("{}: path {address} refuses a lane: {error}", self.url);
    }

    /// Carries out an admin command on the best path. If that is lost and the command changes nothing, tries again on
    /// another.
    pub(crate) fn call(
        &self,
        sqe: Sqe,
        data_out: &[u8],
        data_in_max_bytes: u32,
    ) -> Result<(Cqe, Vec<u8>), Error> {
        self.on_best(changes_nothing(sqe.opcode), |association| {
            association.call(sqe, data_out, data_in_max_bytes)
        })
    }

    /// Calls `act` with the association of the best path. If that path is lost and `again`, tries again on another: as
    /// often as there are paths, and within the connect timeout more often.
    pub(super) fn on_best<T>(
        &self,
        again: bool,
        mut act: impl FnMut(&Arc<Association>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let end = deadline(self.options.connect_timeout);
        let mut tries = 0;
        loop {
            let link = self.wait_best(end)?;
            let answer = act(&link.association);
            let Err(error) = &answer else { return answer };
            let Some(reason) = error.lost() else { return answer };
            self.lost(&link, &reason);
            tries += 1;
            // Bound the tries, because paths are reconnected and there may always be a best one.
            let is_over = tries >= self.count() && Instant::now() >= end;
            if is_over || !again {
                return answer;
            }
        }
    }

    /// Stops connecting paths. Returns those that are connected.
    pub(super) fn close(&self) -> Vec<Link> {
        let mut table = self.table();
        table.has_ended = true;
        self.tell(&table);
        table.links.iter().flatten().cloned().collect()
    }

    /// Waits for the first path, and a little longer for the others, because one of them may be better.
    pub(super) fn wait_first(&self) -> Result<Link, Error> {
        let mut table = self.table();
        let mut first = None;
        while !table.states.all_tried() {
            let best = table.states.best();
            if best.is_some() && first.is_none() {
                first = Some(Instant::now());
            }
            // Until a path is usable there is no limit here: each attempt ends by the connect timeout.
            let left = first.map_or(OTHERS, |first| OTHERS.saturating_sub(first.elapsed()));
            if best == Some(0) || left.is_zero() {
                break;
            }
            table =
                self.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if table.links.iter().all(Option::is_none) {
            return Err(self.no_path_of(&table));
        }
        drop(table);
        // If no path is usable yet, a connected one may become usable.
        self.wait_best(deadline(self.options.connect_timeout))
    }

    /// The paths of `url`; none is connected yet.
    pub(super) fn new(url: &TargetUrl, options: Options) -> Self {
        let portals: Vec<TargetUrl> = url.portals().map(|portal| url.by(portal)).collect();
        let table = Table {
            states: States::new(portals.len(), Instant::now()),
            links: vec![None; portals.len()],
            terms: None,
            last_number: 0,
            has_ended: false,
        };
        let (table, changed) = (Mutex::new(table), Condvar::new());
        let generation = AtomicU64::new(0);
        Self { url: url.clone(), options, portals, table, changed, generation }
    }

    /// The number of paths.
    pub(super) const fn count(&self) -> usize {
        self.portals.len()
    }

    /// The address of one path.
    pub(super) fn portal(&self, path: usize) -> Option<&TargetUrl> {
        self.portals.get(path)
    }

    /// The namespace that the address names.
    pub(super) const fn nsid(&self) -> u32 {
        self.url.nsid
    }

    pub(super) fn state(&self, path: usize) -> PathState {
        self.table().states.state(path)
    }

    /// The connected paths, the best first.
    pub(super) fn connected(&self) -> Vec<Link> {
        let table = self.table();
        let paths = table.states.connected();
        paths.into_iter().filter_map(|path| table.links.get(path)?.clone()).collect()
    }

    /// Whether a path with these terms agrees with the common terms, as far as they are known.
    pub(super) fn compare(&self, terms: &Terms) -> Result<(), Error> {
        self.table().compare(terms)
    }

    /// A path is connected and ready.
    pub(super) fn came_up(
        &self,
        path: usize,
        association: &Arc<Association>,
        terms: Terms,
        state: PathState,
    ) -> Result<Link, Error> {
        let mut table = self.table();
        if table.has_ended {
            return Err(LostReason::HungUp.into());
        }
        table.compare(&terms)?;
        table.terms = table.common(&terms);
        let common = table.terms.get_or_insert(terms);
        let is_first_with_namespace = common.namespace.is_none() && terms.namespace.is_some();
        common.namespace = common.namespace.or(terms.namespace);
        // Paths without the namespace must be reconnected, so that it is compared when they get it.
        let without: Vec<Link> = match is_first_with_namespace {
            true => table.links.iter().flatten().cloned().collect(),
            false => Vec::new(),
        };
        table.last_number += 1;
        let number = table.last_number;
        let link = Link { path, number, association: Arc::clone(association) };
        if let Some(place) = table.links.get_mut(path) {
            *place = Some(link.clone());
        }
        table.states.came_up(path, number, state, Instant::now());
        log::info!("{}: path {} is {state}", self.url, self.address(path));
        self.tell(&table);
        drop(table);
        for other in without {
            self.lost(&other, &Error::OtherTarget(Terms::NO_NAMESPACE));
        }
        Ok(link)
    }

    /// Records the state of a path as its target reports it.
    pub(super) fn learned(&self, link: &Link, state: PathState, by_event: bool) {
        let mut table = self.table();
        let known = (link.path, link.number);
        if table.states.learned(known, state, by_event, Instant::now()) {
            log::info!("{}: path {} is {state}", self.url, self.address(link.path));
            self.tell(&table);
        }
    }

    /// A path could not be connected.
    pub(super) fn failed(&self, path: usize, error: &Error) {
        let mut table = self.table();
        if table.states.failed(path, error.to_string(), error.is_denied()) && !table.has_ended {
            log::warn!("{}: path {} cannot be used: {error}", self.url, self.address(path));
        }
        self.tell(&table);
    }

    /// Waits before a path is reconnected.
    pub(super) fn pause(&self, path: usize) {
        let mut table = self.table();
        let end = Instant::now() + table.states.pause(path);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || table.has_ended {
                return;
            }
            table =
                self.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The public description of the paths.
    pub(super) fn info(&self) -> Vec<PathInfo> {
        let table = self.table();
        let best = table.states.best();
        (0..self.portals.len())
            .map(|path| PathInfo {
                address: self.address(path),
                state: table.states.state(path),
                is_preferred: best == Some(path),
                reason: table.states.reason(path).map(str::to_owned),
            })
            .collect()
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
