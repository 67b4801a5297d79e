//! Closes connections.

use super::io::{Io, Message, Shut};
use super::state::{Core, Ended};
use super::table::Entry;
use super::waiting_files;
use crate::access::Reason;
use crate::association::Association;
use crate::commands::{Context, pushdown_vector};
use crate::connection::Connection;
use crate::controller::Controller;
use crate::executor::Executor;
use crate::limits::{CLOSE_UNITS, CLOSES_PER_TURN};
use crate::transport::Port;
use log::Level;
use std::sync::Arc;

/// Queues a connection to be closed at the end of a turn that has time for it. Many may end at once, and closing one
/// takes longer than most commands. Until then it takes no more input: its host may send the commands again elsewhere.
pub(super) fn close_soon<I: Io>(core: &mut Core<I>, index: u32, reason: String) {
    if let Some(entry) = core.table.get_mut(index) {
        entry.cuts_chains = true;
        entry.connection.is_abandoned = true;
        queue(core, index, reason, true);
    }
}

/// The same for a connection that the target ends. Commands that end before it is closed are answered; chains are cut
/// short if `cuts_chains`, and then reads that wait do not begin. Zeroes go no further, and other operations on files that
/// wait do not begin: the host may leave before they are done, and send them by another path.
pub(crate) fn end_soon<I: Io>(core: &mut Core<I>, index: u32, reason: &str, cuts_chains: bool) {
    let is_new = |entry: &&mut Entry| !entry.closing && !entry.is_over;
    let Some(entry) = core.table.get_mut(index).filter(is_new) else { return };
    entry.cuts_chains |= cuts_chains && core.stop_at_ns.is_none();
    entry.connection.is_abandoned = true;
    queue(core, index, reason.to_owned(), cuts_chains);
}

fn queue<I: Io>(core: &mut Core<I>, index: u32, reason: String, cuts_chains: bool) {
    if let Some(entry) = core.table.get_mut(index)
        && !std::mem::replace(&mut entry.is_over, true)
    {
        let serial = entry.connection.serial;
        core.ended.push_back(Ended { index, serial, reason, cuts_chains });
    }
}

/// Closes some of the queued connections.
pub(super) fn close_ended<I: Io>(core: &mut Core<I>) {
    for _ in 0..CLOSES_PER_TURN {
        if core.ended.is_empty() || !core.has_time_for_turnover() {
            return;
        }
        close_next(core);
    }
}

/// Closes the next of the queued connections, if there is one.
pub(super) fn close_next<I: Io>(core: &mut Core<I>) {
    while let Some(Ended { index, serial, reason, cuts_chains }) = core.ended.pop_front() {
        let is_open = |entry: &Entry| entry.connection.serial == serial && !entry.closing;
        if core.table.get(index).is_some_and(is_open) {
            let cuts_chains = cuts_chains && core.stop_at_ns.is_none();
            return begin_to_close(core, index, &reason, cuts_chains);
        }
    }
}

/// Begins to close a connection: it takes no more commands. Operations in flight that do not wait for others complete
/// first, but chains are cut short, unless the target stops.
pub(crate) fn close<I: Io>(core: &mut Core<I>, index: u32, reason: &str) {
    let cuts_chains = core.stop_at_ns.is_none();
    begin_to_close(core, index, reason, cuts_chains);
}

/// The same; without `cuts_chains` for a host that waits for its chains: they run to their ends.
fn begin_to_close<I: Io>(core: &mut Core<I>, index: u32, reason: &str, cuts_chains: bool) {
    let begun = core.begin_turnover();
    let Some(entry) = core.table.begin_to_close(index, core.executor.now_ns) else { return };
    core.executor.schedule.charge_unscheduled(index, CLOSE_UNITS);
    entry.cuts_chains |= cuts_chains;
    let connection = &mut entry.connection;
    if connection.phase.association().is_some_and(Association::is_unproved) {
        core.executor.registry.denials.count(Reason::NotAuthenticated);
        let what = format_args!(
            "closed: {reason}; the host has not authenticated, which its rule requires"
        );
        core.executor.note(connection, Level::Warn, what);
    } else {
        core.executor.note(connection, Level::Info, format_args!("closed: {reason}"));
    }
    // The commands that wait for the peer's data or for a compiler are forgotten. The others are with a device or a
    // chain and must complete.
    connection.is_abandoned = true;
    connection.waiters.command_since_ns = None;
    core.executor.admission.stop_waiting(index);
    connection.waiters.vector_since_ns = None;
    abandon_chains(core, index);
    let Some(entry) = core.table.get_mut(index) else { return };
    let connection = &mut entry.connection;
    if !connection.waiters.resting.is_empty() {
        core.executor.admission.wait(index);
    }
    let is_elsewhere = connection.queue.forget_pending();
    connection.port.stop_fetching(|buffer| core.executor.buffers.recycle(buffer));
    if is_elsewhere {
        core.io.cancel(connection.serial);
    }
    // Ends the receive; data that is being sent still goes out. A stranger by RDMA is shut down both ways: it may never
    // take its data, and closing connections do not count as strangers.
    let has_failed =
        connection.phase.association().is_some_and(|association| association.has_failed);
    let is_stranger = connection.is_pending() && !has_failed;
    let half = match is_stranger && connection.port.asked_qid().is_some() {
        true => Shut::Both,
        false => Shut::Receive,
    };
    core.io.shut(index, half);
    if let Some(association) = connection.phase.association() {
        let controller = &association.controller;
        if connection.phase.is_admin() {
            association.subsystem.remove_controller(controller, core.executor.now_ns);
            if controller.end() {
                let cuts_chains = entry.cuts_chains;
                core.io.tell_all(&|| Message::EndQueues {
                    controller: Arc::clone(controller),
                    and_admin: true,
                    cuts_chains,
                });
            }
        } else if association.is_registered {
            controller.remove_queue(connection.queue.id(), association.resets);
        }
    }
    core.mark_dirty(index);
    core.end_turnover(begun);
}

