//! A listener for RDMA connections.

use super::sys;
use super::verbs::{Channel, Happened, Id};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Listens at an address for RDMA connections.
#[derive(Debug)]
pub struct Listener {
    /// `None` while no card has the address.
    id: Mutex<Option<Id>>,
    /// The channel of `id`, which is dropped before it.
    channel: Arc<Channel>,
    address: SocketAddr,
}

/// A request of a peer for a connection. Dropping it rejects the request.
#[derive(Debug)]
pub struct Request {
    pub(super) id: Id,
    /// The channel of `id`, which keeps the listener's channel alive until `id` moves to another.
    _channel: Arc<Channel>,
    /// RDMA Reads that the peer answers concurrently.
    pub(super) reads: u8,
    private_data: Vec<u8>,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Listener {
    /// Listens at `address`; port 0 lets the kernel choose. The listener is readable when there may be requests.
    ///
    /// # Errors
    /// The libraries are not installed (the message says what to install), no card of this machine has the address, or
    /// it is in use.
    pub fn bind(address: SocketAddr) -> io::Result<Listener> {
        let channel = Arc::new(Channel::new()?);
        let id = Id::listen(&channel, address)?;
        let told = id
            .address()
            .ok_or_else(|| io::Error::other("librdmacm reports no address for the listener"))?;
        Ok(Listener { id: Mutex::new(Some(id)), channel, address: told })
    }

    /// The address it listens at.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Whether its network card is gone, so that it does not listen any more.
    pub fn is_dead(&self) -> bool {
        self.id().is_none()
    }

    /// Listens again, if the network card was gone and is back.
    ///
    /// # Errors
    /// As [`bind`](Self::bind); try again later.
    pub fn revive(&self) -> io::Result<()> {
        let mut id = self.id();
        if id.is_none() {
            *id = Some(Id::listen(&self.channel, self.address)?);
        }
        Ok(())
    }

    fn id(&self) -> MutexGuard<'_, Option<Id>> {
        self.id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next request for a connection; `None` if there is none now. Does not wait.
    ///
    /// # Errors
    /// The kernel's error, or that the network card is gone or has changed, as that of a bond does: there are no requests
    /// until a [revival](Self::revive).
    pub fn next(&self) -> io::Result<Option<Request>> {
        while let Some(happened) = self.channel.next()? {
            match happened {
                Happened::Request(id, asked) => {
                    let Some((local, peer)) = id.addresses() else { continue };
                    let (reads, private_data) = (asked.reads, asked.private_data);
                    let _channel = Arc::clone(&self.channel);
                    return Ok(Some(Request { id, _channel, reads, private_data, local, peer }));
                }
                Happened::Other {
                    of,
                    kind: kind @ (sys::DEVICE_REMOVAL | sys::ADDR_CHANGE),
                    ..
                } if self.id().as_ref().is_some_and(|id| id.is(of)) => {
                    // Drop the identifier, or the port would stay in use, also for this listener.
                    *self.id() = None;
                    return Err(io::Error::other(match kind {
                        sys::DEVICE_REMOVAL => "the network card is gone",
                        _ => "the address has moved to another network card",
                    }));
                }
                // These concern requests that were withdrawn before they were taken, or wait to be accepted.
                Happened::Other { .. } => {}
            }
        }
        Ok(None)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Request {
    /// The private data of the request: the whole area of the message, padded with zeroes.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The address that the peer reached.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether the peer answers RDMA Reads.
    pub fn answers_reads(&self) -> bool {
        self.reads > 0
    }

    /// Rejects the request, with at most 148 bytes of private data.
    pub fn reject(mut self, private_data: &[u8]) {
        // If this fails the peer gets no answer, and times out.
        let _ = self.id.reject(private_data);
    }
}
