//! A file that chains may read: the application's handle, and the checks before and after each
//! chain.

use super::error::MapRefusal;
use super::layout::{FileLayout, FileSystem, mark};
use super::lease::Doubt;
use super::mapped_file::{MappedFile, Mapping, Proof};
use super::shared::Shared;
use crate::FileVersion;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a chain waits for the keeper to check for broken leases.
const LOOK_PATIENCE: Duration = Duration::from_millis(20);

/// Dropping the last handle removes the map.
#[derive(Debug)]
struct Handle {
    mapped: Arc<MappedFile>,
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.remove(Arc::clone(&self.mapped));
    }
}

/// A file that [`read_pushdown`](super::PushdownReader::read_pushdown) can read. Clones refer to
/// the same file; dropping the last one removes its map from the target and closes the file.
#[derive(Clone, Debug)]
pub struct PushdownFile(Arc<Handle>);

impl PushdownFile {
    pub(crate) fn new(mapped: Arc<MappedFile>, shared: Arc<Shared>) -> Self {
        Self(Arc::new(Handle { mapped, shared }))
    }

    pub(crate) fn mapped(&self) -> &Arc<MappedFile> {
        &self.0.mapped
    }

    /// The open file, for plain reads.
    ///
    /// # Errors
    /// A file of [`FileMaps::add_path`](super::FileMaps::add_path) cannot be opened by its path.
    pub fn file(&self) -> io::Result<Arc<File>> {
        self.0.mapped.file()
    }

    /// The path by which it was opened, or the name that the caller gave it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.mapped.path
    }

    /// Whether the target has a map of the file that was valid when it was last checked.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        if self.is_whole_namespace() {
            return true;
        }
        self.0.mapped.status().mapping.as_ref().is_some_and(|mapping| mapping.is_good())
    }

    /// Whether the target has a map of the file that is valid now. If not, requests a new one.
    pub(crate) fn has_valid_map(&self) -> bool {
        self.is_whole_namespace() || self.begin(&mut true).is_some()
    }

    /// Whether it is the namespace itself.
    pub(crate) fn is_whole_namespace(&self) -> bool {
        self.0.mapped.is_whole_namespace
    }

    /// Whether a read lease of this process or of the grant daemon guards the map. Without a lease, each chain needs
    /// system calls before and after it to compare the file with its map.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        let guarded = |mapping: &Arc<Mapping>| match &mapping.proof {
            Proof::Found(_, lease) => lease.is_some(),
            Proof::Own(_) => false,
            Proof::Grant(..) => true,
        };
        self.0.mapped.status().mapping.as_ref().is_some_and(guarded)
    }

    /// Why it has no map.
    #[must_use]
    pub fn refusal(&self) -> Option<Arc<MapRefusal>> {
        self.0.mapped.status().refusal.clone()
    }

    /// Whether the file belongs to these maps, which gave it its id.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.0.shared, shared)
    }

    /// How often the keeper has examined the file.
    pub(crate) fn looks(&self) -> u64 {
        self.0.mapped.looks()
    }

    /// Requests a new map in the background, if the file has moved or grown since its map was made. Needed after growth
    /// of a file that only this process writes ([`FileMaps::add_own`](super::FileMaps::add_own)); growth of other files
    /// is detected without it.
    pub fn refresh(&self) {
        if self.is_whole_namespace() {
            return;
        }
        if self.0.mapped.status().not_before.is_some_and(|time| Instant::now() < time) {
            return;
        }
        self.0.shared.refresh(&self.0.mapped);
    }

    /// The same for a waiting caller: does not observe the pause after a permanent refusal. After a passing refusal,
    /// returns the remaining pause, if any, and requests nothing.
    pub(crate) fn ask_again(&self) -> Option<Duration> {
        let status = self.0.mapped.status();
        let passes = status.refusal.as_ref().is_some_and(|refusal| refusal.is_passing());
        let not_before = status.not_before.filter(|_| passes);
        drop(status);
        let left = not_before.map(|time| time.saturating_duration_since(Instant::now()));
        let left = left.filter(|left| !left.is_zero());
        if left.is_none() {
            self.0.shared.refresh(&self.0.mapped);
        }
        left
    }

    /// Marks the map of this version as wrong, or about to be: no new chain uses it.
    pub(crate) fn distrust(&self, version: u64) {
        let mut status = self.0.mapped.status();
        if let Some(mapping) = status.mapping.take_if(|mapping| mapping.version == version)
            && let Some(lease) = mapping.lease()
        {
            // The keeper releases it once the chains that rely on it have ended.
            lease.start_break();
            status.mapping = Some(mapping);
        }
        let has_newer = status.mapping.as_ref().is_some_and(|mapping| mapping.version != version);
        drop(status);
        if !has_newer {
            self.refresh();
        }
    }

    /// BPF-oF's algorithm 1 for this file: checks that the target's map is current, and pins it.
    /// Data that was written before this call is on the device when it returns. None if the file
    /// has no valid map. A new one has then been requested, unless only the keeper's check of
    /// leases is overdue. Waits for that check if it may, once for all files of a call: the keeper may be in a long
    /// system call.
    pub(crate) fn begin(&self, may_wait: &mut bool) -> Option<Pin> {
        let Some(mapping) = self.0.mapped.status().mapping.clone() else {
            self.refresh();
            return None;
        };
        let valid_until_ns = match self.check(&mapping) {
            // The keeper checks leases once a second, unless this process was stopped or the target does not answer.
            Err(Doubt::Unknown) if std::mem::take(may_wait) => {
                self.0.shared.wait_seen(LOOK_PATIENCE);
                self.check(&mapping)
            }
            checked => checked,
        };
        match valid_until_ns {
            Ok(valid_until_ns) => Some(Pin { file: self.clone(), mapping, valid_until_ns }),
            Err(Doubt::Unknown) => None,
            Err(Doubt::Breaking) => {
                self.distrust(mapping.version);
                None
            }
        }
    }

    /// Checks that `mapping` holds now; returns the time by which a chain must have ended, in ns.
    fn check(&self, mapping: &Mapping) -> Result<u64, Doubt> {
        let holds = match &mapping.proof {
            _ if !self.0.shared.checks => true,
            Proof::Own(layout) => layout.is_in_place(),
            Proof::Grant(..) => mapping.is_good(),
            Proof::Found(layout, Some(lease)) => {
                if layout.is_in_place() {
                    return lease.begin(self.0.shared.seen_ns());
                }
                false
            }
            Proof::Found(layout, None) => self.file().is_ok_and(|file| {
                let is_same = self.0.mapped.write_back(&file).is_ok()
                    && mark(&file).is_ok_and(|mark| mark == layout.mark);
                is_same && layout.is_in_place()
            }),
        };
        if holds { Ok(0) } else { Err(Doubt::Breaking) }
    }
}

