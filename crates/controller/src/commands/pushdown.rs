//! Pushdown: a command starts a chain, and the end of the chain answers the command
//! (docs/protocol.md).

use super::context::{Answered, Command, Context, Outcome, wrong_pointer};
use super::observed;
use crate::access::Rights;
use crate::association::Association;
use crate::connection::Resting;
use crate::kept::is_kept;
use crate::limits::{IN_CAPSULE_BYTES, RESPONSE_UNITS};
use crate::metrics::{Class, Ended};
use crate::queue::State;
use crate::refusal::{Refusal, Reply};
use crate::transport::Payload;
use bpfof_chain::{
    Answer, ChainError, ChainId, FileVersion, Outcome as ChainOutcome, Start, Usage,
    WHOLE_NAMESPACE,
};
use bpfof_function::abi;
use bpfof_nvme::vendor_specific::{DEFAULT_SCRATCH_BYTES, PushdownRequest, PushdownShort};
use bpfof_nvme::{DataPointer, Sqe, Status, opcode};

const _: () = assert!(WHOLE_NAMESPACE == 0, "Pushdown Short and file maps reserve file id 0");
const _: () = assert!(DEFAULT_SCRATCH_BYTES as usize == abi::DEFAULT_SCRATCH_BYTES);
// The capsule limits arguments. An argument that fills the default scratch always fits.
const _: () =
    assert!(32 + 16 * abi::MAX_READS + abi::DEFAULT_SCRATCH_BYTES <= IN_CAPSULE_BYTES as usize);

/// docs/protocol.md, Pushdown.
#[inline]
pub(crate) fn pushdown(cx: &mut Context<'_>, command: &Command<'_>, namespace: usize) -> Answered {
    command.check_in_capsule("the request must be in the capsule")?;
    let request = PushdownRequest::parse(command.data, abi::MAX_READS as u16)
        .map_err(|error| malformed(error.at))?;
    let header = request.header();
    let scratch_bytes = header.effective_scratch_bytes();
    command.check_answer_room(header.answer_max_bytes.min(scratch_bytes))?;
    if scratch_bytes > abi::MAX_SCRATCH_BYTES as u32 {
        return Err(malformed(PushdownRequest::SCRATCH_SIZE_AT));
    }
    if header.first_size_bytes == 0 {
        return Err(malformed(PushdownRequest::FIRST_SIZE_AT));
    }
    let mut files = [FileVersion::default(); abi::MAX_READS];
    let count = usize::from(header.files);
    for (to, from) in files.iter_mut().zip(request.files()) {
        *to = FileVersion { id: from.id, version: from.version };
    }
    let start = Start {
        owner: cx.connection.serial,
        namespace: command.sqe.nsid,
        unit_bytes: cx.executor.namespace(namespace).unit_bytes(),
        function: header.function,
        files: &files[..count],
        first_file: u32::from(header.first_file),
        first_offset_bytes: header.first_offset_bytes,
        first_size_bytes: header.first_size_bytes,
        argument: request.scratch(),
        scratch_bytes,
        answer_max_bytes: header.answer_max_bytes,
    };
    begin(cx, command, namespace, &start)
}

/// docs/protocol.md, Pushdown Short.
pub(crate) fn short(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    short: &PushdownShort,
    namespace: usize,
) -> Answered {
    let pointer = command.pointer;
    if !pointer.is_remote() && pointer != DataPointer::None {
        return Err(wrong_pointer("the answer needs a descriptor of memory at the host"));
    }
    let nsid = command.sqe.nsid;
    let id = u32::from(short.file);
    let version = cx.connection.phase.association_mut().map_or(0, |association| {
        association.refresh_tables();
        association.tables.map(nsid, id).map_or(0, |map| map.version())
    });
    let place = cx.executor.namespace(namespace);
    let start = Start {
        owner: cx.connection.serial,
        namespace: nsid,
        unit_bytes: place.unit_bytes(),
        function: short.function,
        files: &[FileVersion { id, version }],
        first_file: 0,
        first_offset_bytes: 0,
        first_size_bytes: u32::from(short.first_blocks) * place.block_bytes(),
        argument: &short.argument,
        scratch_bytes: DEFAULT_SCRATCH_BYTES,
        answer_max_bytes: pointer.length_bytes(),
    };
    begin(cx, command, namespace, &start)
}

