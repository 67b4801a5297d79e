//! The files of an association, and the thread that keeps their maps.

use super::access::Access;
use super::batch_read::PIECE_MAX_BYTES;
use super::device::NamespaceDevice;
use super::error::MapRefusal;
use super::file::PushdownFile;
use super::function::{LocalMaps, StorageFunction};
use super::keeper;
use super::mapped_file::{Kind, MappedFile};
use super::nvme::NvmeNamespace;
use super::shared::{Place, Remote, Server, Shared};
use super::shared_lanes::SharedLanes;
use crate::deadline::deadline;
use crate::grant::{GrantClient, GrantError};
use crate::vectors::VectorLimits;
use crate::{Controller, Error};
use bpfof_chain::Peers;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long to wait for a map before requesting it again.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Dropping [`FileMaps`] waits for an answer of the grant daemon no longer than this, and then ends the connection: the
/// daemon may be writing a file back to disk.
const GRANTS_PATIENCE: Duration = Duration::from_secs(1);

/// Most extents of a file if readers in this process use the map: 24 MiB.
const EXTENTS_MAX_HERE: usize = 1 << 20;

/// The files that chains of one association read, with their maps at the target.
///
/// A thread, the keeper, makes the maps, sends them, and releases leases. Files stay usable after
/// this is dropped; their chains then fall back to plain reads.
#[derive(Debug)]
pub struct FileMaps {
    pub(crate) shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
    /// The functions translated for this process, by their numbers.
    peers: Peers,
    /// The function maps of functions that run in this process.
    function_maps: LocalMaps,
}

impl FileMaps {
    /// Files on namespace `nsid` of the target, which is `device` on this machine. A target without
    /// pushdown is no error: chains then run in this process, as with [`local`](Self::local).
    ///
    /// # Errors
    /// No such namespace; [`Error::OtherDevice`] if `device` is the kernel's disk of another namespace; a command to
    /// the target fails; the thread cannot be started.
    pub fn new(controller: Controller, nsid: u32, device: NamespaceDevice) -> Result<Self, Error> {
        Self::start(controller, nsid, device, true)
    }

    /// The same without comparing versions: answers may be wrong as soon as a file changes. For
    /// tests, which must detect such wrong answers.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    #[doc(hidden)]
    pub fn unchecked(
        controller: Controller,
        nsid: u32,
        device: NamespaceDevice,
    ) -> Result<Self, Error> {
        Self::start(controller, nsid, device, false)
    }

    fn start(
        mut controller: Controller,
        nsid: u32,
        device: NamespaceDevice,
        checks: bool,
    ) -> Result<Self, Error> {
        let info = controller.identify_namespace(nsid)?;
        if u64::from(info.block_bytes) > PIECE_MAX_BYTES {
            return Err(Error::BadAnswer("logical blocks above 128 KiB"));
        }
        let limits = match controller.pushdown_limits() {
            Ok(limits) => limits,
            Err(Error::NotPushdownTarget | Error::ProtocolVersion { .. }) => {
                return Ok(Self::local());
            }
            Err(error) => return Err(error),
        };
        let nqn = controller.url().nqn.clone();
        device.compare(&info, Some(&nqn)).map_err(Error::OtherDevice)?;
        let is_as_long = |bytes: u64| bytes.abs_diff(info.size_bytes()) < info.block_bytes.into();
        if let Some(bytes) = device.length_bytes().filter(|bytes| !is_as_long(*bytes)) {
            let (path, namespace) = (device.path().display(), info.size_bytes());
            log::warn!(
                "{path} has {bytes} bytes, but the namespace has {namespace}; check that the right \
                 device is named"
            );
        }
        let extents_max = limits.extents as usize;
        let place = Place { device, nqn: Some(nqn), extents_max };
        let server = Server::Target(Box::new(Mutex::new(controller)), place);
        Self::keep(Remote { server, info, vectors: VectorLimits::of(&limits) }, checks)
    }

    fn keep(remote: Remote, checks: bool) -> Result<Self, Error> {
        let shared = Arc::new(Shared::new(Some(remote), checks));
        let keeper = keeper::start(Arc::clone(&shared)).map_err(Error::Thread)?;
        Ok(Self {
            shared,
            keeper: Some(keeper),
            peers: Peers::default(),
            function_maps: LocalMaps::default(),
        })
    }

    /// Files on an NVMe namespace of this machine, whose block device is `device`. Chains run in this process and read
    /// by NVMe commands, past the file system and the block layer, with the same maps and checks as at a target. The
    /// character device itself, opened as a file, stands for the whole namespace.
    ///
    /// # Errors
    /// [`Error::OtherDevice`]; the thread cannot be started.
    pub fn passthrough(namespace: NvmeNamespace, device: NamespaceDevice) -> Result<Self, Error> {
        let info = namespace.info();
        let character = namespace.number().unwrap_or_default();
        device.compare_local(&info, character).map_err(Error::OtherDevice)?;
        let place = Place { device, nqn: None, extents_max: EXTENTS_MAX_HERE };
        let server = Server::Namespace(namespace, place);
        Self::keep(Remote { server, info, vectors: VectorLimits::UNKNOWN }, true)
    }

