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

/// A map that the target has.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) version: u64,
    pub(crate) has_gaps: bool,
    pub(crate) proof: Proof,
}

/// What tells whether a map still holds.
#[derive(Debug)]
pub(crate) enum Proof {
    /// Where this process has found the file, and its lease if it has one.
    Found(FileLayout, Option<Lease>),
    /// Where this process has found a file that only it writes.
    Own(FileLayout),
    /// The grant daemon, which has made the map under this id of its own.
    Grant(Arc<PageReader>, u32),
}

impl Mapping {
    pub(crate) const fn lease(&self) -> Option<&Lease> {
        match &self.proof {
            Proof::Found(_, lease) => lease.as_ref(),
            Proof::Own(_) | Proof::Grant(..) => None,
        }
    }

    /// Where the file lies, if this process has looked.
    pub(crate) const fn layout(&self) -> Option<&FileLayout> {
        match &self.proof {
            Proof::Found(layout, _) | Proof::Own(layout) => Some(layout),
            Proof::Grant(..) => None,
        }
    }

    /// Whether chains may still use it, as far as is known without asking anybody.
    pub(crate) fn is_good(&self) -> bool {
        match &self.proof {
            Proof::Found(_, lease) => lease.as_ref().is_none_or(|lease| !lease.is_breaking()),
            Proof::Own(_) => true,
            Proof::Grant(page, id) => page.version(*id) == self.version,
        }
    }
}

/// What is known of a file's map.
#[derive(Debug, Default)]
pub(crate) struct Status {
    /// The one that chains use.
    pub(crate) mapping: Option<Arc<Mapping>>,
    /// Why there is none.
    pub(crate) refusal: Option<Arc<MapRefusal>>,
    /// Version of the last map that was sent.
    pub(crate) version: u64,
    /// After a refusal: not looked at again before.
    pub(crate) not_before: Option<Instant>,
}

/// An open file.
#[derive(Debug)]
pub(crate) struct MappedFile {
    pub(crate) id: u32,
    pub(crate) access: Access,
    pub(crate) path: PathBuf,
    pub(crate) status: Mutex<Status>,
    /// Times the keeper has looked at the file. Changed while `status` is locked, with what the look has found.
    looks: AtomicU64,
    /// Waits for the keeper already.
    pub(crate) queued: AtomicBool,
    /// Error number by which the kernel has told, once, that what was written to the file did not get to the
    /// device; 0 is none. The page cache then has newer bytes than the device, and says that it has not.
    not_written: AtomicI32,
    /// The file opened for direct reads, once a chain is to read it on this machine.
    direct: OnceLock<Option<DirectFile>>,
    /// It is the character device of the namespace, which needs no map.
    pub(crate) is_whole_namespace: bool,
    /// Only this process writes it, and past the page cache.
    pub(crate) is_own: bool,
    /// Somebody else may have the same open file, which has one lease at the most.
    pub(crate) is_duplicate: bool,
}

/// What kind of file is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Others may write it.
    Shared,
    /// Only this process writes it.
    Own,
    /// Others may write it, and have this open file as well.
    Duplicate,
    /// The namespace itself.
    Namespace,
}

/// Files of this process that were closed.
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

    /// Writes what is in memory only to the device. After an error it fails for good.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn write_back(&self, file: &File) -> io::Result<()> {
        self.is_written()?;
        sys::write_back(file).inspect_err(|error| self.is_not_written(error))
    }

    /// Whether all that was written to the file has got to the device, as far as is known.
    ///
    /// # Errors
    /// The kernel's, of before.
    pub(crate) fn is_written(&self) -> io::Result<()> {
        match self.not_written.load(Ordering::Relaxed) {
            0 => Ok(()),
            number => Err(io::Error::from_raw_os_error(number)),
        }
    }

    /// What was written did not get to the device.
    pub(crate) fn is_not_written(&self, error: &io::Error) {
        let number = error.raw_os_error().unwrap_or(libc::EIO);
        if self.not_written.swap(number, Ordering::Relaxed) == 0 {
            let path = self.path.display();
            log::warn!(
                "{path}: what was written to it did not get to the disk: {error}; chains read it plainly"
            );
        }
    }

    /// The file for direct reads; None if it has none.
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

    /// How often the keeper has looked at the file. Who then locks the status sees what the last look has found.
    pub(crate) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Acquire)
    }

    /// Counts a look of the keeper, which has found `status` and has it locked.
    pub(crate) fn looked(&self, _: &mut Status) {
        self.looks.fetch_add(1, Ordering::Release);
    }

    /// Notes that the file waits for the keeper; false if it did.
    pub(crate) fn enqueue(&self) -> bool {
        !self.queued.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When a reader looks which of the files that it knows were closed.
#[derive(Debug)]
pub(crate) struct Closed {
    /// How many had been when it looked last, and when that was.
    seen: u64,
    looked: Instant,
}

/// A look at so many files is cheap; one at more is made when a part of them may be closed, or after this time.
const LOOKED_AT: u64 = 256;
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Closed {
    /// Of a reader that knows no file.
    pub(crate) fn new() -> Self {
        Self { seen: MappedFile::closed(), looked: Instant::now() }
    }

    /// Whether one that knows so many files is to look now.
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
    fn many_files_are_not_looked_at_for_each_that_is_closed() {
        let close = || drop(MappedFile::new(1, Access::by_path(), PathBuf::new(), Kind::Shared));
        let mut closed = Closed::new();
        close();
        // Others of this process may be closed meanwhile, which is as good.
        assert!(closed.is_due(256));
        let many = usize::MAX;
        closed.looked = Instant::now() + LOOK_AGAIN;
        close();
        assert!(!closed.is_due(many));
        closed.looked = Instant::now().checked_sub(LOOK_AGAIN).expect("the machine runs for long");
        assert!(closed.is_due(many));
    }

    #[test]
    fn a_file_that_was_not_written_stays_so() {
        let file = tempfile::tempfile().expect("a file");
        let mapped = MappedFile::new(1, Access::by_path(), PathBuf::new(), Kind::Shared);
        mapped.write_back(&file).expect("nothing is to be written");
        mapped.is_not_written(&io::Error::from_raw_os_error(libc::EIO));
        let error = mapped.write_back(&file).expect_err("it stays so");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
}
