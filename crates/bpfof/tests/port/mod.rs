//! Ports that tests keep while nobody listens there.

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use std::net::{SocketAddr, TcpListener};

/// A port of 127.0.0.1 at which nobody listens. As long as this lives, the kernel gives it to no program that asks for
/// a free port, but a program that names it may listen there, again and again.
pub(crate) struct Port(TcpListener);

impl Port {
    pub(crate) fn reserve() -> Port {
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
        // Sockets with this option may have one port while one of them listens. The standard library sets it for
        // listeners.
        sockopt::set_socket_reuseaddr(&socket, true).expect("set");
        bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        Port(TcpListener::from(socket))
    }

    /// Its address, as text.
    pub(crate) fn address(&self) -> String {
        self.0.local_addr().expect("an address").to_string()
    }
}
