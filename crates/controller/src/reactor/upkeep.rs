//! Adopts connections, and checks them periodically.

use super::closing::{close, end_soon, forget_chains, resume};
use super::io::{Io, Shut};
use super::leaving::{begin_search, search_on};
use super::state::Core;
use crate::access::Reason;
use crate::association::Association;
use crate::connection::{Connection, Endpoints};
use crate::hosts::AddressSlot;
use crate::limits::{ADOPT_UNITS, KEPT_ARENAS, LINGER_NS, LOOKS_PER_TURN, MAX_EVICTED};
use crate::transport::Port;
use bpfof_function::cost::UNIT_PS;
use log::Level;
use std::sync::Arc;

/// How often timers are checked.
const TICK_NS: u64 = 1_000_000_000;
/// The same while removed namespaces wait for the last of their commands, or connections for an arena.
const SHORT_TICK_NS: u64 = 10_000_000;
/// Cost of the search for a connection to close, for each connection: some 50 ns.
const ENTRY_UNITS: u64 = 50_000 / UNIT_PS;
/// Ticks without running chains after which unused arenas are dropped.
const QUIET_TICKS: u32 = 10;

/// Adopts a connection; none if it is refused. When the caller has stored its socket in the reactor's [`Io`] under the
/// index, it must call [`begin`].
pub(crate) fn adopt<I: Io>(
    core: &mut Core<I>,
    ends: Endpoints,
    port: Port,
    address: Option<AddressSlot>,
) -> Option<u32> {
    if core.stop_at_ns.is_some() {
        return None;
    }
    if let Some(goes) = core.table.oldest_pending(&ends) {
        let reason =
            "it had not connected or authenticated yet, and a newer connection needed its place";
        close_for_others(core, goes, reason);
    }
    if let Some(goes) = core.table.longest_closing() {
        give_up(core, goes);
    }
    let Some(index) = core.table.free_index() else {
        let (peer, table) = (ends.peer, &core.table);
        let what = format_args!("refused: the reactor has {table}, its limit");
        let when = (Level::Warn, core.executor.now_ns);
        core.executor.strangers.note(when, peer, what);
        core.executor.registry.denials.count(Reason::Limit);
        return None;
    };
    let bytes = Connection::PENDING_BYTES + port.own_bytes();
    let hosts = &core.executor.registry.hosts;
    let account = if port.asked_qid().is_some() { &hosts.pending_rdma } else { &hosts.pending };
    let account = Arc::clone(account);
    let mut charge = account.charge(bytes);
    for _ in 0..MAX_EVICTED {
        if charge.is_ok() {
            break;
        }
        let Some(goes) = core.table.oldest_stranger(&ends, &port) else { break };
        let reason = "it had not connected or authenticated yet, and a newer connection needed its \
                      memory";
        close_for_others(core, goes, reason);
        if let Some(entry) = core.table.get_mut(goes) {
            entry.connection.memory.let_go();
        }
        charge = account.charge(bytes);
    }
    let charge = match charge {
        Ok(charge) => charge,
        Err(full) => {
            let when = (Level::Warn, core.executor.now_ns);
            core.executor.strangers.note(when, ends.peer, format_args!("refused: {full}"));
            core.executor.registry.denials.count(Reason::Limit);
            return None;
        }
    };
    let name = (index, core.table.take_serial());
    let mut connection = Connection::new(name, ends, port, charge, core.executor.now_ns);
    connection.inaccessible = core.executor.registry.listener(ends.listener).inaccessible();
    let share = core.table.insert(connection, address, &mut core.executor.schedule);
    core.executor.schedule.join(index, share);
    core.executor.schedule.charge_unscheduled(index, ADOPT_UNITS);
    Some(index)
}

/// Begins to receive from an adopted connection.
pub(crate) fn begin<I: Io>(core: &mut Core<I>, index: u32) {
    resume(core, index);
}

/// A connection has completed Connect, and authentication if required: it belongs to its host's shares from now on.
pub(super) fn connected<I: Io>(core: &mut Core<I>, index: u32) {
    let Some((host, party)) = core.table.join(index, &mut core.executor.schedule) else { return };
    core.executor.schedule.join(index, host);
    core.executor.admission.join(index, party);
    if let Some(entry) = core.table.get_mut(index) {
        let connection = &mut entry.connection;
        connection.port.grow(connection.queue.entries(), connection.phase.is_io());
    }
    if core.table.is_crowded() {
        let units = core.table.indices().len() as u64 * ENTRY_UNITS;
        core.charge(index, units);
    }
    if let Some(goes) = core.table.idlest_of_greediest() {
        let reason = "the reactor is at its limit of connections, and its host has the most";
        close_for_others(core, goes, reason);
    }
}