#[inline]
fn begin(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    namespace: usize,
    start: &Start<'_>,
) -> Answered {
    let answer_max_bytes = start.answer_max_bytes.min(start.scratch_bytes);
    let command = cx.occupy(command, State::Chain { namespace, answer_max_bytes });
    let Context { connection, executor } = cx;
    if let Some(since_ns) = connection.waiters.waited_since_ns.take() {
        connection.queue.has_come(command.slot, since_ns);
    }
    let Some(association) = connection.phase.association_mut() else {
        unreachable!("only connected queues take commands")
    };
    association.refresh_tables();
    match executor.start_chain(namespace, (command, None), start, &association.tables) {
        Ok(()) => {
            connection.tally.function(start.function).chains += 1;
            executor.admission.started(connection.index);
            Ok(Outcome::Pending)
        }
        Err(error) => {
            connection.queue.vacate(command.slot);
            Err(Refusal::of_chain(error, 0))
        }
    }
}

/// Answers the command of a chain that has ended, and releases the chain's arena.
#[inline]
pub(crate) fn ended(cx: &mut Context<'_>, slot: u16, chain: ChainId, outcome: ChainOutcome) {
    let taken = cx.connection.queue.vacate(slot);
    let State::Chain { namespace, .. } = taken.state else {
        unreachable!("the slot belongs to a chain")
    };
    let usage = count(cx, (namespace, taken.begun_ns), chain, &outcome);
    match outcome {
        Ok(Answer { hops, length_bytes }) => {
            let Context { connection, executor } = cx;
            let reply = Reply { status: Status::SUCCESS, dw0: hops, dw1: length_bytes };
            let answer = &executor.arenas.engine.scratch(chain)[..length_bytes as usize];
            connection.send_data(taken.cid, taken.pointer, reply, Payload::Bytes(answer));
        }
        Err(failure) => {
            let refusal = failed(cx, namespace, opcode::nvm::PUSHDOWN, usage, failure);
            cx.connection.complete(taken.cid, refusal.reply);
        }
    }
    cx.executor.arenas.engine.release(chain);
    cx.executor.spend(RESPONSE_UNITS);
    cx.fetch_more();
}

/// Counts the end of a chain whose command arrived at `begun_ns`.
#[inline]
pub(super) fn count(
    cx: &mut Context<'_>,
    (namespace, begun_ns): (usize, u64),
    chain: ChainId,
    outcome: &ChainOutcome,
) -> Usage {
    let Context { connection, executor } = cx;
    let usage = executor.arenas.engine.usage(chain);
    let counters = connection.tally.function(usage.function);
    counters.hops += u64::from(usage.hops);
    counters.read_bytes += usage.bytes;
    let ended = Ended { is_ok: outcome.is_ok(), bytes: usage.bytes, hops: usage.hops };
    let latency_ns = executor.now_ns.saturating_sub(begun_ns);
    let counted = executor.namespaces.metrics(namespace).count(Class::Chain, latency_ns, ended);
    connection.tally.latencies.add(counted);
    let subsystem = connection.phase.association().map_or(0, |of| of.subsystem.number);
    let function = if is_kept(usage.function) { usage.function } else { 0 };
    executor.functions.add((subsystem, function), counted);
    if executor.observer.watches(counted.latency_ns) {
        observed::chain_ended(connection, executor, (namespace, begun_ns, chain), outcome);
    }
    usage
}

