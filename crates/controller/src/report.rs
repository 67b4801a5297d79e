//! What a target tells of itself: everything that is counted, and who is connected.
//!
//! Figures are those of one moment for each reactor, and of almost the same for all: each copies its own
//! between two turns.

use crate::config::{AnaState, Transport};
use crate::health::Traffic;
use crate::metrics::{Class, ClassLatencies, ClassMetrics, Octaves};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// What has been done for a host or on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Read, Verify, Compare.
    pub reads: u64,
    /// By these.
    pub read_bytes: u64,
    /// Write.
    pub writes: u64,
    /// By these.
    pub written_bytes: u64,
    /// Chains that have begun.
    pub chains: u64,
    /// Their hops, once they have ended.
    pub hops: u64,
    /// What they read at the target, once they have ended.
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

    /// Adds what was done elsewhere.
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
    /// Differs from that of every other connection of the target, also of earlier ones.
    pub serial: u64,
    /// The reactor that serves it.
    pub reactor: usize,
    /// Where the host is.
    pub peer: SocketAddr,
    /// The number of the listener that it came to; 0 is the one for discovery.
    pub listener: u16,
    /// Its name; empty before Connect.
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
    /// Whether the host, which asks for such events, has yet to read that states of its listener have changed.
    pub awaits_ana: bool,
    /// Time since it came, in ms.
    pub age_ms: u64,
    /// Time since its last command, in ms.
    pub silent_ms: u64,
    /// What was done on it.
    pub totals: Totals,
}

/// One host that is connected.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HostReport {
    /// Those that came later have a larger one.
    pub serial: u64,
    /// Its name.
    pub nqn: String,
    /// Where it is, if its name is not proved by TLS: another address is another host.
    pub address: Option<String>,
    /// Whether it has to authenticate itself by DH-HMAC-CHAP: the same name without a key is another host.
    pub has_key: bool,
    /// How many it has.
    pub connections: u64,
    /// How many it has.
    pub associations: u64,
    /// What it takes of the target's memory.
    pub memory_bytes: usize,
    /// What has been done for it since the first of its connections.
    pub totals: Totals,
    /// How long its commands took since then.
    pub latencies: ClassLatencies,
}

/// One namespace.
#[derive(Clone, Debug, Serialize)]
pub struct NamespaceReport {
    /// Its subsystem.
    pub subsystem: String,
    /// Its id there.
    pub nsid: u32,
    /// What it is made of.
    pub description: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Size of a logical block in bytes.
    pub block_bytes: u32,
    /// What was done with it since it came, by class.
    pub read: ClassMetrics,
    /// Likewise.
    pub write: ClassMetrics,
    /// Likewise: Flush, Write Zeroes, Dataset Management.
    pub flush: ClassMetrics,
    /// Likewise.
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
    /// What they read, in bytes.
    pub read_bytes: u64,
    /// Chains that ended in a fault, or beyond a budget of time.
    pub faults: u64,
    /// Chains that the function aborted.
    pub aborts: u64,
    /// The last fault in words.
    pub last_fault: Option<String>,
    /// How long its chains took.
    pub latency: Octaves,
}

/// One reactor.
#[derive(Clone, Debug, Serialize)]
pub struct ReactorReport {
    /// Which.
    pub index: usize,
    /// Time since the target started, in ns.
    pub time_ns: u64,
    /// Of that the time without anything to do.
    pub idle_ns: u64,
    /// Connections that it serves.
    pub connections: usize,
    /// Chains that run: they have an arena.
    pub chains_running: usize,
    /// Connections whose chains wait for an arena.
    pub chains_waiting: usize,
    /// How long its commands took.
    pub latencies: ClassLatencies,
}

/// An address that the target listens on.
#[derive(Clone, Debug, Serialize)]
pub struct ListenerReport {
    /// Its number in the discovery log (PORTID).
    pub id: u16,
    /// Where it listens.
    pub address: SocketAddr,
    /// What carries connections to it.
    pub transport: Transport,
    /// What the discovery log says instead.
    pub advertised: Option<String>,
    /// Whether hosts can connect to it: not while the card of a listener by RDMA is away.
    pub up: bool,
    /// Whether it is drained.
    pub drained: bool,
    /// The state of each group that has namespaces.
    pub ana: BTreeMap<u32, AnaState>,
    /// Connections of hosts, discovery left out.
    pub connections: u64,
    /// Their associations.
    pub associations: u64,
    /// Commands on their I/O queues that are being carried out.
    pub in_flight: u64,
    /// I/O queues with commands in flight, or with answers that the host has yet to take.
    pub busy: u64,
    /// Hosts that ask for such events and have yet to read that states have changed.
    pub untold: u64,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct TargetReport {
    /// What hosts may take of the target's memory together, in bytes.
    pub memory_limit_bytes: usize,
    /// What they have taken, with what the target takes for itself.
    pub memory_used_bytes: usize,
    /// What the target takes for itself: arenas, spare buffers.
    pub memory_own_bytes: usize,
    /// What connections take that have not said whose they are.
    pub memory_pending_bytes: usize,
    /// What namespaces in memory take beside that.
    pub memory_namespaces_bytes: u64,
    /// In the order of the configuration.
    pub listeners: Vec<ListenerReport>,
    /// By index.
    pub reactors: Vec<ReactorReport>,
    /// By subsystem and id.
    pub namespaces: Vec<NamespaceReport>,
    /// By subsystem and id.
    pub functions: Vec<FunctionReport>,
    /// By subsystem, how long chains of functions took that are not kept for all hosts.
    pub other_functions: BTreeMap<String, Octaves>,
    /// By name.
    pub hosts: Vec<HostReport>,
    /// By serial number.
    pub connections: Vec<ConnectionReport>,
    /// How often hosts were refused something, by reason.
    pub denials: BTreeMap<&'static str, u64>,
    /// How many TLS handshakes had which result.
    pub handshakes: BTreeMap<&'static str, u64>,
}

/// A reactor has not answered in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("reactor {0} does not answer")]
pub struct NoReport(pub usize);
