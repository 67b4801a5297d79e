//! Optional commands of the NVM command set: Compare, Verify, Write Zeroes and Dataset Management.

use super::context::{Answered, Command, Context, Outcome, wrong_length, wrong_pointer};
use super::nvm::{byte_range, out_of_range};
use crate::executor::Executor;
use crate::limits::{BYTES_PER_UNIT, MAX_RANGES_BYTES, ZEROES_PART_BYTES};
use crate::operation::CommandId;
use crate::queue::{Deallocation, State};
use crate::refusal::{Refusal, Reply};
use crate::transport::Payload;
use bpfof_device::IoBuffer;
use bpfof_nvme::{DataPointer, DsmRange, Rw, Status};

/// Compare (NVM Command Set 1.0 §3.2.1).
pub(crate) fn take_compare(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    rw: Rw,
    namespace: usize,
) -> Answered {
    let (offset, length) = byte_range(cx.executor, namespace, rw, true)?;
    let state = State::Compare { namespace, offset, expected: None };
    if let Some((command, expected)) = cx.take_data(command, length, state)? {
        compare(cx, command, (namespace, offset), expected);
    }
    Ok(Outcome::Pending)
}

/// Reads the blocks to compare with the command's data, which has arrived.
pub(crate) fn compare(
    cx: &mut Context<'_>,
    command: CommandId,
    (namespace, offset): (usize, u64),
    from_host: IoBuffer,
) {
    let length = from_host.len() as u32;
    let traffic = &mut cx.connection.tally.traffic;
    traffic.reads += 1;
    traffic.read_bytes += u64::from(length);
    if let State::Compare { expected, .. } = cx.connection.queue.state_mut(command.slot) {
        *expected = Some(Box::new(from_host));
    }
    cx.executor.submit_read(namespace, command, (offset, length));
}

/// The result of a Compare on a memory namespace.
pub(super) fn compare_memory(
    x: &mut Executor,
    (namespace, offset): (usize, u64),
    expected: Box<IoBuffer>,
) -> Reply {
    let mut found = x.buffers.take(expected.len());
    if let Some(memory) = x.namespaces.get(namespace).backend.memory() {
        memory.read(offset, &mut found);
        x.spend(found.len() as u64 / BYTES_PER_UNIT);
    }
    let reply = compared(&expected, &found);
    x.buffers.recycle(*expected);
    x.buffers.recycle(found);
    reply
}

/// The result of a Compare: success if the data is equal.
pub(super) fn compared(expected: &[u8], found: &[u8]) -> Reply {
    if expected == found { Reply::default() } else { Status::COMPARE_FAILURE.with_dnr().into() }
}

/// Verify (§3.2.5): reads the blocks and discards the data.
pub(crate) fn verify(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    rw: Rw,
    namespace: usize,
) -> Answered {
    let (offset, length) = byte_range(cx.executor, namespace, rw, true)?;
    let command = cx.occupy(command, State::Verify { namespace, offset, length });
    cx.executor.submit_read(namespace, command, (offset, length));
    Ok(Outcome::Pending)
}

/// Write Zeroes (§3.2.8).
pub(crate) fn write_zeroes(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    (rw, deallocate): (Rw, bool),
    namespace: usize,
) -> Answered {
    let (offset, length) = byte_range(cx.executor, namespace, rw, false)?;
    check_zeroes(cx.executor, namespace)?;
    let place = cx.executor.namespace(namespace);
    let syncs = rw.fua && place.has_volatile_cache();
    if place.backend.memory().is_none() && u64::from(length) > ZEROES_PART_BYTES {
        let ranges = vec![(offset, length.into())];
        let rest = Box::new(Deallocation { namespace, ranges, next: 0, deallocate, syncs });
        let command = cx.occupy(command, State::Deallocate(rest));
        deallocate_next(cx, command);
        return Ok(Outcome::Pending);
    }
    let state = match syncs {
        true => State::ZeroesThenSync { namespace },
        false => State::Zeroes { namespace },
    };
    let command = cx.occupy(command, state);
    cx.executor.submit_zero(namespace, command, (offset, length.into()), deallocate);
    Ok(Outcome::Pending)
}

/// Checks that a namespace can zero ranges.
fn check_zeroes(x: &Executor, namespace: usize) -> Result<(), Refusal> {
    supported(x.namespace(namespace).writes_zeroes(), "the namespace does not support Write Zeroes")
}

