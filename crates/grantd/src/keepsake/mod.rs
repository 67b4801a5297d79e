//! Who holds the leases if the daemon is killed: a target keeps the maps until it has missed the daemon for
//! the keep-alive timeout, and until then no block may go to another file.
//!
//! A lease lasts as long as somebody has a duplicate of its descriptor. So before a map is set a duplicate
//! goes to a process that does nothing else ([`hold_leases`]), or to systemd, where that runs the daemon:
//! processes of a unit may all be killed at once. Either drops them once every target must have ended the
//! associations.

mod holder;
mod key;
mod systemd;

pub use holder::hold_leases;
pub(crate) use key::Key;

use holder::Holder;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use systemd::Store;

#[derive(Debug)]
enum Place {
    Process(Mutex<Holder>),
    Systemd(Store),
}

/// Where duplicates are kept.
#[derive(Debug)]
pub(crate) struct Keepsake {
    place: Place,
    next: AtomicU64,
}

impl Keepsake {
    /// systemd's store if that runs this process, and otherwise a process that `command` starts. What a
    /// predecessor has left in the store is dropped in time.
    pub(crate) fn new(command: &[PathBuf]) -> io::Result<Self> {
        let place = match Store::of_environment()? {
            Some(store) => {
                store.drop_inherited()?;
                Place::Systemd(store)
            }
            None => Place::Process(Mutex::new(Holder::start(command)?)),
        };
        Ok(Self { place, next: AtomicU64::new(1) })
    }

    /// Where, in words.
    pub(crate) const fn describe(&self) -> &'static str {
        match self.place {
            Place::Process(_) => "a process of its own",
            Place::Systemd(_) => "systemd's descriptor store",
        }
    }

    fn holder(holder: &Mutex<Holder>) -> MutexGuard<'_, Holder> {
        holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a duplicate, before the map is set that relies on the lease.
    pub(crate) fn keep(&self, descriptor: BorrowedFd<'_>) -> io::Result<Key> {
        let key = Key(self.next.fetch_add(1, Ordering::Relaxed));
        match &self.place {
            Place::Process(holder) => Self::holder(holder).keep(key, descriptor)?,
            Place::Systemd(store) => store.keep(key, descriptor)?,
        }
        Ok(key)
    }

    /// Drops a duplicate, after the lease was released.
    pub(crate) fn drop_key(&self, key: Key) -> io::Result<()> {
        match &self.place {
            Place::Process(holder) => Self::holder(holder).drop_key(key),
            Place::Systemd(store) => store.drop_key(key),
        }
    }

    /// Whether it keeps what it was given. What it has lost must be given back by its owners.
    pub(crate) fn is_there(&self) -> bool {
        match &self.place {
            Place::Process(holder) => Self::holder(holder).is_there(),
            Place::Systemd(_) => true,
        }
    }

    /// Starts another process in place of one that has ended.
    pub(crate) fn renew(&self, command: &[PathBuf]) -> io::Result<()> {
        if let Place::Process(holder) = &self.place {
            let new = Holder::start(command)?;
            *Self::holder(holder) = new;
        }
        Ok(())
    }

    /// Tells who waits for the daemon to be ready, or to end.
    pub(crate) fn notify(&self, state: &str) {
        if let Place::Systemd(store) = &self.place
            && let Err(error) = store.notify(state)
        {
            log::warn!("cannot tell systemd {state}: {error}");
        }
    }
}
