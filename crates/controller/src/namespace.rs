//! Namespaces: their storage, and the identifiers by which hosts recognise them.

use crate::backend::Backend;
use crate::config::{NamespaceConfig, NamespaceSource};
use crate::disk_identity::DiskIdentity;
use crate::lost_writes::LostWrites;
use bpfof_chain::FileMap;
use bpfof_device::{
    FileError, FileNamespace, LatencyModel, Layout, Lock, MemoryNamespace, NvmeDrive, Volume,
};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// One namespace of the subsystem, shared by all reactors.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) nsid: u32,
    pub(crate) block_shift: u32,
    blocks: AtomicU64,
    pub(crate) backend: Backend,
    /// Writes that it has acknowledged and lost.
    pub(crate) lost_writes: Arc<LostWrites>,
    /// Commands and reads of chains in which the file or disk has failed.
    device_errors: AtomicU64,
    /// Identifiers of a file are the same on every start: made from its path and the subsystem's name; identifiers of a
    /// disk likewise, from its own identifiers. Those of memory that is not a file are new each time, because its
    /// contents are gone: Linux then gives up the old namespace instead of going on with zeroes.
    ///
    /// If the configuration gives a UUID, both are that one.
    pub(crate) nguid: [u8; 16],
    /// Likewise.
    pub(crate) uuid: [u8; 16],
    ana_group: AtomicU32,
    /// For logs.
    pub(crate) description: String,
    /// The source that it was opened from; only the size of a file may have changed since then.
    pub(crate) source: NamespaceSource,
    /// The identity that nguid and uuid are made of, together with the name of the subsystem.
    identity: DiskIdentity,
    /// The UUID that the configuration gives.
    given_uuid: Option<[u8; 16]>,
}

/// Why a namespace cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// The kernel gives no address space for it.
    #[error("namespace {nsid}: cannot reserve {size_bytes} bytes of memory: {source}")]
    Memory {
        /// Namespace id.
        nsid: u32,
        /// The requested size.
        size_bytes: u64,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The file cannot be used.
    #[error("namespace {nsid}: {source}")]
    File {
        /// Namespace id.
        nsid: u32,
        /// The reason.
        source: FileError,
    },
    /// Its files cannot be locked as the configuration requires.
    #[error("namespace {nsid} cannot do without its uuid=: {source}")]
    Lock {
        /// Namespace id.
        nsid: u32,
        /// Why.
        source: std::io::Error,
    },
    /// Memory that would replace other memory that is being served.
    #[error(
        "namespace {nsid}: a memory namespace cannot be replaced by another while it is served; \
         remove it first, or give the new one a free nsid="
    )]
    OtherMemory {
        /// Namespace id.
        nsid: u32,
    },
    /// Two namespaces seem to be one disk.
    #[error(
        "namespaces {other} and {nsid}, of one subsystem or of two, are one disk by its identity \
         ({identity}): serve it once, or give each a uuid= if they are different disks"
    )]
    SameDisk {
        /// One namespace.
        nsid: u32,
        /// The other one.
        other: u32,
        /// The identity that both have.
        identity: String,
    },
    /// A file that the running target serves in another way.
    #[error(
        "namespace {nsid}: {path} is being served with another block size or in another way; \
         remove it with one reload, and add it again with a second"
    )]
    StillServed {
        /// Namespace id.
        nsid: u32,
        /// The file.
        path: PathBuf,
    },
}

