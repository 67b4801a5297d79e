//! The identity of a socket's peer, as the kernel reports it.
//!
//! A process outside the daemon's PID namespace has pid 0 there. The safe wrappers of this call cannot represent it: to
//! them a pid is never 0.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The process that has connected the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its effective user id when it connected.
    pub uid: u32,
    /// Its pid, for messages; 0 if it has none in this PID namespace.
    pub pid: i32,
}

impl Credentials {
    /// The credentials of the process that has connected a Unix socket (`SO_PEERCRED`, unix(7)).
    ///
    /// # Errors
    /// The kernel's: `socket` is no Unix socket.
    pub fn of_peer(socket: impl AsFd) -> io::Result<Self> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let descriptor = socket.as_fd().as_raw_fd();
        // SAFETY: the kernel writes at most `length` bytes to `found`, which is as long, and any bytes are a valid
        // `ucred`: it is three plain integers. Both live until the call returns.
        let result = unsafe {
            libc::getsockopt(
                descriptor,
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut length,
            )
        };
        match result {
            0 => Ok(Self { uid: found.uid, pid: found.pid }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn credentials_of_a_peer_in_this_process() {
        let (one, _other) = UnixStream::pair().expect("sockets");
        let uid = rustix::process::geteuid().as_raw();
        let pid = std::process::id().cast_signed();
        assert_eq!(Credentials::of_peer(&one).expect("told"), Credentials { uid, pid });
        let file = tempfile::tempfile().expect("a file");
        assert!(Credentials::of_peer(&file).is_err());
    }
}
