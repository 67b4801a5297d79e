//! Completes commands whose device operations have ended.

use super::context::Context;
use super::{nvm_optional, observed};
use crate::lost_writes::LostWrites;
use crate::metrics::{Class, Ended};
use crate::operation::Failure;
use crate::queue::State;
use crate::refusal::Reply;
use crate::transport::Payload;
use bpfof_device::IoBuffer;
use bpfof_nvme::Status;
use log::Level;
use std::fmt;
use std::io;
use std::sync::Arc;

/// Completes a command on a memory namespace when it is due.
#[inline]
pub(crate) fn memory_done(cx: &mut Context<'_>, slot: u16) {
    let mut taken = cx.connection.queue.vacate(slot);
    let Context { connection, executor } = cx;
    if let State::Read { namespace, offset, length } = taken.state
        && let Some(memory) = executor.namespaces.get(namespace).backend.memory()
    {
        let payload = Payload::Memory(memory, offset, length as usize);
        let latency_ns = executor.now_ns.saturating_sub(taken.begun_ns);
        connection.send_data(taken.cid, taken.pointer, Reply::default(), payload);
        let ended = Ended { is_ok: true, bytes: length.into(), hops: 0 };
        let metrics = executor.namespaces.metrics(namespace);
        let counted = metrics.count(Class::Read, latency_ns, ended);
        connection.tally.latencies.add(counted);
        if executor.observer.watches(latency_ns) {
            let what = (counted, ended.bytes, Status::SUCCESS);
            observed::command_ended(connection, executor, &taken, what);
        }
        return cx.fetch_more();
    }
    let reply = match &mut taken.state {
        State::Compare { namespace, offset, expected } => {
            let (namespace, offset) = (*namespace, *offset);
            let expected = expected.take();
            expected.map_or(Reply::default(), |expected| {
                nvm_optional::compare_memory(executor, (namespace, offset), expected)
            })
        }
        _ => Reply::default(),
    };
    cx.respond(&taken, reply, Payload::None);
}

/// Handles the completion of a command's file operation; `result` is that of a system call or of a drive. A command that
/// is carried out in parts may go on if `goes_on`.
pub(crate) fn file_done(
    cx: &mut Context<'_>,
    slot: u16,
    (result, goes_on): (i32, bool),
    mut buffer: Option<IoBuffer>,
) {
    let command = cx.command(slot);
    operation_ended(cx, slot);
    if let State::ZeroesThenSync { namespace } = *cx.connection.queue.state_mut(slot)
        && result == 0
    {
        *cx.connection.queue.state_mut(slot) = State::Flush { namespace };
        return cx.executor.submit_flush(namespace, command);
    }
    if result == 0 && goes_on && nvm_optional::deallocate_next(cx, command) {
        return;
    }
    let mut taken = cx.connection.queue.vacate(slot);
    let length = buffer.as_ref().map_or(0, |buffer| buffer.len());
    let failure =
        (result < 0 || result as usize != length).then(|| Failed::of(&taken.state, result));
    let unheard = unheard_loss(cx, &taken.state, failure.as_ref());
    let mut reply = Reply::default();
    let mut payload = Payload::None;
    if let Some(failed) = failure {
        reply = note_failed(cx, (taken.cid, &taken.state), &failed).into();
    } else if nvm_optional::has_ranges(&taken.state) {
        reply = given_up(cx);
    } else if let State::Read { .. } = taken.state {
        payload = buffer.take().map_or(Payload::None, Payload::Buffer);
    } else if let State::Compare { expected, .. } = &mut taken.state
        && let (Some(expected), Some(found)) = (expected.take(), &buffer)
    {
        reply = nvm_optional::compared(&expected, found);
        cx.executor.buffers.recycle(*expected);
    }
    if let Some((losses, number)) = unheard {
        // Another status would say that this command alone has failed, and without Do Not Retry the host would try
        // again: it would miss the loss.
        if reply.status != Status::WRITE_FAULT.with_dnr() {
            reply = note_failed(cx, (taken.cid, &taken.state), &Failed::lost()).into();
        }
        // If no host waits for the reply, it does not learn of the loss.
        if cx.connection.is_heard(cx.executor.now_ns)
            && let Some(association) = cx.connection.phase.association()
        {
            association.controller.told.hears(&losses, number, cx.executor.now_ns);
        }
    }
    if let Some(buffer) = buffer {
        cx.executor.buffers.recycle(buffer);
    }
    cx.respond(&taken, reply, payload);
}

