//! Duplicates in systemd's descriptor store, which keeps descriptors while the unit is restarted, and passes them to
//! the next process of the unit.

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
    /// Whether the manager has reported how many descriptors it keeps.
    is_promised: bool,
    names: Arc<Mutex<Names>>,
    /// The thread that drops the leases of a predecessor.
    inherited: Option<JoinHandle<()>>,
}

fn locked(names: &Mutex<Names>) -> MutexGuard<'_, Names> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// The store of the service manager that runs this process; None without one. Duplicates of a predecessor are
    /// dropped once its associations must have ended, and take up room until then.
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

    /// Whether duplicates in this store need not be kept elsewhere, too.
    pub(super) const fn is_promised(&self) -> bool {
        self.is_promised
    }

    /// Most duplicates that it keeps.
    pub(super) fn max(&self) -> usize {
        locked(&self.names).max()
    }

    pub(super) fn notify(&self, state: &str) -> io::Result<()> {
        self.manager.notify(state)
    }

    /// Keeps a duplicate; `None` if there is no room.
    pub(super) fn keep(&self, descriptor: BorrowedFd<'_>) -> io::Result<Option<Name>> {
        let Some(name) = locked(&self.names).take() else { return Ok(None) };
        let kept = self.manager.store(&name.text(), descriptor);
        if kept.is_err() {
            // The manager may have it nevertheless, or accept it later.
            let _ = self.drop_name(name);
        }
        kept.map(|()| Some(name))
    }

    /// Drops a duplicate. If the manager cannot be told, its name is never used again.
    pub(super) fn drop_name(&self, name: Name) -> io::Result<()> {
        self.manager.remove(&name.text())?;
        locked(&self.names).give(name);
        Ok(())
    }

    fn drop_inherited(&self, leases: Vec<(String, OwnedFd)>) -> io::Result<Option<JoinHandle<()>>> {
        if leases.is_empty() {
            return Ok(None);
        }
        log::warn!(
            "a predecessor has left {} leases, which are kept until the targets have ended its \
             associations",
            leases.len()
        );
        let (manager, names) = (self.manager.try_clone()?, Arc::clone(&self.names));
        let later = move || {
            std::thread::sleep(EXPIRED);
            for (name, _) in &leases {
                match manager.remove(name) {
                    Ok(()) => locked(&names).give_inherited(name),
                    Err(error) => {
                        log::warn!("cannot remove {name} from systemd's descriptor store: {error}")
                    }
                }
            }
            log::info!("the leases of the predecessor are dropped");
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