impl Namespace {
    /// Bytes of the process's memory that it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.backend.process_bytes()
    }

    pub(crate) fn open(
        nsid: u32,
        config: &NamespaceConfig,
        subsystem: &str,
    ) -> Result<Namespace, NamespaceError> {
        Namespace::open_as(nsid, config, subsystem, lock_of(config.uuid))
    }

    /// The same with this lock on its files.
    pub(crate) fn open_as(
        nsid: u32,
        config: &NamespaceConfig,
        subsystem: &str,
        lock: Lock,
    ) -> Result<Namespace, NamespaceError> {
        let block_bytes = config.lba_bytes;
        let (backend, description) = match &config.source {
            NamespaceSource::Memory { size_bytes, latency_us, iops } => {
                let size_bytes = size_bytes / u64::from(block_bytes) * u64::from(block_bytes);
                let model = LatencyModel::new(*latency_us, *iops);
                let memory = MemoryNamespace::new(size_bytes, model)
                    .map_err(|source| NamespaceError::Memory { nsid, size_bytes, source })?;
                let description = format!(
                    "volatile memory, latency {latency_us} µs; write it before you measure: blocks \
                     never written share one page of zeroes, which reads faster"
                );
                (Backend::Memory(Arc::new(memory)), description)
            }
            NamespaceSource::MemoryFile { path, latency_us, iops } => {
                let model = LatencyModel::new(*latency_us, *iops);
                let memory = MemoryNamespace::of_file_as(path, block_bytes, model, lock)
                    .map_err(|source| NamespaceError::File { nsid, source })?;
                let path = path.display();
                let description = format!("memory of {path}, latency {latency_us} µs");
                (Backend::Memory(Arc::new(memory)), description)
            }
            NamespaceSource::File { path, size_bytes } => {
                let file = FileNamespace::open_as(path, *size_bytes, block_bytes, lock)
                    .map_err(|source| NamespaceError::File { nsid, source })?;
                volume(Volume::single(file), &path.display().to_string())
            }
            NamespaceSource::Pieces { paths, size_bytes, layout } => {
                let pieces = Volume::open_as(paths, *size_bytes, block_bytes, *layout, lock)
                    .map_err(|source| NamespaceError::File { nsid, source })?;
                let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
                let how = match layout {
                    Layout::Concatenated => "concatenated".to_owned(),
                    Layout::Striped { chunk_bytes } => format!("striped by {chunk_bytes} bytes"),
                };
                warn_of_unused(&pieces, &format!("{subsystem} namespace {nsid}"));
                volume(pieces, &format!("{}, {how}", names.join(" + ")))
            }
            NamespaceSource::Drive { path } => {
                let drive = NvmeDrive::open(path)
                    .map_err(|source| NamespaceError::File { nsid, source })?;
                let description = format!("{} by NVMe commands", path.display());
                (Backend::Drive(Arc::new(drive)), description)
            }
        };
        // A drive has blocks of its own.
        let (block_bytes, identity) = match &backend {
            Backend::Drive(drive) => {
                (drive.block_bytes(), DiskIdentity::of_text(drive.identity().to_owned()))
            }
            _ => (config.lba_bytes, identity(nsid, &config.source, &backend)),
        };
        let (nguid, uuid) = identifiers(subsystem, &identity, config.uuid);
        Ok(Namespace {
            nsid,
            block_shift: block_bytes.trailing_zeros(),
            blocks: AtomicU64::new(backend.size_bytes() / u64::from(block_bytes)),
            backend,
            lost_writes: Arc::default(),
            device_errors: AtomicU64::default(),
            nguid,
            uuid,
            ana_group: AtomicU32::new(config.ana_group),
            description,
            source: config.source.clone(),
            identity,
            given_uuid: config.uuid,
        })
    }

    /// A namespace just opened by a reload: memory gets new identifiers, because there may have been other memory under
    /// this id before.
    pub(crate) fn renewed(mut self, subsystem: &str) -> Namespace {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if self.is_volatile() {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            self.identity.text = format!("{}/{number}", self.identity.text);
            (self.nguid, self.uuid) = identifiers(subsystem, &self.identity, self.given_uuid);
        }
        self
    }

    /// The same storage under another id, in another subsystem or with another UUID.
    pub(crate) fn moved(&self, nsid: u32, subsystem: &str, config: &NamespaceConfig) -> Namespace {
        let (nguid, uuid) = identifiers(subsystem, &self.identity, config.uuid);
        Namespace {
            nsid,
            block_shift: self.block_shift,
            blocks: AtomicU64::new(self.blocks()),
            backend: self.backend.clone(),
            lost_writes: Arc::clone(&self.lost_writes),
            device_errors: AtomicU64::default(),
            nguid,
            uuid,
            ana_group: AtomicU32::new(config.ana_group),
            description: self.description.clone(),
            source: self.source.clone(),
            identity: self.identity.clone(),
            given_uuid: config.uuid,
        }
    }

    /// Counts a command or a read of a chain in which the file or disk has failed.
    pub(crate) fn note_device_error(&self) {
        self.device_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there have been since it was opened.
    pub(crate) fn device_errors(&self) -> u64 {
        self.device_errors.load(Ordering::Relaxed)
    }

    /// Whether it is what `config` describes, except perhaps for the size of a file.
    pub(crate) fn is(&self, config: &NamespaceConfig) -> bool {
        let is_same = match (&self.source, &config.source) {
            (
                NamespaceSource::File { path, .. },
                NamespaceSource::File { path: configured, .. },
            ) => path == configured,
            (
                NamespaceSource::Pieces { paths, layout, .. },
                NamespaceSource::Pieces { paths: configured, layout: wanted, .. },
            ) => (paths, layout) == (configured, wanted),
            (source, configured) => source == configured,
        };
        let has_own_blocks = matches!(self.backend, Backend::Drive(_));
        is_same && (has_own_blocks || self.block_bytes() == config.lba_bytes)
    }

    /// Locks its files as its configuration requires, or so that another process can open them as well.
    pub(crate) fn lock_files(&self, for_another: bool) -> std::io::Result<()> {
        self.backend.lock(if for_another { Lock::Shared } else { lock_of(self.given_uuid) })
    }

    /// Checks that its files can be locked as this configuration requires: only those that it gives a UUID may be open at
    /// another target.
    pub(crate) fn check_lock(&self, config: &NamespaceConfig) -> Result<(), NamespaceError> {
        if self.given_uuid.is_none() || config.uuid.is_some() {
            return Ok(());
        }
        let alone = self.backend.lock(Lock::Alone);
        let again = self.backend.lock(Lock::Shared);
        let failed = |source| NamespaceError::Lock { nsid: self.nsid, source };
        alone.and(again).map_err(failed)
    }

    /// Why it must not be served at several targets, if its UUID says that it is.
    pub(crate) fn why_not_shared(&self) -> Option<&'static str> {
        self.given_uuid?;
        match &self.backend {
            Backend::Memory(_) if self.is_volatile() => Some(
                "another target, or this one after a restart, has other memory, and hosts would \
                 take both for one disk",
            ),
            Backend::Volume(volume) if !volume.is_direct() => Some(
                "it goes through the page cache of this machine, so no other machine may serve it",
            ),
            _ => None,
        }
    }

    /// Whether its identifiers come from a kernel name, which another disk may have after the next start.
    pub(crate) fn is_known_by_kernel_name(&self) -> bool {
        self.given_uuid.is_none() && self.identity.is_kernel_name
    }

    /// Refuses two namespaces that hosts would take for one, unless the configuration gives their UUIDs.
    pub(crate) fn check_distinct<'a>(
        all: impl Iterator<Item = &'a Namespace>,
    ) -> Result<(), NamespaceError> {
        let mut seen: HashMap<&str, u32> = HashMap::new();
        for namespace in all.filter(|of| of.given_uuid.is_none() && !of.is_volatile()) {
            let (nsid, identity) = (namespace.nsid, namespace.identity.text.as_str());
            if let Some(other) = seen.insert(identity, nsid) {
                return Err(NamespaceError::SameDisk {
                    nsid,
                    other,
                    identity: identity.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Whether its UUID is that of `config`.
    pub(crate) fn is_known_as(&self, config: &NamespaceConfig) -> bool {
        self.given_uuid == config.uuid
    }

    /// Its ANA group. It may change at any time.
    pub(crate) fn ana_group(&self) -> u32 {
        self.ana_group.load(Ordering::Relaxed)
    }

    /// Moves it to an ANA group; true if it was in another.
    pub(crate) fn regroup(&self, group: u32) -> bool {
        self.ana_group.swap(group, Ordering::Relaxed) != group
    }

    /// Its new size in blocks by `source`: of a file, which may have to grow, or of a drive now.
    pub(crate) fn settle_size(&self, source: &NamespaceSource) -> Result<u64, NamespaceError> {
        let failed = |source| NamespaceError::File { nsid: self.nsid, source };
        let size_bytes = self.backend.settle_size(source.file_bytes()).map_err(failed)?;
        Ok(size_bytes.map_or(self.blocks(), |bytes| bytes >> self.block_shift))
    }

    /// Sets the size that [`settle_size`](Self::settle_size) has found; true if it has changed.
    pub(crate) fn resize(&self, blocks: u64) -> bool {
        self.blocks.swap(blocks, Ordering::Relaxed) != blocks
    }

    pub(crate) fn block_bytes(&self) -> u32 {
        1 << self.block_shift
    }

    /// The unit of chains' reads, in bytes.
    #[inline]
    pub(crate) fn unit_bytes(&self) -> u32 {
        self.backend.unit_bytes(self.block_bytes())
    }

    /// Its size in logical blocks. It may change at any time.
    #[inline]
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.blocks() << self.block_shift
    }

    pub(crate) fn whole_file(&self) -> FileMap {
        FileMap::whole_namespace(self.nsid, self.size_bytes())
    }

    /// Whether its contents are lost when the target ends.
    pub(crate) fn is_volatile(&self) -> bool {
        matches!(self.source, NamespaceSource::Memory { .. })
    }

    /// Whether ranges can be zeroed without a transfer of data.
    pub(crate) fn writes_zeroes(&self) -> bool {
        self.backend.writes_zeroes()
    }

    /// Whether zeroing a range can give its blocks back.
    pub(crate) fn deallocates(&self) -> bool {
        self.backend.deallocates()
    }

    /// Checks for lost writes after a command that makes writes durable; `has_failed` if it has ended with an error
    /// that reports lost writes.
    pub(crate) fn sync_ended(&self, has_failed: bool) {
        let mut is_noted = false;
        if let Some(volume) = self.backend.volume() {
            volume.look_for_lost_writes(|| {
                self.lost_writes.note();
                is_noted = true;
            });
        }
        if has_failed && !is_noted {
            self.lost_writes.note();
        }
    }

    /// Whether another namespace has a file on one of the disks of this one.
    pub(crate) fn shares_disk_with(&self, other: &Namespace) -> bool {
        let volumes = self.backend.volume().zip(other.backend.volume());
        !std::ptr::eq(self, other)
            && volumes.is_some_and(|(one, other)| {
                one.disks().iter().any(|disk| other.disks().contains(disk))
            })
    }

    /// Whether acknowledged writes may be in a cache that a Flush empties.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        self.backend.has_volatile_cache()
    }
}

/// Features that a controller announces, derived from the namespaces that exist for its host. A host reads them once,
/// when it connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traits {
    /// A namespace may lose acknowledged writes that were not flushed.
    pub(crate) has_volatile_cache: bool,
    /// Each namespace can zero ranges without a transfer of data.
    pub(crate) writes_zeroes: bool,
    /// Each namespace can give blocks back.
    pub(crate) deallocates: bool,
}

impl Traits {
    /// Traits that fit any namespaces: the host flushes, and relies on no optional command.
    pub(crate) const CAREFUL: Traits =
        Traits { has_volatile_cache: true, writes_zeroes: false, deallocates: false };

    /// The common traits of namespaces; none if there are no namespaces.
    pub(crate) fn of<'a>(all: impl Iterator<Item = &'a Arc<Namespace>>) -> Option<Traits> {
        let one = |namespace: &Arc<Namespace>| Traits {
            has_volatile_cache: namespace.has_volatile_cache(),
            writes_zeroes: namespace.writes_zeroes(),
            deallocates: namespace.deallocates(),
        };
        all.map(one).reduce(|one, other| Traits {
            has_volatile_cache: one.has_volatile_cache || other.has_volatile_cache,
            writes_zeroes: one.writes_zeroes && other.writes_zeroes,
            deallocates: one.deallocates && other.deallocates,
        })
    }
}