/// Ends a command whose operation on a file has not begun, because the host no longer waits for it, or because its
/// connection ends. A host that still hears of it may send it again: by another path, if this one is closed to it.
pub(crate) fn give_up(cx: &mut Context<'_>, slot: u16) {
    let mut taken = cx.connection.queue.vacate(slot);
    if let State::Compare { expected, .. } = &mut taken.state
        && let Some(expected) = expected.take()
    {
        cx.executor.buffers.recycle(*expected);
    }
    let mut reply = given_up(cx);
    let association = cx.connection.phase.association();
    if association.is_some_and(|of| of.controller.knows_ana())
        && taken.state.namespace().is_some_and(|namespace| cx.is_inaccessible(namespace))
    {
        reply = Status::ANA_INACCESSIBLE.into();
    }
    cx.respond(&taken, reply, Payload::None);
}

/// Lets the next operation of a disk begin, because one of a command has ended.
fn operation_ended(cx: &mut Context<'_>, slot: u16) {
    let state = &*cx.connection.queue.state_mut(slot);
    let work = state.file_work();
    if let Some(namespace) = state.namespace() {
        cx.executor.file_operation_ended(namespace, work);
    }
}

/// The reply to a command that is not carried out, or not to its end.
fn given_up(cx: &mut Context<'_>) -> Reply {
    let what = "a command ends before it was carried out, with its connection";
    cx.connection.note(Level::Info, cx.executor.now_ns, format_args!("{what}"));
    Status::ABORTED_SQ_DELETION.into()
}

/// The loss of writes that a command which makes writes durable must report to its host, if there is one.
fn unheard_loss(
    cx: &Context<'_>,
    state: &State,
    failed: Option<&Failed>,
) -> Option<(Arc<LostWrites>, u64)> {
    let (State::Flush { namespace } | State::Write { namespace, fua: true, .. }) = *state else {
        return None;
    };
    let namespace = cx.executor.namespace(namespace);
    let loss = failed.map_or(Loss::None, |failed| failed.loss);
    namespace.sync_ended(loss != Loss::None);
    if loss == Loss::OfDisk {
        // The kernel reports a failed flush of a disk's cache once, whatever else was in the cache.
        let all = cx.executor.namespaces.all().map(|(_, other, _)| &**other);
        all.filter(|other| namespace.shares_disk_with(other)).for_each(|of| of.lost_writes.note());
    }
    let losses = &namespace.lost_writes;
    let number = cx.connection.phase.association()?.controller.told.unheard(losses)?;
    Some((Arc::clone(losses), number))
}

/// The operation that failed at a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Read,
    Write { fua: bool },
    Flush,
    Zeroes,
}

impl Deed {
    fn of(state: &State) -> Deed {
        match *state {
            State::Read { .. } | State::Compare { .. } | State::Verify { .. } => Deed::Read,
            State::Write { fua, .. } => Deed::Write { fua },
            State::Flush { .. } => Deed::Flush,
            _ => Deed::Zeroes,
        }
    }

    /// The status if nothing more specific is known.
    fn fault(self) -> Status {
        match self {
            Deed::Read => Status::UNRECOVERED_READ_ERROR,
            Deed::Write { .. } | Deed::Flush | Deed::Zeroes => Status::WRITE_FAULT,
        }
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Deed::Read => "read",
            Deed::Write { .. } => "write",
            Deed::Flush => "flush",
            Deed::Zeroes => "deallocate or write zeroes",
        })
    }
}

/// The failure of a command at a device.
#[derive(Debug)]
struct Failed {
    status: Status,
    level: Level,
    cause: String,
    loss: Loss,
}

/// Other writes that may have been lost as well, which the device will not report again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    None,
    OfNamespace,
    OfDisk,
}

impl Failed {
    fn of(state: &State, result: i32) -> Failed {
        let deed = Deed::of(state);
        let failure = Failure::of(result);
        let (status, level, cause) = match failure {
            Failure::Short if deed == Deed::Read => {
                (deed.fault(), Level::Error, "the file has become shorter".to_owned())
            }
            // A short write: the kernel wrote only as much as fit.
            Failure::Short => {
                let status = Status::CAPACITY_EXCEEDED.with_dnr();
                (status, Level::Error, "the disk is full".to_owned())
            }
            Failure::Kernel(ref error) => {
                (status_of_kernel(deed, error.kind()), Level::Error, failure.to_string())
            }
            Failure::Drive(status) => {
                (status_of_drive(deed, status), Level::Warn, failure.to_string())
            }
            // Nothing is lost, and hosts send the command again. Command Interrupted is for those only that
            // have enabled it by Host Behavior Support (NVMe Base 2.0 §3.3.3.2.1.2).
            Failure::Cancelled => (Status::NAMESPACE_NOT_READY, Level::Warn, failure.to_string()),
        };
        let loss = match (deed, &failure) {
            (_, Failure::Cancelled) => Loss::None,
            // Room that is only assigned now lacks for this namespace, not for what others have written.
            (Deed::Flush, _) if status.same_code(Status::CAPACITY_EXCEEDED) => Loss::OfNamespace,
            (Deed::Flush, _) => Loss::OfDisk,
            // The kernel may flush the disk's cache for such a write: then it is the flush that has failed.
            (Deed::Write { fua: true }, Failure::Kernel(_))
                if status.same_code(Status::WRITE_FAULT) =>
            {
                Loss::OfDisk
            }
            _ => Loss::None,
        };
        Failed { status, level, cause, loss }
    }

