//! Duplicates in systemd's descriptor store: it keeps what it was given while the unit is restarted, and
//! gives it to the next process of the unit.

use super::names::{Name, Names};
use crate::EXPIRED;
use bpfof_systemd::{Manager, inherited, stored_max};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The store. Dropping this waits until the leases of a predecessor are dropped.
#[derive(Debug)]
pub(super) struct Store {
    manager: Manager,
    /// Whether the manager has said how much it keeps.
    is_promised: bool,
    names: Arc<Mutex<Names>>,
    /// The thread that drops the leases of a predecessor.
    inherited: Option<JoinHandle<()>>,
}

fn locked(names: &Mutex<Names>) -> MutexGuard<'_, Names> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// That of the service manager that runs this process; None if there is none. What a predecessor has left
    /// is dropped once its associations must have ended, and takes its room until then.
    pub(super) fn of_environment() -> io::Result<Option<Self>> {
        let Some(manager) = Manager::of_environment()? else { return Ok(None) };
        let (promised, leases) = (stored_max(), inherited());
        let stored = leases.iter().map(|(name, _)| name.as_str());
        let names = Arc::new(Mutex::new(Names::new(promised.unwrap_or(usize::MAX), stored)));
        let is_promised = promised.is_some();
        let mut store = Self { manager, is_promised, names, inherited: None };
        store.inherited = store.drop_inherited(leases)?;
        Ok(Some(store))
    }

    /// Whether what is kept here needs to be kept nowhere else.
    pub(super) const fn is_promised(&self) -> bool {
        self.is_promised
    }

    /// How many duplicates it keeps.
    pub(super) fn max(&self) -> usize {
        locked(&self.names).max()
    }

    pub(super) fn notify(&self, state: &str) -> io::Result<()> {
        self.manager.notify(state)
    }

    /// Keeps a duplicate; none if there is no room.
    pub(super) fn keep(&self, descriptor: BorrowedFd<'_>) -> io::Result<Option<Name>> {
        let Some(name) = locked(&self.names).take() else { return Ok(None) };
        let kept = self.manager.store(&name.text(), descriptor);
        if kept.is_err() {
            // It may have it nevertheless, or take it later.
            let _ = self.drop_name(name);
        }
        kept.map(|()| Some(name))
    }

    /// A name that the manager was not told of is used no more.
    pub(super) fn drop_name(&self, name: Name) -> io::Result<()> {
        self.manager.remove(&name.text())?;
        locked(&self.names).give(name);
        Ok(())
    }

    fn drop_inherited(&self, leases: Vec<(String, OwnedFd)>) -> io::Result<Option<JoinHandle<()>>> {
        if leases.is_empty() {
            return Ok(None);
        }
        log::warn!("a predecessor has left {} leases, which last a while", leases.len());
        let (manager, names) = (self.manager.try_clone()?, Arc::clone(&self.names));
        let later = move || {
            std::thread::sleep(EXPIRED);
            for (name, _) in &leases {
                match manager.remove(name) {
                    Ok(()) => locked(&names).give_inherited(name),
                    Err(error) => log::warn!("systemd keeps {name}: {error}"),
                }
            }
            log::info!("the leases of a predecessor are dropped");
        };
        std::thread::Builder::new().name("inherited".into()).spawn(later).map(Some)
    }
}

impl Drop for Store {
    /// systemd drops the store at once when the unit is stopped, and never while its processes cannot start.
    fn drop(&mut self) {
        let Some(thread) = self.inherited.take() else { return };
        if !thread.is_finished() {
            log::info!("waiting until the leases of a predecessor are dropped");
        }
        // It does not panic.
        let _ = thread.join();
    }
}
