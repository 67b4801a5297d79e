//! State shared by files, readers and the keeper.

use super::device::NamespaceDevice;
use super::mapped_file::MappedFile;
use super::nvme::NvmeNamespace;
use super::shared_lanes::SharedLanes;
use super::sys::BreakSignal;
use crate::deadline::deadline;
use crate::grant::{Ender, GrantClient};
use crate::vectors::VectorLimits;
use crate::{Caravan, Controller, Error, Lane, NamespaceInfo, SharedLane, Status};
use std::iter;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// With several paths, how long chains wait for a usable path to the target before they run on this machine.
const PATH_PATIENCE: Duration = Duration::from_secs(1);

/// Where chains over mapped files run, and how maps get there.
#[derive(Debug)]
pub(crate) enum Server {
    /// A target.
    Target(Box<Mutex<Controller>>, Place),
    /// Readers run the chains themselves, on a namespace of this machine.
    Namespace(NvmeNamespace, Place),
    /// A target, to which the grant daemon sends the maps; and a handle that ends the connection to the daemon without
    /// waiting for its answer.
    Grants(Box<Mutex<GrantClient>>, Ender),
}

/// The namespace on this machine, as needed to make maps.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) device: NamespaceDevice,
    /// The target's subsystem, to recognise the kernel's disk of another of its namespaces; None if `device` is
    /// compared in any case.
    pub(crate) nqn: Option<String>,
    /// Most extents of a mapped file.
    pub(crate) extents_max: usize,
}

/// A target or namespace.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) server: Server,
    pub(crate) info: NamespaceInfo,
    /// The target's limits on vectors.
    pub(crate) vectors: VectorLimits,
}

impl Remote {
    /// The target's controller, if this process has the association.
    pub(crate) fn controller(&self) -> Option<MutexGuard<'_, Controller>> {
        match &self.server {
            Server::Target(controller, _) => {
                Some(controller.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Server::Namespace(..) | Server::Grants(..) => None,
        }
    }

    /// The same, unless another thread is using it.
    pub(crate) fn idle_controller(&self) -> Option<MutexGuard<'_, Controller>> {
        match &self.server {
            Server::Target(controller, _) => match controller.try_lock() {
                Ok(controller) => Some(controller),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            },
            Server::Namespace(..) | Server::Grants(..) => None,
        }
    }

    /// Whether this process has the association with a target.
    pub(crate) const fn is_target(&self) -> bool {
        matches!(self.server, Server::Target(..))
    }

    /// Whether the grant daemon has the association.
    pub(crate) const fn is_granted(&self) -> bool {
        matches!(self.server, Server::Grants(..))
    }

    /// The connection to the grant daemon, if the daemon has the association.
    pub(crate) fn grants(&self) -> Option<MutexGuard<'_, GrantClient>> {
        match &self.server {
            Server::Grants(client, _) => {
                Some(client.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Server::Target(..) | Server::Namespace(..) => None,
        }
    }

    /// The namespace of this machine that readers read themselves.
    pub(crate) const fn namespace(&self) -> Option<&NvmeNamespace> {
        match &self.server {
            Server::Namespace(namespace, _) => Some(namespace),
            Server::Target(..) | Server::Grants(..) => None,
        }
    }

    /// The namespace's place on this machine; None if the grant daemon maps the files.
    pub(crate) const fn place(&self) -> Option<&Place> {
        match &self.server {
            Server::Target(_, place) | Server::Namespace(_, place) => Some(place),
            Server::Grants(..) => None,
        }
    }
}

/// Work that waits for the keeper.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) refresh: Vec<Arc<MappedFile>>,
    pub(crate) removed: Vec<Arc<MappedFile>>,
    pub(crate) stop: bool,
}

impl Queue {
    /// Whether the keeper has nothing to do.
    pub(crate) const fn is_empty(&self) -> bool {
        self.refresh.is_empty() && self.removed.is_empty() && !self.stop
    }
}

/// State shared by files, readers and the keeper.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) remote: Option<Remote>,
    /// Distinguishes associations.
    pub(crate) serial: u64,
    /// Whether versions are compared before and after chains.
    pub(crate) checks: bool,
    queue: Mutex<Queue>,
    /// Signalled after the keeper has examined a file or checked leases.
    looked: Condvar,
    signal: OnceLock<BreakSignal>,
    /// Whether the keeper runs.
    pub(crate) kept: AtomicBool,
    /// The keeper knows of all lease breaks that began before this time, in ns of [`now_ns`](super::lease::now_ns).
    seen_ns: AtomicU64,
    pub(crate) next_id: AtomicU32,
    /// The lanes that readers share, if they do.
    pub(crate) lanes: OnceLock<SharedLanes>,
    /// Unused lanes from the grant daemon, kept for later readers because the daemon limits their number.
    pub(crate) idle_lanes: Mutex<Vec<Lane>>,
    /// Number of readers.
    pub(crate) readers: AtomicUsize,
    /// Processors that this process may use.
    processors: usize,
    /// Statuses that made chains run by plain reads, and were logged.
    told: Mutex<Vec<Status>>,
}