    /// For a command that succeeded, although other writes of the host may be lost.
    fn lost() -> Failed {
        Failed {
            status: Status::WRITE_FAULT.with_dnr(),
            level: Level::Error,
            cause: "previously acknowledged writes have been lost".to_owned(),
            loss: Loss::None,
        }
    }
}

/// Logs and records the failure of a command; returns its status.
fn note_failed(cx: &mut Context<'_>, (cid, state): (u16, &State), failed: &Failed) -> Status {
    let Failed { status, level, cause, .. } = failed;
    let offset = match *state {
        State::Read { offset, .. }
        | State::Compare { offset, .. }
        | State::Verify { offset, .. }
        | State::Write { offset, .. } => Some(offset),
        _ => None,
    };
    let (deed, now_ns) = (Deed::of(state), cx.executor.now_ns);
    let Context { connection, executor } = cx;
    let (mut nsid, mut lba) = (0, 0);
    if let Some(namespace) = state.namespace().map(|place| executor.namespaces.get(place)) {
        nsid = namespace.nsid;
        lba = offset.map_or(0, |offset| offset >> namespace.block_shift);
        let what = &namespace.description;
        let at = offset.map_or(String::new(), |offset| format!(" at byte {offset}"));
        let words = format_args!("{deed} of namespace {nsid}, {what},{at} failed: {cause}");
        connection.note(*level, now_ns, words);
    }
    connection.remember_error(cid, *status, nsid, lba);
    if status.same_code(deed.fault()) {
        count_device_error(cx, state.namespace());
    }
    *status
}

/// Logs and counts a failed read of a chain in the namespace at this place, as that of a command.
pub(crate) fn chain_read_failed(cx: &mut Context<'_>, place: usize, result: i32) {
    let read = State::Read { namespace: place, offset: 0, length: 0 };
    let Failed { status, level, cause, .. } = Failed::of(&read, result);
    let Context { connection, executor } = cx;
    let namespace = executor.namespaces.get(place);
    let (nsid, what) = (namespace.nsid, &namespace.description);
    let words = format_args!("read for a chain in namespace {nsid}, {what}, failed: {cause}");
    connection.note(level, executor.now_ns, words);
    if status.same_code(Deed::Read.fault()) {
        count_device_error(cx, Some(place));
    }
}

fn count_device_error(cx: &mut Context<'_>, place: Option<usize>) {
    if let Some(place) = place {
        cx.executor.namespaces.get(place).note_device_error();
    }
    if let Some(association) = cx.connection.phase.association() {
        association.subsystem.health.media_error();
    }
}

/// The status for a system call's error.
fn status_of_kernel(deed: Deed, kind: io::ErrorKind) -> Status {
    use io::ErrorKind::{
        FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull, Unsupported,
    };
    match (deed, kind) {
        (Deed::Read, _) => Status::UNRECOVERED_READ_ERROR,
        (_, StorageFull | QuotaExceeded | FileTooLarge) => Status::CAPACITY_EXCEEDED.with_dnr(),
        (_, ReadOnlyFilesystem) => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        (Deed::Write { fua: false }, _) => Status::WRITE_FAULT,
        // Some devices only find out now that they cannot write zeroes; the host then sends zeroes as data.
        (Deed::Zeroes, Unsupported) => Status::INVALID_OPCODE.with_dnr(),
        // A second flush would succeed although data that the first one lost is gone: the kernel reports each lost
        // write once. So the host must not try again.
        _ => Status::WRITE_FAULT.with_dnr(),
    }
}

