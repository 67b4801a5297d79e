//! Serving connections in the order of their shares.

use super::chains;
use super::closing::{close_soon, end_soon, flush, go_on_later};
use super::io::{Io, Message};
use super::state::{Core, Turn};
use super::table::Entry;
use super::upkeep::connected;
use crate::commands::{Close, Context, device_done, nvm_optional, receive};
use crate::connection::Connection;
use crate::limits::{
    BYTES_PER_TURN, BYTES_PER_UNIT, GIVE_WAY_UNITS, HOPS_BEFORE_NEWS, HOPS_PER_CLOCK,
    HOPS_PER_COMMAND, HOPS_PER_TURN, RESPONSE_UNITS, SLICE_NS, SLICE_UNITS,
};
use crate::operation::Operation;
use log::Level;
use std::sync::Arc;

/// Serves connections until the turn is over or no work is left.
pub(crate) fn work<I: Io>(core: &mut Core<I>) {
    core.executor.release_due();
    core.begin_work();
    while goes_on(core) {
        // The next answer is likely to be as long as the last.
        let bytes = core.turn.bytes;
        if bytes > 0 && bytes + core.turn.last_bytes > BYTES_PER_TURN || !step(core) {
            break;
        }
    }
    core.end_work();
}

/// Whether the turn takes more operations.
#[inline]
fn goes_on<I: Io>(core: &mut Core<I>) -> bool {
    let Turn { hops, is_over, answers_leave, .. } = core.turn;
    !(is_over || answers_leave)
        && hops < HOPS_PER_TURN
        && (hops < HOPS_BEFORE_NEWS || !others_wait(core))
}

/// Whether hosts share the reactor, and one of them may wait for the end of this turn.
fn others_wait<I: Io>(core: &mut Core<I>) -> bool {
    core.executor.schedule.is_shared() && (core.dirty.len() > 1 || core.io.has_news())
}

/// Performs the next operation; false if there is none, or if it gives way.
#[inline]
pub(crate) fn step<I: Io>(core: &mut Core<I>) -> bool {
    if !core.executor.schedule.has_next() {
        next_round(core);
    }
    if core.executor.schedule.is_next_long() && gives_way(core) {
        return false;
    }
    let Some(connection) = core.executor.schedule.next() else { return false };
    perform(core, connection);
    let spent = core.executor.take_spent();
    let cost = core.spend(spent);
    core.turn.cost += cost;
    core.prices.add(connection, cost);
    core.executor.schedule.told(cost);
    if core.prices.is_suspect() && core.executor.schedule.is_part_over() {
        let now_ns = core.io.now_ns();
        core.correct_prices(now_ns);
    }
    if core.executor.is_modelled() && core.turn.hops.is_multiple_of(HOPS_PER_CLOCK) {
        core.executor.now_ns = core.io.now_ns();
        core.executor.release_due();
    }
    true
}

/// Begins a round: takes the input and the operations of the connections whose turn it is.
#[inline(never)]
fn next_round<I: Io>(core: &mut Core<I>) {
    core.executor.schedule.end_round();
    while core.executor.schedule.has_room() && !core.turn.is_over {
        let Some(connection) = core.executor.schedule.pick() else { break };
        take_input(core, connection);
        core.executor.schedule.take(connection);
    }
    core.executor.prefetch_round();
    let now_ns = core.io.now_ns();
    core.executor.now_ns = now_ns;
    core.correct_prices(now_ns);
}

/// Whether a long operation waits until answers have left and input has been taken. The first operation of a turn never
/// does: the schedule has chosen it, and input of others must not delay it for ever.
fn gives_way<I: Io>(core: &mut Core<I>) -> bool {
    let cost = core.turn.cost;
    cost > 0
        && core.executor.schedule.is_shared()
        && (!core.dirty.is_empty() || cost >= GIVE_WAY_UNITS && core.io.has_news())
}

/// Performs the operation whose turn it is, of this connection.
#[inline]
fn perform<I: Io>(core: &mut Core<I>, index: u32) {
    // Fields are read one by one: a copy of the whole would stall.
    match *core.executor.schedule.operation() {
        Operation::Command { command, .. } => {
            let Some(mut cx) = core.context(index) else { return };
            let before = cx.connection.port.unsent_bytes();
            device_done::memory_done(&mut cx, command.slot);
            let bytes = cx.connection.port.unsent_bytes() - before;
            cx.executor.spend(RESPONSE_UNITS + bytes as u64 / BYTES_PER_UNIT);
            core.turn.last_bytes = bytes;
            core.turn.bytes += bytes;
            core.turn.hops += HOPS_PER_COMMAND;
            core.answered(index);
        }
        Operation::Zero { namespace, command, offset, length } => {
            let Some(connection) = core.connection(index) else { return };
            let is_wanted = !connection.is_abandoned && !core.is_given_up(index);
            let zeroes = ((offset, length), is_wanted);
            let Some(mut cx) = core.context(index) else { return };
            nvm_optional::zero_memory(&mut cx, namespace as usize, command, zeroes);
            core.mark_dirty(index);
        }
        Operation::ChainRead { namespace, read } => {
            chains::read(core, index, namespace as usize, read);
        }
        Operation::ChainReadDone { chain, ok, paid } => {
            chains::go_on(core, index, chain, Some((ok, paid)));
        }
        Operation::ChainCalls { chain } => chains::go_on(core, index, chain, None),
    }
}

