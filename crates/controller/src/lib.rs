//! The target: an NVMe over Fabrics controller that also runs chains of dependent reads.
//!
//! The path of a request: a [`reactor`] receives bytes or messages into a connection's [`transport`] port, which makes
//! commands of them. Each command is a function ([`commands`]) that takes a slot of the [`queue`] and hands reads,
//! writes and chains to the reactor's [`executor`]. The executor performs them in the order of the [`schedule`], which
//! divides a reactor's time among hosts, and among the connections of a host, by the cost of their operations.
//! Operations go to memory or, through the reactor's ring, to files and drives. A completed operation returns to its
//! command, whose response the port appends to its send buffer; at the end of the turn each connection sends with one
//! call.
//!
//! - [`config`]: what to serve, from the command line or a file.
//! - [`registry`], [`namespace`], [`backend`], [`subsystem`], [`controller`], [`health`]: what reactors
//!   share. Commands touch it only by plain atomic loads.
//! - [`connection`]: one connection; [`queue`] its queue pair, [`transport`] the transport that carries it,
//!   [`association`] the association that it belongs to.
//! - [`commands`]: the commands; [`refusal`]: why a command is refused; [`declared_maps`], [`kept`]: function maps, and
//!   functions that outlive their association.
//! - [`limits`], [`hosts`], [`machine_memory`]: every limit, and how much each host uses: connections, associations,
//!   memory.
//! - [`executor`], [`schedule`], [`chain_admission`], [`namespace_table`]: one reactor's [`operation`]s (queued in
//!   [`fifo`]s) and chains: their order, arenas and namespaces, without devices.
//! - [`loader`]: the thread that compiles functions, a host at a time.
//! - [`reload`]: changes the configuration of a running target.
//! - [`reactor`]: the event loop, over an `Io` that is io_uring or a simulation.
//! - [`server`]: the listener, the threads. [`metrics`], [`report`]: counters, and the reports made of them;
//!   [`observe`]: why commands were slow; [`questions`]: questions of operators to a running target.
//!
//! # What this crate does not do
//!
//! No reservations, no fused commands. The name of a host without keys in its rule is not verified. Of the
//! configuration only the namespaces, the rules with their keys, and the advertised addresses and ANA states of
//! listeners can change while the target runs.
// The modules are private: the links above are for readers of the source.
#![allow(rustdoc::private_intra_doc_links)]

mod acceptor;
mod access;
mod association;
mod authenticator;
mod backend;
mod chain_admission;
mod command_log;
mod commands;
mod config;
mod connection;
mod controller;
mod declared_maps;
mod disk_identity;
mod error;
mod executor;
mod fifo;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod handshake;
mod health;
mod hosts;
mod kept;
mod limits;
mod listener;
mod loader;
mod lost_writes;
mod machine_memory;
mod metrics;
mod namespace;
mod namespace_table;
mod observe;
mod operation;
mod own_functions;
mod paths;
mod questions;
mod queue;
mod reactor;
mod refusal;
mod registry;
mod reload;
mod report;
mod reporting;
#[cfg(any(test, feature = "fuzz"))]
mod rig;
mod room;
mod schedule;
mod server;
mod subsystem;
#[cfg(test)]
mod tests;
mod transport;
mod vectors;
mod worker;

pub use access::{HostKeys, HostRule, Rights, UnknownRight};
pub use bpfof_auth::KeyFileError;
pub use bpfof_chain::Limits;
pub use bpfof_device::Layout;
pub use config::{
    Advertised, AnaState, AnaStates, ConfigError, ListenConfig, Listeners, NamespaceConfig,
    NamespaceSource, TargetConfig, TlsMode, Transport, parse_address, parse_cntlids, parse_size,
    parse_tls_mode,
};
pub use error::ServerError;
pub use hosts::{HostLimits, counted_address};
pub use limits::MAX_NSID;
pub use metrics::{Class, ClassLatencies, ClassMetrics, Histogram, Octaves};
pub use namespace::NamespaceError;
pub use observe::record::{CommandRecord, HopRecord, ReadRecord};
pub use observe::tracer::{TraceRequest, Traced};
pub use paths::{PathError, Paths};
pub use questions::{TraceError, Tracing};
pub use report::{
    ConnectionReport, FunctionReport, HostReport, ListenerReport, NamespaceReport, NoReport,
    ReactorReport, TargetReport, Totals,
};
pub use server::{HandOver, Server, ServerOptions};
