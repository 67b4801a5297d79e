//! Duplicates in systemd's descriptor store, which keeps descriptors while the unit is restarted, and passes them to
//! the next process of the unit.

use super::names::{Name, Names};
use crate::EXPIRED;
use bpfof_systemd::{Barrier, Manager, inherited, stored_max};
use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait for the manager, for a grant or where no client waits for it.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a thread looks whether it is its turn to send.
const TURN: Duration = Duration::from_millis(1);
/// Leases of a predecessor that are removed in one turn.
const AT_ONCE: usize = 64;

/// The store. Dropping this waits until the leases of a predecessor are dropped.
#[derive(Debug)]
pub(super) struct Store {
    manager: Manager,
    /// Whether the manager has reported how many descriptors it keeps.
    is_promised: bool,
    names: Arc<Mutex<Names>>,
    /// Held while messages are sent. The manager does not store a descriptor that it already has under another name:
    /// so it must be told of all removals before it is told of the next descriptor, which may be the same.
    sending: Arc<Mutex<()>>,
    /// The thread that drops the leases of a predecessor.
    inherited: Option<JoinHandle<()>>,
}

fn locked(names: &Mutex<Names>) -> MutexGuard<'_, Names> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the lock, at most until `end`.
fn lock_until(lock: &Mutex<()>, end: Instant) -> io::Result<MutexGuard<'_, ()>> {
    loop {
        match lock.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= end => {
                return Err(ErrorKind::TimedOut.into());
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(TURN),
        }
    }
}

/// Has the manager remove one of the descriptors that are not needed any more; false if there is none. The caller
/// holds the lock.
fn remove_one(manager: &Manager, names: &Mutex<Names>, end: Instant) -> io::Result<bool> {
    let Some(name) = locked(names).waiting.pop() else { return Ok(false) };
    if let Err(error) = manager.remove(&name, end) {
        locked(names).waiting.push(name);
        return Err(error);
    }
    locked(names).give(&name);
    Ok(true)
}

/// Has the manager remove all of them, until it does not accept one for as long as `patience`.
fn remove_all(
    manager: &Manager,
    names: &Mutex<Names>,
    sending: &Mutex<()>,
    patience: Duration,
) -> io::Result<()> {
    loop {
        let end = Instant::now() + patience;
        let _alone = match lock_until(sending, end) {
            Ok(guard) => guard,
            // Who sends now removes them as well, or a later call does.
            Err(_) if patience.is_zero() => return Ok(()),
            Err(error) => return Err(error),
        };
        if !remove_one(manager, names, end)? {
            return Ok(());
        }
    }
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
        let sending = Arc::default();
        let mut store = Self { manager, is_promised, names, sending, inherited: None };
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
        let kept = self.begin_to_keep(name, descriptor).and_then(Barrier::wait);
        if kept.is_err() {
            // The manager may have it nevertheless, or accept it later.
            self.drop_name(name);
        }
        kept.map(|()| Some(name))
    }

    /// Removals that wait come first: see `sending`.
    fn begin_to_keep(&self, name: Name, descriptor: BorrowedFd<'_>) -> io::Result<Barrier> {
        let end = Instant::now() + PATIENCE;
        let _alone = lock_until(&self.sending, end)?;
        while remove_one(&self.manager, &self.names, end)? {}
        self.manager.store(&name.text(), descriptor, end)
    }

    /// Drops a duplicate, without waiting for the manager: if it does not accept that now, [`tend`](Self::tend) tries
    /// again, and the duplicate takes up room until then.
    pub(super) fn drop_name(&self, name: Name) {
        let mut names = locked(&self.names);
        let is_first = names.waiting.is_empty();
        names.waiting.push(name.text());
        drop(names);
        if let Err(error) = self.remove_all(Duration::ZERO)
            && is_first
        {
            log::warn!("leases stay in the service manager's descriptor store for now: {error}");
        }
    }

    /// Drops duplicates that the manager did not accept to drop earlier, as many as it accepts now.
    pub(super) fn tend(&self) {
        // The next call tries again.
        let _ = self.remove_all(Duration::ZERO);
    }

    fn remove_all(&self, patience: Duration) -> io::Result<()> {
        remove_all(&self.manager, &self.names, &self.sending, patience)
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
        let lock = Arc::clone(&self.sending);
        let later = move || {
            std::thread::sleep(EXPIRED);
            let left: Vec<String> = leases.into_iter().map(|(name, _)| name).collect();
            let mut removed = Ok(());
            for some in left.chunks(AT_ONCE) {
                locked(&names).waiting.extend_from_slice(some);
                // After an error the others wait as well, for a later call.
                if removed.is_ok() {
                    removed = remove_all(&manager, &names, &lock, PATIENCE);
                    // A grant has its turn in between.
                    std::thread::sleep(2 * TURN);
                }
            }
            match removed {
                Ok(()) => log::info!("the leases of the predecessor are dropped"),
                Err(error) => log::warn!(
                    "leases of the predecessor stay in systemd's descriptor store for now: {error}"
                ),
            }
        };
        std::thread::Builder::new().name("inherited".into()).spawn(later).map(Some)
    }
}

