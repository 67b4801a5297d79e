//! Duplicates in systemd's descriptor store: it keeps what it was given while the unit is restarted, and
//! gives it to the next process of the unit.

use super::key::Key;
use crate::EXPIRED;
use bpfof_systemd::{Manager, inherited};
use std::io;
use std::os::fd::BorrowedFd;

/// Names of what we keep begin so.
const PREFIX: &str = "lease-";

/// The store.
#[derive(Debug)]
pub(super) struct Store {
    manager: Manager,
    /// Tells our names from a predecessor's.
    process: u32,
}

impl Store {
    /// That of the service manager that runs this process; None if there is none.
    pub(super) fn of_environment() -> io::Result<Option<Self>> {
        let process = std::process::id();
        Ok(Manager::of_environment()?.map(|manager| Self { manager, process }))
    }

    pub(super) fn notify(&self, state: &str) -> io::Result<()> {
        self.manager.notify(state)
    }

    fn name(&self, key: Key) -> String {
        format!("{PREFIX}{}-{}", self.process, key.0)
    }

    pub(super) fn keep(&self, key: Key, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.manager.store(&self.name(key), descriptor)
    }

    pub(super) fn drop_key(&self, key: Key) -> io::Result<()> {
        self.manager.remove(&self.name(key))
    }

    /// Drops what a predecessor has left, once its associations must have ended.
    pub(super) fn drop_inherited(&self) -> io::Result<()> {
        let mut leases = inherited();
        leases.retain(|(name, _)| name.starts_with(PREFIX));
        if leases.is_empty() {
            return Ok(());
        }
        log::warn!("a predecessor has left {} leases, which last a while", leases.len());
        let manager = self.manager.try_clone()?;
        let later = move || {
            std::thread::sleep(EXPIRED);
            for (name, _) in &leases {
                if let Err(error) = manager.remove(name) {
                    log::warn!("systemd keeps {name}: {error}");
                }
            }
            log::info!("the leases of a predecessor are dropped");
        };
        std::thread::Builder::new().name("inherited".into()).spawn(later)?;
        Ok(())
    }
}
