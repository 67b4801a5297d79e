//! Errors of a client of the grant daemon.

use super::protocol::{BadPacket, Refusal};
use std::io;
use std::path::PathBuf;

/// Errors of a client of the grant daemon.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// The daemon cannot be reached, or is gone.
    #[error("grant daemon {}: {source}; check that bpfof grantd listens there", socket.display())]
    Socket {
        /// The path of its socket.
        socket: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The daemon refuses the request.
    #[error("the grant daemon refuses the request: {0}")]
    Refused(Refusal),
    /// The daemon breaks the protocol.
    #[error("the grant daemon sends {0}")]
    Packet(#[from] BadPacket),
    /// Memory for the versions page or for a function's object cannot be mapped or created.
    #[error("cannot share memory with the grant daemon: {0}")]
    Memory(io::Error),
}
