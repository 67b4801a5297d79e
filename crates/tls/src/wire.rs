//! The socket during a handshake: waits up to a deadline, and never reads ahead.

use crate::content_type;
use crate::error::{Alert, HandshakeError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Most bytes that a peer may send in a handshake. A Linux host sends less than 1,000, and the
/// longest handshake message that s2n-tls accepts has 65,536.
const HANDSHAKE_MAX_BYTES: usize = 1 << 15;

/// Longest single wait for the socket. Waits repeat until the deadline has passed.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// A socket with a deadline. It may be blocking or not, and stays as it is.
///
/// Sent data is kept until the next wait for the peer, so that a flight of messages is one packet,
/// not delayed by the peer's delayed acknowledgements.
pub(crate) struct Wire<'a> {
    socket: BorrowedFd<'a>,
    deadline: Instant,
    outgoing: Vec<u8>,
    sent_bytes: usize,
    received_bytes: usize,
    failure: Option<HandshakeError>,
}

impl<'a> Wire<'a> {
    pub(crate) const fn new(socket: BorrowedFd<'a>, deadline: Instant) -> Self {
        let outgoing = Vec::new();
        Self { socket, deadline, outgoing, sent_bytes: 0, received_bytes: 0, failure: None }
    }

    /// Waits for the peer's first byte, and leaves it in the socket.
    pub(crate) fn first_byte(&self) -> Result<u8, HandshakeError> {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match self.retry(PollFlags::IN, || recv(self.socket, &mut byte, flags)) {
            Ok((0, _)) | Err(HandshakeError::Closed) => Err(HandshakeError::NothingSent),
            Ok(_) => Ok(byte[0]),
            Err(error) => Err(error),
        }
    }

    /// Sends the queued bytes, then waits for at least one byte and receives as many as fit in
    /// `into`. Never returns 0.
    pub(crate) fn receive(
        &mut self,
        into: &mut [MaybeUninit<u8>],
    ) -> Result<usize, HandshakeError> {
        self.flush()?;
        let flags = RecvFlags::DONTWAIT;
        let first = self.received_bytes == 0;
        let received = self.retry(PollFlags::IN, || {
            let ((bytes, _), _) = recv(self.socket, &mut *into, flags)?;
            Ok((bytes.len(), bytes.first().copied()))
        })?;
        let (length, Some(first_byte)) = received else { return Err(HandshakeError::Closed) };
        if first && !content_type::ALL.contains(&first_byte) {
            return Err(HandshakeError::NotTls { first_byte });
        }
        self.received_bytes += length;
        if self.received_bytes > HANDSHAKE_MAX_BYTES {
            return Err(HandshakeError::TooLong { limit_bytes: HANDSHAKE_MAX_BYTES });
        }
        Ok(length)
    }

    /// Keeps `bytes` for the next [`flush`](Self::flush).
    pub(crate) fn queue(&mut self, bytes: &[u8]) {
        self.outgoing.extend_from_slice(bytes);
    }

    /// Sends the queued bytes.
    pub(crate) fn flush(&mut self) -> Result<(), HandshakeError> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut rest = self.outgoing.as_slice();
        while !rest.is_empty() {
            let sent = self.retry(PollFlags::OUT, || send(self.socket, rest, flags))?;
            self.sent_bytes += sent;
            rest = rest.get(sent..).unwrap_or(&[]);
        }
        self.outgoing.clear();
        Ok(())
    }

    /// Tells the peer why its handshake is refused, in the clear, unless data was already sent:
    /// then the peer no longer understands that. Does not wait; the alert may be lost.
    pub(crate) fn alert(&self, alert: Alert) {
        const FATAL: u8 = 2;
        if self.sent_bytes == 0 {
            let record = [content_type::ALERT, 3, 3, 0, 2, FATAL, alert.0];
            let _ = send(self.socket, &record, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Keeps the reason of a failure, because the TLS library cannot carry it.
    pub(crate) fn fail(&mut self, error: HandshakeError) {
        self.failure.get_or_insert(error);
    }

    /// Takes the failure that was kept.
    pub(crate) fn take_failure(&mut self) -> Option<HandshakeError> {
        self.failure.take()
    }

    /// Repeats `attempt` while it would block, at most until the deadline.
    fn retry<T>(
        &self,
        events: PollFlags,
        mut attempt: impl FnMut() -> rustix::io::Result<T>,
    ) -> Result<T, HandshakeError> {
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(Errno::AGAIN) => self.wait(events)?,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET | Errno::CONNABORTED | Errno::PIPE) => {
                    return Err(HandshakeError::Closed);
                }
                Err(errno) => return Err(HandshakeError::Io(errno.into())),
            }
        }
    }

    /// Waits for one of `events`; may return early.
    fn wait(&self, events: PollFlags) -> Result<(), HandshakeError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(HandshakeError::TimedOut);
        }
        let timeout = Timespec::try_from(left.min(WAIT_MAX)).ok();
        let mut sockets = [PollFd::from_borrowed_fd(self.socket, events)];
        match poll(&mut sockets, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(HandshakeError::Io(errno.into())),
        }
    }
}
