//! State that the daemon and its sessions share.

use crate::closing::Closing;
use crate::config::{Config, Served};
use crate::examine::device_of;
use crate::keepsake::Keepsake;
use crate::quota::Quotas;
use crate::seldom::Seldom;
use bpfof_host::files::NamespaceDevice;
use bpfof_host::grant::protocol::{Cause, Refusal};
use log::Level;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The identity of a client, as the kernel reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// 0 for a client in another PID namespace.
    pub(crate) pid: i32,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {} pid {}", self.uid, self.pid)
    }
}

/// Wakes a session from other threads.
#[derive(Debug)]
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn wake(&self) {
        // It fails only if the counter is full, and then the session wakes up anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Clears the signal after waking up.
    pub(crate) fn take(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A client's thread.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) wake: Arc<Wake>,
    pub(crate) thread: JoinHandle<()>,
}

/// State that sessions share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) namespaces: Vec<(Served, NamespaceDevice)>,
    pub(crate) quotas: Quotas,
    pub(crate) keepsake: Arc<Keepsake>,
    /// Whether all sessions must end.
    pub(crate) ending: AtomicBool,
    pub(crate) clients: Mutex<Vec<Client>>,
    /// Limits log lines that clients cause.
    pub(crate) told: Seldom,
    /// Sockets of clients that are not served.
    pub(crate) closing: Closing,
}

impl Shared {
    /// Logs a line about a client, unless there were enough about its user.
    pub(crate) fn tell(&self, peer: Peer, level: Level, what: impl fmt::Display) {
        self.told.note(peer.uid, level, || format!("{peer}: {what}"));
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    pub(crate) fn clients(&self) -> MutexGuard<'_, Vec<Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The served namespace that `place` is on; without a place, the only one that is served.
    pub(crate) fn served(
        &self,
        place: Option<BorrowedFd<'_>>,
    ) -> Result<(&Served, &NamespaceDevice), Refusal> {
        let refused = |cause, why: &str| Refusal::new(cause, why);
        let Some(place) = place else {
            return match &self.namespaces[..] {
                [(served, device)] => Ok((served, device)),
                _ => Err(refused(
                    Cause::Malformed,
                    "the daemon serves several namespaces; name a file or directory on the \
                     intended one",
                )),
            };
        };
        let at = device_of(place)?;
        let mut found = self.namespaces.iter().filter(|(_, device)| device.offset_of(at).is_ok());
        let (served, device) = found.next().ok_or_else(|| {
            refused(Cause::OtherPlace, "the file system is on no namespace that the daemon serves")
        })?;
        Ok((served, device))
    }

    /// Ends all sessions, which give their files back, and waits for them.
    pub(crate) fn end_all(&self) {
        self.ending.store(true, Ordering::SeqCst);
        let clients = std::mem::take(&mut *self.clients());
        clients.iter().for_each(|client| client.wake.wake());
        for client in clients {
            // A session that has panicked has kept its leases, which end with the process.
            if client.thread.join().is_err() {
                log::error!("a client's session has panicked");
            }
        }
    }
}
