//! An open file and its map.

use super::access::Access;
use super::direct::DirectFile;
use super::error::MapRefusal;
use super::layout::FileLayout;
use super::lease::Lease;
use super::sys;
use crate::grant::PageReader;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A map of a file, as the target has it.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) version: u64,
    pub(crate) has_gaps: bool,
    pub(crate) proof: Proof,
}

/// The evidence that a map still holds.
#[derive(Debug)]
pub(crate) enum Proof {
    /// The layout that this process has found, and the file's lease if there is one.
    Found(FileLayout, Option<Lease>),
    /// The layout that this process has found, of a file that only it writes.
    Own(FileLayout),
    /// The versions page of the grant daemon, which has made the map under this id.
    Grant(Arc<PageReader>, u32),
}

impl Mapping {
    pub(crate) const fn lease(&self) -> Option<&Lease> {
        match &self.proof {
            Proof::Found(_, lease) => lease.as_ref(),
            Proof::Own(_) | Proof::Grant(..) => None,
        }
    }

    /// The layout of the file; None if the grant daemon made the map.
    pub(crate) const fn layout(&self) -> Option<&FileLayout> {
        match &self.proof {
            Proof::Found(layout, _) | Proof::Own(layout) => Some(layout),
            Proof::Grant(..) => None,
        }
    }

    /// Whether chains may still use it, as far as is known without a system call.
    pub(crate) fn is_good(&self) -> bool {
        match &self.proof {
            Proof::Found(_, lease) => lease.as_ref().is_none_or(|lease| !lease.is_breaking()),
            Proof::Own(_) => true,
            Proof::Grant(page, id) => page.version(*id) == self.version,
        }
    }
}

/// The state of a file's map.
#[derive(Debug, Default)]
pub(crate) struct Status {
    /// The map that chains use.
    pub(crate) mapping: Option<Arc<Mapping>>,
    /// Why there is no map.
    pub(crate) refusal: Option<Arc<MapRefusal>>,
    /// Version of the last map that was sent.
    pub(crate) version: u64,
    /// After a refusal: the earliest time to examine the file again.
    pub(crate) not_before: Option<Instant>,
}

/// An open file.
#[derive(Debug)]
pub(crate) struct MappedFile {
    pub(crate) id: u32,
    pub(crate) access: Access,
    pub(crate) path: PathBuf,
    pub(crate) status: Mutex<Status>,
    /// How often the keeper has examined the file. Incremented while `status` is locked to record the result.
    looks: AtomicU64,
    /// Whether it already waits in the keeper's queue.
    pub(crate) queued: AtomicBool,
    /// Error number of a failed write-back; 0 is none. The kernel reports such an error only once. Afterwards the page
    /// cache has newer bytes than the device, and yet counts as clean.
    not_written: AtomicI32,
    /// The file opened for direct reads, once a chain reads it on this machine.
    direct: OnceLock<Option<DirectFile>>,
    /// Whether it is the character device of the namespace, which needs no map.
    pub(crate) is_whole_namespace: bool,
    /// Whether only this process writes it, past the page cache.
    pub(crate) is_own: bool,
    /// Whether another process may share the open file, which can have only one lease.
    pub(crate) is_duplicate: bool,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Other processes may write it.
    Shared,
    /// Only this process writes it.
    Own,
    /// Other processes may write it, and may share this open file.
    Duplicate,
    /// The namespace itself.
    Namespace,
}

/// Number of files that this process has closed.
static CLOSED: AtomicU64 = AtomicU64::new(0);

impl MappedFile {
    pub(crate) fn new(id: u32, access: Access, path: PathBuf, kind: Kind) -> Self {
        Self {
            id,
            access,
            path,
            status: Mutex::default(),
            looks: AtomicU64::new(0),
            queued: AtomicBool::new(false),
            not_written: AtomicI32::new(0),
            direct: OnceLock::new(),
            is_whole_namespace: kind == Kind::Namespace,
            is_own: kind == Kind::Own,
            is_duplicate: kind == Kind::Duplicate,
        }
    }

    /// The open file.
    ///
    /// # Errors
    /// Those of [`Access::file`].
    pub(crate) fn file(&self) -> io::Result<Arc<File>> {
        self.access.file(&self.path)
    }

    /// The same without waiting for other processes.
    ///
    /// # Errors
    /// Those of [`Access::file_now`].
    pub(crate) fn file_now(&self) -> io::Result<Arc<File>> {
        self.access.file_now(&self.path)
    }

