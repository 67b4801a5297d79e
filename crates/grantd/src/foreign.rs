//! Descriptors of clients. Closing one calls its file system, which may be served by the client itself and never
//! answer. So each session has a thread that only closes descriptors.

use crate::quota::Share;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

/// If more descriptors of a client wait to be closed, it is served no longer.
const WAITING_MAX: usize = 256;

/// A thread that closes descriptors.
#[derive(Clone, Debug)]
pub(crate) struct Closer {
    to: Sender<OwnedFd>,
    waiting: Arc<AtomicUsize>,
}

impl Closer {
    /// Starts the thread. It ends once it has closed all its descriptors and every sender is dropped; until then the
    /// client counts in its user's quota.
    pub(crate) fn start(share: Arc<Share>) -> io::Result<Self> {
        let (to, given) = channel::<OwnedFd>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&waiting);
        let close = move || {
            for descriptor in given {
                drop(descriptor);
                counted.fetch_sub(1, Ordering::SeqCst);
            }
            drop(share);
        };
        std::thread::Builder::new().name("close".into()).spawn(close)?;
        Ok(Self { to, waiting })
    }

    /// Wraps a descriptor, which the thread closes when the wrapper is dropped.
    pub(crate) fn guard(&self, descriptor: OwnedFd) -> Foreign {
        Foreign { descriptor: Some(descriptor), closer: self.clone() }
    }

    /// Whether more descriptors wait than a well-behaved client causes.
    pub(crate) fn is_stuck(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > WAITING_MAX
    }
}

/// A descriptor that a client has sent.
#[derive(Debug)]
pub(crate) struct Foreign {
    /// `Some` until it is dropped.
    descriptor: Option<OwnedFd>,
    closer: Closer,
}

impl Foreign {
    /// The descriptor.
    ///
    /// # Errors
    /// None in practice: the descriptor exists until this is dropped.
    pub(crate) fn get(&self) -> io::Result<BorrowedFd<'_>> {
        let descriptor = self.descriptor.as_ref().map(AsFd::as_fd);
        descriptor.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor.take() {
            self.closer.waiting.fetch_add(1, Ordering::SeqCst);
            // The thread lives as long as there are senders.
            let _ = self.closer.to.send(descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limits;
    use crate::quota::{Kind, Quotas};
    use std::time::{Duration, Instant};

    #[test]
    fn descriptors_are_closed_and_the_client_counts_until_they_are() {
        let quotas = Quotas::new(Limits { clients_per_user: 1, ..Limits::default() });
        let share = quotas.take(7, Kind::Clients, 1).expect("the first");
        let closer = Closer::start(Arc::new(share)).expect("a thread");
        let (read, write) = io::pipe().expect("a pipe");
        let foreign = closer.guard(write.into());
        assert!(foreign.get().is_ok() && !closer.is_stuck());
        drop((foreign, closer));
        // Waits until the pipe's write end is closed: then a read returns the end of the file.
        assert_eq!(rustix::io::read(&read, &mut [0; 1]).expect("its end"), 0);
        let end = Instant::now() + Duration::from_secs(20);
        while quotas.take(7, Kind::Clients, 1).is_err() {
            assert!(Instant::now() < end, "the client counts for ever");
            std::thread::yield_now();
        }
    }
}
