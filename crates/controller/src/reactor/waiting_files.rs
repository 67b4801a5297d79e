//! Operations on files that have waited for others of their disk: which begin, and which are given up.

use super::chains;
use super::io::Io;
use super::state::Core;
use crate::commands::device_done;
use crate::limits::{GIVEN_UP_AT_ONCE, RESPONSE_UNITS};
use crate::operation::{CommandId, FileOperation, FileWork};

/// Hands operations that have waited to the ring, except those that nobody waits for any more. All that a host has sent
/// may be given up: if it is too much for one turn, the rest is left for the next.
#[cold]
pub(super) fn submit<I: Io>(core: &mut Core<I>) {
    while core.turn.given_up < GIVEN_UP_AT_ONCE && !core.executor.outbox.resumed.is_empty() {
        let mut operations = std::mem::take(&mut core.executor.outbox.resumed);
        for operation in operations.drain(..) {
            if is_wanted(core, &operation) {
                core.io.file(&mut core.executor, operation);
            } else {
                core.executor.file_operation_ended(operation.namespace(), operation.work());
                give_up(core, operation);
                core.turn.given_up += 1;
            }
        }
        // Giving up lets others begin, which are in the outbox now.
        if core.executor.outbox.resumed.is_empty() {
            core.executor.outbox.resumed = operations;
        }
    }
}

/// Gives up operations on files of a closing connection that wait for others, some in each turn: those may never end, and
/// this connection must.
pub(super) fn give_up_of<I: Io>(core: &mut Core<I>, index: u32) {
    let Some(entry) = core.table.get(index).filter(|entry| entry.closing) else { return };
    if entry.connection.is_idle() {
        return;
    }
    let with_reads = entry.cuts_chains;
    while let Some(operation) = core.executor.take_waiting(index, with_reads) {
        give_up(core, operation);
        core.turn.given_up += 1;
        if core.turn.given_up >= GIVEN_UP_AT_ONCE {
            return core.mark_dirty(index);
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
