//! What files, readers and the keeper share.

use super::device::NamespaceDevice;
use super::mapped_file::MappedFile;
use super::nvme::NvmeNamespace;
use super::shared_lanes::SharedLanes;
use super::sys::BreakSignal;
use crate::deadline::deadline;
use crate::grant::{Ender, GrantClient};
use crate::vectors::VectorLimits;
use crate::{Caravan, Controller, Error, Lane, NamespaceInfo, SharedLane, Status};
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long chains wait for a path to the target before they run here, if there are several and none is
/// usable.
const PATH_PATIENCE: Duration = Duration::from_secs(1);

/// What runs the chains of files that have maps.
#[derive(Debug)]
pub(crate) enum Server {
    /// A target.
    Target(Box<Mutex<Controller>>, Place),
    /// Readers themselves, by a namespace of this machine.
    Namespace(NvmeNamespace, Place),
    /// A target, to which the grant daemon gives the maps; and what ends the connection to the daemon without a
    /// wait for its answer.
    Grants(Box<Mutex<GrantClient>>, Ender),
}

/// What a namespace is on this machine, for who makes maps.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) device: NamespaceDevice,
    /// The subsystem whose namespace it is by the kernel's host, if that has connected it; None where it is the
    /// namespace in any case.
    pub(crate) nqn: Option<String>,
    /// Extents of a file that is mapped, at most.
    pub(crate) extents_max: usize,
}

/// A target or namespace.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) server: Server,
    pub(crate) info: NamespaceInfo,
    /// What a target takes.
    pub(crate) vectors: VectorLimits,
}

impl Remote {
    /// That of the target, if this process has the association.
    pub(crate) fn controller(&self) -> Option<MutexGuard<'_, Controller>> {
        match &self.server {
            Server::Target(controller, _) => {
                Some(controller.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Server::Namespace(..) | Server::Grants(..) => None,
        }
    }

    /// The same, unless somebody uses it just now.
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

    /// Whether it is a target, and this process has the association.
    pub(crate) const fn is_target(&self) -> bool {
        matches!(self.server, Server::Target(..))
    }

    /// Whether the grant daemon has the association.
    pub(crate) const fn is_granted(&self) -> bool {
        matches!(self.server, Server::Grants(..))
    }

    /// The connection to the grant daemon, if that has the association.
    pub(crate) fn grants(&self) -> Option<MutexGuard<'_, GrantClient>> {
        match &self.server {
            Server::Grants(client, _) => {
                Some(client.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Server::Target(..) | Server::Namespace(..) => None,
        }
    }

    /// The namespace that readers read themselves.
    pub(crate) const fn namespace(&self) -> Option<&NvmeNamespace> {
        match &self.server {
            Server::Namespace(namespace, _) => Some(namespace),
            Server::Target(..) | Server::Grants(..) => None,
        }
    }

    /// Where this process finds the files that it maps; None if the grant daemon maps them.
    pub(crate) const fn place(&self) -> Option<&Place> {
        match &self.server {
            Server::Target(_, place) | Server::Namespace(_, place) => Some(place),
            Server::Grants(..) => None,
        }
    }
}

/// What waits for the keeper.
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

/// What files, readers and the keeper share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) remote: Option<Remote>,
    /// Tells associations apart.
    pub(crate) serial: u64,
    /// Whether versions are compared before and after chains.
    pub(crate) checks: bool,
    queue: Mutex<Queue>,
    /// The keeper has looked at a file.
    looked: Condvar,
    signal: OnceLock<BreakSignal>,
    /// The keeper runs.
    pub(crate) kept: AtomicBool,
    /// The keeper knows all leases whose breaks began before, in the time of `lease`, in ns.
    seen_ns: AtomicU64,
    pub(crate) next_id: AtomicU32,
    /// Those that readers share, if they do.
    pub(crate) lanes: OnceLock<SharedLanes>,
    /// Lanes that the grant daemon has given, and nobody uses: it does not give as many as one likes.
    pub(crate) idle_lanes: Mutex<Vec<Lane>>,
    /// Readers that there are.
    pub(crate) readers: AtomicUsize,
    /// Processors that this process may use.
    processors: usize,
    /// Statuses for which chains run by plain reads, of which was told.
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
            // The keeper may wait for the daemon.
            if let Some(idle) = self.idle_lanes().pop() {
                return Ok(Some(idle));
            }
            return remote.grants().map(|mut client| client.lane()).transpose();
        }
        // The keeper needs the controller, and other readers connect as well.
        let opener = remote.controller().map(|controller| controller.lane_opener());
        let lane = opener.map(|opener| opener.open()).transpose()?;
        Ok(lane.map(|mut lane| {
            lane.set_path_patience(PATH_PATIENCE);
            lane
        }))
    }

    /// The same, for readers to share: chains of several that leave together are one command.
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
        // Set once, by the keeper as it starts.
        let _ = self.signal.set(signal);
    }

    /// Wakes the keeper, if there still is one: the kernel gives its thread's number to others later.
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

    /// Keeps a lane of the grant daemon for the next reader; closes others.
    pub(crate) fn leave_lane(&self, lane: Lane) {
        let is_granted = self.remote.as_ref().is_some_and(Remote::is_granted);
        if is_granted && lane.is_connected() && lane.requests_in_flight() == 0 {
            self.idle_lanes().push(lane);
        }
    }

    pub(crate) fn idle_lanes(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.idle_lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those who wait that the keeper has looked at a file, or for broken leases.
    pub(crate) fn tell(&self) {
        let _queue = self.queue();
        self.looked.notify_all();
    }

    /// Waits until `done`, which is asked after each look of the keeper; false if `patience` ends
    /// before.
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

    /// Waits until the keeper has ended; false if `patience` ends before.
    pub(crate) fn wait_ended(&self, patience: Duration) -> bool {
        self.wait_until(patience, &mut || !self.is_kept())
    }

    pub(crate) fn seen_ns(&self) -> u64 {
        self.seen_ns.load(Ordering::SeqCst)
    }

    /// All leases whose breaks began before are known. Only the keeper calls it.
    pub(crate) fn saw(&self, before_ns: u64) {
        self.seen_ns.store(before_ns, Ordering::SeqCst);
        self.tell();
    }

    /// Waits until the keeper has looked for broken leases again, at most so long.
    pub(crate) fn wait_seen(&self, patience: Duration) {
        let before = self.seen_ns();
        self.wake();
        self.wait_until(patience, &mut || self.seen_ns() != before);
    }

    /// Whether readers, one for each thread, are more than processors: who spins while it waits
    /// then keeps another from working.
    pub(crate) fn is_crowded(&self) -> bool {
        self.readers.load(Ordering::Relaxed) > self.processors
    }

    /// Tells, once for each status, why what was to run there runs by plain reads.
    #[cold]
    pub(crate) fn tell_refusal(&self, error: &Error) {
        let Error::Command { source, .. } = error else { return };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if !told.iter().any(|status| status.same_code(source.status)) {
            told.push(source.status);
            log::warn!(
                "chains run by plain reads, where that is allowed, because of this: {error}"
            );
        }
    }

    /// Whether maps are made and sent.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::SeqCst)
    }
}
