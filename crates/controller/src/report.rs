//! Reports of a target: all counters, and the connected hosts.
//!
//! The figures of one reactor are consistent, and those of different reactors are of almost the same moment: each
//! copies its own between two turns.

use crate::config::{AnaState, Transport};
use crate::health::Traffic;
use crate::metrics::{Class, ClassLatencies, ClassMetrics, Octaves};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Totals of a host or a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Read, Verify, Compare commands.
    pub reads: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Write commands.
    pub writes: u64,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Chains that have begun.
    pub chains: u64,
    /// Their hops, once they have ended.
    pub hops: u64,
    /// Bytes that they read at the target, once they have ended.
    pub chain_bytes: u64,
}

impl Totals {
    pub(crate) fn add_traffic(&mut self, traffic: &Traffic) {
        self.reads += traffic.reads;
        self.read_bytes += traffic.read_bytes;
        self.writes += traffic.writes;
        self.written_bytes += traffic.written_bytes;
    }

    pub(crate) fn add_chains(&mut self, chains: u64, hops: u64, read_bytes: u64) {
        self.chains += chains;
        self.hops += hops;
        self.chain_bytes += read_bytes;
    }

    /// Adds other totals.
    pub fn add(&mut self, other: &Totals) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.written_bytes += other.written_bytes;
        self.chains += other.chains;
        self.hops += other.hops;
        self.chain_bytes += other.chain_bytes;
    }
}

/// One connection.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionReport {
    /// Unique among all connections of the target, including earlier ones.
    pub serial: u64,
    /// The reactor that serves it.
    pub reactor: usize,
    /// The host's address.
    pub peer: SocketAddr,
    /// The number of the listener that it came to; 0 is the discovery listener.
    pub listener: u16,
    /// The host's name; empty before Connect.
    pub host: String,
    /// The subsystem; empty before Connect.
    pub subsystem: String,
    /// The association's controller id, 0 before Connect.
    pub controller: u16,
    /// 0 is the admin queue.
    pub queue: u16,
    /// Whether it came by TLS.
    pub tls: bool,
    /// Whether the host has yet to authenticate itself.
    pub awaits_authentication: bool,
    /// Commands that are being carried out.
    pub in_flight: usize,
    /// Bytes that the host has yet to take.
    pub unsent_bytes: usize,
    /// Whether the host has enabled ANA events and has yet to read that states of its listener have changed.
    pub awaits_ana: bool,
    /// Time since it came, in ms.
    pub age_ms: u64,
    /// Time since its last command, in ms.
    pub silent_ms: u64,
    /// Totals of the connection.
    pub totals: Totals,
}

impl ConnectionReport {
    /// Whether it is an I/O queue of a host that has proved its identity, if it must.
    pub(crate) fn works(&self) -> bool {
        self.queue > 0 && !self.awaits_authentication
    }
}

/// One host that is connected.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HostReport {
    /// Increases with each new host.
    pub serial: u64,
    /// Its name.
    pub nqn: String,
    /// Its address, unless TLS has proved its name: the same name at another address is another host.
    pub address: Option<String>,
    /// Whether it has to authenticate itself by DH-HMAC-CHAP: the same name without a key is another host.
    pub has_key: bool,
    /// Number of its connections.
    pub connections: u64,
    /// Number of its associations.
    pub associations: u64,
    /// Bytes of the target's memory that are charged to it.
    pub memory_bytes: usize,
    /// Totals since the first of its connections.
    pub totals: Totals,
    /// Latencies of its commands since then.
    pub latencies: ClassLatencies,
}

/// One namespace.
#[derive(Clone, Debug, Serialize)]
pub struct NamespaceReport {
    /// Its subsystem.
    pub subsystem: String,
    /// Its id there.
    pub nsid: u32,
    /// Its storage.
    pub description: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Size of a logical block in bytes.
    pub block_bytes: u32,
    /// Grows whenever acknowledged writes to it have been lost; 0 if none have.
    pub lost_writes: u64,
    /// Commands and reads of chains in which the file or disk has failed, and commands that report earlier losses.
    pub device_errors: u64,
    /// Read, Verify and Compare since the namespace was added.
    pub read: ClassMetrics,
    /// Write.
    pub write: ClassMetrics,
    /// Flush, Write Zeroes and Dataset Management.
    pub flush: ClassMetrics,
    /// Chains.
    pub chain: ClassMetrics,
}

