//! NVMe/TCP: the [`Initiator`] encodes and decodes PDUs, a socket carries them.

mod initiator;
mod records;
mod socket;
mod stream;

pub use initiator::Initiator;
pub(crate) use records::Keys;
pub(crate) use socket::{wait_ready, wait_ready_or};

use crate::requests::{InitiatorConfig, OnCompletion};
use crate::{Error, LostReason, Options, Request, SubmitError, TargetUrl};
use bpfof_nvme::tcp::IcResp;
use socket::Socket;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Receive buffer in bytes: one call receives all that the kernel holds for a busy lane.
const RECEIVE_BYTES: usize = 256 << 10;

/// The state that another process needs besides the socket to take over an idle connection.
#[derive(Debug)]
pub(crate) struct Takeover {
    /// The target's ICResp.
    pub(crate) opened: IcResp,
    /// The keys of a TLS connection.
    pub(crate) keys: Option<Keys>,
}

/// A queue over a TCP connection.
#[derive(Debug)]
pub(crate) struct TcpPort {
    /// `None` once the connection is over.
    socket: Option<Socket>,
    initiator: Initiator,
    buffer: Box<[u8]>,
    /// Bytes at the start of `buffer` that were received and not used yet.
    filled: usize,
}

impl TcpPort {
    pub(super) fn connect(
        url: &TargetUrl,
        options: &Options,
        config: InitiatorConfig,
        peer: Option<SocketAddr>,
    ) -> Result<TcpPort, Error> {
        let psk = options.credentials.psk(&options.host_nqn, &url.nqn)?;
        Ok(TcpPort {
            socket: Some(Socket::connect(url, peer, psk.as_ref(), options.connect_timeout)?),
            initiator: Initiator::new(config),
            buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            filled: 0,
        })
    }

    /// Takes over a connection that another process has made.
    ///
    /// # Errors
    /// [`Error::NoLane`].
    pub(crate) fn adopt(
        socket: OwnedFd,
        config: InitiatorConfig,
        takeover: Takeover,
    ) -> Result<TcpPort, Error> {
        let Takeover { opened, keys } = takeover;
        let wrong = |_| Error::NoLane("its ICResp is invalid");
        Ok(TcpPort {
            initiator: Initiator::adopted(config, &opened).map_err(wrong)?,
            socket: Some(Socket::adopt(socket, keys)?),
            buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            filled: 0,
        })
    }

    /// Takes the connection out, with the state that another process needs to take it over.
    ///
    /// # Errors
    /// See [`Queue::take_connection`](crate::queue::Queue::take_connection).
    pub(super) fn take_connection(&mut self) -> Result<(OwnedFd, Takeover), Error> {
        let Some(socket) = &self.socket else {
            return Err(self.initiator.failure().unwrap_or(LostReason::HungUp).into());
        };
        if self.initiator.in_flight() > 0 || !self.initiator.outgoing().is_empty() {
            return Err(Error::LaneBusy(self.initiator.in_flight()));
        }
        if self.filled > 0 || !socket.is_at_rest()? {
            return Err(Error::HandOver("the target has sent data that was not read"));
        }
        let Some(socket) = self.socket.take() else { return Err(LostReason::HungUp.into()) };
        let opened = self.initiator.opened_by();
        self.initiator.fail(LostReason::HungUp);
        let (descriptor, keys) = socket.into_parts();
        Ok((descriptor, Takeover { opened, keys }))
    }

    pub(super) const fn initiator(&self) -> &Initiator {
        &self.initiator
    }

    /// The address of the peer.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.socket.as_ref().and_then(Socket::peer)
    }

    pub(super) const fn is_connected(&self) -> bool {
        self.socket.is_some()
    }

    /// Whether there is data to send now.
    #[inline]
    pub(super) fn is_urgent(&self) -> bool {
        let has_unsent = |socket: &Socket| socket.has_unsent();
        self.initiator.is_urgent() || self.socket.as_ref().is_some_and(has_unsent)
    }

    /// Records that may still be sealed with the connection's key; `None` without TLS.
    pub(super) fn records_left(&self) -> Option<u64> {
        self.socket.as_ref().and_then(Socket::records_left)
    }

    #[inline]
    pub(super) fn submit(&mut self, tag: u64, request: &Request<'_>) -> Result<(), SubmitError> {
        self.initiator.submit(tag, request)
    }

    pub(super) fn ring(&mut self) {
        self.initiator.ring();
    }

    pub(super) fn send(&mut self, now_us: u64) -> Result<usize, LostReason> {
        let bytes = self.initiator.outgoing();
        let Some(socket) = self.socket.as_mut() else { return Ok(0) };
        if bytes.is_empty() && !socket.has_unsent() {
            return Ok(0);
        }
        let sent = socket.send(bytes)?;
        self.initiator.sent(sent, now_us);
        Ok(sent)
    }

    pub(super) fn receive(
        &mut self,
        on_completion: &mut OnCompletion<'_>,
    ) -> Result<usize, LostReason> {
        let Some(socket) = &mut self.socket else {
            return Err(self.initiator.failure().unwrap_or(LostReason::HungUp));
        };
        let received = socket.receive(self.buffer.get_mut(self.filled..).unwrap_or(&mut []))?;
        if received != 0 {
            self.filled += received;
            let input = self.buffer.get(..self.filled).unwrap_or(&[]);
            let used = self.initiator.receive(input, on_completion)?;
            // The rest is shorter than a header: moving it to the front keeps the free part of the buffer large.
            self.buffer.copy_within(used..self.filled, 0);
            self.filled -= used;
        }
        Ok(received)
    }

    pub(super) fn wait_ready(&self, or_send: bool, timeout: Duration) -> Result<bool, LostReason> {
        self.socket.as_ref().map_or(Ok(true), |socket| socket.wait_ready(or_send, timeout))
    }

    pub(super) fn descriptor(&self) -> Result<OwnedFd, Error> {
        let socket = self.socket.as_ref().ok_or(SubmitError::NotConnected)?;
        Ok(socket.descriptor().map_err(|error| LostReason::Io(error.kind()))?)
    }

    pub(super) fn close(&mut self, reason: LostReason) {
        self.initiator.fail(reason);
        let report = self.initiator.outgoing();
        if let Some(mut socket) = self.socket.take() {
            if !report.is_empty() {
                let _ = socket.send(report);
            }
            socket.shut_down();
        }
    }

    pub(super) fn lost(&mut self, on_completion: &mut OnCompletion<'_>) {
        self.initiator.lost(on_completion);
    }
}
