//! How the bytes of a file are got at: by a descriptor, or by its path.

use super::lease::Lease;
use super::open_page::{OpenPage, renumbered};
use super::sys::{self, LeaseState};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Device and inode.
type Identity = (u64, u64);

/// An open file, or one that is opened by its path when it is needed.
#[derive(Debug)]
pub(crate) enum Access {
    /// As long as it is known.
    Open(Arc<File>),
    /// For each use; what keeps its inode as long as it has a map.
    ByPath(Mutex<Option<Kept>>),
}

/// A descriptor of a file that could do without, and is read faster with one.
#[derive(Debug)]
pub(crate) struct Spare;

/// How many there are.
static SPARE: AtomicUsize = AtomicUsize::new(0);

impl Spare {
    /// None if a quarter of the descriptors that the process may have (`RLIMIT_NOFILE`) are such ones.
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

/// What keeps an inode, and a lease on it.
#[derive(Debug)]
pub(crate) enum Kept {
    Page {
        identity: Identity,
        _page: OpenPage,
    },
    /// Where no page can be had, or one is to spare.
    Descriptor {
        file: Arc<File>,
        _spare: Option<Spare>,
    },
}

impl Access {
    pub(crate) fn by_path() -> Self {
        Self::ByPath(Mutex::default())
    }

    /// The open file. One that is kept is the same until it is let go.
    ///
    /// # Errors
    /// The kernel's; `NotFound` also if the path has become that of another file.
    pub(crate) fn file(&self, path: &Path) -> io::Result<Arc<File>> {
        let kept = match self {
            Self::Open(file) => return Ok(Arc::clone(file)),
            Self::ByPath(kept) => match &*lock(kept) {
                Some(Kept::Descriptor { file, .. }) => return Ok(Arc::clone(file)),
                Some(Kept::Page { identity, .. }) => Some(*identity),
                None => None,
            },
        };
        let file = File::open(path)?;
        if kept.is_some() && kept != Some(identity(&file)?) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the path is another file's now"));
        }
        Ok(Arc::new(file))
    }

    /// The open file, by which a lease is to be taken that [`keep`](Self::keep) may keep.
    ///
    /// # Errors
    /// Those of [`file`](Self::file).
    pub(crate) fn to_lease(&self, path: &Path) -> io::Result<Arc<File>> {
        let file = self.file(path)?;
        Ok(match self {
            Self::Open(_) => file,
            Self::ByPath(_) => {
                Arc::try_unwrap(file).map(renumbered).map_or_else(|file| file, Arc::new)
            }
        })
    }

    /// Keeps an open file of the path, with its lease if it has one. `is_used`: each chain uses it, so that
    /// a descriptor is of use.
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

    /// Keeps nothing any more that can be opened again. A lease by it ends.
    pub(crate) fn let_go(&self) {
        if let Self::ByPath(kept) = self {
            lock(kept).take();
        }
    }

    /// Whether a lease is held, and nobody waits for it, as far as the kernel can be asked: not once the
    /// descriptor is closed.
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

    /// Gives a lease back.
    pub(crate) fn release(&self, lease: &Lease) {
        match self {
            Self::Open(file) => lease.release(file),
            Self::ByPath(kept) => {
                let mut kept = lock(kept);
                match &*kept {
                    // Its next map is of the same inode.
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

fn lock(kept: &Mutex<Option<Kept>>) -> MutexGuard<'_, Option<Kept>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn identity(file: &File) -> io::Result<Identity> {
    let found = file.metadata()?;
    Ok((found.dev(), found.ino()))
}
