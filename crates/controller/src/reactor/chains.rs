//! Continues, ends and suspends chains.

use super::io::Io;
use super::state::Core;
use crate::commands::{Context, pushdown, pushdown_vector};
use crate::connection::{ChainWaiters, Resting};
use crate::executor::{Most, Owner};
use crate::limits::{BYTES_PER_UNIT, HOPS_PER_DEVICE_READ, HOPS_PER_TURN, LONG_UNITS, SLICE_UNITS};
use crate::operation::Operation;
use crate::refusal::Refusal;
use bpfof_chain::{ChainId, Progress};
use bpfof_nvme::Status;

/// Performs a due read of a chain from memory, and the reads that follow it in the round. If several hosts share the
/// reactor, a long read is one operation and its call another, so that operations of others can come between them.
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
    association.refresh_tables();
    let is_shared = core.executor.schedule.is_shared();
    let units = units(read.length as usize);
    if is_shared && units > LONG_UNITS && core.executor.arenas.engine.awaits_one(read.chain) {
        core.turn.hops += HOPS_PER_DEVICE_READ;
        core.executor.bring(namespace, &read);
        core.executor.spend(units);
        let done = Operation::ChainReadDone { chain: read.chain, ok: true, paid: units as u32 };
        return core.executor.schedule.push_first(index, done);
    }
    let tables = &association.tables;
    if !core.executor.is_direct(namespace) {
        core.turn.hops += HOPS_PER_DEVICE_READ;
        core.executor.bring(namespace, &read);
        let progress = core.executor.go_on_with_chain(read.chain, Some(true), wanted, tables);
        return progressed(core, index, read.chain, progress);
    }
    let most = Most {
        hops: HOPS_PER_TURN.saturating_sub(core.turn.hops),
        units: core.turn.units_to_clock(),
        bytes: if is_shared { (LONG_UNITS * BYTES_PER_UNIT) as u32 } else { u32::MAX },
    };
    let done = core.executor.read_for_chains(namespace, wanted, tables, most);
    core.turn.hops += done.hops;
    core.spend_before_clock(done.cost);
    core.prices.add(index, done.cost);
    if let Some((chain, progress)) = done.stopped {
        progressed(core, index, chain, progress);
    }
    if !core.executor.arenas.ended.is_empty() {
        end_together(core, index);
    }
}

/// The cost of copying this many bytes.
const fn units(bytes: usize) -> u64 {
    bytes as u64 / BYTES_PER_UNIT
}

/// Continues a chain: a read has ended, successfully or not, for which units have been paid; or a hop has calls left.
pub(super) fn go_on<I: Io>(
    core: &mut Core<I>,
    index: u32,
    chain: ChainId,
    read: Option<(bool, u32)>,
) {
    let Some(entry) = core.table.get_mut(index) else { return };
    let wanted = !entry.cuts_chains;
    let Some(association) = entry.connection.phase.association_mut() else { return };
    core.turn.hops += HOPS_PER_DEVICE_READ;
    association.refresh_tables();
    let tables = &association.tables;
    let ok = read.map(|(ok, _)| ok);
    let progress = core.executor.go_on_with_chain(chain, ok, wanted, tables);
    if let Some((_, paid)) = read {
        // If the chain ends, `end_together` takes what it has spent, so the refund comes before.
        core.executor.arenas.engine.refund(u64::from(paid));
    }
    progressed(core, index, chain, progress);
}

/// Handles the progress of a chain if it is more than reads.
#[inline]
fn progressed<I: Io>(core: &mut Core<I>, index: u32, chain: ChainId, progress: Progress) {
    match progress {
        Progress::Reads => {}
        Progress::Calls => queue(core, chain, Operation::ChainCalls { chain }),
        Progress::Done(outcome) => {
            core.executor.arenas.ended.push((chain, outcome));
            end_together(core, index);
        }
        Progress::Rest => rest(core, index, chain),
    }
}

/// Chains of a connection have ended: answers their commands, and begins further chains of its vectors. The cost of
/// this is not part of the operation's cost, so that estimates do not include it.
fn end_together<I: Io>(core: &mut Core<I>, index: u32) {
    let Some(mut cx) = core.context(index) else { return };
    let of_operation = cx.executor.take_spent();
    let mut ended = std::mem::take(&mut cx.executor.arenas.ended);
    let before = cx.connection.port.unsent_bytes();
    let (mut left, mut of_vectors) = (0, 0);
    for (chain, outcome) in ended.drain(..) {
        let Owner { command, entry, .. } = cx.executor.arenas.owner(chain);
        match entry {
            None => pushdown::ended(&mut cx, command.slot, chain, outcome),
            Some(entry) => {
                pushdown_vector::ended(&mut cx, (command.slot, entry), chain, outcome);
                of_vectors += 1;
            }
        }
        left += 1;
    }
    cx.executor.arenas.ended = ended;
    cx.executor.admission.ended(index, left);
    if of_vectors > 0 {
        let until = cx.executor.spent() + SLICE_UNITS;
        pushdown_vector::start_more(&mut cx, until);
    }
    answered(core, index, before);
    let is_closing = core.table.get(index).is_some_and(|entry| entry.closing);
    if of_vectors < left || is_closing {
        // It may have waited only for these chains.
        core.mark_dirty(index);
    }
    let spent = core.executor.take_spent();
    let cost = core.spend(spent);
    core.turn.cost += cost;
    core.charge(index, cost);
    core.executor.spend(of_operation);
}

