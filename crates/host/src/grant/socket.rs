//! Packets with descriptors over a SOCK_SEQPACKET socket.

use super::protocol::{FILES_PER_REQUEST, PACKET_MAX_BYTES};
use crate::deadline::deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recvmsg, sendmsg, socket_with,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Most descriptors that the kernel allows in a packet (`SCM_MAX_FD`, linux/net/scm.h).
const DESCRIPTORS_MAX: usize = 253;

/// A received packet, and its descriptors.
#[derive(Debug)]
pub struct Packet<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Its descriptors, closed on exec. Closing a descriptor from an untrusted process may block for ever, because the
    /// close calls its file system, which the process itself may serve (FUSE).
    pub descriptors: Vec<OwnedFd>,
}

/// One end of a connection between a client and the daemon. Only [`wait`](Self::wait) blocks.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    /// An answer may have the keys of a connection.
    buffer: Zeroizing<Vec<u8>>,
}

impl PacketSocket {
    /// Takes over a connected socket, which must be non-blocking.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, buffer: vec![0; PACKET_MAX_BYTES].into() }
    }

    /// Connects to the daemon that listens at `path`. While its backlog is full, waits in line for up to `timeout`.
    ///
    /// # Errors
    /// The kernel's: there is no such socket, no process listens on it, this process may not write
    /// to it, or, as `TimedOut`, its backlog has been full all the time.
    pub fn connect(path: &Path, timeout: Duration) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        let end = deadline(timeout);
        loop {
            // None would be no limit, and so would be less than a microsecond.
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
            set_socket_timeout(&socket, Timeout::Send, Some(left))?;
            match connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
        ioctl_fionbio(&socket, true)?;
        Ok(Self::new(socket))
    }

    /// Sends a packet and duplicates of `descriptors`, at most [`FILES_PER_REQUEST`].
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` if the other side does not receive, so that the buffer is full.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_PER_REQUEST))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags)?;
        Ok(())
    }

    /// The next packet; None once the other side has closed the connection. A packet that is longer, or has more
    /// descriptors, than any message is returned without its bytes, and so is no valid message.
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` if there is none.
    pub fn receive(&mut self) -> io::Result<Option<Packet<'_>>> {
        // Room for all descriptors that may come: the kernel would close further ones during this call, which may block
        // for ever.
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut into = [IoSliceMut::new(&mut self.buffer)];
        let received = recvmsg(&self.socket, &mut into, &mut control, flags)?;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        if received.bytes == 0 && descriptors.is_empty() {
            return Ok(None);
        }
        let is_none = cut || descriptors.len() > FILES_PER_REQUEST;
        let length = if is_none { 0 } else { received.bytes };
        Ok(Some(Packet { bytes: &self.buffer[..length], descriptors }))
    }

    /// Waits until there is a packet or the other side has closed the connection; false if `timeout` ends first.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let end = deadline(timeout);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut poll_fd = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut poll_fd, Some(&left)) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends the connection for every process that has a descriptor of it. Nothing can be sent any more; queued packets
    /// can still be received.
    pub fn shut_down(&self) {
        shut_down(self.socket.as_fd());
    }

    /// A handle to end the connection while another thread waits for an answer.
    pub(crate) fn ender(&self) -> io::Result<Ender> {
        self.socket.try_clone().map(Ender)
    }

    /// Whether the other side has closed the connection.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let mut poll_fd = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut poll_fd, Some(&now)), Ok(ready) if ready > 0)
    }
}

/// Another descriptor of a connection, used only to end it.
#[derive(Debug)]
pub(crate) struct Ender(OwnedFd);

impl Ender {
    pub(crate) fn end(&self) {
        shut_down(self.0.as_fd());
    }
}

fn shut_down(socket: BorrowedFd<'_>) {
    // An error means that the connection has ended already.
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

impl From<PacketSocket> for OwnedFd {
    fn from(socket: PacketSocket) -> Self {
        socket.socket
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::socketpair;

    fn pair() -> (PacketSocket, PacketSocket) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let made = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (one, other) = made.expect("sockets");
        (PacketSocket::new(one), PacketSocket::new(other))
    }

    #[test]
    fn packets_keep_their_bounds_and_descriptors() {
        let (one, mut other) = pair();
        let file = tempfile::tempfile().expect("a file");
        one.send(b"first", &[file.as_fd(), file.as_fd()]).expect("sent");
        one.send(b"second", &[]).expect("sent");
        let packet = other.receive().expect("received").expect("a packet");
        assert_eq!((packet.bytes, packet.descriptors.len()), (&b"first"[..], 2));
        let packet = other.receive().expect("received").expect("a packet");
        assert_eq!((packet.bytes, packet.descriptors.len()), (&b"second"[..], 0));
        let nothing = other.receive().expect_err("nothing");
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        assert!(!other.is_closed() && !other.wait(Duration::from_millis(1)).expect("waited"));
        drop(one);
        assert!(other.is_closed() && other.wait(Duration::from_secs(9)).expect("waited"));
        assert!(other.receive().expect("received").is_none());
    }

    /// A client waits in line while others fill the backlog, and no longer than it is told.
    #[test]
    fn a_full_backlog_is_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let address = SocketAddrUnix::new(&path).expect("a short path");
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let listener = socket_with(AddressFamily::UNIX, kind, flags, None).expect("a socket");
        rustix::net::bind(&listener, &address).expect("bound");
        rustix::net::listen(&listener, 1).expect("it listens");
        let short = Duration::from_millis(20);
        let mut queued = Vec::new();
        let full = loop {
            match PacketSocket::connect(&path, short) {
                Ok(client) => queued.push(client),
                Err(full) => break full,
            }
        };
        assert_eq!((full.kind(), queued.len()), (ErrorKind::TimedOut, 2));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| PacketSocket::connect(&path, Duration::from_secs(60)));
            std::thread::sleep(short);
            rustix::net::accept(&listener).expect("accepted");
            let mut client = waits.join().expect("no panic").expect("there is room now");
            assert_eq!(client.receive().expect_err("nothing").kind(), ErrorKind::WouldBlock);
        });
    }

    #[test]
    fn packets_that_are_too_long_arrive_without_bytes() {
        let (one, mut other) = pair();
        let file = tempfile::tempfile().expect("a file");
        one.send(&vec![1; PACKET_MAX_BYTES + 1], &[file.as_fd()]).expect("sent");
        one.send(&vec![1; PACKET_MAX_BYTES], &[]).expect("sent");
        let packet = other.receive().expect("received").expect("a packet");
        assert_eq!((packet.bytes.len(), packet.descriptors.len()), (0, 1));
        let packet = other.receive().expect("received").expect("a packet");
        assert_eq!(packet.bytes.len(), PACKET_MAX_BYTES);
    }

    #[test]
    fn all_descriptors_of_a_packet_arrive() {
        let (one, mut other) = pair();
        let file = tempfile::tempfile().expect("a file");
        let sent = vec![file.as_fd(); DESCRIPTORS_MAX];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        assert!(control.push(SendAncillaryMessage::ScmRights(&sent)));
        let packet = [IoSlice::new(b"packet")];
        sendmsg(&one, &packet, &mut control, SendFlags::NOSIGNAL).expect("sent");
        let packet = other.receive().expect("received").expect("a packet");
        assert_eq!((packet.bytes, packet.descriptors.len()), (&b""[..], DESCRIPTORS_MAX));
    }

    #[test]
    fn a_peer_that_does_not_read_does_not_block_the_sender() {
        let (one, _other) = pair();
        let full = (0..100_000).find_map(|_| one.send(&[0; 4096], &[]).err()).expect("it is full");
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
    }
}