/// Closes a connection to make room for others.
fn close_for_others<I: Io>(core: &mut Core<I>, index: u32, reason: &str) {
    let association = core.connection(index).and_then(|of| of.phase.association());
    // It would count as not authenticated, too.
    if !association.is_some_and(Association::is_unproved) {
        core.executor.registry.denials.count(Reason::Limit);
    }
    close(core, index, reason);
    // Nobody's operations have taken this time.
    core.prices.restart();
}

fn interval_ns<I: Io>(core: &Core<I>) -> u64 {
    let executor = &core.executor;
    let is_short = executor.namespaces.has_leaving() || !executor.admission.waiting().is_empty();
    if is_short { SHORT_TICK_NS } else { TICK_NS }
}

/// Does periodic checks if it is time: drops removed namespaces, and once a second closes connections of peers that are
/// silent or do not take their data, and frees memory of idle connections.
pub(super) fn tick<I: Io>(core: &mut Core<I>) {
    look_on(core);
    search_on(core);
    let now_ns = core.executor.now_ns;
    if now_ns < core.ticks.next_ns {
        return;
    }
    core.ticks.next_ns = now_ns + interval_ns(core);
    if core.executor.namespaces.has_leaving() && core.ticks.search.is_none() {
        begin_search(core);
    }
    if now_ns < core.ticks.next_slow_ns {
        return;
    }
    core.ticks.next_slow_ns = now_ns + TICK_NS;
    core.ticks.looking = Some(0);
    look_on(core);
    let executor = &mut core.executor;
    executor.observer.expire(now_ns);
    executor.forget_functions();
    let is_quiet = executor.arenas.free() == executor.registry.limits.chains;
    core.ticks.quiet = if is_quiet { core.ticks.quiet + 1 } else { 0 };
    if core.ticks.quiet == QUIET_TICKS {
        executor.arenas.trim(KEPT_ARENAS);
        executor.observer.trim(executor.arenas.engine.arenas());
    }
}

/// Checks some connections; the others follow in later turns.
fn look_on<I: Io>(core: &mut Core<I>) {
    let Some(first) = core.ticks.looking else { return };
    let end = core.table.indices().end;
    let next = end.min(first.saturating_add(LOOKS_PER_TURN));
    core.ticks.looking = (next < end).then_some(next);
    for index in first..next {
        look_at(core, index);
    }
}

fn look_at<I: Io>(core: &mut Core<I>, index: u32) {
    let Core { io, executor, table, .. } = &mut *core;
    let Some(entry) = table.get_mut(index) else { return };
    let now_ns = executor.now_ns;
    if entry.closing {
        if now_ns.saturating_sub(entry.closed_ns) > LINGER_NS {
            give_up(core, index);
        }
        return;
    }
    let limits = executor.registry.hosts.limits;
    if let Some(reason) = entry.connection.overdue(now_ns, limits.idle_timeout_s) {
        return end_soon(core, index, reason, true);
    }
    let taken_bytes = if entry.is_sending() { io.taken_bytes(index) } else { 0 };
    if entry.stuck_s(taken_bytes, now_ns) >= u64::from(limits.send_timeout_s) {
        let reason = "it does not receive the data that is sent to it (send-timeout)";
        return end_soon(core, index, reason, true);
    }
    // While the connection does not receive, nothing else shows that the host is gone.
    if entry.connection.is_paused() && io.has_hung_up(index) {
        return end_soon(core, index, "the host closed the connection", true);
    }
    // Frees memory that the connection keeps for no use: outdated tables with unloaded functions, and, if it is idle,
    // buffers.
    if let Some(association) = entry.connection.phase.association_mut() {
        association.refresh_tables();
    }
    entry.connection.give_memory_back();
    if entry.connection.is_idle() && !entry.is_sending() {
        entry.connection.port.shrink();
        entry.connection.vectors.shrink();
        executor.schedule.shrink(index);
    }
}

/// A closing connection waits no longer for its peer or for its chains.
fn give_up<I: Io>(core: &mut Core<I>, index: u32) {
    core.io.shut(index, Shut::Both);
    forget_chains(core, index);
}

/// Removed namespaces are to be dropped soon: without this the next tick would come only after the sleep that is about
/// to begin.
pub(super) fn tick_soon<I: Io>(core: &mut Core<I>) {
    let soon_ns = core.executor.now_ns + interval_ns(core);
    core.ticks.next_ns = core.ticks.next_ns.min(soon_ns);
}
