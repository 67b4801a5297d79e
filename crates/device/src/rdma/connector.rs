//! Connecting to a listener.

use super::sys;
use super::verbs::{Channel, Happened, Id, QueuePair, Size};
use super::words::words;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Reasons of a rejection (InfiniBand 1.4 §12.6.7.2, as the connection manager reports them): no listener for this
/// service, and a reason of the listener's own.
const INVALID_SERVICE: c_int = 8;
const CONSUMER_DEFINED: c_int = 28;

/// Why a connection failed.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The libraries are not installed, or this machine's cards cannot be used.
    #[error("{}", words(.0))]
    Local(#[from] io::Error),
    /// No card of this machine reaches the address.
    #[error(
        "no RDMA device of this machine reaches the address ({0}); `rdma link` lists the devices"
    )]
    NoWay(String),
    /// There is no listener.
    #[error("no RDMA listener at this address")]
    NobodyListens,
    /// The listener refuses, with this private data, padded with zeroes.
    #[error("the peer refuses the connection")]
    Refused {
        /// The private data.
        private_data: Vec<u8>,
    },
    /// The connection manager refuses, for this reason.
    #[error("the connection is rejected (connection manager's reason {0})")]
    Rejected(i32),
    /// There is no answer within the timeout.
    #[error("no answer within {} ms", .0.as_millis())]
    Silent(Duration),
    /// Something else has failed.
    #[error("the connection failed (connection manager's event {kind}, status {status})")]
    Failed {
        /// Kind of event.
        kind: i32,
        /// Its status.
        status: i32,
    },
}

/// The time at which connecting must have ended.
struct Deadline {
    ends: Instant,
    timeout: Duration,
}

impl Deadline {
    fn left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }

    fn left_ms(&self) -> c_int {
        c_int::try_from(self.left().as_millis()).unwrap_or(c_int::MAX).max(1)
    }
}

/// Connects. Also returns the private data of the peer's acceptance.
pub(super) fn connect(
    address: SocketAddr,
    size: Size,
    private_data: &[u8],
    timeout: Duration,
) -> Result<(QueuePair, Vec<u8>), ConnectError> {
    let deadline = Deadline { ends: Instant::now() + timeout, timeout };
    // Dropped after the identifier, also on an early return.
    let channel = Channel::new()?;
    let mut id = Id::new(&channel)?;
    let unreachable = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EADDRNOTAVAIL) => {
            ConnectError::NoWay(error.to_string())
        }
        _ => error.into(),
    };
    id.resolve_address(address, deadline.left_ms()).map_err(unreachable)?;
    wait(&channel, sys::ADDRESS_RESOLVED, &deadline)?;
    id.resolve_route(deadline.left_ms()).map_err(unreachable)?;
    wait(&channel, sys::ROUTE_RESOLVED, &deadline)?;
    let mut pair = QueuePair::to_connect(id, channel, size)?;
    pair.connect(private_data)?;
    let accepted = wait(pair.channel(), sys::ESTABLISHED, &deadline)?;
    Ok((pair, accepted))
}

/// Waits for an event of this kind; returns its private data.
fn wait(channel: &Channel, expected: c_int, deadline: &Deadline) -> Result<Vec<u8>, ConnectError> {
    loop {
        match channel.next()? {
            Some(Happened::Other { kind, private_data, .. }) if kind == expected => {
                return Ok(private_data);
            }
            Some(Happened::Other { kind, status, private_data, .. }) => {
                return Err(failure(kind, status, private_data, deadline));
            }
            // Not a listener: dropping the request rejects it.
            Some(Happened::Request(..)) => {}
            None => {
                let left = deadline.left();
                if left.is_zero() {
                    return Err(ConnectError::Silent(deadline.timeout));
                }
                let mut wanted = [PollFd::new(channel, PollFlags::IN)];
                let left = Timespec::try_from(left).ok();
                match poll(&mut wanted, left.as_ref()) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(io::Error::from(error).into()),
                }
            }
        }
    }
}

/// The error that an unexpected event means.
fn failure(kind: c_int, status: c_int, private_data: Vec<u8>, deadline: &Deadline) -> ConnectError {
    let errno = |status: c_int| io::Error::from_raw_os_error(status.saturating_abs());
    match (kind, status) {
        // The library's own status, which is not an errno.
        (sys::ADDRESS_ERROR | sys::ROUTE_ERROR | sys::CONNECT_ERROR, -1) => {
            ConnectError::Failed { kind, status }
        }
        (sys::ADDRESS_ERROR | sys::ROUTE_ERROR | sys::UNREACHABLE, status)
            if status.saturating_abs() == libc::ETIMEDOUT =>
        {
            ConnectError::Silent(deadline.timeout)
        }
        (sys::ADDRESS_ERROR | sys::ROUTE_ERROR, status) => {
            ConnectError::NoWay(errno(status).to_string())
        }
        (sys::REJECTED, CONSUMER_DEFINED) => ConnectError::Refused { private_data },
        (sys::REJECTED, INVALID_SERVICE) => ConnectError::NobodyListens,
        (sys::REJECTED, reason) => ConnectError::Rejected(reason),
        (sys::CONNECT_ERROR, status) if status < 0 => errno(status).into(),
        (kind, status) => ConnectError::Failed { kind, status },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_events_are_explained() {
        let deadline = Deadline { ends: Instant::now(), timeout: Duration::from_millis(1500) };
        let words = |kind, status| failure(kind, status, Vec::new(), &deadline).to_string();
        assert!(words(sys::REJECTED, 8).contains("no RDMA listener"));
        assert!(words(sys::REJECTED, 28).contains("refuses"));
        assert!(words(sys::REJECTED, 3).contains("reason 3"));
        assert!(words(sys::ADDRESS_ERROR, -libc::ETIMEDOUT).contains("1500 ms"));
        assert!(words(sys::UNREACHABLE, -libc::ETIMEDOUT).contains("1500 ms"));
        assert!(words(sys::ROUTE_ERROR, -libc::EINVAL).contains("no RDMA device"));
        assert!(words(sys::CONNECT_ERROR, -libc::ENOMEM).contains("locked memory"));
        assert!(words(sys::DEVICE_REMOVAL, 0).contains("event 11"));
        for kind in [sys::ADDRESS_ERROR, sys::ROUTE_ERROR, sys::CONNECT_ERROR] {
            assert!(words(kind, -1).contains("status -1"));
        }
    }
}
