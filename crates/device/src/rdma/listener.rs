//! Where connections are asked for.

use super::sys;
use super::verbs::{Channel, Happened, Id};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Listens at an address for RDMA connections.
#[derive(Debug)]
pub struct Listener {
    /// None while there is no card that has the address.
    id: Mutex<Option<Id>>,
    /// Of `id`, which goes before it.
    channel: Arc<Channel>,
    address: SocketAddr,
}

/// A connection that somebody asks for. Dropping it refuses it.
#[derive(Debug)]
pub struct Request {
    pub(super) id: Id,
    /// Of `id`, until another end of it takes over: that of the listener, which may be gone.
    _channel: Arc<Channel>,
    /// RDMA Reads that the peer answers at a time.
    pub(super) reads: u8,
    private_data: Vec<u8>,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Listener {
    /// Listens at `address`; port 0 lets the kernel choose. Readable when somebody may have asked for a
    /// connection.
    ///
    /// # Errors
    /// The libraries are not installed (the words say what to install), no card of this machine has the
    /// address, or it is in use.
    pub fn bind(address: SocketAddr) -> io::Result<Listener> {
        let channel = Arc::new(Channel::new()?);
        let id = Id::listen(&channel, address)?;
        let told = id.address().ok_or_else(|| io::Error::other("librdmacm tells no address"))?;
        Ok(Listener { id: Mutex::new(Some(id)), channel, address: told })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Whether its network card is gone, so that it listens no more.
    pub fn is_dead(&self) -> bool {
        self.id().is_none()
    }

    /// Listens again, if the network card was gone and is back.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind); it is to be tried again.
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

    /// The next connection that is asked for; none if there is none now. It does not wait.
    ///
    /// # Errors
    /// The kernel's answer, or the network card is gone: nobody comes until it [has
    /// revived](Self::revive).
    pub fn next(&self) -> io::Result<Option<Request>> {
        while let Some(happened) = self.channel.next()? {
            match happened {
                Happened::Request(id, asked) => {
                    let Some((local, peer)) = id.addresses() else { continue };
                    let (reads, private_data) = (asked.reads, asked.private_data);
                    let _channel = Arc::clone(&self.channel);
                    return Ok(Some(Request { id, _channel, reads, private_data, local, peer }));
                }
                Happened::Other { kind: sys::DEVICE_REMOVAL, .. } => {
                    // Else nobody could have its port, this listener included.
                    *self.id() = None;
                    return Err(io::Error::other("the network card is gone"));
                }
                // They concern connections that were given up before they were taken.
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
    /// What the peer says with it: of its message all that there is room for, padded with zeroes.
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

    /// Refuses it, and says why with at most 148 bytes.
    pub fn reject(mut self, private_data: &[u8]) {
        // Where it fails the peer hears nothing, and gives up by itself.
        let _ = self.id.reject(private_data);
    }
}