/// Gives up chains that have not begun, and resting chains if chains are cut short.
fn abandon_chains<I: Io>(core: &mut Core<I>, index: u32) {
    let Some(entry) = core.table.get_mut(index) else { return };
    let mut cx = Context { connection: &mut entry.connection, executor: &mut core.executor };
    pushdown_vector::abandon(&mut cx, entry.cuts_chains);
}

/// The time for a closing connection is over: cuts its chains short, because their answers cannot be sent any more.
pub(super) fn forget_chains<I: Io>(core: &mut Core<I>, index: u32) {
    let Some(entry) = core.table.get_mut(index).filter(|entry| !entry.cuts_chains) else { return };
    entry.cuts_chains = true;
    core.executor.admission.stop_waiting(index);
    abandon_chains(core, index);
    remove_if_done(core, index);
}

/// Closes the connections of a controller's I/O queues, or of all its queues.
pub(super) fn end_queues<I: Io>(
    core: &mut Core<I>,
    controller: &Arc<Controller>,
    (and_admin, cuts_chains): (bool, bool),
) {
    for index in core.table.of(controller) {
        let ends = |connection: &Connection| connection.ends_with(controller, and_admin);
        if core.connection(index).is_some_and(ends) {
            end_soon(core, index, "the controller was reset or is gone", cuts_chains);
        }
    }
}

/// Removes a closing connection that has no work left.
pub(super) fn remove_if_done<I: Io>(core: &mut Core<I>, index: u32) {
    waiting_files::drop_soon(core, index);
    let Some(entry) = core.table.get_mut(index) else { return };
    if entry.closing
        && !entry.connection.queue.is_busy()
        && let Some(association) = entry.connection.phase.association_mut()
    {
        association.commands_ended();
    }
    let is_idle = entry.connection.is_idle() && entry.connection.port.is_at_rest();
    if !(entry.closing && is_idle && !entry.dirty) {
        return;
    }
    if let Some(association) = entry.connection.phase.association() {
        let tally = &entry.connection.tally;
        association.host().remember(core.index, &tally.totals, &tally.latencies);
    }
    let begun = core.begin_turnover();
    core.executor.admission.leave(index);
    core.executor.schedule.leave(index);
    core.executor.observer.slowest.forget(index);
    core.table.remove(index, &core.executor.schedule);
    core.io.close(index);
    core.end_turnover(begun);
}

/// Sends a connection's unsent data, if no send is in progress.
pub(super) fn flush<I: Io>(core: &mut Core<I>, index: u32) {
    let Some(entry) = core.table.get_mut(index) else { return };
    entry.connection.queue.leave();
    match &mut entry.connection.port {
        Port::Tcp(port) => {
            if let Some(outgoing) = port.take_unsent() {
                core.lent += usize::from(!outgoing.is_own());
                core.io.send(index, outgoing, port.sends_in_parts());
            }
            let spent = entry.connection.port.take_spent();
            if spent > 0 {
                let cost = core.spend(spent);
                core.executor.schedule.charge(index, cost as i64);
            }
        }
        Port::Message(port) => {
            if port.unsent_bytes() > 0 {
                core.io.post(index, port.take_unposted());
            }
        }
    }
}

/// Lets a connection with more input go on in a later turn, or when it is no longer paused.
pub(super) fn go_on_later<I: Io>(io: &mut I, executor: &mut Executor, connection: &mut Connection) {
    if connection.is_paused() {
        connection.was_paused = true;
        io.tell_next(connection.index);
    } else {
        executor.schedule.wake(connection.index);
    }
}

/// Lets a connection with input left go on with it; others receive.
pub(super) fn resume<I: Io>(core: &mut Core<I>, index: u32) {
    let Some(entry) = core.table.get_mut(index) else { return };
    if entry.closing || entry.is_over {
        return;
    }
    if entry.connection.has_more {
        go_on_later(&mut core.io, &mut core.executor, &mut entry.connection);
    } else if entry.connection.is_paused() {
        entry.connection.was_paused = true;
    } else if let Port::Tcp(port) = &mut entry.connection.port
        && let Some((buffer, filled)) = port.receive_buffer()
    {
        core.io.receive(index, buffer, filled);
    }
}
