//! Completions of a reactor's operations, and messages to it.

use super::chains;
use super::closing::{close, close_soon, end_queues, end_soon, flush, remove_if_done};
use super::io::{Io, Message};
use super::leaving::begin_search;
use super::serve::after_commands;
use super::state::Core;
use super::upkeep::tick_soon;
use crate::commands::{authentication, device_done, events, file_maps, functions};
use crate::connection::Connection;
use crate::limits::{BYTES_PER_UNIT, RESPONSE_UNITS, STOP_TIMEOUT_NS};
use crate::loader::Loaded;
use crate::operation::{CommandId, Failure, FileWork};
use crate::report::ReactorReport;
use crate::reporting::{HostPart, Part, connection_report};
use crate::transport::{Port, Received};
use bpfof_chain::ChainId;
use bpfof_device::fabric::Event;
use bpfof_device::{IoBuffer, Outgoing};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes were received into this buffer, or, with a `result` of 0 or below, no more will be.
pub(crate) fn received<I: Io>(core: &mut Core<I>, index: u32, buffer: Vec<u8>, result: i32) {
    let Some(entry) = core.table.get_mut(index) else { return };
    let Port::Tcp(port) = &mut entry.connection.port else {
        unreachable!("only sockets receive bytes")
    };
    port.received(buffer, if entry.closing { 0 } else { result.max(0) as usize });
    if entry.closing {
        return remove_if_done(core, index);
    }
    match result {
        0 => close_soon(core, index, "the host closed the connection".to_owned()),
        error if error < 0 => {
            let cause = std::io::Error::from_raw_os_error(-error);
            close_soon(core, index, format!("receive failed: {cause}"));
        }
        _ => {
            entry.connection.has_more = true;
            core.executor.schedule.wake(index);
        }
    }
}

/// A send has ended.
pub(crate) fn sent<I: Io>(core: &mut Core<I>, index: u32, mut sent: Box<Outgoing>, result: i32) {
    core.lent -= usize::from(!sent.is_own());
    let Core { io, executor, table, .. } = &mut *core;
    let Some(entry) = table.get_mut(index) else { return };
    let Port::Tcp(port) = &mut entry.connection.port else {
        unreachable!("only sockets send bytes")
    };
    let is_complete = result == sent.len() as i32;
    let takes_nothing = result == -rustix::io::Errno::AGAIN.raw_os_error();
    let accepted = if takes_nothing { 0 } else { result };
    let is_part = !sent.is_own() || port.sends_in_parts() && accepted > 0;
    if !is_complete && accepted >= 0 && is_part {
        // No command was performed since the kernel read the first part, so no block is torn.
        sent.copy_rest(accepted as usize, |buffer| executor.buffers.recycle(buffer));
        port.sends_on(sent.len());
        let in_parts = port.sends_in_parts();
        return io.send(index, sent, in_parts);
    }
    port.sent(sent, |buffer| executor.buffers.recycle(buffer));
    entry.sends += 1;
    let sends = entry.sends;
    if executor.observer.slowest.has_leaving() {
        executor.observer.slowest.sent(index, sends, executor.now_ns);
    }
    if entry.closing {
        flush(core, index);
        return remove_if_done(core, index);
    }
    if !is_complete {
        let cause = std::io::Error::from_raw_os_error(-result.min(0));
        return close_soon(core, index, format!("send failed: {cause}"));
    }
    core.mark_dirty(index);
}

/// An event of a fabric's endpoint.
pub(crate) fn happened<I: Io>(core: &mut Core<I>, index: u32, event: Event) {
    let Some(entry) = core.table.get_mut(index) else { return };
    let Port::Message(port) = &mut entry.connection.port else {
        unreachable!("only fabric endpoints have events")
    };
    match event {
        Event::Message(bytes) if !entry.closing && !entry.is_over => {
            port.deliver(Received::Capsule(bytes))
        }
        Event::Message(_) => return,
        Event::Done { bytes } => {
            port.ended(bytes);
            entry.sends += 1;
            let is_closing = entry.closing;
            core.mark_dirty(index);
            return if is_closing {
                remove_if_done(core, index)
            };
        }
        Event::Read { id, buffer } => {
            port.has_read(buffer.len());
            if entry.closing {
                core.executor.buffers.recycle(buffer);
                return remove_if_done(core, index);
            }
            let buffer = RefCell::new(Some(buffer));
            port.deliver(Received::Fetched { slot: id as u16, buffer });
        }
        Event::Closed { reason, .. } => {
            return if !entry.closing {
                close_soon(core, index, reason)
            };
        }
    }
    entry.connection.has_more = true;
    core.executor.schedule.wake(index);
}