impl NamespaceReport {
    /// The figures of a class.
    #[must_use]
    pub fn class(&self, class: Class) -> &ClassMetrics {
        match class {
            Class::Read => &self.read,
            Class::Write => &self.write,
            Class::Flush => &self.flush,
            Class::Chain => &self.chain,
        }
    }
}

/// A function that is kept for all hosts of a subsystem.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionReport {
    /// Its subsystem.
    pub subsystem: String,
    /// Its id there.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// eBPF instructions.
    pub instructions: u32,
    /// Machine code in bytes.
    pub code_bytes: usize,
    /// Chains that have begun.
    pub chains: u64,
    /// Their hops.
    pub hops: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// Chains that ended in a fault, or beyond a budget of time.
    pub faults: u64,
    /// Chains that the function aborted.
    pub aborts: u64,
    /// The last fault as text.
    pub last_fault: Option<String>,
    /// Latencies of its chains.
    pub latency: Octaves,
}

/// One reactor.
#[derive(Clone, Debug, Serialize)]
pub struct ReactorReport {
    /// Its index.
    pub index: usize,
    /// Time since the target started, in ns.
    pub time_ns: u64,
    /// The part of that in which it had no work.
    pub idle_ns: u64,
    /// Connections that it serves.
    pub connections: usize,
    /// Chains that run in an arena.
    pub chains_running: usize,
    /// Connections whose chains wait for an arena.
    pub chains_waiting: usize,
    /// Latencies of its commands.
    pub latencies: ClassLatencies,
}

/// An address that the target listens on.
#[derive(Clone, Debug, Serialize)]
pub struct ListenerReport {
    /// Its number in the discovery log (PORTID).
    pub id: u16,
    /// The address.
    pub address: SocketAddr,
    /// Its transport.
    pub transport: Transport,
    /// The address that the discovery log shows instead.
    pub advertised: Option<String>,
    /// Whether hosts can connect to it: not while the network card of an RDMA listener is absent.
    pub up: bool,
    /// Whether it is drained.
    pub drained: bool,
    /// The state of each group that has namespaces.
    pub ana: BTreeMap<u32, AnaState>,
    /// Connections of hosts, without discovery.
    pub connections: u64,
    /// Their associations.
    pub associations: u64,
    /// Commands on their I/O queues that are being carried out.
    pub in_flight: u64,
    /// I/O queues with commands in flight, or with answers that the host has yet to take.
    pub busy: u64,
    /// Hosts that have enabled ANA events and have yet to read that states have changed.
    pub untold: u64,
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub struct TargetReport {
    /// Limit of the memory that all hosts may take together, in bytes.
    pub memory_limit_bytes: usize,
    /// Memory that they have taken, including the target's own part, in bytes.
    pub memory_used_bytes: usize,
    /// The target's own part: arenas, spare buffers; in bytes.
    pub memory_own_bytes: usize,
    /// Memory of connections and associations whose host is unknown or unproved, in bytes.
    pub memory_pending_bytes: usize,
    /// Memory of namespaces in memory, which comes on top, in bytes.
    pub memory_namespaces_bytes: u64,
    /// Whether the target ends, and has drained all listeners for that.
    pub ending: bool,
    /// In the order of the configuration.
    pub listeners: Vec<ListenerReport>,
    /// By index.
    pub reactors: Vec<ReactorReport>,
    /// By subsystem and id.
    pub namespaces: Vec<NamespaceReport>,
    /// By subsystem and id.
    pub functions: Vec<FunctionReport>,
    /// By subsystem, latencies of chains of functions that are not kept for all hosts.
    pub other_functions: BTreeMap<String, Octaves>,
    /// By name.
    pub hosts: Vec<HostReport>,
    /// By serial number.
    pub connections: Vec<ConnectionReport>,
    /// How often connections or commands of hosts were refused, by reason.
    pub denials: BTreeMap<&'static str, u64>,
    /// TLS handshakes by result.
    pub handshakes: BTreeMap<&'static str, u64>,
}

/// A reactor has not answered in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("reactor {0} does not answer")]
pub struct NoReport(pub usize);
