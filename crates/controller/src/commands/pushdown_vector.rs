//! Pushdown Vector: a command starts many chains, and the end of the last one answers it (docs/protocol.md).
//!
//! The chains start one by one, as arenas become free for the connection, and only a few at a time if they wait for
//! nothing but memory. Each chain leaves a record and its answer in a buffer, which is sent at the end.

use super::context::{Answered, Command, Context, Outcome};
use super::pushdown::{count, failed, malformed, namespace_gone};
use crate::connection::Connection;
use crate::limits::{
    BYTES_PER_UNIT, MAX_VECTOR_BYTES, MAX_VECTOR_CHAINS, RESPONSE_UNITS, VECTOR_CHAIN_UNITS,
    ZEROES_PER_UNIT,
};
use crate::operation::CommandId;
use crate::queue::State;
use crate::refusal::Refusal;
use crate::transport::Payload;
use crate::vectors::Vector;
use bpfof_chain::{Answer, ChainError, ChainId, Outcome as ChainOutcome};
use bpfof_function::abi;
use bpfof_nvme::opcode::nvm::PUSHDOWN_VECTOR;
use bpfof_nvme::vendor_specific::PushdownVectorRequest;

/// Takes a vector of chains. [`start_more`] starts them.
pub(crate) fn begin(cx: &mut Context<'_>, command: &Command<'_>, namespace: usize) -> Answered {
    command.check_in_capsule("the request must be in the capsule")?;
    let files_max = abi::MAX_READS as u16;
    let request = PushdownVectorRequest::parse(command.data, files_max, MAX_VECTOR_CHAINS)
        .map_err(|error| malformed(error.at))?;
    let header = request.header();
    if header.effective_scratch_bytes() > abi::MAX_SCRATCH_BYTES as u32 {
        return Err(malformed(PushdownVectorRequest::SCRATCH_SIZE_AT));
    }
    if header.room_bytes > MAX_VECTOR_BYTES {
        return Err(malformed(PushdownVectorRequest::ROOM_AT));
    }
    command.check_answer_room(header.room_bytes)?;
    let bytes = header.room_bytes + command.data.len() as u32;
    // A buffer that is new to the process must be zeroed.
    cx.executor.spend(u64::from(header.room_bytes) / ZEROES_PER_UNIT);
    let buffer = cx.executor.buffers.take(bytes as usize);
    let unit_bytes = cx.executor.namespace(namespace).unit_bytes();
    let place = cx.connection.vectors.reserve();
    let slot = cx.occupy(command, State::Vector { namespace, vector: place, bytes }).slot;
    let reads = (command.sqe.nsid, unit_bytes);
    let vector = Vector::new(slot, reads, (&request, command.data), buffer);
    cx.connection.vectors.put(place, vector);
    Ok(Outcome::Pending)
}

/// Starts chains of a connection's vectors, as many as may run and as there are arenas for, until `until` units are
/// spent.
pub(crate) fn start_more(cx: &mut Context<'_>, until: u64) {
    if cx.connection.is_abandoned {
        return;
    }
    while let Some(place) = cx.connection.vectors.next_unstarted() {
        let Context { connection, executor } = cx;
        let slot = connection.vectors.get(place).slot;
        let Some(namespace) = connection.queue.slot(slot).state.namespace() else { return };
        let at_a_time = executor.vector_chains_at_a_time(namespace);
        // A vector that waits continues when it is granted an arena.
        if connection.waiters.vector_since_ns.is_some() || connection.vectors.running >= at_a_time {
            return;
        }
        if executor.spent() >= until {
            connection.has_more = true;
            return executor.schedule.wake(connection.index);
        }
        if !executor.may_start_chain(connection.index) {
            connection.waiters.vector_since_ns = Some(executor.now_ns);
            return executor.admission.wait(connection.index);
        }
        start_next(cx, namespace);
    }
}

