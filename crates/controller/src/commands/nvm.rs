//! Commands of the NVM command set that every controller has (NVM Command Set 1.0 §3.2).

use super::context::{Answered, Command, Context, Outcome, wrong_length, wrong_pointer};
use crate::executor::Executor;
use crate::limits::MAX_TRANSFER_BYTES;
use crate::operation::CommandId;
use crate::queue::State;
use crate::refusal::Refusal;
use bpfof_device::IoBuffer;
use bpfof_nvme::{DataPointer, Rw, Status};

/// Read (§3.2.4).
#[inline]
pub(crate) fn read(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    rw: Rw,
    namespace: usize,
) -> Answered {
    let (offset, length) = byte_range(cx.executor, namespace, rw, true)?;
    check_room(command, length)?;
    let traffic = &mut cx.connection.tally.traffic;
    traffic.reads += 1;
    traffic.read_bytes += u64::from(length);
    let command = cx.occupy(command, State::Read { namespace, offset, length });
    cx.executor.submit_read(namespace, command, (offset, length));
    Ok(Outcome::Pending)
}

/// Checks that the host's buffer is exactly as long as the data read.
#[inline]
fn check_room(command: &Command<'_>, length: u32) -> Result<(), Refusal> {
    let pointer = command.pointer;
    if pointer.is_remote() && pointer.length_bytes() == length {
        return Ok(());
    }
    Err(no_room(pointer, length))
}

#[cold]
fn no_room(pointer: DataPointer, length: u32) -> Refusal {
    match pointer.length_bytes() {
        room if pointer.is_remote() || room == 0 => wrong_length(room, length),
        _ => wrong_pointer("the data read needs a descriptor of memory at the host"),
    }
}

/// Write (§3.2.6).
pub(crate) fn write(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    rw: Rw,
    namespace: usize,
) -> Answered {
    let (offset, length) = byte_range(cx.executor, namespace, rw, true)?;
    let state = State::Write { namespace, offset, fua: rw.fua };
    if let Some((command, buffer)) = cx.take_data(command, length, state)? {
        begin_write(cx, command, (namespace, offset, rw.fua), buffer);
    }
    Ok(Outcome::Pending)
}

/// Begins a write whose data has arrived.
pub(crate) fn begin_write(
    cx: &mut Context<'_>,
    command: CommandId,
    (namespace, offset, fua): (usize, u64, bool),
    buffer: IoBuffer,
) {
    let traffic = &mut cx.connection.tally.traffic;
    traffic.writes += 1;
    traffic.written_bytes += buffer.len() as u64;
    cx.executor.submit_write(namespace, command, (offset, fua), buffer);
}

/// Flush (NVMe Base 2.0 §7.1).
pub(crate) fn flush(cx: &mut Context<'_>, command: &Command<'_>, namespace: usize) -> Answered {
    let command = cx.occupy(command, State::Flush { namespace });
    cx.executor.submit_flush(namespace, command);
    Ok(Outcome::Pending)
}

/// A command's range in bytes, checked against the namespace, and, if data of that length crosses
/// the network (`transfers`), against MDTS.
#[inline]
pub(super) fn byte_range(
    x: &Executor,
    namespace: usize,
    rw: Rw,
    transfers: bool,
) -> Result<(u64, u32), Refusal> {
    let namespace = x.namespace(namespace);
    let end = rw.slba.checked_add(u64::from(rw.blocks));
    if end.is_none_or(|end| end > namespace.blocks()) {
        return Err(out_of_range(rw.slba, rw.blocks, namespace.blocks()));
    }
    let length = u64::from(rw.blocks) << namespace.block_shift;
    if transfers && length > u64::from(MAX_TRANSFER_BYTES) {
        let cause = format!("{length} bytes, but MDTS allows {MAX_TRANSFER_BYTES}");
        return Err(Refusal::field("NLB", cause));
    }
    Ok((rw.slba << namespace.block_shift, length as u32))
}

#[cold]
pub(super) fn out_of_range(slba: u64, blocks: u32, size: u64) -> Refusal {
    let cause =
        format!("{blocks} blocks from block {slba} on exceed the namespace of {size} blocks");
    Refusal::new(Status::LBA_OUT_OF_RANGE.with_dnr(), cause).of_field("SLBA")
}
