//! Assembles a report from the [`Part`] of each reactor.

use crate::commands::events;
use crate::connection::Connection;
use crate::hosts::Host;
use crate::listener::Listener;
use crate::metrics::{ClassLatencies, NamespaceMetrics, Octaves};
use crate::namespace::Namespace;
use crate::registry::Registry;
use crate::report::{
    ConnectionReport, HostReport, ListenerReport, NamespaceReport, ReactorReport, TargetReport,
    Totals,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The part of one reactor.
pub(crate) struct Part {
    pub(crate) reactor: ReactorReport,
    pub(crate) connections: Vec<ConnectionReport>,
    pub(crate) hosts: Vec<HostPart>,
    /// Latencies of functions: by number of the subsystem and id, 0 for all that are not kept.
    pub(crate) functions: Vec<((usize, u32), Octaves)>,
    /// The number of the subsystem, and the namespace.
    pub(crate) namespaces: Vec<(usize, Arc<Namespace>, Box<NamespaceMetrics>)>,
}

/// A reactor's figures of a host.
pub(crate) struct HostPart {
    host: Arc<Host>,
    pub(crate) totals: Totals,
    pub(crate) latencies: ClassLatencies,
}

impl HostPart {
    /// Begins with the totals of this reactor's connections that are gone.
    pub(crate) fn new(host: &Arc<Host>, reactor: usize) -> HostPart {
        let (totals, latencies) = host.past(reactor);
        HostPart { host: Arc::clone(host), totals, latencies }
    }
}

/// The report on a connection.
pub(crate) fn connection_report(
    connection: &Connection,
    (reactor, registry): (usize, &Registry),
    now_ns: u64,
) -> ConnectionReport {
    let association = connection.phase.association();
    let ms_since = |ns: u64| now_ns.saturating_sub(ns) / 1_000_000;
    ConnectionReport {
        serial: connection.serial,
        reactor,
        peer: connection.ends.peer,
        listener: match connection.ends.discovery_only {
            true => 0,
            false => registry.listener(connection.ends.listener).id,
        },
        host: association.map_or_else(String::new, |of| of.controller.host_nqn().to_owned()),
        subsystem: association.map_or_else(String::new, |of| of.subsystem.nqn.clone()),
        controller: association.map_or(0, |of| of.controller.id),
        queue: connection.queue.id(),
        tls: connection.port.identity().is_some(),
        awaits_authentication: association.is_some_and(|of| of.awaits_authentication()),
        in_flight: connection.queue.in_flight(),
        unsent_bytes: connection.port.unsent_bytes(),
        awaits_ana: events::awaits_ana(connection),
        age_ms: ms_since(connection.arrivals.opened_ns()),
        silent_ms: ms_since(connection.arrivals.command_ns),
        totals: connection.tally.totals,
    }
}

/// Latencies of functions' chains at all reactors.
fn functions_took(parts: &[Part]) -> BTreeMap<(usize, u32), Octaves> {
    let mut took: BTreeMap<(usize, u32), Octaves> = BTreeMap::new();
    for (function, latency) in parts.iter().flat_map(|part| &part.functions) {
        took.entry(*function).or_default().merge(latency);
    }
    took
}

/// Reports on the hosts that are connected to some reactor, including their connections that are
/// gone.
fn host_reports(parts: &[Part]) -> Vec<HostReport> {
    let mut hosts: BTreeMap<u64, (&Host, HostReport, BTreeSet<usize>)> = BTreeMap::new();
    for part in parts {
        for HostPart { host, totals, latencies } in &part.hosts {
            let known = hosts.entry(host.serial);
            let (_, report, told) = known.or_insert_with(|| (host, host.report(), BTreeSet::new()));
            report.totals.add(totals);
            report.latencies.merge(latencies);
            told.insert(part.reactor.index);
        }
    }
    // A reactor that has reported the host has included these: connections gone since then are in
    // its part already.
    for (host, report, told) in hosts.values_mut() {
        for reactor in parts.iter().map(|part| part.reactor.index) {
            if !told.contains(&reactor) {
                let (totals, latencies) = host.past(reactor);
                report.totals.add(&totals);
                report.latencies.merge(&latencies);
            }
        }
    }
    let mut hosts: Vec<HostReport> = hosts.into_values().map(|(_, report, _)| report).collect();
    hosts.sort_by(|one, other| (&one.nqn, &one.address).cmp(&(&other.nqn, &other.address)));
    hosts
}

/// Assembles the reactors' parts.
pub(crate) fn assemble(registry: &Registry, parts: Vec<Part>) -> TargetReport {
    let accounts = &registry.hosts;
    let mut reactors = Vec::new();
    let mut connections = Vec::new();
    let hosts = host_reports(&parts);
    let functions_took = functions_took(&parts);
    let mut counted: BTreeMap<(usize, u32), (Arc<Namespace>, NamespaceMetrics)> = BTreeMap::new();
    for part in parts {
        reactors.push(part.reactor);
        connections.extend(part.connections);
        for (subsystem, namespace, metrics) in part.namespaces {
            let key = (subsystem, namespace.nsid);
            let known = counted.entry(key).or_insert_with(|| (namespace, Default::default()));
            known.1.merge(&metrics);
        }
    }
    reactors.sort_by_key(|reactor| reactor.index);
    connections.sort_by_key(|connection| connection.serial);
    let subsystems = registry.subsystems();
    let mut namespaces = Vec::new();
    let mut functions = Vec::new();
    let mut other_functions = BTreeMap::new();
    let mut memory_namespaces_bytes = 0;
    let mut groups = BTreeSet::new();
    for subsystem in &subsystems {
        let took = |id| functions_took.get(&(subsystem.number, id)).copied().unwrap_or_default();
        functions.extend(subsystem.function_reports(took));
        other_functions.insert(subsystem.nqn.clone(), took(0));
        for namespace in subsystem.namespaces() {
            let found = counted.remove(&(subsystem.number, namespace.nsid));
            let metrics = found.filter(|(known, _)| Arc::ptr_eq(known, &namespace));
            let [read, write, flush, chain] = metrics.map(|(_, known)| known.0).unwrap_or_default();
            memory_namespaces_bytes += namespace.memory_bytes();
            groups.insert(namespace.ana_group());
            namespaces.push(NamespaceReport {
                subsystem: subsystem.nqn.clone(),
                nsid: namespace.nsid,
                description: namespace.description.clone(),
                size_bytes: namespace.blocks() << namespace.block_shift,
                block_bytes: 1 << namespace.block_shift,
                lost_writes: namespace.lost_writes.last(),
                device_errors: namespace.device_errors(),
                read,
                write,
                flush,
                chain,
            });
        }
    }
    let listeners = registry.listeners.iter().map(|of| listener_report(of, &connections, &groups));
    TargetReport {
        listeners: listeners.collect(),
        // After the listeners: it is set before they are drained for the end.
        ending: registry.is_ending.load(Ordering::SeqCst),
        memory_limit_bytes: accounts.memory.limit_bytes(),
        memory_used_bytes: accounts.memory.used_bytes(),
        memory_own_bytes: accounts.own.used_bytes(),
        memory_pending_bytes: accounts.pending.used_bytes() + accounts.pending_rdma.used_bytes(),
        memory_namespaces_bytes,
        reactors,
        namespaces,
        functions,
        other_functions,
        hosts,
        connections,
        handshakes: registry.handshakes.counts().collect(),
        denials: registry.denials.counts().map(|(reason, count)| (reason.name(), count)).collect(),
    }
}

/// The report on a listener, for these ANA groups.
fn listener_report(
    listener: &Listener,
    connections: &[ConnectionReport],
    groups: &BTreeSet<u32>,
) -> ListenerReport {
    let its = || connections.iter().filter(|of| of.listener == listener.id);
    let count = |which: fn(&&ConnectionReport) -> bool| its().filter(which).count() as u64;
    let io = its().filter(|of| of.works());
    ListenerReport {
        id: listener.id,
        address: listener.address,
        transport: listener.transport,
        advertised: listener.advertised().map(|advertised| advertised.to_string()),
        up: listener.is_up.load(Ordering::Relaxed),
        drained: listener.is_drained(),
        ana: groups.iter().map(|group| (*group, listener.group(*group).0)).collect(),
        connections: count(|_| true),
        associations: count(|of| of.queue == 0 && of.controller > 0),
        in_flight: io.map(|of| of.in_flight as u64).sum(),
        busy: count(|of| of.works() && (of.in_flight > 0 || of.unsent_bytes > 0)),
        untold: count(|of| of.awaits_ana),
    }
}