/// A command's operation on a file has completed.
pub(crate) fn file_done<I: Io>(
    core: &mut Core<I>,
    command: CommandId,
    result: i32,
    buffer: Option<IoBuffer>,
) {
    let index = command.connection;
    let Some(connection) = core.connection(index) else { return };
    let has_parts = connection.queue.slot(command.slot).state.has_parts();
    let goes_on = has_parts && !connection.is_abandoned && !core.is_given_up(index);
    let Some(mut cx) = core.context(index) else { return };
    let before = cx.connection.port.unsent_bytes();
    device_done::file_done(&mut cx, command.slot, (result, goes_on), buffer);
    let bytes = cx.connection.port.unsent_bytes() - before;
    let units = RESPONSE_UNITS + bytes as u64 / BYTES_PER_UNIT + cx.executor.take_spent();
    let cost = core.spend(units);
    core.executor.schedule.charge(index, cost as i64);
    core.mark_dirty(index);
}

/// A chain's read from a file has completed; its data is in place if `result` is `length`.
pub(crate) fn chain_read_done<I: Io>(core: &mut Core<I>, chain: ChainId, length: u32, result: i32) {
    let owner = core.executor.arenas.owner(chain);
    core.executor.file_operation_ended(owner.namespace, FileWork::Read);
    let ok = result == length as i32;
    if !ok {
        if matches!(Failure::of(result), Failure::Cancelled) {
            core.executor.arenas.engine.interrupt(chain);
        }
        if let Some(mut cx) = core.context(owner.command.connection) {
            device_done::chain_read_failed(&mut cx, owner.namespace, result);
        }
    }
    chains::read_ended(core, chain, ok);
}

/// Handles a message.
pub(crate) fn message<I: Io>(core: &mut Core<I>, message: Message) {
    match message {
        Message::EndQueues { controller, and_admin, cuts_chains } => {
            end_queues(core, &controller, (and_admin, cuts_chains));
        }
        Message::Serve(served, _done) => {
            core.executor.serve(&served);
            begin_search(core);
            tick_soon(core);
        }
        Message::NamespacesChanged => tell_hosts(core),
        Message::PathsChanged(_done) => {
            let registry = Arc::clone(&core.executor.registry);
            for index in core.table.indices() {
                let Some(entry) = core.table.get_mut(index) else { continue };
                let connection = &mut entry.connection;
                let listener = registry.listener(connection.ends.listener);
                connection.inaccessible = listener.inaccessible();
                if listener.is_drained() && !entry.closing && ends_when_drained(connection) {
                    let reason =
                        "its listener is drained, and the host has not read the ANA log page";
                    end_soon(core, index, reason, false);
                }
            }
            tell_hosts(core);
        }
        Message::EndListener(listener) => end_listener(core, listener),
        Message::Loaded(loaded) => compiled(core, *loaded),
        Message::Authenticated(authenticated) => {
            let index = authenticated.command.connection;
            if let Some(mut cx) = core.context(index)
                && cx.connection.serial == authenticated.serial
            {
                authentication::computed(&mut cx, *authenticated);
                core.mark_dirty(index);
                after_commands(core, index);
            }
        }
        // No operation is being performed now, and the next one looks for new tables.
        Message::Fence(_passed) => {}
        Message::Fenced(all) => {
            core.awaits_fence = false;
            for fenced in all {
                let index = fenced.command.connection;
                if let Some(mut cx) = core.context(index)
                    && cx.connection.serial == fenced.serial
                {
                    file_maps::followed(&mut cx, fenced);
                    core.mark_dirty(index);
                }
            }
        }
        Message::Pulse(sign) => _ = sign.send(()),
        Message::Report(_)
        | Message::Slowest(_)
        | Message::BeginTrace(_)
        | Message::EndTrace(_) => {
            of_operator(core, message);
        }
        Message::Stop => {
            core.stop_at_ns = Some(core.executor.now_ns + STOP_TIMEOUT_NS);
            for index in core.table.indices() {
                close(core, index, "the target stops");
            }
        }
    }
}