    /// Writes dirty pages to the device. After an error it fails for good.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn write_back(&self, file: &File) -> io::Result<()> {
        self.is_written()?;
        sys::write_back(file).inspect_err(|error| self.is_not_written(error))
    }

    /// The same in parts; calls `meanwhile` after each.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn write_back_while(
        &self,
        file: &File,
        meanwhile: &mut dyn FnMut(),
    ) -> io::Result<()> {
        self.is_written()?;
        sys::write_back_while(file, meanwhile).inspect_err(|error| self.is_not_written(error))
    }

    /// Fails if an earlier write-back has failed.
    ///
    /// # Errors
    /// The kernel's error from then.
    pub(crate) fn is_written(&self) -> io::Result<()> {
        match self.not_written.load(Ordering::Relaxed) {
            0 => Ok(()),
            number => Err(io::Error::from_raw_os_error(number)),
        }
    }

    /// Records a failed write-back.
    pub(crate) fn is_not_written(&self, error: &io::Error) {
        let number = error.raw_os_error().unwrap_or(libc::EIO);
        if self.not_written.swap(number, Ordering::Relaxed) == 0 {
            let path = self.path.display();
            log::warn!(
                "{path}: writing the file's data to the disk failed: {error}; chains run over \
                 plain reads"
            );
        }
    }

    /// The file for direct reads; None if these are not possible.
    pub(crate) fn direct(&self) -> Option<&DirectFile> {
        let open = match self.access {
            Access::Open(_) => DirectFile::of,
            Access::ByPath(_) => DirectFile::of_many,
        };
        self.direct.get_or_init(|| open(&*self.file().ok()?)).as_ref()
    }

    /// How many files of this process have been closed.
    fn closed() -> u64 {
        CLOSED.load(Ordering::Acquire)
    }

    /// How often the keeper has examined the file. A caller that locks the status afterwards sees the result of the
    /// last examination.
    pub(crate) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Acquire)
    }

    /// Counts an examination by the keeper, which has `status` locked to record the result.
    pub(crate) fn looked(&self, _: &mut Status) {
        self.looks.fetch_add(1, Ordering::Release);
    }

    /// Marks the file as queued for the keeper; false if it already was.
    pub(crate) fn enqueue(&self) -> bool {
        !self.queued.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Decides when a reader scans its known files for closed ones.
#[derive(Debug)]
pub(crate) struct Closed {
    /// How many files had been closed at the last scan, and the time of that scan.
    seen: u64,
    looked: Instant,
}

/// Known files that may be scanned for each closed file. A longer scan waits until enough files are closed, or for this
/// time.
const LOOKED_AT: u64 = 256;
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Closed {
    /// For a reader that knows no files yet.
    pub(crate) fn new() -> Self {
        Self { seen: MappedFile::closed(), looked: Instant::now() }
    }

    /// Whether a reader that knows `known` files should scan them now.
    pub(crate) fn is_due(&mut self, known: usize) -> bool {
        let closed = MappedFile::closed();
        if closed == self.seen {
            return false;
        }
        let few = known as u64 <= closed.wrapping_sub(self.seen).saturating_mul(LOOKED_AT);
        let is_due = few || self.looked.elapsed() >= LOOK_AGAIN;
        if is_due {
            *self = Self { seen: closed, looked: Instant::now() };
        }
        is_due
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        CLOSED.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_a_file_does_not_scan_all_files() {
        let close = || drop(MappedFile::new(1, Access::by_path(), PathBuf::new(), Kind::Shared));
        let mut closed = Closed::new();
        close();
        // Other tests of this process may close files meanwhile, which does no harm.
        assert!(closed.is_due(256));
        let many = usize::MAX;
        closed.looked = Instant::now() + LOOK_AGAIN;
        close();
        assert!(!closed.is_due(many));
        closed.looked = Instant::now().checked_sub(LOOK_AGAIN).expect("the machine runs for long");
        assert!(closed.is_due(many));
    }

    #[test]
    fn a_failed_write_back_is_permanent() {
        let file = tempfile::tempfile().expect("a file");
        let mapped = MappedFile::new(1, Access::by_path(), PathBuf::new(), Kind::Shared);
        mapped.write_back(&file).expect("nothing is to be written");
        mapped.is_not_written(&io::Error::from_raw_os_error(libc::EIO));
        let error = mapped.write_back(&file).expect_err("it stays so");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
}