impl Shared {
    pub(crate) fn new(remote: Option<Remote>, checks: bool) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        Self {
            remote,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            checks,
            queue: Mutex::default(),
            looked: Condvar::new(),
            signal: OnceLock::new(),
            kept: AtomicBool::new(false),
            seen_ns: AtomicU64::new(0),
            next_id: AtomicU32::new(1),
            lanes: OnceLock::new(),
            idle_lanes: Mutex::default(),
            readers: AtomicUsize::new(0),
            processors: std::thread::available_parallelism().map_or(1, NonZero::get),
            told: Mutex::default(),
        }
    }

    /// A lane of the association; None without a target.
    pub(crate) fn open_lane(&self) -> Result<Option<Lane>, Error> {
        let Some(remote) = &self.remote else { return Ok(None) };
        if remote.is_granted() {
            // First an idle lane: the keeper may hold the client while it waits for the daemon.
            if let Some(idle) = self.idle_lane() {
                return Ok(Some(idle));
            }
            return remote.grants().map(|mut client| client.lane()).transpose();
        }
        // Do not hold the controller while connecting: the keeper needs it, and other readers connect as well.
        let opener = remote.controller().map(|controller| controller.lane_opener());
        let lane = opener.map(|opener| opener.open()).transpose()?;
        Ok(lane.map(|mut lane| {
            lane.set_path_patience(PATH_PATIENCE);
            lane
        }))
    }

    /// The same, for readers to share: chains of several readers that are sent together are one command.
    pub(crate) fn open_shared_lane(&self) -> Result<Option<SharedLane>, Error> {
        let Some((remote, lane)) = self.remote.as_ref().zip(self.open_lane()?) else {
            return Ok(None);
        };
        let mut lane = SharedLane::new(lane, Caravan::default())?;
        lane.gather_within(remote.vectors);
        Ok(Some(lane))
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_signal(&self, signal: BreakSignal) {
        // Cannot fail: only the keeper sets it, once, at its start.
        let _ = self.signal.set(signal);
    }

    /// Wakes the keeper, if it still runs: after its end the kernel may reuse its thread id.
    pub(crate) fn wake(&self) {
        if let Some(signal) = self.signal.get().filter(|_| self.is_kept()) {
            signal.wake();
        }
    }

    pub(crate) fn refresh(&self, entry: &Arc<MappedFile>) {
        if self.is_kept() && entry.enqueue() {
            self.queue().refresh.push(Arc::clone(entry));
            self.wake();
        }
    }

    pub(crate) fn remove(&self, entry: Arc<MappedFile>) {
        if self.is_kept() {
            self.queue().removed.push(entry);
            self.wake();
        }
    }

    /// Keeps a lane of the grant daemon for the next reader; closes other lanes.
    pub(crate) fn leave_lane(&self, lane: Lane) {
        let is_granted = self.remote.as_ref().is_some_and(Remote::is_granted);
        if is_granted && lane.is_connected() && lane.requests_in_flight() == 0 {
            self.idle_lanes().push(lane);
        }
    }

    /// Takes an idle lane; drops those whose connections have ended meanwhile.
    fn idle_lane(&self) -> Option<Lane> {
        let mut idle = self.idle_lanes();
        iter::from_fn(|| idle.pop()).find_map(|mut lane| lane.check_connected().then_some(lane))
    }

    pub(crate) fn idle_lanes(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.idle_lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes waiting threads after the keeper has examined a file, or checked for broken leases.
    pub(crate) fn tell(&self) {
        let _queue = self.queue();
        self.looked.notify_all();
    }

    /// Waits until `done` returns true; calls it after each [`tell`](Self::tell) of the keeper.
    /// False if `patience` ends first.
    pub(crate) fn wait_until(&self, patience: Duration, done: &mut dyn FnMut() -> bool) -> bool {
        let end = deadline(patience);
        let mut queue = self.queue();
        loop {
            if done() {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.is_kept() {
                return false;
            }
            let waited = self.looked.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the keeper has ended; false if `patience` ends first.
    pub(crate) fn wait_ended(&self, patience: Duration) -> bool {
        self.wait_until(patience, &mut || !self.is_kept())
    }

    pub(crate) fn seen_ns(&self) -> u64 {
        self.seen_ns.load(Ordering::SeqCst)
    }

    /// Publishes that all lease breaks that began before `before_ns` are known. Only the keeper calls it.
    pub(crate) fn saw(&self, before_ns: u64) {
        self.seen_ns.store(before_ns, Ordering::SeqCst);
        self.tell();
    }

    /// Wakes the keeper and waits until it has checked for broken leases, for at most `patience`.
    pub(crate) fn wait_seen(&self, patience: Duration) {
        let before = self.seen_ns();
        self.wake();
        self.wait_until(patience, &mut || self.seen_ns() != before);
    }

    /// Whether there are more readers, assumed to be one per thread, than processors: then a thread
    /// that spins while it waits keeps another one from working.
    pub(crate) fn is_crowded(&self) -> bool {
        self.readers.load(Ordering::Relaxed) > self.processors
    }

    /// Logs, once for each status, why chains run by plain reads instead of at the target.
    #[cold]
    pub(crate) fn tell_refusal(&self, error: &Error) {
        let Error::Command { source, .. } = error else { return };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if !told.iter().any(|status| status.same_code(source.status)) {
            told.push(source.status);
            log::warn!(
                "chains run over plain reads, where the policy allows them, because of this error: \
                 {error}"
            );
        }
    }

    /// Whether the keeper makes and sends maps.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::SeqCst)
    }
}