/// A file and its map, pinned while a chain reads them.
#[derive(Debug)]
pub(crate) struct Pin {
    file: PushdownFile,
    mapping: Arc<Mapping>,
    valid_until_ns: u64,
}

impl Pin {
    /// Id and version by which a request names the file.
    pub(crate) fn version(&self) -> FileVersion {
        let id = match &self.mapping.proof {
            Proof::Found(..) | Proof::Own(_) => self.file.mapped().id,
            Proof::Grant(_, id) => *id,
        };
        FileVersion { id, version: self.mapping.version }
    }

    /// Where the file lies; None if only the grant daemon knows.
    pub(crate) fn layout(&self) -> Option<&FileLayout> {
        self.mapping.layout()
    }

    pub(crate) fn has_gaps(&self) -> bool {
        self.mapping.has_gaps
    }

    /// Marks the map as wrong, or as missing at the target.
    pub(crate) fn distrust(&self) {
        self.file.distrust(self.mapping.version);
    }

    /// BPF-oF's algorithm 2 for this file: whether the map has been valid all the time since
    /// [`begin`](PushdownFile::begin). If not, requests a new one.
    pub(crate) fn verify(&self) -> bool {
        let good = !self.file.0.shared.checks || self.has_held();
        if !good {
            self.distrust();
        }
        good
    }

    /// Whether both pin the same map, and so the same file.
    pub(crate) fn has_map_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mapping, &other.mapping)
    }

    /// Whether the file has grown beyond its map, for a file that only this process writes. Then requests a new map.
    /// For other files, growth invalidates the map anyway.
    pub(crate) fn has_grown(&self) -> bool {
        let Proof::Own(layout) = &self.mapping.proof else { return false };
        let grown = self.file.file().is_ok_and(|file| layout.has_grown(&file));
        if grown {
            self.distrust();
        }
        grown
    }

    fn has_held(&self) -> bool {
        match &self.mapping.proof {
            Proof::Grant(..) => self.mapping.is_good(),
            Proof::Own(layout) => self.file.file().is_ok_and(|file| layout.has_kept(&file)),
            Proof::Found(layout, None) => self.file.file().is_ok_and(|file| layout.holds(&file)),
            Proof::Found(layout, Some(lease)) => {
                // A lease prevents neither deduplication, which only XFS has, nor moves of volumes.
                let settled = match layout.file_system {
                    FileSystem::Ext4 => layout.is_in_place(),
                    FileSystem::Xfs => self.file.file().is_ok_and(|file| layout.holds(&file)),
                };
                lease.has_held(self.valid_until_ns) && settled
            }
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.file.0.shared.checks
            && let Some(lease) = self.mapping.lease()
        {
            lease.end();
        }
    }
}