fn warn_of_unused(pieces: &Volume, of: &str) {
    let bytes = pieces.unused_bytes();
    if bytes > 0 {
        log::warn!(
            "{of}: {bytes} bytes of its files stay unused, because a stripe is as long as its \
             shortest file, in whole chunks"
        );
    }
}

/// The lock for the files of a namespace: one with a configured UUID is served at several targets.
fn lock_of(given_uuid: Option<[u8; 16]>) -> Lock {
    if given_uuid.is_some() { Lock::Shared } else { Lock::Alone }
}

/// A text that distinguishes this process from all others, including itself after a restart.
fn this_process() -> &'static str {
    static ONCE: OnceLock<String> = OnceLock::new();
    ONCE.get_or_init(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        format!("{:?}/{}", since.ok(), std::process::id())
    })
}

fn volume(volume: Volume, what: &str) -> (Backend, String) {
    let how = if volume.is_direct() { "direct I/O" } else { "through the page cache" };
    (Backend::Volume(Arc::new(volume)), format!("{what}, {how}"))
}

/// The identity of storage that has just been opened, which distinguishes it from all other storage.
fn identity(nsid: u32, source: &NamespaceSource, backend: &Backend) -> DiskIdentity {
    match source {
        NamespaceSource::Memory { .. } => {
            DiskIdentity::of_text(format!("{nsid}/{}", this_process()))
        }
        NamespaceSource::MemoryFile { path, .. }
        | NamespaceSource::File { path, .. }
        | NamespaceSource::Drive { path } => DiskIdentity::of(path),
        // The same files in another order, or laid out in another way, have other contents. So do concatenated files
        // if one before the last has another size.
        NamespaceSource::Pieces { paths, layout, .. } => {
            let how = match layout {
                Layout::Concatenated => match backend {
                    Backend::Volume(volume) => format!("concat {:?}", volume.starts()),
                    _ => unreachable!("files are a volume"),
                },
                Layout::Striped { chunk_bytes } => format!("stripe {chunk_bytes}"),
            };
            let pieces: Vec<DiskIdentity> =
                paths.iter().map(|path| DiskIdentity::of(path)).collect();
            let texts: Vec<&str> = pieces.iter().map(|piece| piece.text.as_str()).collect();
            DiskIdentity {
                // No path contains a NUL byte.
                text: format!("{how}\0{}", texts.join("\0")),
                is_kernel_name: pieces.iter().any(|piece| piece.is_kernel_name),
                is_of_machine: pieces.iter().any(|piece| piece.is_of_machine),
            }
        }
    }
}