/// Starts chains of a connection's vectors, and gives received input to the connection, as much as it may process now.
/// The next receive comes after the send of its answers: the kernel does both in that order, and arming a receive takes
/// longer than many answers.
pub(crate) fn take_input<I: Io>(core: &mut Core<I>, index: u32) {
    let begins_chains = |entry: &Entry| {
        let Entry { closing, is_over, connection, .. } = entry;
        !closing && !is_over && connection.has_more && connection.vectors.has_unstarted()
    };
    if core.table.get(index).is_some_and(begins_chains) {
        chains::start_vectors(core, index);
    }
    take_commands(core, index);
    // An arena that was granted for a command goes to others if the command was refused, or is not taken now. A
    // connection that kept it while other chains of it wait could keep it for ever.
    core.executor.admission.take_back(index);
}

/// Processes commands in a connection's input.
#[inline]
fn take_commands<I: Io>(core: &mut Core<I>, index: u32) {
    let Core { io, executor, table, .. } = &mut *core;
    let Some(entry) = table.get_mut(index) else { return };
    let connection = &mut entry.connection;
    if entry.closing || entry.is_over || !connection.has_more || connection.is_full() {
        return;
    }
    // Reads the clock anew: the process may have been stopped since the last reading.
    let begun_ns = io.now_ns();
    executor.now_ns = begun_ns;
    if let Some(reason) = given_up_reason(io, connection, begun_ns) {
        return end_soon(core, index, reason, true);
    }
    let Some(input) = connection.port.take_input() else { return };
    let (until, mut used, mut takes_long) = (executor.spent() + SLICE_UNITS, 0, false);
    let outcome = loop {
        let mut cx = Context { connection: &mut *connection, executor: &mut *executor };
        match receive::receive(&mut cx, &input, used, until) {
            Ok(more) => used += more,
            Err(close) => break Err(close),
        }
        let goes_on = connection.has_more && !connection.is_paused() && !connection.asks.connected;
        if !goes_on || connection.phase.is_admin() || executor.spent() >= until {
            break Ok(());
        }
        takes_long = io.now_ns().saturating_sub(begun_ns) >= SLICE_NS;
        if takes_long {
            break Ok(());
        }
    };
    // The rest is a part of a PDU, or waits until the connection goes on.
    connection.port.put_back(input, used);
    executor.spend(connection.port.take_spent());
    connection.has_more |= connection.port.has_unopened();
    match outcome {
        Ok(()) => {
            let has_more = connection.has_more;
            if has_more {
                go_on_later(io, executor, connection);
            }
            after_commands(core, index);
            let is_answered =
                core.connection(index).is_some_and(|connection| connection.port.unsent_bytes() > 0);
            if used > 0 || !has_more || is_answered {
                core.mark_dirty(index);
            }
        }
        Err(reason) => {
            if let Close::Violation(violation) = &reason {
                // Any peer can cause violations on a connection that has not completed Connect.
                executor.note(connection, Level::Warn, format_args!("{violation}"));
            }
            after_commands(core, index);
            flush(core, index);
            end_soon(core, index, &reason.to_string(), true);
            core.mark_dirty(index);
        }
    }
    let spent = core.executor.take_spent();
    let cost = if takes_long { core.spend_by_clock(spent) } else { core.spend(spent) };
    core.charge(index, cost);
}

/// Why the host may have sent the commands in a connection's input by another path, if it may have: then none of them
/// may begin any more.
#[inline]
fn given_up_reason<I: Io>(
    io: &mut I,
    connection: &mut Connection,
    now_ns: u64,
) -> Option<&'static str> {
    if connection.has_expired(now_ns) {
        return Some("keep-alive timeout");
    }
    // A paused connection does not receive, so its end has not been seen behind its input.
    let was_paused = std::mem::take(&mut connection.was_paused);
    (was_paused && io.has_hung_up(connection.index)).then_some("the host closed the connection")
}

/// Handles requests of commands to other threads and other reactors.
pub(super) fn after_commands<I: Io>(core: &mut Core<I>, index: u32) {
    for load in core.executor.outbox.loads.drain(..) {
        core.io.load(load);
    }
    for work in core.executor.outbox.authentications.drain(..) {
        core.io.authenticate(work);
    }
    let Some(entry) = core.table.get_mut(index) else { return };
    let connection = &mut entry.connection;
    if let Some(reason) = connection.asks.close.take() {
        close_soon(core, index, reason.to_owned());
        return;
    }
    if std::mem::take(&mut connection.asks.resets_queues)
        && let Some(controller) = connection.controller()
    {
        core.io.tell_all(&|| Message::EndQueues {
            controller: Arc::clone(controller),
            and_admin: false,
            cuts_chains: true,
        });
    }
    let is_associated = std::mem::take(&mut connection.asks.is_associated);
    let is_connected = std::mem::take(&mut connection.asks.connected);
    if is_associated {
        core.table.associate(index);
    }
    if is_connected {
        connected(core, index);
    }
    for controller in std::mem::take(&mut core.executor.outbox.evicted) {
        core.io.tell_all(&|| Message::end(&controller));
    }
}