/// Closes the connections of a listener. Their chains run to their ends.
fn end_listener<I: Io>(core: &mut Core<I>, listener: u16) {
    let is_its = |connection: &Connection| {
        connection.ends.listener == listener && !connection.ends.discovery_only
    };
    for index in core.table.indices() {
        if core.connection(index).is_some_and(is_its) {
            end_soon(core, index, "an operator closes its listener's connections", false);
        }
    }
}

/// Whether its host does not know ANA states, so that it would take Inaccessible for an error.
fn ends_when_drained(connection: &Connection) -> bool {
    connection
        .phase
        .association()
        .is_some_and(|of| !of.subsystem.is_discovery() && !of.controller.knows_ana())
}

/// Tells hosts of changes, if they have enabled the events.
fn tell_hosts<I: Io>(core: &mut Core<I>) {
    for index in core.table.indices() {
        if let Some(entry) = core.table.get_mut(index)
            && !entry.closing
        {
            events::notify(&mut entry.connection);
            core.mark_dirty(index);
        }
    }
}

/// A compilation has ended, successfully or not.
fn compiled<I: Io>(core: &mut Core<I>, loaded: Loaded) {
    let index = loaded.command.connection;
    if let Some(mut cx) = core.context(index)
        && cx.connection.serial == loaded.serial
    {
        functions::loaded(&mut cx, loaded);
        let spent = cx.executor.take_spent();
        let cost = core.spend(spent);
        core.executor.schedule.charge(index, cost as i64);
        core.mark_dirty(index);
    }
}

/// Handles a message of operators.
fn of_operator<I: Io>(core: &mut Core<I>, message: Message) {
    match message {
        Message::Report(to) => _ = to.send((core.index, part(core))),
        Message::Slowest(to) => {
            let slowest = core.executor.observer.slowest(core.executor.now_ns);
            _ = to.send((core.index, slowest));
        }
        Message::BeginTrace(trace) => core.executor.begin_trace(trace),
        Message::EndTrace(id) => core.executor.end_trace(id),
        _ => unreachable!("not a message of operators"),
    }
}

/// The reactor's part of a report.
fn part<I: Io>(core: &Core<I>) -> Part {
    let Core { executor, table, index, .. } = core;
    let now_ns = executor.now_ns;
    let mut hosts: BTreeMap<u64, HostPart> = BTreeMap::new();
    let connections = table.entries().map(|entry| {
        let connection = &entry.connection;
        if let Some(association) = connection.phase.association() {
            let host = association.host();
            let part = hosts.entry(host.serial).or_insert_with(|| HostPart::new(host, *index));
            part.totals.add(&connection.tally.totals);
            part.latencies.merge(&connection.tally.latencies);
        }
        connection_report(connection, (*index, &executor.registry), now_ns)
    });
    let connections: Vec<_> = connections.collect();
    let namespaces = executor.namespaces.served();
    Part {
        reactor: ReactorReport {
            index: *index,
            time_ns: now_ns,
            idle_ns: core.idle.total_ns,
            connections: connections.len(),
            chains_running: executor.registry.limits.chains - executor.arenas.free(),
            chains_waiting: executor.admission.waiting().len(),
            latencies: executor.namespaces.latencies(),
        },
        functions: executor.functions.all().map(|(of, latency)| (of, *latency)).collect(),
        hosts: hosts.into_values().collect(),
        connections,
        namespaces: namespaces
            .map(|(subsystem, namespace, metrics)| {
                (subsystem, Arc::clone(namespace), Box::new(metrics.clone()))
            })
            .collect(),
    }
}
