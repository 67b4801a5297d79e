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
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long to wait for a map before it is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// The grant daemon may be writing back what was written to a file: who drops its files waits for that no longer
/// than this, and ends the connection.
const GRANTS_PATIENCE: Duration = Duration::from_secs(1);

/// Extents of a file for readers in this process, which hold them anyway: 24 MiB.
const EXTENTS_MAX_HERE: usize = 1 << 20;

/// The files that chains of one association read, with their maps at its target.
///
/// A thread, the keeper, makes the maps, sends them, and gives leases back. Files stay usable when
/// this is dropped; their chains then fall back to plain reads.
#[derive(Debug)]
pub struct FileMaps {
    pub(crate) shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
    /// The functions here, by their numbers.
    peers: Peers,
    /// Of functions that run in this process.
    function_maps: LocalMaps,
}

impl FileMaps {
    /// Files on namespace `nsid` of the target, which on this machine is `device`. A target
    /// without pushdown is no error: chains then run in this process, as with
    /// [`local`](Self::local).
    ///
    /// # Errors
    /// No such namespace; [`Error::OtherDevice`] for a disk that the kernel has made of another one; a target
    /// that cannot be asked; no thread.
    pub fn new(controller: Controller, nsid: u32, device: NamespaceDevice) -> Result<Self, Error> {
        Self::start(controller, nsid, device, true)
    }

    /// The same without comparing versions: answers may be wrong as soon as a file changes. For
    /// tests that must notice that.
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
                "{path} has {bytes} bytes, and the namespace {namespace}: is the right device named?"
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

    /// Files on an NVMe namespace of this machine, of which `device` is the block device. Chains run
    /// in this process and read by NVMe commands, past the file system and the block layer, with
    /// the same maps and checks as at a target. The character device itself, opened as a file, is
    /// the whole namespace.
    ///
    /// # Errors
    /// [`Error::OtherDevice`]; no thread.
    pub fn passthrough(namespace: NvmeNamespace, device: NamespaceDevice) -> Result<Self, Error> {
        let info = namespace.info();
        let character = namespace.number().unwrap_or_default();
        device.compare_local(&info, character).map_err(Error::OtherDevice)?;
        let place = Place { device, nqn: None, extents_max: EXTENTS_MAX_HERE };
        let server = Server::Namespace(namespace, place);
        Self::keep(Remote { server, info, vectors: VectorLimits::UNKNOWN }, true)
    }

    /// Files that the grant daemon grants this process one by one: for processes that may not have an
    /// association of their own, because that reads whole namespaces. Chains run at the target in files
    /// that have grants, and over plain reads in others, which [`PushdownFile::refusal`] explains.
    /// docs/grants.md says which files get grants.
    ///
    /// # Errors
    /// No thread, or no descriptor.
    pub fn granted(client: GrantClient) -> Result<Self, Error> {
        let info = client.namespace();
        let ender = client.ender().map_err(Error::Thread)?;
        let server = Server::Grants(Box::new(Mutex::new(client)), ender);
        Self::keep(Remote { server, info, vectors: VectorLimits::UNKNOWN }, true)
    }

    /// Files without a target: chains run in this process, by direct reads on an io_uring where the
    /// file system has them ([`Executor::Local`](super::Executor::Local)), and by plain ones
    /// elsewhere.
    #[must_use]
    pub fn local() -> Self {
        let shared = Arc::new(Shared::new(None, true));
        Self { shared, keeper: None, peers: Peers::default(), function_maps: LocalMaps::default() }
    }

    /// Whether there is a target that chains are pushed to.
    #[must_use]
    pub fn has_target(&self) -> bool {
        self.shared.remote.as_ref().is_some_and(|remote| remote.namespace().is_none())
    }