/// Starts the next chain.
#[inline]
fn start_next(cx: &mut Context<'_>, namespace: usize) {
    let Context { connection, executor } = cx;
    executor.spend(VECTOR_CHAIN_UNITS);
    let is_gone = executor.namespaces.is_leaving(namespace);
    let Connection { vectors, phase, tally, serial, index, .. } = &mut **connection;
    let Some(association) = phase.association_mut() else { return };
    association.refresh_tables();
    let Some((slot, chain, start)) = vectors.next(*serial) else { return };
    let function = start.function;
    let of = (CommandId { connection: *index, slot }, Some(chain));
    let started = match is_gone {
        true => Err(ChainError::Device),
        false => executor.start_chain(namespace, of, &start, &association.tables),
    };
    match started {
        Ok(()) => {
            tally.function(function).chains += 1;
            vectors.running += 1;
            executor.admission.started(*index);
        }
        Err(error) => {
            let refusal = if is_gone { namespace_gone() } else { Refusal::of_chain(error, 0) };
            end(cx, slot, chain, &refusal);
        }
    }
}

/// Stores the answer of a chain that has ended, and releases the chain's arena.
#[inline]
pub(crate) fn ended(
    cx: &mut Context<'_>,
    (slot, entry): (u16, u16),
    chain: ChainId,
    outcome: ChainOutcome,
) {
    cx.connection.vectors.running -= 1;
    let taken = cx.connection.queue.slot(slot);
    let State::Vector { namespace, vector: place, .. } = taken.state else {
        unreachable!("the slot belongs to a vector")
    };
    let begun_ns = taken.begun_ns;
    let usage = count(cx, (namespace, begun_ns), chain, &outcome);
    match outcome {
        Ok(Answer { hops, length_bytes }) => {
            cx.executor.spend(u64::from(length_bytes) / BYTES_PER_UNIT);
            let answer = &cx.executor.arenas.engine.scratch(chain)[..length_bytes as usize];
            cx.connection.vectors.get(place).succeeded(entry, hops, answer);
        }
        Err(failure) => {
            let refusal = failed(cx, namespace, PUSHDOWN_VECTOR, usage, failure);
            cx.connection.vectors.get(place).failed(entry, refusal.reply);
        }
    }
    cx.executor.arenas.engine.release(chain);
    answer_if_over(cx, place);
}

/// Ends a chain that has no arena.
pub(crate) fn end(cx: &mut Context<'_>, slot: u16, entry: u16, refusal: &Refusal) {
    let Context { connection, executor } = cx;
    connection.note_refusal((PUSHDOWN_VECTOR, 0), refusal, executor.now_ns);
    let State::Vector { vector: place, .. } = connection.queue.slot(slot).state else { return };
    connection.vectors.get(place).failed(entry, refusal.reply);
    answer_if_over(cx, place);
}

/// Answers a vector if all of its chains have ended.
#[inline]
fn answer_if_over(cx: &mut Context<'_>, place: u32) {
    let Context { connection, executor } = cx;
    if !connection.vectors.get(place).is_over() {
        return;
    }
    let vector = connection.vectors.take(place);
    let taken = connection.queue.vacate(vector.slot);
    if vector.is_forgotten() {
        return executor.buffers.recycle(vector.into_buffer());
    }
    let (reply, buffer) = vector.answer();
    executor.spend(RESPONSE_UNITS);
    let copied = connection.send_data(taken.cid, taken.pointer, reply, Payload::Buffer(buffer));
    if let Some(buffer) = copied {
        executor.buffers.recycle(buffer);
    }
    cx.fetch_more();
}

/// Called when the connection closes. Drops chains that have not started, and also resting chains if `cuts_chains`;
/// drops each vector that has no chain left. Running chains still end later.
pub(crate) fn abandon(cx: &mut Context<'_>, cuts_chains: bool) {
    let Context { connection, executor } = cx;
    let forgotten = if cuts_chains { connection.waiters.resting.len() } else { 0 };
    for resting in connection.waiters.resting.drain(..forgotten).collect::<Vec<_>>() {
        match (&connection.queue.slot(resting.slot).state, resting.entry) {
            (State::Vector { vector, .. }, Some(entry)) => {
                connection.vectors.give_up_resting(*vector, entry);
            }
            _ => {
                connection.queue.vacate(resting.slot);
            }
        }
    }
    for vector in connection.vectors.give_up(!cuts_chains) {
        connection.queue.vacate(vector.slot);
        executor.buffers.recycle(vector.into_buffer());
    }
}