    /// Files that the grant daemon grants to this process one by one: for processes that may not have an association of
    /// their own, because an association can read whole namespaces. Chains over files with grants run at the target,
    /// others over plain reads; [`PushdownFile::refusal`] says why a file has no grant. docs/grants.md says which files
    /// get grants.
    ///
    /// # Errors
    /// The thread cannot be started, or no descriptor is free.
    pub fn granted(client: GrantClient) -> Result<Self, Error> {
        let info = client.namespace();
        let ender = client.ender().map_err(Error::Thread)?;
        let server = Server::Grants(Box::new(Mutex::new(client)), ender);
        Self::keep(Remote { server, info, vectors: VectorLimits::UNKNOWN }, true)
    }

    /// Files without a target: chains run in this process, by direct reads on an io_uring where the
    /// file system supports them ([`Executor::Local`](super::Executor::Local)), and by plain reads
    /// elsewhere.
    #[must_use]
    pub fn local() -> Self {
        let shared = Arc::new(Shared::new(None, true));
        Self { shared, keeper: None, peers: Peers::default(), function_maps: LocalMaps::default() }
    }

    /// Whether chains are pushed to a target.
    #[must_use]
    pub fn has_target(&self) -> bool {
        self.shared.remote.as_ref().is_some_and(|remote| remote.namespace().is_none())
    }

