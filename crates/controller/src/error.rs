//! Why a target does not start, or does not accept a new configuration.

use crate::config::ConfigError;
use crate::namespace::NamespaceError;
use bpfof_auth::KeyFileError;
use bpfof_device::RingError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a target does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A namespace.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The address is taken.
    #[error("{0} is in use, perhaps by another target; stop it or choose another --listen")]
    AddressInUse(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// No RDMA device has the address.
    #[error(
        "cannot listen on {0} for RDMA: no RDMA device of this machine has the address; `rdma link` shows \
         devices, `modprobe rdma_ucm` lets programs use them, and for soft-RoCE `rdma link add rxe0 type rxe \
         netdev DEVICE` makes one (not on loopback)"
    )]
    NoRdmaCard(SocketAddr),
    /// The address cannot be listened on for RDMA.
    #[error("cannot listen on {address} for RDMA: {why}")]
    ListenRdma {
        /// The address.
        address: SocketAddr,
        /// The libraries' error, and its remedy.
        why: String,
    },
    /// A key of a host.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// TLS does not work on this machine.
    #[error("TLS does not work on this machine: {0}")]
    Tls(String),
    /// A function that the configuration names.
    #[error("the function object {path}: {why}")]
    Function {
        /// The object.
        path: PathBuf,
        /// Why it is refused.
        why: String,
    },
    /// No ring for a reactor.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A processor of the configuration.
    #[error("cannot run on processor {core}: {source}")]
    Core {
        /// Its number.
        core: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// Threads or event counters.
    #[error("cannot start a reactor: {0}")]
    Start(io::Error),
}

impl ServerError {
    /// Whether the configuration, or a file of keys or functions that it names, must change before it can be served;
    /// other errors, such as a missing disk or address, may go away.
    #[must_use]
    pub fn is_of_configuration(&self) -> bool {
        matches!(
            self,
            Self::Config(_)
                | Self::Key(_)
                | Self::Function { .. }
                | Self::Namespace(NamespaceError::SameDisk { .. })
        )
    }
}
