//! Operations on files that have waited for others of their disk: which begin, and which are given up.

use super::chains;
use super::io::Io;
use super::state::Core;
use super::table::Entry;
use crate::commands::device_done;
use crate::limits::{GIVEN_UP_AT_ONCE, RESPONSE_UNITS};
use crate::operation::{CommandId, FileOperation, FileWork};

/// Hands operations that have waited to the ring, and gives up those that nobody waits for any more. All that a host has
/// sent may be given up at once: what is too much for one turn is left for the next, which delays nobody else.
#[cold]
pub(super) fn submit<I: Io>(core: &mut Core<I>) {
    // These have places that others wait for. What closing connections have in the queues has none.
    hand_over(core);
    drop_of_closing(core);
    hand_over(core);
}

fn hand_over<I: Io>(core: &mut Core<I>) {
    let mut left = Vec::new();
    // Giving up lets others begin, which are in the outbox then.
    while !core.executor.outbox.resumed.is_empty() {
        for operation in std::mem::take(&mut core.executor.outbox.resumed) {
            if is_wanted(core, &operation) {
                core.io.file(&mut core.executor, operation);
            } else if core.turn.given_up < GIVEN_UP_AT_ONCE {
                core.executor.file_operation_ended(operation.namespace(), operation.work());
                give_up(core, operation);
            } else {
                left.push(operation);
            }
        }
    }
    core.executor.outbox.resumed = left;
}

/// Notes that a connection closes that is not idle: what waits of it is given up in this turn and the next ones. Operations
/// that others wait for may never end, and this connection must.
pub(super) fn drop_soon<I: Io>(core: &mut Core<I>, index: u32) {
    let busy = |entry: &&mut Entry| entry.closing && !entry.connection.is_idle();
    let Some(entry) = core.table.get_mut(index).filter(busy) else { return };
    if !std::mem::replace(&mut entry.drops_waiting, true) {
        core.dropping.push_back(index);
    }
}

/// Gives up operations on files of closing connections that wait for others, one connection after the other: those that
/// have to wait cost nothing.
fn drop_of_closing<I: Io>(core: &mut Core<I>) {
    while core.turn.given_up < GIVEN_UP_AT_ONCE
        && let Some(&index) = core.dropping.front()
    {
        let entry = core.table.get(index).filter(|entry| entry.closing);
        let waiting = entry.and_then(|entry| core.executor.take_waiting(index, entry.cuts_chains));
        if let Some(operation) = waiting {
            give_up(core, operation);
        } else {
            core.dropping.pop_front();
            if let Some(entry) = core.table.get_mut(index) {
                entry.drops_waiting = false;
            }
        }
    }
}

/// Whether an operation may begin that has waited for others of its disk. Its host may have sent the command again
/// elsewhere meanwhile, and written new data to the blocks.
fn is_wanted<I: Io>(core: &mut Core<I>, operation: &FileOperation) -> bool {
    let CommandId { connection: index, .. } = command_of(core, operation);
    let Some(entry) = core.table.get(index) else { return false };
    match operation.work() {
        // It has no effect, and so is not worth asking the socket. A connection that the target ends gets its answers.
        FileWork::Read => !entry.cuts_chains && !entry.connection.has_expired(core.executor.now_ns),
        FileWork::Write | FileWork::FlushOrZeroes => {
            !entry.connection.is_abandoned && !core.is_given_up(index)
        }
    }
}

/// The command that an operation belongs to, also that of a chain.
fn command_of<I: Io>(core: &Core<I>, operation: &FileOperation) -> CommandId {
    match operation {
        FileOperation::ChainRead { read, .. } => core.executor.arenas.owner(read.chain).command,
        FileOperation::Read { command, .. }
        | FileOperation::Write { command, .. }
        | FileOperation::Sync { command, .. }
        | FileOperation::Zero { command, .. } => *command,
    }
}

/// An operation on a file does not begin, because no host waits for it, or because its connection ends.
fn give_up<I: Io>(core: &mut Core<I>, operation: FileOperation) {
    core.turn.given_up += 1;
    if let FileOperation::ChainRead { read, .. } = operation {
        core.executor.arenas.engine.interrupt(read.chain);
        return chains::read_ended(core, read.chain, false);
    }
    let CommandId { connection: index, slot } = command_of(core, &operation);
    if let Some(buffer) = operation.into_buffer() {
        core.executor.buffers.recycle(buffer);
    }
    let Some(mut cx) = core.context(index) else { return };
    device_done::give_up(&mut cx, slot);
    let units = RESPONSE_UNITS + cx.executor.take_spent();
    let cost = core.spend(units);
    core.executor.schedule.charge(index, cost as i64);
    core.mark_dirty(index);
}
