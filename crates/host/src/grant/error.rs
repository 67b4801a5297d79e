//! What a client of the grant daemon meets.

use super::protocol::{BadPacket, Refusal};
use std::io;
use std::path::PathBuf;

/// What a client of the grant daemon meets.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// The daemon cannot be reached, or is gone.
    #[error("grant daemon {}: {source}; check that bpfof grantd listens there", socket.display())]
    Socket {
        /// Where it should be.
        socket: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It refuses.
    #[error("the grant daemon refuses: {0}")]
    Refused(Refusal),
    /// It breaks the protocol.
    #[error("the grant daemon sends {0}")]
    Packet(#[from] BadPacket),
    /// No memory for the page of versions, or for a function's object.
    #[error("memory shared with the grant daemon: {0}")]
    Memory(io::Error),
}
