//! An open file and its map.

use super::access::Access;
use super::direct::DirectFile;
use super::error::MapRefusal;
use super::layout::FileLayout;
use super::lease::Lease;
use crate::grant::PageReader;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

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
    /// Times the keeper has looked at the file.
    pub(crate) looks: u64,
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
    /// Waits for the keeper already.
    pub(crate) queued: AtomicBool,
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
            queued: AtomicBool::new(false),
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

    /// The file for direct reads; None if it has none.
    pub(crate) fn direct(&self) -> Option<&DirectFile> {
        let open = match self.access {
            Access::Open(_) => DirectFile::of,
            Access::ByPath(_) => DirectFile::of_many,
        };
        self.direct.get_or_init(|| open(&*self.file().ok()?)).as_ref()
    }

    /// How many files of this process have been closed: when the number changes, who holds a
    /// file by other means looks which ones.
    pub(crate) fn closed() -> u64 {
        CLOSED.load(Ordering::Acquire)
    }

    /// Notes that the file waits for the keeper; false if it did.
    pub(crate) fn enqueue(&self) -> bool {
        !self.queued.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        CLOSED.fetch_add(1, Ordering::Release);
    }
}
