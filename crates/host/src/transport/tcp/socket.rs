//! A non-blocking TCP connection.

use super::records::{Keys, Records};
use super::stream::{read, write};
use crate::deadline::deadline;
use crate::transport::addresses::{addresses, share};
use crate::{Error, LostReason, TargetUrl};
use bpfof_tls::Psk;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket as RawSocket, Type};
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// A connected socket. Its kernel buffers keep their automatic size: a fixed size would be capped at net.core.rmem_max,
/// which is less than the size to which the kernel grows them.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    /// None on a connection without TLS.
    records: Option<Box<Records>>,
}

impl Socket {
    /// Connects to the first address of `url` that answers within its [`share`] of `timeout`, or to `peer`; with a key,
    /// over TLS, in the rest of `timeout`.
    pub(crate) fn connect(
        url: &TargetUrl,
        peer: Option<SocketAddr>,
        psk: Option<&Psk>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let addresses = addresses(url, peer)?;
        let deadline = deadline(timeout);
        let address = || format!("{}:{}", url.host, url.port);
        let stream = Self::connect_first(url.host_traddr, &addresses, deadline)
            .map_err(|source| Error::Connect { address: address(), source })?;
        let records = psk.map(|psk| {
            let secured = Records::shake_hands(&stream, psk, deadline);
            secured
                .map(Box::new)
                .map_err(|source| Error::Tls { address: address(), source: Box::new(source) })
        });
        Ok(Self { stream, records: records.transpose()? })
    }

    /// Takes over a connection that another process has made, after its handshake.
    ///
    /// # Errors
    /// [`Error::NoLane`]: it is not a connected TCP socket.
    pub(super) fn adopt(socket: OwnedFd, keys: Option<Keys>) -> Result<Self, Error> {
        let no_lane = |_: io::Error| Error::NoLane("it is not a TCP connection");
        let socket = RawSocket::from(socket);
        let is_tcp = socket.protocol().map_err(no_lane)? == Some(Protocol::TCP);
        if !is_tcp || socket.peer_addr().is_err() {
            return Err(Error::NoLane("it is not a TCP connection"));
        }
        socket.set_nonblocking(true).map_err(no_lane)?;
        let records = keys.map(|keys| Records::new(keys).map(Box::new)).transpose();
        let records = records.map_err(|_| Error::NoLane("its keys cannot be used"))?;
        Ok(Self { stream: socket.into(), records })
    }

    /// The address of the peer.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok()
    }

    /// Whether the connection is idle: there are no unread received bytes and no unsent ones.
    pub(super) fn is_at_rest(&self) -> Result<bool, LostReason> {
        let is_at_rest = self.records.as_ref().is_none_or(|records| records.is_at_rest());
        Ok(is_at_rest && !self.wait_ready(false, Duration::ZERO)?)
    }

    /// The socket, and the keys of a TLS connection, each in the state for the next record.
    pub(super) fn into_parts(self) -> (OwnedFd, Option<Keys>) {
        (self.stream.into(), self.records.map(|records| records.into_keys()))
    }

    /// Connects to the first of `addresses` that answers within its share of the time until `deadline`.
    fn connect_first(
        from: Option<IpAddr>,
        addresses: &[SocketAddr],
        deadline: Instant,
    ) -> io::Result<TcpStream> {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for (at, &address) in addresses.iter().enumerate() {
            match Self::connect_one(from, address, share(deadline, addresses.len() - at)) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn connect_one(
        from: Option<IpAddr>,
        address: SocketAddr,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        if timeout.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let socket =
            RawSocket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(from) = from {
            socket.bind(&SocketAddr::new(from, 0).into()).map_err(|error| {
                let why = format!("from {from} (host-traddr) to {}: {error}", address.ip());
                io::Error::new(error.kind(), why)
            })?;
        }
        socket.connect_timeout(&address.into(), timeout)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    }

    /// Sends as many bytes as the kernel accepts now; returns their number, possibly 0. With TLS all bytes are sealed,
    /// and the part that the kernel has not accepted [waits](Self::has_unsent).
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize, LostReason> {
        match &mut self.records {
            None => write(&mut self.stream, bytes),
            Some(records) => records.send(&mut self.stream, bytes),
        }
    }

    /// Whether sealed bytes wait for the kernel.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        self.records.as_ref().is_some_and(|records| records.has_unsent())
    }

    /// Receives without waiting; 0 if no bytes are there. With TLS `buffer` must have room for the most that one
    /// receive may return: [`Records::MOST_AT_ONCE_BYTES`].
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, LostReason> {
        match &mut self.records {
            None => read(&mut self.stream, buffer),
            Some(records) => records.receive(&mut self.stream, buffer),
        }
    }

    /// Records that may still be sealed with the connection's key; `None` without TLS.
    pub(crate) fn records_left(&self) -> Option<u64> {
        self.records.as_ref().map(|records| records.left())
    }

    /// Ends the connection for all descriptors of it. Bytes that the kernel has accepted are still sent.
    pub(crate) fn shut_down(&self) {
        // The connection may have ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Another descriptor of the socket, for waiting on it elsewhere.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.stream.as_fd().try_clone_to_owned()
    }

    /// See [`wait_ready`].
    pub(crate) fn wait_ready(&self, or_send: bool, timeout: Duration) -> Result<bool, LostReason> {
        wait_ready(&self.stream, or_send, timeout)
    }
}

/// Waits until the socket is readable (or writable, with `or_send`), at most `timeout`, which may be 0. Returns whether
/// it is.
pub(crate) fn wait_ready(
    socket: impl AsFd,
    or_send: bool,
    timeout: Duration,
) -> Result<bool, LostReason> {
    wait_any(&mut [PollFd::new(&socket, wanted(or_send))], timeout)
}

/// The same for two descriptors: returns true also if `event` is readable.
pub(crate) fn wait_ready_or(
    socket: impl AsFd,
    or_send: bool,
    event: impl AsFd,
    timeout: Duration,
) -> Result<bool, LostReason> {
    let mut set = [PollFd::new(&socket, wanted(or_send)), PollFd::new(&event, PollFlags::IN)];
    wait_any(&mut set, timeout)
}

fn wanted(or_send: bool) -> PollFlags {
    if or_send { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
}

fn wait_any(set: &mut [PollFd<'_>], timeout: Duration) -> Result<bool, LostReason> {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match poll(set, Some(&timeout)) {
        Ok(ready) => Ok(ready != 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(LostReason::Io(io::Error::from(error).kind())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A listener that drops all further connections, because the queue of those that it has not accepted is full.
    fn silent() -> (RawSocket, SocketAddr, Vec<TcpStream>) {
        let listener = RawSocket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("bound");
        listener.listen(0).expect("it listens");
        let address = listener.local_addr().expect("bound").as_socket().expect("an IP address");
        let mut waiting = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            waiting.push(stream);
        }
        (listener, address, waiting)
    }

    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next() {
        let (_listener, silent, _waiting) = silent();
        let answering = TcpListener::bind("127.0.0.1:0").expect("it listens");
        let answering = answering.local_addr().expect("bound");
        let connect = |addresses: &[SocketAddr], timeout| {
            Socket::connect_first(None, addresses, deadline(timeout))
        };
        let timeout = Duration::from_secs(3);
        let stream = connect(&[silent, silent, answering], timeout).expect("the third answers");
        assert_eq!(stream.peer_addr().expect("connected"), answering);
        let error = connect(&[silent], Duration::from_millis(200)).expect_err("it is silent");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