    /// Whether there is something that chains are pushed to, and the maps of files are kept there. Once
    /// it is lost that remains so.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.is_kept()
    }

    /// Opens a file, and begins to map it.
    ///
    /// # Errors
    /// The file cannot be opened. One that cannot be mapped is no error: see
    /// [`PushdownFile::refusal`].
    pub fn open(&self, path: impl AsRef<Path>) -> std::io::Result<PushdownFile> {
        let file = OpenOptions::new().read(true).open(&path)?;
        Ok(self.add(file, path.as_ref().to_owned()))
    }

    /// The same for a file that is open already, and is called `name` in messages. A lease is
    /// possible only if it was opened for reading only.
    #[must_use]
    pub fn add(&self, file: File, name: PathBuf) -> PushdownFile {
        let namespace = self.shared.remote.as_ref().and_then(Remote::namespace);
        let is_whole = namespace.is_some_and(|namespace| namespace.is(&file));
        let access = Access::Open(Arc::new(file));
        self.add_as(if is_whole { Kind::Namespace } else { Kind::Shared }, access, name)
    }

    /// The same for an open file that others may have as well: a duplicate of a descriptor that was inherited or
    /// received, of a file that this process may not open itself. It is used without a lease, because an open file
    /// has one at the most, whose end only one of those who have it hears of.
    #[must_use]
    pub fn add_duplicate(&self, file: File, name: PathBuf) -> PushdownFile {
        self.add_as(Kind::Duplicate, Access::Open(Arc::new(file)), name)
    }

    /// The same for a file that is opened by its path when it is needed, so that no descriptor is taken as
    /// long as it is known: where a target knows where the file lies, a mapping of memory
    /// (`vm.max_map_count`, of which half are used at most) keeps its inode and its lease. For many files,
    /// which the caller does not rename. Chains over one that was removed run at a target that knows it, and
    /// fail elsewhere. Without a target, direct reads keep descriptors of files that they have read, a
    /// quarter of those that the process may have (`RLIMIT_NOFILE`); others are read by plain reads.
    #[must_use]
    pub fn add_path(&self, path: PathBuf) -> PushdownFile {
        self.add_as(Kind::Shared, Access::by_path(), path)
    }

    /// The same for a file that nobody but the caller writes or truncates as long as it is open, and the
    /// caller only past the page cache (`O_DIRECT`). Chains over it need neither a lease nor that nothing is
    /// written meanwhile: one counts if all bytes of the file's map still are where they were. So growth
    /// keeps maps, and what a chain sees of a block that is written meanwhile is the caller's matter.
    /// After the file has grown, [`PushdownFile::refresh`] gets it a longer map.
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

    /// Waits until `file` has a map or is refused one; true if it has. A refusal of before is not believed:
    /// the file is looked at again.
    #[must_use]
    pub fn wait_mapped(&self, file: &PushdownFile, patience: Duration) -> bool {
        let end = deadline(patience);
        // The look that ends next may have begun before this call.
        let first = file.looks() + 1;
        loop {
            let looks = file.looks();
            // It has changed and is waited for: the second will be over.
            let is_refusal = |why: &MapRefusal| !matches!(why, MapRefusal::JustChanged);
            let is_refused = looks > first && file.refusal().is_some_and(|why| is_refusal(&why));
            let left = end.saturating_duration_since(Instant::now());
            if file.is_mapped() || is_refused || !self.shared.is_kept() {
                return file.is_mapped();
            }
            if left.is_zero() {
                file.refresh();
                return false;
            }
            // Again and again: a map may be lost as soon as it is made.
            let pause = file.ask_again().unwrap_or(ASK_AGAIN);
            self.shared.wait_until(left.min(pause), &mut || {
                file.is_mapped() || file.looks() != looks && file.refusal().is_some()
            });
        }
    }

    /// Prepares a function for both sides: translated here, loaded at the target. `entry_index`
    /// says which of the object's `bpfof/…` sections is the entry point. One that declares maps
    /// runs where these are and nowhere else: at the target, or without one in this process. With the grant
    /// daemon it runs in this process if it declares maps, or the daemon does not allow it.
    ///
    /// # Errors
    /// [`Error::FunctionRejected`] if either side refuses it; what else the target answers.
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
                    log::warn!("{} runs by plain reads: {refusal}", function.name());
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.peers.set(function.number(), function.local_function());
        Ok(function)
    }

    /// The same for a function that is installed at the target and does what this one does: only translated
    /// here. Of several it is the one that was installed first. None if there is none, or no target.
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

    /// Calls `use_it` with the association's controller, for what else is to be asked of the
    /// target; None without a target. Maps are not made meanwhile. Do not reconnect it: after a
    /// lost connection make new `FileMaps`, for functions and readers belong to the association.
    pub fn with_controller<T>(&self, use_it: impl FnOnce(&mut Controller) -> T) -> Option<T> {
        let mut controller = self.shared.remote.as_ref().and_then(Remote::controller)?;
        Some(use_it(&mut controller))
    }

    /// From now on readers share lanes: one for each processor that a reader begins a chain on, and at most so
    /// many. So a thread that only now and then has a chain costs the target no connection. Readers that there
    /// are keep their own; what was said first counts.
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
            // It cannot panic; if it did, it is gone as well.
            let _ = keeper.join();
        }
    }
}
