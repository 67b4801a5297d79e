//! The target: an NVMe/TCP controller that also runs chains of dependent reads.
//!
//! A request's way: a [`reactor`](Server) receives bytes into a connection's buffer; the
//! connection (sans-I/O) turns them into commands and hands reads, writes and chains to the
//! reactor's executor; the executor's operations go to memory or, through the reactor's ring, to
//! files; completions come back to the connection, which appends its PDUs to a send buffer; at the
//! end of the turn one send a connection takes them out.
//!
//! - `config`: what to serve, from the command line or a file.
//! - `namespace`, `subsystem`, `controller`: what is shared between reactors. Commands touch it
//!   only by plain atomic loads.
//! - `connection`, `admin`, `identify`, `io`: one connection's protocol, without sockets.
//! - `executor`: one reactor's device operations and chains, without devices.
//! - `reactor`, `server`: threads, sockets and the ring.
//!
//! # What this crate does not do
//!
//! One subsystem, no discovery controller, no authentication, no TLS, no ANA, no reservations. It
//! does not share a reactor fairly between connections beyond taking turns.

mod admin;
mod config;
mod connection;
mod controller;
mod executor;
pub mod fuzz;
mod identify;
mod io;
mod namespace;
mod reactor;
mod server;
mod subsystem;
#[cfg(test)]
mod tests;

pub use bpfof_chain::Limits;
pub use config::{ConfigError, NamespaceConfig, NamespaceSource, TargetConfig, parse_size};
pub use namespace::NamespaceError;
pub use server::{Server, ServerError};