/// NGUID and UUID: both the given one, or made from the identity.
fn identifiers(
    subsystem: &str,
    identity: &DiskIdentity,
    given: Option<[u8; 16]>,
) -> ([u8; 16], [u8; 16]) {
    if let Some(given) = given {
        return (given, given);
    }
    let identity = format!("{subsystem}/{}", identity.of_world());
    (fnv1a_128(identity.as_bytes()).to_be_bytes(), uuid(&identity))
}

/// A UUID of version 8, all of whose bits but six are free to choose (RFC 9562 §5.8).
fn uuid(identity: &str) -> [u8; 16] {
    let mut bytes = fnv1a_128(format!("uuid/{identity}").as_bytes()).to_be_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// FNV-1a with 128 bits: an identifier that is the same on every start.
pub(crate) fn fnv1a_128(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_disk_is_not_two_namespaces() {
        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path().join("disk");
        let open = |nsid, more: &str| {
            let spec = format!("file:path={},size=4096{more}", path.display());
            let config: NamespaceConfig = spec.parse().expect("valid");
            Namespace::open_as(nsid, &config, "nqn", Lock::Shared).expect("a file")
        };
        let given = ",uuid=6f2d1a3c-8a5e-4b0c-9d57-0a4f6a1e2b3c";
        let (one, two, other) = (open(1, ""), open(2, ""), open(3, given));
        Namespace::check_distinct([&one, &other].into_iter()).expect("the other has a UUID");
        let error = Namespace::check_distinct([&one, &other, &two].into_iter()).expect_err("same");
        assert!(
            error
                .to_string()
                .contains("namespaces 1 and 2, of one subsystem or of two, are one disk"),
            "{error}"
        );
        assert!(!one.is_known_by_kernel_name());
    }
}
