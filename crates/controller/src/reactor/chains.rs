//! Chains that go on, end, or give way.

use super::io::Io;
use super::state::Core;
use crate::commands::{Context, pushdown};
use crate::connection::Resting;
use crate::limits::{BYTES_PER_UNIT, RESPONSE_UNITS};
use crate::operation::Operation;
use crate::refusal::Refusal;
use bpfof_chain::{ChainId, Progress};
use bpfof_nvme::Status;

/// A read of a chain from memory is due.
#[inline]
pub(super) fn read<I: Io>(
    core: &mut Core<I>,
    index: u32,
    namespace: usize,
    read: bpfof_chain::DeviceRead,
) {
    let Some(entry) = core.table.get_mut(index) else { return };
    let wanted = !entry.cuts_chains;
    let Some(association) = entry.connection.phase.association_mut() else { return };
    core.turn.hops += 1;
    association.refresh_tables();
    let tables = &association.tables;
    let progress = core.executor.read_for_chain(namespace, read, wanted, tables);
    if progress != Progress::Reads {
        progressed(core, index, read.chain, progress);
    }
}

/// A read from a file has ended, well or not, or a hop has calls left.
pub(super) fn go_on<I: Io>(core: &mut Core<I>, index: u32, chain: ChainId, read: Option<bool>) {
    let Some(entry) = core.table.get_mut(index) else { return };
    let wanted = !entry.cuts_chains;
    let Some(association) = entry.connection.phase.association_mut() else { return };
    core.turn.hops += 1;
    association.refresh_tables();
    let tables = &association.tables;
    let progress = core.executor.go_on_with_chain(chain, read, wanted, tables);
    progressed(core, index, chain, progress);
}

/// A step of a chain has led to more than reads.
#[inline]
fn progressed<I: Io>(core: &mut Core<I>, index: u32, chain: ChainId, progress: Progress) {
    match progress {
        Progress::Reads => {}
        Progress::Calls => queue(core, chain, Operation::ChainCalls { chain }),
        Progress::Done(outcome) => {
            let owner = core.executor.arenas.owner(chain);
            let Some(mut cx) = core.context(index) else { return };
            let before = cx.connection.port.unsent_bytes();
            pushdown::ended(&mut cx, owner.command.slot, chain, outcome);
            let bytes = cx.connection.port.unsent_bytes() - before;
            cx.executor.admission.ended(index, owner.gives_way);
            cx.executor.spend(RESPONSE_UNITS + bytes as u64 / BYTES_PER_UNIT);
            core.mark_dirty(index);
        }
        Progress::Rest => rest(core, index, chain),
    }
}

/// Queues what a chain goes on with: before all others of its connection if it gives way.
#[inline]
pub(super) fn queue<I: Io>(core: &mut Core<I>, chain: ChainId, operation: Operation) {
    let owner = core.executor.arenas.owner(chain);
    let schedule = &mut core.executor.schedule;
    match owner.gives_way {
        true => schedule.push_first(owner.command.connection, operation),
        false => schedule.push_active(owner.command.connection, operation),
    }
}

/// A chain gives its arena to somebody else, and waits for another.
#[cold]
fn rest<I: Io>(core: &mut Core<I>, index: u32, chain: ChainId) {
    let Some(mut cx) = core.context(index) else { return };
    let Context { connection, executor } = &mut cx;
    let owner = executor.arenas.owner(chain);
    let slot = owner.command.slot;
    let suspended = executor.arenas.engine.suspend(chain);
    executor.admission.ended(index, owner.gives_way);
    let before_ns = owner.since_ns.saturating_sub(connection.queue.slot(slot).begun_ns);
    let log = executor.observer.chain_rests(chain, (owner.is_logged, before_ns));
    match connection.memory.charge(suspended.bytes()) {
        Ok(memory) => {
            let since_ns = executor.now_ns;
            let resting = Resting { slot, chain: suspended, since_ns, log, _memory: memory };
            connection.waiters.resting.push_back(resting);
            executor.admission.wait(index);
        }
        Err(full) => {
            let what = format_args!("a chain that gives way is ended: {full}");
            connection.note(log::Level::Warn, executor.now_ns, what);
            let cause = "there is no memory for a chain that gives way";
            let refusal = Refusal::new(Status::COMMAND_INTERRUPTED, cause);
            pushdown::end_resting(&mut cx, slot, &refusal);
            core.mark_dirty(index);
        }
    }
}

/// A connection has been granted an arena: for a chain that rests, or for its next command.
pub(super) fn granted<I: Io>(core: &mut Core<I>, index: u32) {
    let Some(entry) = core.table.get_mut(index) else { return };
    if entry.closing {
        return core.executor.admission.stop_waiting(index);
    }
    let waiters = &mut entry.connection.waiters;
    let waits_since_ns = waiters.command_since_ns;
    let is_resting_first = waiters
        .resting
        .front()
        .is_some_and(|resting| waits_since_ns.is_none_or(|ns| resting.since_ns <= ns));
    if !is_resting_first {
        waiters.waited_since_ns = waiters.command_since_ns.take();
        core.executor.schedule.wake(index);
        if !waiters.resting.is_empty() {
            core.executor.admission.wait(index);
        }
        return;
    }
    if let Some(resting) = waiters.resting.pop_front()
        && let Some(mut cx) = core.context(index)
    {
        pushdown::resume(&mut cx, resting);
        core.mark_dirty(index);
    }
    if core.connection(index).is_some_and(|connection| connection.waiters.want_arena()) {
        core.executor.admission.wait(index);
    }
}
