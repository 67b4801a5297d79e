//! Takes commands from a port.

use super::context::{Close, Command, Context};
use super::{admin as admin_commands, connect, io, nvm, nvm_optional, pushdown, pushdown_vector};
use crate::connection::Phase;
use crate::limits::{ADMIN_UNITS, BYTES_PER_UNIT, COMMAND_UNITS, PDUS_PER_CLOCK, PIECE_UNITS};
use crate::queue::{Slot, State};
use crate::refusal::Refusal;
use crate::transport::{Arrival, Fetched, Input};
use bpfof_nvme::opcode;
use bpfof_nvme::{DataPointer, Sqe, Status};

/// Processes the input after its first `begin` bytes or messages; returns how many more it has used. The caller must
/// pass the rest again, once more has arrived or the connection is no longer paused.
///
/// Stops after a few PDUs, so that the reactor can read the clock, and when `until` units are spent. On a queue that is
/// not an I/O queue, also stops after a command, or after the data that a command has waited for.
///
/// # Errors
/// The connection is over. A message for the peer may be in the send buffer and must still be sent.
pub(crate) fn receive(
    cx: &mut Context<'_>,
    input: &Input,
    begin: usize,
    until: u64,
) -> Result<usize, Close> {
    let (mut used, mut length, mut has_ended) = (begin, 0, false);
    let (is_io, mut left) = (cx.connection.phase.is_io(), PDUS_PER_CLOCK);
    let unsent_bytes = if is_io { 0 } else { cx.connection.port.unsent_bytes() };
    cx.connection.has_more = false;
    loop {
        if cx.connection.vectors.has_unstarted() {
            pushdown_vector::start_more(cx, until);
        }
        let Context { connection, executor } = cx;
        let is_short = connection.lacks_memory(executor.now_ns);
        if is_short || connection.is_full() || executor.spent() >= until || left == 0 {
            connection.has_more = true;
            break;
        }
        left -= 1;
        let Some((bytes, arrival)) = connection.port.next(input, used)? else { break };
        length = bytes;
        let is_piece = matches!(arrival, Arrival::Data { fetched: None, .. });
        has_ended |= !is_piece;
        arrived(cx, arrival, (input, used))?;
        used += length;
        // The connection has a host and an association now: input after Connect is charged to their shares.
        if cx.connection.asks.connected {
            cx.connection.has_more = true;
            break;
        }
        if !is_io && !is_piece {
            left = 0;
        }
    }
    if !is_io {
        let bytes = cx.connection.port.unsent_bytes().saturating_sub(unsent_bytes);
        cx.executor.spend(bytes as u64 / BYTES_PER_UNIT);
    }
    let connection = &mut *cx.connection;
    // A command that waits for an arena stays in the input, with everything after it.
    if connection.waiters.command_since_ns.is_some() {
        used -= length;
    }
    // If the loop stopped early, the peer is not to blame for an unfinished PDU.
    let is_unfinished = !connection.has_more && connection.port.is_within(used, input.len());
    let arrivals = &mut connection.arrivals;
    let begun_ns = arrivals.unfinished_since_ns.filter(|_| !has_ended);
    let begun_ns = begun_ns.unwrap_or(cx.executor.now_ns);
    arrivals.unfinished_since_ns = is_unfinished.then_some(begun_ns);
    Ok(used - begin)
}

#[inline]
fn arrived(
    cx: &mut Context<'_>,
    arrival: Arrival<'_>,
    (input, at): (&Input, usize),
) -> Result<(), Close> {
    match arrival {
        // By reference: the command is large.
        Arrival::Command { ref sqe, data, intact } => {
            let units = if cx.connection.phase.is_io() { COMMAND_UNITS } else { ADMIN_UNITS };
            cx.executor.spend(units + data.len() as u64 / BYTES_PER_UNIT);
            cx.connection.arrivals.command_ns = cx.executor.now_ns;
            let pointer = cx.connection.port.pointer(&sqe.sgl);
            let command = Command { sqe, pointer, data };
            take(cx, command, intact, (input, at))
        }
        Arrival::Data { bytes, fetched } => {
            cx.executor.spend(PIECE_UNITS + bytes as u64 / BYTES_PER_UNIT);
            cx.connection.arrivals.data_ns = cx.executor.now_ns;
            fetched.map_or(Ok(()), |fetched| data_fetched(cx, fetched))
        }
        Arrival::Nothing => Ok(()),
        Arrival::Ended(words) => Err(Close::Peer(words)),
    }
}

#[inline]
fn take(
    cx: &mut Context<'_>,
    command: Command<'_>,
    intact: bool,
    (input, at): (&Input, usize),
) -> Result<(), Close> {
    if cx.connection.phase.is_io() && pushdown::wait_for_arena(cx, command.sqe) {
        return Ok(());
    }
    cx.connection.queue.advance();
    if !cx.connection.queue.has_room() {
        let reason = "more commands outstanding than the queue has entries";
        return Err(cx.connection.port.violated(reason, input, at).into());
    }
    if !is_well_formed(&command, intact) {
        refuse_malformed(cx, &command, intact);
        return Ok(());
    }
    match cx.connection.phase {
        Phase::Io(_) => return io::carry_out(cx, &command),
        Phase::Admin(..) => admin_commands::carry_out(cx, &command),
        Phase::Connecting => connect::before_connect(cx, &command),
    }
    Ok(())
}

