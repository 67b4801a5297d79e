//! How a file is accessed: by a descriptor, or by its path.

use super::lease::Lease;
use super::open_page::{OpenPage, renumbered};
use super::sys::{self, LeaseState};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Device and inode.
type Identity = (u64, u64);

/// An open file, or one that is opened by its path when needed.
#[derive(Debug)]
pub(crate) enum Access {
    /// Open all the time.
    Open(Arc<File>),
    /// Opened for each use. While the file has a map, this keeps its inode.
    ByPath(Mutex<Option<Kept>>),
}

/// Permission for a descriptor that is not necessary, but makes access to its file faster.
#[derive(Debug)]
pub(crate) struct Spare;

/// Number of spare descriptors.
static SPARE: AtomicUsize = AtomicUsize::new(0);

impl Spare {
    /// None if a quarter of the process's descriptors (`RLIMIT_NOFILE`) are spare ones already.
    pub(crate) fn take() -> Option<Self> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let spare = Self;
        let before = SPARE.fetch_add(1, Ordering::Relaxed) as u64;
        (before < limit.unwrap_or(u64::MAX) / 4).then_some(spare)
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        SPARE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Keeps an inode, and a lease on it.
#[derive(Debug)]
pub(crate) enum Kept {
    Page {
        identity: Identity,
        _page: OpenPage,
    },
    /// If no page is available, or a spare descriptor is.
    Descriptor {
        file: Arc<File>,
        _spare: Option<Spare>,
    },
}

impl Access {
    pub(crate) fn by_path() -> Self {
        Self::ByPath(Mutex::default())
    }

    /// The open file. While an inode is kept, it is always the file with that inode. Waits if another process has a write
    /// lease on it.
    ///
    /// # Errors
    /// The kernel's; `NotFound` also if the path now leads to another file.
    pub(crate) fn file(&self, path: &Path) -> io::Result<Arc<File>> {
        match self.file_now(path) {
            // It is a regular file: others open at once.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.opened(|| File::open(path))
            }
            opened => opened,
        }
    }

    /// The same without waiting for other processes: for a pipe, or a file that another process has leased to write it.
    ///
    /// # Errors
    /// As [`file`](Self::file), and `WouldBlock`.
    pub(crate) fn file_now(&self, path: &Path) -> io::Result<Arc<File>> {
        self.opened(|| open_now(path))
    }

    fn opened(&self, open: impl FnOnce() -> io::Result<File>) -> io::Result<Arc<File>> {
        let kept = match self {
            Self::Open(file) => return Ok(Arc::clone(file)),
            Self::ByPath(kept) => match &*lock(kept) {
                Some(Kept::Descriptor { file, .. }) => return Ok(Arc::clone(file)),
                Some(Kept::Page { identity, .. }) => Some(*identity),
                None => None,
            },
        };
        let file = open()?;
        if kept.is_some() && kept != Some(identity(&file)?) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the path now leads to another file",
            ));
        }
        Ok(Arc::new(file))
    }

    /// The open file, to take a lease on it, which [`keep`](Self::keep) may then keep.
    ///
    /// # Errors
    /// Those of [`file_now`](Self::file_now).
    pub(crate) fn to_lease(&self, path: &Path) -> io::Result<Arc<File>> {
        let file = self.file_now(path)?;
        Ok(match self {
            Self::Open(_) => file,
            Self::ByPath(_) => {
                Arc::try_unwrap(file).map(renumbered).map_or_else(|file| file, Arc::new)
            }
        })
    }

    /// For a file that is accessed by its path: keeps it open, with its lease if it has one. `is_used`: each chain uses
    /// the file, so that a descriptor saves an open.
    pub(crate) fn keep(&self, file: &Arc<File>, is_used: bool) {
        let Self::ByPath(kept) = self else { return };
        let page =
            || Some(Kept::Page { identity: identity(file).ok()?, _page: OpenPage::of(file).ok()? });
        let spare = is_used.then(Spare::take).flatten();
        let page = if spare.is_none() { page() } else { None };
        *lock(kept) = Some(
            page.unwrap_or_else(|| Kept::Descriptor { file: Arc::clone(file), _spare: spare }),
        );
    }

    /// Closes the kept file, if it can be opened again by its path. This ends its lease.
    pub(crate) fn let_go(&self) {
        if let Self::ByPath(kept) = self {
            lock(kept).take();
        }
    }

    /// The state of the file's lease. None if the kernel cannot be asked, because the descriptor is closed and only a
    /// page keeps the file.
    pub(crate) fn lease(&self) -> Option<LeaseState> {
        match self {
            Self::Open(file) => Some(sys::lease_state(file)),
            Self::ByPath(kept) => match &*lock(kept) {
                Some(Kept::Descriptor { file, .. }) => Some(sys::lease_state(file)),
                Some(Kept::Page { .. }) => None,
                None => Some(LeaseState::Broken),
            },
        }
    }

    /// Releases a lease.
    pub(crate) fn release(&self, lease: &Lease) {
        match self {
            Self::Open(file) => lease.release(file),
            Self::ByPath(kept) => {
                let mut kept = lock(kept);
                match &*kept {
                    // Keeps the descriptor, so that the next map is of the same inode.
                    Some(Kept::Descriptor { file, .. }) => lease.release(file),
                    _ => {
                        lease.released();
                        kept.take();
                    }
                }
            }
        }
    }
}

/// Opens a file for reading without waiting for other processes. Its reads may wait.
fn open_now(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

fn lock(kept: &Mutex<Option<Kept>>) -> MutexGuard<'_, Option<Kept>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn identity(file: &File) -> io::Result<Identity> {
    let found = file.metadata()?;
    Ok((found.dev(), found.ino()))
}