/// The status for a drive's status.
fn status_of_drive(deed: Deed, found: Status) -> Status {
    let known = [
        Status::CAPACITY_EXCEEDED,
        Status::NAMESPACE_WRITE_PROTECTED,
        // On this status the host stops sending such commands.
        Status::INVALID_OPCODE,
        Status::LBA_OUT_OF_RANGE,
    ];
    let status = known.into_iter().find(|known| known.same_code(found)).unwrap_or(deed.fault());
    // A drive may not report a loss a second time either.
    if found.dnr() || deed == Deed::Flush { status.with_dnr() } else { status }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{drive_result, status_result};

    /// A host must learn that a disk is full, and that repeating a failed flush does not help.
    #[test]
    fn failures_have_their_status() {
        use rustix::io::Errno;
        let of = |deed, errno: Errno| status_of_kernel(deed, io::Error::from(errno).kind());
        let write = Deed::Write { fua: false };
        for full in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG] {
            assert_eq!(of(write, full), Status::CAPACITY_EXCEEDED.with_dnr());
            assert_eq!(of(Deed::Flush, full), Status::CAPACITY_EXCEEDED.with_dnr());
        }
        assert_eq!(of(write, Errno::ROFS), Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        assert_eq!(of(write, Errno::IO), Status::WRITE_FAULT);
        assert_eq!(of(Deed::Write { fua: true }, Errno::IO), Status::WRITE_FAULT.with_dnr());
        assert_eq!(of(Deed::Flush, Errno::IO), Status::WRITE_FAULT.with_dnr());
        assert_eq!(of(Deed::Flush, Errno::OPNOTSUPP), Status::WRITE_FAULT.with_dnr());
        assert_eq!(of(Deed::Zeroes, Errno::OPNOTSUPP), Status::INVALID_OPCODE.with_dnr());
        assert_eq!(of(Deed::Read, Errno::IO), Status::UNRECOVERED_READ_ERROR);
    }

    /// The kernel flushes the cache of a disk without FUA for a write with it.
    #[test]
    fn a_failed_write_with_fua_may_have_lost_others() {
        use rustix::io::Errno;
        let loss = |state: State, errno: Errno| Failed::of(&state, -errno.raw_os_error()).loss;
        let write = |fua| State::Write { namespace: 0, offset: 0, fua };
        assert_eq!(loss(write(true), Errno::IO), Loss::OfDisk);
        for errno in [Errno::NOSPC, Errno::ROFS] {
            assert_eq!(loss(write(true), errno), Loss::None);
        }
        assert_eq!(loss(write(false), Errno::IO), Loss::None);
        // A host that has used up its quota does not disturb the others of the disk.
        for (errno, expected) in [
            (Errno::NOSPC, Loss::OfNamespace),
            (Errno::DQUOT, Loss::OfNamespace),
            (Errno::ROFS, Loss::OfDisk),
            (Errno::IO, Loss::OfDisk),
        ] {
            assert_eq!(loss(State::Flush { namespace: 0 }, errno), expected);
        }
    }

    /// The status of a drive is passed on to the host, with its Do Not Retry.
    #[test]
    fn the_status_of_a_drive_is_passed_on() {
        let failed = |state: &State, status: Status| {
            let Failed { status, loss, .. } = Failed::of(state, status_result(status.field()));
            (status, loss != Loss::None)
        };
        let write = State::Write { namespace: 0, offset: 0, fua: true };
        let (read, zeroes, flush) = (
            State::Read { namespace: 0, offset: 0, length: 512 },
            State::Zeroes { namespace: 0 },
            State::Flush { namespace: 0 },
        );
        let full = Status::CAPACITY_EXCEEDED;
        assert_eq!(failed(&write, full), (full, false));
        assert_eq!(failed(&write, full.with_dnr()), (full.with_dnr(), false));
        let opcode = Status::INVALID_OPCODE.with_dnr();
        assert_eq!(failed(&zeroes, opcode), (opcode, false));
        assert_eq!(failed(&read, Status::LBA_OUT_OF_RANGE), (Status::LBA_OUT_OF_RANGE, false));
        // A status that only concerns the drive itself.
        let internal = Status::INTERNAL_ERROR.with_dnr();
        assert_eq!(failed(&read, internal), (Status::UNRECOVERED_READ_ERROR.with_dnr(), false));
        let not_ready = Status::NAMESPACE_NOT_READY;
        assert_eq!(failed(&write, not_ready), (Status::WRITE_FAULT, false));
        assert_eq!(failed(&flush, not_ready), (Status::WRITE_FAULT.with_dnr(), true));
    }

    /// What a reset of the drive has cancelled, the host is to send again. Nothing is lost.
    #[test]
    fn cancelled_commands_may_be_sent_again() {
        for state in [
            State::Read { namespace: 0, offset: 0, length: 512 },
            State::Write { namespace: 0, offset: 0, fua: false },
            State::Write { namespace: 0, offset: 0, fua: true },
            State::Zeroes { namespace: 0 },
            State::Flush { namespace: 0 },
        ] {
            let failed = Failed::of(&state, drive_result(-libc::EINTR));
            let retried = (Status::NAMESPACE_NOT_READY, false);
            assert_eq!((failed.status, failed.loss != Loss::None), retried, "{state:?}");
        }
        // A flush of a file that ends so has perhaps lost something.
        let failed = Failed::of(&State::Flush { namespace: 0 }, -libc::EINTR);
        assert_eq!(
            (failed.status, failed.loss != Loss::None),
            (Status::WRITE_FAULT.with_dnr(), true)
        );
    }
}