/// Begins chains of a connection's vectors, even if it is too full to take commands: ending chains make room.
pub(super) fn start_vectors<I: Io>(core: &mut Core<I>, index: u32) {
    let Some(mut cx) = core.context(index) else { return };
    let before = cx.connection.port.unsent_bytes();
    let until = cx.executor.spent() + SLICE_UNITS;
    pushdown_vector::start_more(&mut cx, until);
    answered(core, index, before);
    let spent = core.executor.take_spent();
    let cost = core.spend(spent);
    core.charge(index, cost);
}

/// Accounts for answers of a connection that have been added since it had `before` unsent bytes.
#[inline]
fn answered<I: Io>(core: &mut Core<I>, index: u32, before: usize) {
    let Some(cx) = core.context(index) else { return };
    let bytes = cx.connection.port.unsent_bytes() - before;
    if bytes > 0 {
        cx.executor.spend(bytes as u64 / BYTES_PER_UNIT);
        core.answered(index);
    }
}

/// A chain's read from a file has ended, with its data in place if `ok`.
pub(super) fn read_ended<I: Io>(core: &mut Core<I>, chain: ChainId, ok: bool) {
    core.executor.observer.read_came(chain, core.executor.now_ns);
    queue(core, chain, Operation::ChainReadDone { chain, ok, paid: 0 });
}

/// Queues the next operation of a chain: before all others of its connection if the chain gives way.
#[inline]
pub(super) fn queue<I: Io>(core: &mut Core<I>, chain: ChainId, operation: Operation) {
    let owner = core.executor.arenas.owner(chain);
    let schedule = &mut core.executor.schedule;
    match owner.gives_way() {
        true => schedule.push_first(owner.command.connection, operation),
        false => schedule.push_active(owner.command.connection, operation),
    }
}

/// A chain gives up its arena and waits for another.
#[cold]
fn rest<I: Io>(core: &mut Core<I>, index: u32, chain: ChainId) {
    let Some(mut cx) = core.context(index) else { return };
    let Context { connection, executor } = &mut cx;
    let owner = executor.arenas.owner(chain);
    let (slot, entry) = (owner.command.slot, owner.entry);
    connection.vectors.running -= u32::from(entry.is_some());
    let suspended = executor.arenas.engine.suspend(chain);
    executor.admission.ended(index, 1);
    let before_ns = owner.since_ns.saturating_sub(connection.queue.slot(slot).begun_ns);
    let log = executor.observer.chain_rests(chain, (owner.is_logged, before_ns));
    match connection.memory.charge(suspended.bytes() + log.bytes()) {
        Ok(memory) => {
            let since_ns = executor.now_ns;
            let resting = Resting { slot, entry, chain: suspended, since_ns, log, _memory: memory };
            connection.waiters.resting.push_back(resting);
            executor.admission.wait(index);
        }
        Err(full) => {
            let what = format_args!("a chain is ended because it cannot be suspended: {full}");
            connection.note(log::Level::Warn, executor.now_ns, what);
            let cause = "there is no memory to suspend the chain";
            let refusal = Refusal::new(Status::COMMAND_INTERRUPTED, cause);
            end_resting(&mut cx, (slot, entry), &refusal);
            core.mark_dirty(index);
        }
    }
}

/// Ends a chain that has no arena.
fn end_resting(cx: &mut Context<'_>, (slot, entry): (u16, Option<u16>), refusal: &Refusal) {
    let Some(entry) = entry else { return pushdown::end_resting(cx, slot, refusal) };
    pushdown_vector::end(cx, slot, entry, refusal);
    let Context { connection, executor } = cx;
    // It may have been the last running chain, whose end would have begun others.
    if connection.vectors.has_unstarted() {
        connection.has_more = true;
        executor.schedule.wake(connection.index);
    }
}

/// A connection has been granted an arena: for a resting chain, the next chain of a vector, or the next command,
/// whichever has waited longest.
pub(super) fn granted<I: Io>(core: &mut Core<I>, index: u32) {
    let Some(entry) = core.table.get_mut(index) else { return };
    // Resting chains run to their ends, although the connection closes.
    if entry.closing && entry.connection.waiters.resting.is_empty() {
        return core.executor.admission.stop_waiting(index);
    }
    let ChainWaiters { resting, vector_since_ns, command_since_ns, waited_since_ns } =
        &mut entry.connection.waiters;
    let never = u64::MAX;
    let resting_ns = resting.front().map_or(never, |resting| resting.since_ns);
    let vector_ns = vector_since_ns.unwrap_or(never);
    if command_since_ns.is_some_and(|ns| ns < resting_ns.min(vector_ns)) {
        // It keeps the arena until it is taken from the input.
        *waited_since_ns = command_since_ns.take();
        core.executor.schedule.wake(index);
    } else if vector_ns < resting_ns {
        *vector_since_ns = None;
        start_vectors(core, index);
        core.executor.admission.take_back(index);
    } else if let Some(resting) = resting.pop_front()
        && let Some(mut cx) = core.context(index)
    {
        let of = (resting.slot, resting.entry);
        if let Err(refusal) = pushdown::resume(&mut cx, resting) {
            cx.executor.admission.take_back(index);
            end_resting(&mut cx, of, &refusal);
        }
        core.mark_dirty(index);
        // Restoring its state.
        let spent = core.executor.take_spent();
        let cost = core.spend(spent);
        core.charge(index, cost);
    }
    if core.connection(index).is_some_and(|connection| connection.waiters.want_arena()) {
        core.executor.admission.wait(index);
    }
}
