//! How commands end that devices have worked on.

use super::context::Context;
use super::{nvm_optional, observed};
use crate::metrics::{Class, Ended};
use crate::queue::State;
use crate::refusal::Reply;
use crate::transport::Payload;
use bpfof_device::IoBuffer;
use bpfof_nvme::Status;
use log::Level;
use std::io;

/// A command on a memory namespace is due.
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

/// A command's file operation has completed with a system call's `result`.
pub(crate) fn file_done(
    cx: &mut Context<'_>,
    slot: u16,
    result: i32,
    mut buffer: Option<IoBuffer>,
) {
    let command = cx.command(slot);
    if let State::ZeroesThenSync { namespace } = *cx.connection.queue.state_mut(slot)
        && result == 0
    {
        *cx.connection.queue.state_mut(slot) = State::Plain { namespace };
        return cx.executor.submit_flush(namespace, command);
    }
    let is_wanted = cx.connection.wants_more(cx.executor.now_ns);
    if result == 0 && is_wanted && nvm_optional::deallocate_next(cx, command) {
        return;
    }
    let mut taken = cx.connection.queue.vacate(slot);
    let length = buffer.as_ref().map_or(0, |buffer| buffer.len());
    let ok = result >= 0 && result as usize == length;
    let mut reply = Reply::default();
    let mut payload = Payload::None;
    if !ok {
        reply = file_error(cx, taken.cid, &taken.state, result).into();
    } else if nvm_optional::has_ranges(&taken.state) {
        reply = Status::ABORTED_SQ_DELETION.into();
    } else if let State::Read { .. } = taken.state {
        payload = buffer.take().map_or(Payload::None, Payload::Buffer);
    } else if let State::Compare { expected, .. } = &mut taken.state
        && let (Some(expected), Some(found)) = (expected.take(), &buffer)
    {
        reply = nvm_optional::compared(&expected, found);
        cx.executor.buffers.recycle(*expected);
    }
    if let Some(buffer) = buffer {
        cx.executor.buffers.recycle(buffer);
    }
    cx.respond(&taken, reply, payload);
}

/// The status for a failed system call (or a short one), logged with its cause.
fn file_error(cx: &mut Context<'_>, cid: u16, state: &State, result: i32) -> Status {
    let (what, place) = match *state {
        State::Read { namespace, offset, .. }
        | State::Compare { namespace, offset, .. }
        | State::Verify { namespace, offset, .. } => ("read", Some((namespace, offset))),
        State::Write { namespace, offset, .. } => ("write", Some((namespace, offset))),
        State::Deallocate(_) => ("deallocate or write zeroes", None),
        _ => ("flush or write zeroes", None),
    };
    let is_read = what == "read";
    let (status, cause) = match result {
        0.. if is_read => {
            (Status::UNRECOVERED_READ_ERROR, "the file is shorter than it was".to_owned())
        }
        // The kernel writes what still fits.
        0.. => (Status::CAPACITY_EXCEEDED.with_dnr(), "the disk is full".to_owned()),
        error => {
            let cause = io::Error::from_raw_os_error(-error);
            (failure(is_read, what == "write", cause.kind()), cause.to_string())
        }
    };
    let (nsid, lba, where_) = match place {
        Some((namespace, offset)) => {
            let namespace = cx.executor.namespace(namespace);
            let at = format!("{} at byte {offset}", namespace.description);
            (namespace.nsid, offset >> namespace.block_shift, at)
        }
        None => (0, 0, "file".to_owned()),
    };
    let now_ns = cx.executor.now_ns;
    cx.connection.note(Level::Error, now_ns, format_args!("{what} of {where_} failed: {cause}"));
    cx.connection.remember_error(cid, status, nsid, lba);
    let is_media_error = !status.same_code(Status::INVALID_OPCODE);
    if let Some(association) = cx.connection.phase.association().filter(|_| is_media_error) {
        association.subsystem.health.media_error();
    }
    status
}

/// The status for a system call's error.
fn failure(is_read: bool, is_write: bool, kind: io::ErrorKind) -> Status {
    use io::ErrorKind::{
        FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull, Unsupported,
    };
    match kind {
        _ if is_read => Status::UNRECOVERED_READ_ERROR,
        StorageFull | QuotaExceeded | FileTooLarge => Status::CAPACITY_EXCEEDED.with_dnr(),
        ReadOnlyFilesystem => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        _ if is_write => Status::WRITE_FAULT,
        // Some devices find out when they are asked that they write no zeroes; the host writes them then.
        Unsupported => Status::INVALID_OPCODE.with_dnr(),
        // A second flush would succeed, although what the first one lost is not there: the kernel
        // tells of each lost write once. So the host must not try again.
        _ => Status::WRITE_FAULT.with_dnr(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a disk without room, a host must hear that, and of a flush that failed that trying again
    /// does not help.
    #[test]
    fn failures_have_their_status() {
        let write = |errno: rustix::io::Errno| failure(false, true, io::Error::from(errno).kind());
        let flush = |errno: rustix::io::Errno| failure(false, false, io::Error::from(errno).kind());
        use rustix::io::Errno;
        for full in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG] {
            assert_eq!(write(full), Status::CAPACITY_EXCEEDED.with_dnr());
            assert_eq!(flush(full), Status::CAPACITY_EXCEEDED.with_dnr());
        }
        assert_eq!(write(Errno::ROFS), Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        assert_eq!(write(Errno::IO), Status::WRITE_FAULT);
        assert_eq!(flush(Errno::IO), Status::WRITE_FAULT.with_dnr());
        assert_eq!(flush(Errno::OPNOTSUPP), Status::INVALID_OPCODE.with_dnr());
        let read = failure(true, false, io::Error::from(Errno::IO).kind());
        assert_eq!(read, Status::UNRECOVERED_READ_ERROR);
    }
}