/// Checks that a namespace can deallocate blocks.
fn check_deallocates(x: &Executor, namespace: usize) -> Result<(), Refusal> {
    supported(x.namespace(namespace).deallocates(), "the namespace does not support deallocation")
}

fn supported(is_supported: bool, why_not: &'static str) -> Result<(), Refusal> {
    let refusal = || Refusal::new(Status::INVALID_OPCODE.with_dnr(), why_not);
    if is_supported { Ok(()) } else { Err(refusal()) }
}

/// Dataset Management (§3.2.3).
pub(crate) fn dataset_management(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    (ranges, deallocates): (u16, bool),
    namespace: usize,
) -> Answered {
    check_deallocates(cx.executor, namespace)?;
    let needed = u32::from(ranges) * DsmRange::BYTES as u32;
    let length = command.pointer.length_bytes();
    // Linux offers a whole page, whatever the number of ranges.
    if length < needed || length > MAX_RANGES_BYTES {
        return Err(wrong_length(length, needed));
    }
    match command.pointer {
        pointer if pointer.is_remote() => {
            let state = State::Ranges { namespace, ranges, deallocate: deallocates };
            cx.fetch(command, length, state);
            Ok(Outcome::Pending)
        }
        DataPointer::InCapsule { .. } => deallocate(cx, command, (ranges, deallocates), namespace),
        _ => Err(wrong_pointer(
            "the descriptor of the ranges points neither into the capsule nor to memory at the \
             host",
        )),
    }
}

/// Starts to deallocate the ranges in the command's data. Other attributes are hints, which are
/// ignored.
pub(super) fn deallocate(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    (ranges, deallocates): (u16, bool),
    namespace: usize,
) -> Answered {
    let place = cx.executor.namespace(namespace);
    let mut list = Vec::with_capacity(usize::from(ranges));
    for DsmRange { blocks, slba, .. } in DsmRange::list(command.data, ranges) {
        let end = slba.checked_add(blocks.into());
        if end.is_none_or(|end| end > place.blocks()) {
            return Err(out_of_range(slba, blocks, place.blocks()));
        }
        if deallocates && blocks > 0 {
            list.push((slba << place.block_shift, u64::from(blocks) << place.block_shift));
        }
    }
    if list.is_empty() {
        return Ok(Outcome::DONE);
    }
    let (next, deallocate, syncs) = (0, true, false);
    let rest = Box::new(Deallocation { namespace, ranges: list, next, deallocate, syncs });
    let command = cx.occupy(command, State::Deallocate(rest));
    deallocate_next(cx, command);
    Ok(Outcome::Pending)
}

/// Submits the next part of a range to be zeroed to its device, one part at a time; false if
/// none is left.
pub(super) fn deallocate_next(cx: &mut Context<'_>, command: CommandId) -> bool {
    let state = cx.connection.queue.state_mut(command.slot);
    let State::Deallocate(rest) = state else { return false };
    let Deallocation { namespace, ranges, next, deallocate, syncs } = &mut **rest;
    let Some(range) = ranges.get_mut(*next) else { return false };
    let (offset, length) = *range;
    let (namespace, deallocate) = (*namespace, *deallocate);
    // Deallocating blocks of a file may delay other users of the file system, and likewise on a
    // drive.
    let is_memory = cx.executor.namespace(namespace).backend.memory().is_some();
    let part = if is_memory { length } else { length.min(ZEROES_PART_BYTES) };
    *range = (offset + part, length - part);
    *next += usize::from(part == length);
    if *syncs && *next == ranges.len() {
        *state = State::ZeroesThenSync { namespace };
    }
    cx.executor.submit_zero(namespace, command, (offset, part), deallocate);
    true
}

/// Whether a command has ranges that have not been zeroed yet.
pub(super) fn has_ranges(state: &State) -> bool {
    matches!(state, State::Deallocate(rest) if rest.next < rest.ranges.len())
}

/// Zeroes a range of a memory namespace (offset and length in bytes) when it is due. Ends the
/// command if it is no longer `wanted`.
pub(crate) fn zero_memory(
    cx: &mut Context<'_>,
    namespace: usize,
    command: CommandId,
    (range, wanted): ((u64, u64), bool),
) {
    let reply = if !wanted {
        Status::ABORTED_SQ_DELETION.into()
    } else if !cx.executor.zero_some(namespace, command, range) || deallocate_next(cx, command) {
        return;
    } else {
        Reply::default()
    };
    let taken = cx.connection.queue.vacate(command.slot);
    cx.respond(&taken, reply, Payload::None);
}
