//! The target: an NVMe/TCP controller that also runs chains of dependent reads.
//!
//! A request's way: a [`reactor`](Server) receives bytes into a connection's buffer; the
//! connection (sans-I/O) turns them into commands and hands reads, writes and chains to the
//! reactor's executor, which performs them by turns (`schedule`): hosts, and connections of a host,
//! share a reactor's time by what their operations cost. Operations go to memory or, through the
//! reactor's ring, to files; completions come back to the connection, which appends its PDUs to a
//! send buffer; at the end of the turn one send a connection takes them out.
//!
//! - `config`: what to serve, from the command line or a file.
//! - `target`, `namespace`, `subsystem`, `controller`, `health`: what is shared between reactors.
//!   Commands touch it only by plain atomic loads.
//! - `connection`, `admin`, `identify`, `features`, `events`, `logs`, `discovery`, `io`, `optional`:
//!   one connection's protocol, without sockets.
//! - `limits`, `hosts`: every limit, and what each host has of what is limited: connections,
//!   associations, memory.
//! - `executor`, `schedule`, `chain_admission`, `places`: one reactor's device operations and chains,
//!   in which order, in which arenas and in which namespaces, without devices.
//! - `loader`: the thread that compiles functions, a host at a time.
//! - `reload`: another configuration for a running target.
//! - `reactor`: the loop that holds this together, over an `Io` that is io_uring or a simulation.
//! - `server`: the listener, the threads.
//!
//! # What this crate does not do
//!
//! No authentication, no TLS, no reservations, no fused commands: a host is who it says it is. Of its
//! configuration only the namespaces can change while it runs.

mod admin;
mod chain_admission;
mod config;
mod connection;
mod controller;
mod discovery;
mod events;
mod executor;
mod features;
mod function_maps;
pub mod fuzz;
mod health;
mod hosts;
mod identify;
mod io;
mod limits;
mod loader;
mod logs;
mod machine_memory;
mod namespace;
mod optional;
mod places;
mod reactor;
mod refusals;
mod reload;
mod schedule;
mod server;
mod subsystem;
mod target;
#[cfg(test)]
mod tests;

pub use bpfof_chain::Limits;
pub use bpfof_device::Layout;
pub use config::{
    ConfigError, NamespaceConfig, NamespaceSource, TargetConfig, parse_address, parse_size,
};
pub use hosts::HostLimits;
pub use namespace::NamespaceError;
pub use server::{Server, ServerError};
