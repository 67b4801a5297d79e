//! Holds the leases if the daemon is killed: a target keeps the maps until the daemon has been silent for the
//! keep-alive timeout, and until then no block may go to another file.
//!
//! A lease lasts as long as any process has a duplicate of its descriptor. So before a map is set, a duplicate goes to
//! a process that does nothing else ([`hold_leases`]), or to systemd if that runs the daemon, because all processes of
//! a unit may be killed at once. The duplicates are dropped once every target must have ended the associations.
//!
//! systemd silently drops descriptors for which its store has no room, and reports the size of the store only from
//! version 254 on. With a manager that does not report it, both the manager and the process get the duplicates.

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

/// The names of a duplicate: its key at the process, and its name in the store.
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
        Err(error) => log::warn!("cannot drop the leases of a predecessor: {error}"),
    }
}

/// Why a duplicate is not kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotKept {
    /// The store is full.
    #[error(
        "the service manager keeps at most {0} leases for all users together, including those of a \
         killed predecessor"
    )]
    Full(usize),
    /// The process or the store does not keep it.
    #[error("the lease would not outlive the daemon: {0}")]
    Failed(#[from] io::Error),
}

/// Keeps duplicates, in the process, in the store, or in both.
#[derive(Debug)]
pub(crate) struct Keepsake {
    process: Option<Mutex<Holder>>,
    store: Option<Store>,
    next: AtomicU64,
}

impl Keepsake {
    /// Uses systemd's store if systemd runs this process, and starts a process by `command` unless systemd reports the
    /// size of its store. Duplicates that a predecessor has left in the store are dropped later.
    pub(crate) fn new(command: &[PathBuf]) -> io::Result<Self> {
        let store = Store::of_environment()?;
        let process = match &store {
            Some(store) if store.is_promised() => None,
            _ => Some(Mutex::new(Holder::start(command)?)),
        };
        Ok(Self { process, store, next: AtomicU64::new(1) })
    }

    /// A text that says where duplicates are kept.
    pub(crate) fn describe(&self) -> String {
        let store = self.store.as_ref().map(|store| {
            format!("the service manager's descriptor store, {} at a time", store.max())
        });
        match (&self.process, store) {
            (Some(_), Some(store)) => format!("a separate process and {store}"),
            (None, Some(store)) => store,
            (_, None) => "a separate process".to_owned(),
        }
    }

    fn holder(&self) -> Option<MutexGuard<'_, Holder>> {
        self.process.as_ref().map(|holder| holder.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps a duplicate. Call it before setting the map that relies on the lease.
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
            // The duplicate must not stay in the store, because nothing is granted. The process has ended, most likely.
            let _ = self.drop_key(key);
            return Err(error.into());
        }
        Ok(key)
    }

    /// Drops a duplicate. Call it after releasing the lease.
    pub(crate) fn drop_key(&self, key: Key) -> io::Result<()> {
        if let (Some(store), Some(name)) = (&self.store, key.stored) {
            store.drop_name(name);
        }
        self.holder().map_or(Ok(()), |holder| holder.drop_key(key.held))
    }

    /// Drops duplicates that the store did not accept to drop earlier. Call it often.
    pub(crate) fn tend(&self) {
        if let Some(store) = &self.store {
            store.tend();
        }
    }

    /// Whether the duplicates are still kept. If not, all grants must be taken back.
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

    /// Reports a state of the daemon to the service manager.
    pub(crate) fn notify(&self, state: &str) {
        if let Some(store) = &self.store
            && let Err(error) = store.notify(state)
        {
            log::warn!("cannot report {state} to the service manager: {error}");
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A command that ends when it gets a packet, or its socket is closed.
    pub(crate) fn holder() -> Vec<PathBuf> {
        let wait = "until head -c 1 > /dev/null 2>&1; do sleep 0.05; done";
        ["sh", "-c", wait].map(PathBuf::from).into()
    }
}