    /// Whether the keeper runs, so that a target or drive has maps of the files. Once false, it stays false.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.is_kept()
    }

    /// Opens a file, and begins to map it.
    ///
    /// # Errors
    /// The file cannot be opened. A file that cannot be mapped is no error: see
    /// [`PushdownFile::refusal`].
    pub fn open(&self, path: impl AsRef<Path>) -> std::io::Result<PushdownFile> {
        let file = OpenOptions::new().read(true).open(&path)?;
        Ok(self.add(file, path.as_ref().to_owned()))
    }

    /// The same for a file that is already open; messages call it `name`. A lease is possible only
    /// if the file was opened for reading only.
    #[must_use]
    pub fn add(&self, file: File, name: PathBuf) -> PushdownFile {
        let namespace = self.shared.remote.as_ref().and_then(Remote::namespace);
        let is_whole = namespace.is_some_and(|namespace| namespace.is(&file));
        let access = Access::Open(Arc::new(file));
        self.add_as(if is_whole { Kind::Namespace } else { Kind::Shared }, access, name)
    }

    /// The same for an open file that other processes may share: a duplicate of an inherited or received descriptor, of
    /// a file that this process may not open itself. It is used without a lease: an open file has at most one lease,
    /// and only one of the processes that share it is notified of its break.
    #[must_use]
    pub fn add_duplicate(&self, file: File, name: PathBuf) -> PushdownFile {
        self.add_as(Kind::Duplicate, Access::Open(Arc::new(file)), name)
    }

    /// The same for a file that is opened by its path when needed, so that it occupies no descriptor: once the target
    /// has its map, a memory mapping (at most half of `vm.max_map_count` are used) keeps its inode and its lease. For
    /// many files, which the caller must not rename. If the file is removed, chains over it run at a target that has
    /// its map, and fail elsewhere. Without a target, direct reads keep descriptors of files that they have read, up to
    /// a quarter of the process's limit (`RLIMIT_NOFILE`); further files are read by plain reads.
    #[must_use]
    pub fn add_path(&self, path: PathBuf) -> PushdownFile {
        self.add_as(Kind::Shared, Access::by_path(), path)
    }

    /// The same for a file that only the caller writes or truncates while it is open, and only past the page cache
    /// (`O_DIRECT`). Chains over it need no lease, and writes do not invalidate them: the answer of a chain is valid if
    /// all bytes of the file's map are still in their places. So maps survive growth of the file. The caller must
    /// tolerate whatever a chain sees of a block that is written meanwhile. After the file has grown,
    /// [`PushdownFile::refresh`] gets it a longer map.
    #[must_use]
    pub fn add_own(&self, file: File, name: PathBuf) -> PushdownFile {
        self.add_as(Kind::Own, Access::Open(Arc::new(file)), name)
    }

    fn add_as(&self, kind: Kind, access: Access, name: PathBuf) -> PushdownFile {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let mapped = Arc::new(MappedFile::new(id, access, name, kind));
        let file = PushdownFile::new(mapped, Arc::clone(&self.shared));
        file.refresh();
        file
    }

    /// Waits until `file` has a map that holds now, or is refused one; true if it has such a map. An earlier refusal does
    /// not count: the file is examined again. Of a file without a lease, dirty pages are written back first, however long
    /// that takes.
    #[must_use]
    pub fn wait_mapped(&self, file: &PushdownFile, patience: Duration) -> bool {
        self.wait_mapped_while(file, patience, &mut || true)
    }

    /// The same; also ends, with false unless `file` has a map, once `goes_on` returns false. It is called at least
    /// every 50 ms while the file has no map.
    #[must_use]
    pub fn wait_mapped_while(
        &self,
        file: &PushdownFile,
        patience: Duration,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> bool {
        let end = deadline(patience);
        // The examination that ends next may have begun before this call.
        let first = file.looks() + 1;
        loop {
            let looks = file.looks();
            // Keep waiting, because the second in which the file has changed will pass, and the other process that has
            // leased it has been asked to give the lease back.
            let passes = |why: &MapRefusal| match why {
                MapRefusal::Io { source, .. } => source.kind() == io::ErrorKind::WouldBlock,
                other => matches!(other, MapRefusal::JustChanged),
            };
            let is_refusal = |why: &MapRefusal| !passes(why);
            let is_refused = looks > first && file.refusal().is_some_and(|why| is_refusal(&why));
            let left = end.saturating_duration_since(Instant::now());
            let is_kept = self.shared.is_kept();
            let is_valid = is_kept && file.has_valid_map();
            if is_valid || is_refused || !is_kept {
                return is_valid;
            }
            if left.is_zero() || !goes_on() {
                file.refresh();
                return false;
            }
            // In a loop, because a map may be lost as soon as it is made.
            let pause = file.ask_again().unwrap_or(ASK_AGAIN);
            self.shared.wait_until(left.min(pause), &mut || {
                file.is_mapped() || file.looks() != looks && file.refusal().is_some()
            });
        }
    }

    /// Prepares a function for both sides: translated here, loaded at the target. `entry_index` says which of the
    /// object's `bpfof/…` sections is the entry point. A function that declares maps runs only where the maps are: at
    /// the target, or in this process if there is no target. With the grant daemon it runs in this process if it
    /// declares maps or the daemon does not allow it.
    ///
    /// # Errors
    /// [`Error::FunctionRejected`] if either side refuses it; other errors of the target.
    pub fn load_function(&self, object: &[u8], entry_index: u32) -> Result<StorageFunction, Error> {
        let remote = self.shared.remote.as_ref();
        let is_granted = remote.is_some_and(Remote::is_granted);
        let here = !self.has_target() || is_granted;
        let maps = here.then_some(&self.function_maps);
        let peers = self.peers.clone();
        let mut function = StorageFunction::local(object, entry_index, peers, maps)?;
        if let Some(mut controller) = remote.and_then(Remote::controller) {
            let id = controller.load_function(object, entry_index)?;
            function.set_remote(self.shared.serial, id);
        }
        if let Some(mut client) = remote.and_then(Remote::grants).filter(|_| !function.has_maps()) {
            let local = function.local_function();
            let digest = local.native.program().digest();
            match client.load(object, entry_index, &local.name, digest) {
                Ok(id) => function.set_remote(self.shared.serial, id),
                Err(GrantError::Refused(refusal)) => {
                    log::warn!("{} runs over plain reads: {refusal}", function.name());
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.peers.set(function.number(), function.local_function());
        Ok(function)
    }

    /// The same, using an installed function of the target that does the same as this one: it is only translated here,
    /// not loaded. Of several, the one that was installed first is used. None if there is no such function, or no
    /// target.
    ///
    /// # Errors
    /// Those of [`load_function`](Self::load_function).
    pub fn installed_program(
        &self,
        object: &[u8],
        entry_index: u32,
    ) -> Result<Option<StorageFunction>, Error> {
        let found = self
            .with_controller(|controller| controller.installed_program(object, entry_index))
            .transpose()?;
        let Some(id) = found.flatten() else { return Ok(None) };
        let mut function = StorageFunction::local(object, entry_index, self.peers.clone(), None)?;
        function.set_remote(self.shared.serial, id);
        self.peers.set(function.number(), function.local_function());
        Ok(Some(function))
    }

    /// Calls `use_it` with the association's controller, for other requests to the target; None
    /// without a target. No maps are made meanwhile. Do not reconnect the controller: after a lost
    /// connection make new `FileMaps`, because functions and readers belong to the association.
    pub fn with_controller<T>(&self, use_it: impl FnOnce(&mut Controller) -> T) -> Option<T> {
        let mut controller = self.shared.remote.as_ref().and_then(Remote::controller)?;
        Some(use_it(&mut controller))
    }

    /// From now on readers share lanes: one for each processor that a reader begins a chain on, and at most
    /// `lanes_max`. So a thread that only occasionally runs a chain costs the target no connection. Existing readers
    /// keep their own lanes; only the first call has an effect.
    pub fn share_lanes(&self, lanes_max: usize) {
        let _ = self.shared.lanes.set(SharedLanes::new(lanes_max));
    }
}

impl Drop for FileMaps {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            self.shared.queue().stop = true;
            self.shared.wake();
            if let Some(Remote { server: Server::Grants(_, ender), .. }) = &self.shared.remote
                && !self.shared.wait_ended(GRANTS_PATIENCE)
            {
                ender.end();
            }
            // The keeper does not panic; if it did, its thread has ended as well.
            let _ = keeper.join();
        }
    }
}