/// Counts and logs the failure of a chain. Returns the refusal for the host.
pub(super) fn failed(
    cx: &mut Context<'_>,
    namespace: usize,
    opcode: u8,
    usage: Usage,
    (error, hops): (ChainError, u32),
) -> Refusal {
    let Context { connection, executor } = cx;
    let counters = connection.tally.function(usage.last_function);
    match error {
        ChainError::Fault(fault) => {
            counters.faults += 1;
            counters.last_fault = Some(fault);
        }
        ChainError::Abort(_) => counters.aborts += 1,
        _ => {}
    }
    let is_gone = executor.namespaces.is_leaving(namespace);
    let refusal = match error {
        ChainError::Device if is_gone => namespace_gone().with_dwords(0, hops),
        // The device has not failed: the chain was cut short because the connection closes.
        ChainError::Device if connection.is_abandoned => {
            Refusal::new(Status::ABORTED_SQ_DELETION, "the connection is closing")
                .with_dwords(0, hops)
        }
        error => Refusal::of_chain(error, hops),
    };
    connection.note_refusal((opcode, 0), &refusal, executor.now_ns);
    refusal
}

/// Continues a resting chain that has been granted an arena.
///
/// # Errors
/// The chain cannot continue, and must end with this refusal.
pub(crate) fn resume(cx: &mut Context<'_>, resting: Resting) -> Result<(), Refusal> {
    let slot = resting.slot;
    let command = cx.command(slot);
    let Context { connection, executor } = cx;
    let Some(namespace) = connection.queue.slot(slot).state.namespace() else { return Ok(()) };
    let Some(association) = connection.phase.association_mut() else { return Ok(()) };
    association.refresh_tables();
    let is_gone = executor.namespaces.is_leaving(namespace);
    if is_gone {
        return Err(namespace_gone().with_dwords(0, resting.chain.hops()));
    }
    let of = (command, resting.entry);
    let rested_ns = executor.now_ns.saturating_sub(resting.since_ns);
    let rested = (&resting.chain, resting.log, rested_ns);
    executor
        .resume_chain(namespace, of, rested, &association.tables)
        .map_err(|error| Refusal::of_chain(error, resting.chain.hops()))?;
    connection.vectors.running += u32::from(resting.entry.is_some());
    executor.admission.started(connection.index);
    Ok(())
}

/// Ends a resting chain, which has no arena.
pub(crate) fn end_resting(cx: &mut Context<'_>, slot: u16, refusal: &Refusal) {
    cx.connection.note_refusal((opcode::nvm::PUSHDOWN, 0), refusal, cx.executor.now_ns);
    let taken = cx.connection.queue.vacate(slot);
    cx.respond(&taken, refusal.reply, Payload::None);
}

/// If a command needs an arena and none is free for it, makes it wait. Returns whether it waits.
#[inline]
pub(crate) fn wait_for_arena(cx: &mut Context<'_>, sqe: &Sqe) -> bool {
    let Context { connection, executor } = cx;
    let may_run = |association: &Association| association.rights.intersects(Rights::RUN);
    // A host that may not run chains must not make other chains give way: its command is refused.
    let waits = matches!(sqe.opcode, opcode::nvm::PUSHDOWN | opcode::nvm::PUSHDOWN_SHORT)
        && connection.phase.association().is_some_and(may_run)
        && !executor.may_start_chain(connection.index);
    if waits {
        connection.waiters.command_since_ns = Some(executor.now_ns);
        executor.admission.wait(connection.index);
    }
    waits
}

/// Malformed Request, for the field at this byte of the request.
pub(crate) fn malformed(at: u32) -> Refusal {
    let cause = "the request is malformed at the byte that DW0 gives";
    Refusal::new(Status::MALFORMED_REQUEST.with_dnr(), cause).with_dwords(at, 0)
}

/// The refusal of a chain whose namespace has been removed.
pub(super) fn namespace_gone() -> Refusal {
    Refusal::new(Status::INVALID_NAMESPACE.with_dnr(), "the namespace has been removed")
}