/// Checks the rules for every command: no fused operations (bits 1:0), SGLs (bits 7:6, NVMe Base 2.0 §3.3.3.1), intact
/// data that matches its descriptor.
#[inline]
fn is_well_formed(command: &Command<'_>, intact: bool) -> bool {
    let Command { sqe, pointer, data } = command;
    let fits = match *pointer {
        DataPointer::InCapsule { offset_bytes, length_bytes } => {
            offset_bytes == 0 && length_bytes as usize == data.len()
        }
        // These commands have the request in the capsule, and a descriptor of room for the answer.
        DataPointer::Keyed { .. } => data.is_empty() || may_have_both(sqe.opcode),
        _ => data.is_empty(),
    };
    intact && fits && sqe.flags & 0x03 == 0 && sqe.flags & 0xc0 != 0
}

/// Whether a command may have data in its capsule and a descriptor of room for its answer.
fn may_have_both(code: u8) -> bool {
    use opcode::{admin, nvm};
    matches!(code, nvm::PUSHDOWN | nvm::PUSHDOWN_VECTOR | admin::MAP_GET)
}

#[cold]
fn refuse_malformed(cx: &mut Context<'_>, command: &Command<'_>, intact: bool) {
    let refusal = if !intact {
        let cause = "the data in the capsule does not match its digest";
        Refusal::new(Status::TRANSIENT_TRANSPORT_ERROR, cause)
    } else if command.sqe.flags & 0x03 != 0 {
        Refusal::field("FUSE", "fused operations are not supported")
    } else if command.sqe.flags & 0xc0 == 0 {
        Refusal::field("PSDT", "commands over fabrics must use SGLs")
    } else {
        let cause = "it does not match the data in the capsule";
        Refusal::new(Status::DATA_SGL_LENGTH_INVALID.with_dnr(), cause).of_field("SGL1")
    };
    cx.refuse(command.sqe, &refusal);
}

/// Refuses a command whose fetched data does not match its digest.
#[cold]
fn refuse_damaged(cx: &mut Context<'_>, slot: u16) {
    let cause = "its data does not match the digest";
    let refusal = Refusal::new(Status::TRANSIENT_TRANSPORT_ERROR, cause);
    let taken = cx.connection.queue.vacate(slot);
    let opcode = match &taken.state {
        State::AdminData { sqe } => {
            cx.refuse(sqe, &refusal);
            return cx.fetch_more();
        }
        State::Compare { .. } => opcode::nvm::COMPARE,
        State::Ranges { .. } => opcode::nvm::DATASET_MANAGEMENT,
        _ => opcode::nvm::WRITE,
    };
    let Context { connection, executor } = cx;
    let namespace = taken.state.namespace().map(|place| executor.namespaces.get(place));
    let (nsid, shift) = namespace.map_or((0, 0), |known| (known.nsid, known.block_shift));
    let lba = match taken.state {
        State::Write { offset, .. } | State::Compare { offset, .. } => offset >> shift,
        _ => 0,
    };
    connection.note_refusal((opcode, 0), &refusal, executor.now_ns);
    connection.remember_error(taken.cid, refusal.status(), nsid, lba);
    // Not counted among the namespace's errors: its storage has not failed.
    connection.complete(taken.cid, refusal.reply);
    cx.fetch_more();
}

/// Continues a command whose data has been fetched completely.
fn data_fetched(cx: &mut Context<'_>, fetched: Fetched) -> Result<(), Close> {
    let Fetched { slot, buffer, intact } = fetched;
    cx.connection.queue.arrived(slot, cx.executor.now_ns);
    if !intact {
        cx.executor.buffers.recycle(buffer);
        refuse_damaged(cx, slot);
        return Ok(());
    }
    let command = cx.command(slot);
    match cx.connection.queue.slot(slot).state {
        State::Write { namespace, offset, fua } => {
            nvm::begin_write(cx, command, (namespace, offset, fua), buffer);
            return Ok(());
        }
        State::Compare { namespace, offset, .. } => {
            nvm_optional::compare(cx, command, (namespace, offset), buffer);
            return Ok(());
        }
        _ => {}
    }
    let Slot { cid, pointer, state, .. } = cx.connection.queue.vacate(slot);
    match state {
        State::AdminData { sqe } => {
            let command = Command { sqe: &sqe, pointer, data: &buffer };
            match cx.connection.phase {
                Phase::Connecting => connect::before_connect(cx, &command),
                _ => admin_commands::carry_out(cx, &command),
            }
        }
        State::Ranges { namespace, ranges, deallocate } => {
            let sqe = Sqe { cid, ..Sqe::new(opcode::nvm::DATASET_MANAGEMENT, 0) };
            let command = Command { sqe: &sqe, pointer, data: &buffer };
            let begun = nvm_optional::deallocate(cx, &command, (ranges, deallocate), namespace);
            cx.answer(&command, begun);
        }
        _ => {}
    }
    cx.executor.buffers.recycle(buffer);
    cx.fetch_more();
    Ok(())
}
