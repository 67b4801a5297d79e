//! Who holds the leases if the daemon is killed: a target keeps the maps until it has missed the daemon for
//! the keep-alive timeout, and until then no block may go to another file.
//!
//! A lease lasts as long as somebody has a duplicate of its descriptor. So before a map is set a duplicate
//! goes to a process that does nothing else ([`hold_leases`]), or to systemd, where that runs the daemon:
//! processes of a unit may all be killed at once. Either drops them once every target must have ended the
//! associations.
//!
//! systemd drops silently what its store has no room for, and only from version 254 on it says how much that
//! is. A manager that does not say it gets the duplicates, and the process has them, too.

mod holder;
mod names;
mod systemd;

pub use holder::hold_leases;

use holder::Holder;
use names::Name;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use systemd::Store;

/// What a duplicate is called where it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    held: u64,
    stored: Option<Name>,
}

/// To be called before a process ends that could not start a daemon: has the service manager drop the leases that a
/// killed predecessor has left there, and waits until the target must have ended its associations.
pub fn outlast_predecessor() {
    match Store::of_environment() {
        Ok(store) => drop(store),
        Err(error) => log::warn!("the leases of a predecessor stay where they are: {error}"),
    }
}

/// Why a duplicate is not kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotKept {
    /// All of the room is taken.
    #[error(
        "the service manager keeps {0} leases for all users together, those of a killed predecessor included"
    )]
    Full(usize),
    /// Whoever should keep it does not.
    #[error("nobody would keep the lease if the daemon died: {0}")]
    Failed(#[from] io::Error),
}

/// Where duplicates are kept: in one place at least.
#[derive(Debug)]
pub(crate) struct Keepsake {
    process: Option<Mutex<Holder>>,
    store: Option<Store>,
    next: AtomicU64,
}

impl Keepsake {
    /// systemd's store if that runs this process, and a process that `command` starts unless systemd says that
    /// it has a store. What a predecessor has left in the store is dropped in time.
    pub(crate) fn new(command: &[PathBuf]) -> io::Result<Self> {
        let store = Store::of_environment()?;
        let process = match &store {
            Some(store) if store.is_promised() => None,
            _ => Some(Mutex::new(Holder::start(command)?)),
        };
        Ok(Self { process, store, next: AtomicU64::new(1) })
    }

    /// Where, in words.
    pub(crate) fn describe(&self) -> String {
        let store = self.store.as_ref().map(|store| {
            format!("the service manager's descriptor store, {} at a time", store.max())
        });
        match (&self.process, store) {
            (Some(_), Some(store)) => format!("a process of its own and {store}"),
            (None, Some(store)) => store,
            (_, None) => "a process of its own".to_owned(),
        }
    }

    fn holder(&self) -> Option<MutexGuard<'_, Holder>> {
        self.process.as_ref().map(|holder| holder.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps a duplicate, before the map is set that relies on the lease.
    pub(crate) fn keep(&self, descriptor: BorrowedFd<'_>) -> Result<Key, NotKept> {
        let stored = match &self.store {
            None => None,
            Some(store) => match store.keep(descriptor)? {
                None => return Err(NotKept::Full(store.max())),
                stored => stored,
            },
        };
        let key = Key { held: self.next.fetch_add(1, Ordering::Relaxed), stored };
        if let Some(holder) = self.holder()
            && let Err(error) = holder.keep(key.held, descriptor)
        {
            drop(holder);
            // Neither is to keep what is not granted; the process has ended, most likely.
            let _ = self.drop_key(key);
            return Err(error.into());
        }
        Ok(key)
    }

    /// Drops a duplicate, after the lease was released.
    pub(crate) fn drop_key(&self, key: Key) -> io::Result<()> {
        let stored = match (&self.store, key.stored) {
            (Some(store), Some(name)) => store.drop_name(name),
            _ => Ok(()),
        };
        self.holder().map_or(Ok(()), |holder| holder.drop_key(key.held)).and(stored)
    }

    /// Whether it keeps what it was given. What it has lost must be given back by its owners.
    pub(crate) fn is_there(&self) -> bool {
        self.holder().is_none_or(|holder| holder.is_there())
    }

    /// Starts another process in place of one that has ended.
    pub(crate) fn renew(&self, command: &[PathBuf]) -> io::Result<()> {
        if self.process.is_some() {
            let new = Holder::start(command)?;
            if let Some(mut holder) = self.holder() {
                *holder = new;
            }
        }
        Ok(())
    }

    /// Tells who waits for the daemon to be ready, or to end.
    pub(crate) fn notify(&self, state: &str) {
        if let Some(store) = &self.store
            && let Err(error) = store.notify(state)
        {
            log::warn!("cannot tell the service manager {state}: {error}");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A process that ends when it is told that it may, or nobody is left to tell it.
    pub(crate) fn holder() -> Vec<PathBuf> {
        let wait = "until head -c 1 > /dev/null 2>&1; do sleep 0.05; done";
        ["sh", "-c", wait].map(PathBuf::from).into()
    }
}