impl Drop for Store {
    /// systemd drops the store at once when the unit is stopped, and never while its processes cannot start.
    fn drop(&mut self) {
        if let Some(thread) = self.inherited.take() {
            if !thread.is_finished() {
                log::info!("waiting until the leases of a predecessor are dropped");
            }
            // It does not panic.
            let _ = thread.join();
        }
        // The next process of the unit removes what is left.
        let _ = self.remove_all(PATIENCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_manager_that_takes_nothing_is_told_later_and_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let listener = UnixDatagram::bind(&path).expect("a socket");
        listener.set_nonblocking(true).expect("set");
        let manager = Manager::connect(path.as_os_str()).expect("it listens");
        while manager.notify("STATUS=busy").is_ok() {}
        let names = Arc::new(Mutex::new(Names::new(5, std::iter::empty())));
        let sending = Arc::default();
        let store = Store { manager, is_promised: true, names, sending, inherited: None };
        let take = || std::iter::from_fn(|| locked(&store.names).take()).collect::<Vec<Name>>();
        let taken = take();
        assert_eq!(taken.len(), 5);
        let begun = Instant::now();
        taken.iter().for_each(|name| store.drop_name(*name));
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        // Their descriptors are in the store until the manager reads.
        assert!(take().is_empty());
        let received = || {
            let mut bytes = [0; 64];
            let length = listener.recv(&mut bytes).ok()?;
            Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
        };
        while received().is_some_and(|text| text == "STATUS=busy") {}
        store.tend();
        let told: BTreeSet<String> = std::iter::from_fn(received).collect();
        let removal = |name: &Name| format!("FDSTOREREMOVE=1\nFDNAME={}", name.text());
        assert_eq!(told, taken.iter().map(removal).collect::<BTreeSet<String>>());
        assert_eq!(take().len(), 5);
    }

    /// A descriptor that is stored again, under another name, must not be lost with its old name.
    #[test]
    fn removals_are_told_before_the_next_descriptor() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let listener = UnixDatagram::bind(&path).expect("a socket");
        let manager = Manager::connect(path.as_os_str()).expect("it listens");
        let names = Arc::new(Mutex::new(Names::new(5, std::iter::empty())));
        let sending = Arc::default();
        let store = Store { manager, is_promised: true, names, sending, inherited: None };
        let old = locked(&store.names).take().expect("a name");
        locked(&store.names).waiting.push(old.text());
        std::thread::scope(|scope| {
            let told = scope.spawn(|| {
                // Descriptors that are not asked for are closed, and so the barrier is passed.
                let told = || {
                    let mut bytes = [0; 64];
                    let length = listener.recv(&mut bytes).expect("a message");
                    String::from_utf8_lossy(&bytes[..length]).into_owned()
                };
                [told(), told(), told()]
            });
            let new = store.keep(listener.as_fd()).expect("kept").expect("a name");
            let told = told.join().expect("no panic");
            assert_eq!(told[0], format!("FDSTOREREMOVE=1\nFDNAME={}", old.text()));
            assert_eq!(told[1], format!("FDSTORE=1\nFDPOLL=0\nFDNAME={}", new.text()));
            assert_eq!(told[2], "BARRIER=1");
        });
    }
}
