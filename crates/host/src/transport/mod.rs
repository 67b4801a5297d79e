//! The transport of a queue: a TCP connection, or an endpoint of a fabric, over RDMA or within this process.

mod addresses;
mod connector;
mod endpoint;
mod fabric;
mod rooms;
pub(crate) mod tcp;

pub use connector::Connector;
pub(crate) use endpoint::QueueName;

use crate::requests::{InitiatorConfig, OnCompletion, Requests};
use crate::{Error, LostReason, Options, Request, SubmitError, TargetUrl, Transport};
use fabric::FabricPort;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tcp::{Takeover, TcpPort};

/// The host's end of a queue.
#[derive(Debug)]
pub(crate) enum Port {
    Tcp(Box<TcpPort>),
    Fabric(Box<FabricPort>),
}

impl Port {
    /// Connects. Requests are accepted once it [is ready](Requests::is_ready).
    pub(crate) fn connect(
        url: &TargetUrl,
        options: &Options,
        config: InitiatorConfig,
        queue: QueueName,
    ) -> Result<Port, Error> {
        let peer = queue.peer;
        Ok(match (&options.connector, url.transport) {
            (Some(connector), _) => Port::Fabric(Box::new(FabricPort::within(connector, config)?)),
            (None, Transport::Tcp) => {
                Port::Tcp(Box::new(TcpPort::connect(url, options, config, peer)?))
            }
            (None, Transport::Rdma) => {
                Port::Fabric(Box::new(FabricPort::connect(url, options, config, queue)?))
            }
        })
    }

    #[inline]
    pub(crate) const fn requests(&self) -> &Requests {
        match self {
            Port::Tcp(port) => port.initiator().requests(),
            Port::Fabric(port) => port.requests(),
        }
    }

    /// The address of the peer; `None` within this process.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Port::Tcp(port) => port.peer(),
            Port::Fabric(port) => port.peer(),
        }
    }

    pub(crate) const fn is_connected(&self) -> bool {
        match self {
            Port::Tcp(port) => port.is_connected(),
            Port::Fabric(port) => port.is_connected(),
        }
    }

    /// Queues a request after those queued before.
    #[inline]
    pub(crate) fn submit(&mut self, tag: u64, request: &Request<'_>) -> Result<(), SubmitError> {
        match self {
            Port::Tcp(port) => port.submit(tag, request),
            Port::Fabric(port) => port.submit(tag, request),
        }
    }

    /// Marks all queued requests to be sent.
    pub(crate) fn ring(&mut self) {
        match self {
            Port::Tcp(port) => port.ring(),
            Port::Fabric(port) => port.ring(),
        }
    }

    /// Number of queued bytes.
    pub(crate) fn queued_bytes(&self) -> usize {
        match self {
            Port::Tcp(port) => port.initiator().outgoing().len(),
            Port::Fabric(port) => port.queued_bytes(),
        }
    }

    /// Whether there is data to send now.
    pub(crate) fn is_urgent(&self) -> bool {
        match self {
            Port::Tcp(port) => port.is_urgent(),
            Port::Fabric(port) => port.is_urgent(),
        }
    }

    /// Sends the queued data as far as possible without waiting, and returns how many bytes were sent.
    pub(crate) fn send(&mut self, now_us: u64) -> Result<usize, LostReason> {
        match self {
            Port::Tcp(port) => port.send(now_us),
            Port::Fabric(port) => Ok(port.send(now_us)),
        }
    }

    /// Receives without waiting, reports the requests that ended, and returns how many bytes were received.
    pub(crate) fn receive(
        &mut self,
        on_completion: &mut OnCompletion<'_>,
    ) -> Result<usize, LostReason> {
        match self {
            Port::Tcp(port) => port.receive(on_completion),
            Port::Fabric(port) => port.receive(on_completion),
        }
    }

    /// Waits until the connection is readable (or writable, with `or_send`), at most `timeout`, which may be 0. Returns
    /// whether it is, or has ended.
    pub(crate) fn wait_ready(&self, or_send: bool, timeout: Duration) -> Result<bool, LostReason> {
        match self {
            Port::Tcp(port) => port.wait_ready(or_send, timeout),
            Port::Fabric(port) => port.wait_ready(timeout),
        }
    }

    /// A descriptor that is readable when data can be received, for waiting on it elsewhere.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd, Error> {
        match self {
            Port::Tcp(port) => port.descriptor(),
            Port::Fabric(port) => port.descriptor(),
        }
    }

    /// Takes the connection out, for another process to take over.
    pub(crate) fn take_connection(&mut self) -> Result<(OwnedFd, Takeover), Error> {
        match self {
            Port::Tcp(port) => port.take_connection(),
            Port::Fabric(_) => Err(Error::HandOver("it is not a TCP connection")),
        }
    }

    /// Records that may still be sealed with the connection's key; `None` without one.
    pub(crate) fn records_left(&self) -> Option<u64> {
        match self {
            Port::Tcp(port) => port.records_left(),
            Port::Fabric(_) => None,
        }
    }

    /// Closes the connection for `reason`, unless it is closed already. A report to the target is sent only if that
    /// works without waiting.
    pub(crate) fn close(&mut self, reason: LostReason) {
        match self {
            Port::Tcp(port) => port.close(reason),
            Port::Fabric(port) => port.close(reason),
        }
    }

    /// After a failure, reports each request still in flight, once.
    pub(crate) fn lost(&mut self, on_completion: &mut OnCompletion<'_>) {
        match self {
            Port::Tcp(port) => port.lost(on_completion),
            Port::Fabric(port) => port.lost(on_completion),
        }
    }
}
