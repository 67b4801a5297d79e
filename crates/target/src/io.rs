//! Commands of I/O queues: the NVM command set and pushdown.

use crate::connection::{Close, Connection, Incoming, Reply, State};
use crate::executor::{CommandId, Executor, FileOperation, Resting};
use crate::limits::{BYTES_PER_UNIT, IN_CAPSULE_BYTES, MAX_TRANSFER_BYTES};
use crate::namespace::Backing;
use bpfof_chain::{Answer, ChainError, ChainId, FileVersion, Outcome, Start, WHOLE_NAMESPACE};
use bpfof_device::IoBuffer;
use bpfof_function::abi;
use bpfof_nvme::vendor::{DEFAULT_SCRATCH_BYTES, PushdownRequest, PushdownShort};
use bpfof_nvme::{NvmCommand, Rw, Sgl, Sqe, Status, opcode};
use log::Level;
use std::io;

impl Connection {
    pub(crate) fn io_command(
        &mut self,
        sqe: &Sqe,
        data: &[u8],
        x: &mut Executor,
    ) -> Result<(), Close> {
        let taken = match NvmCommand::parse(sqe) {
            Ok(NvmCommand::Fabrics(command)) => return self.io_fabrics(sqe, command, x.now_ns),
            Ok(NvmCommand::Unknown(_)) => Err(Status::INVALID_OPCODE.with_dnr().into()),
            Ok(command) => self.nvm_command(sqe, command, data, x),
            // Only a Pushdown Short that reads nothing.
            Err(status) if status.same_code(Status::MALFORMED_REQUEST) => {
                Err(malformed(PushdownShort::FIRST_BLOCKS_AT))
            }
            Err(status) => Err(status.into()),
        };
        if let Err(reply) = taken {
            self.refuse(sqe, reply, x.now_ns);
        }
        Ok(())
    }

    /// Takes a command of a namespace, or says why not.
    fn nvm_command(
        &mut self,
        sqe: &Sqe,
        command: NvmCommand,
        data: &[u8],
        x: &mut Executor,
    ) -> Result<(), Reply> {
        let invalid = Reply::from(Status::INVALID_NAMESPACE.with_dnr());
        let controller = self.controller.as_ref();
        let namespace = controller.and_then(|c| x.find(&c.subsystem, sqe.nsid));
        let namespace = namespace.ok_or(invalid)?;
        match command {
            NvmCommand::Read(rw) => self.take_read(sqe, rw, namespace, x),
            NvmCommand::Write(rw) => self.take_write(sqe, rw, namespace, data, x),
            NvmCommand::Flush => {
                self.take_flush(sqe.cid, namespace, x);
                Ok(())
            }
            NvmCommand::WriteZeroes(rw) => self.take_write_zeroes(sqe, rw, namespace, x),
            NvmCommand::Compare(rw) => self.take_compare(sqe, rw, namespace, data, x),
            NvmCommand::Verify(rw) => self.take_verify(sqe, rw, namespace, x),
            NvmCommand::DatasetManagement { ranges, deallocate } => {
                self.take_dataset_management(sqe, (ranges, deallocate), namespace, data, x)
            }
            NvmCommand::Pushdown => self.take_pushdown(sqe, namespace, data, x),
            NvmCommand::PushdownShort(short) => self.take_short(sqe, &short, namespace, x),
            _ => Err(Status::INVALID_OPCODE.with_dnr().into()),
        }
    }

    fn take_read(
        &mut self,
        sqe: &Sqe,
        rw: Rw,
        namespace: usize,
        x: &mut Executor,
    ) -> Result<(), Reply> {
        let (offset, length) = byte_range(x, namespace, rw, true)?;
        if sqe.sgl.kind != Sgl::TRANSPORT {
            return Err(Status::INVALID_SGL_DESCRIPTOR_TYPE.with_dnr().into());
        }
        if sqe.sgl.length_bytes != length {
            return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr().into());
        }
        self.traffic.reads += 1;
        self.traffic.read_bytes += u64::from(length);
        let command = self.occupy(sqe.cid, State::Read { namespace, offset, length });
        x.submit_read(namespace, command, (offset, length));
        Ok(())
    }

    fn take_write(
        &mut self,
        sqe: &Sqe,
        rw: Rw,
        namespace: usize,
        data: &[u8],
        x: &mut Executor,
    ) -> Result<(), Reply> {
        let (offset, length) = byte_range(x, namespace, rw, true)?;
        let fua = rw.fua;
        let state = |data| State::Write { namespace, offset, fua, data };
        let here = self.take_data(sqe, data, length, x, state)?;
        self.traffic.writes += 1;
        self.traffic.written_bytes += u64::from(length);
        if let Some((command, buffer)) = here {
            self.write(command, (namespace, offset, fua), buffer, x);
        }
        Ok(())
    }

    /// Takes a command that brings `length` bytes of data, and gives it with the data if that came
    /// in the capsule; else the host is asked for it.
    pub(crate) fn take_data(
        &mut self,
        sqe: &Sqe,
        data: &[u8],
        length: u32,
        x: &mut Executor,
        state: impl FnOnce(Incoming) -> State,
    ) -> Result<Option<(CommandId, IoBuffer)>, Reply> {
        if sqe.sgl.length_bytes != length {
            return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr().into());
        }
        match sqe.sgl.kind {
            Sgl::TRANSPORT => {
                self.request_data(sqe.cid, length, x, state);
                Ok(None)
            }
            Sgl::IN_CAPSULE_OFFSET => {
                let command = self.occupy(sqe.cid, state(Incoming::here(length)));
                let mut buffer = x.buffer(length as usize);
                buffer.copy_from_slice(data);
                Ok(Some((command, buffer)))
            }
            _ => Err(Status::INVALID_SGL_DESCRIPTOR_TYPE.with_dnr().into()),
        }
    }

    /// Performs a write whose data is here.
    pub(crate) fn write(
        &mut self,
        command: CommandId,
        (namespace, offset, fua): (usize, u64, bool),
        buffer: IoBuffer,
        x: &mut Executor,
    ) {
        if let Backing::Memory(memory) = &x.namespace(namespace).backing {
            memory.write(offset, &buffer);
            x.spend(buffer.len() as u64 / BYTES_PER_UNIT);
            x.recycle(buffer);
            x.submit_memory(namespace, command, None);
            return;
        }
        let operation = FileOperation::Write { namespace, buffer, offset, fua, command };
        x.file_operations.push(operation);
    }

    fn take_flush(&mut self, cid: u16, namespace: usize, x: &mut Executor) {
        let command = self.occupy(cid, State::Plain { namespace });
        match x.namespace(namespace).backing {
            Backing::Memory(_) => x.submit_memory(namespace, command, None),
            Backing::File(_) => {
                x.file_operations.push(FileOperation::Sync { namespace, command });
            }
        }
    }

    fn take_write_zeroes(
        &mut self,
        sqe: &Sqe,
        rw: Rw,
        namespace: usize,
        x: &mut Executor,
    ) -> Result<(), Reply> {
        let (offset, length) = byte_range(x, namespace, rw, false)?;
        if !x.namespace(namespace).deallocates() {
            return Err(Status::INVALID_OPCODE.with_dnr().into());
        }
        let is_memory = matches!(x.namespace(namespace).backing, Backing::Memory(_));
        let durable = rw.fua && !is_memory;
        let state = match durable {
            true => State::ZeroesThenSync { namespace },
            false => State::Plain { namespace },
        };
        let command = self.occupy(sqe.cid, state);
        x.submit_zero(namespace, command, (offset, length.into()));
        Ok(())
    }

    /// docs/protocol.md, Pushdown.
    #[inline]
    fn take_pushdown(
        &mut self,
        sqe: &Sqe,
        namespace: usize,
        data: &[u8],
        x: &mut Executor,
    ) -> Result<(), Reply> {
        if sqe.sgl.kind != Sgl::IN_CAPSULE_OFFSET {
            return Err(Status::INVALID_SGL_DESCRIPTOR_TYPE.with_dnr().into());
        }
        let request = PushdownRequest::parse(data, abi::MAX_READS as u16)
            .map_err(|error| malformed(error.at))?;
        let header = request.header();
        let scratch_bytes = header.effective_scratch_bytes();
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
            owner: self.serial,
            namespace: sqe.nsid,
            unit_bytes: x.namespace(namespace).unit_bytes(),
            function: header.function,
            files: &files[..count],
            first_file: u32::from(header.first_file),
            first_offset_bytes: header.first_offset_bytes,
            first_size_bytes: header.first_size_bytes,
            argument: request.scratch(),
            scratch_bytes,
            answer_max_bytes: header.answer_max_bytes,
        };
        self.start_chain(sqe.cid, namespace, &start, x)
    }

    /// docs/protocol.md, Pushdown Short.
    fn take_short(
        &mut self,
        sqe: &Sqe,
        short: &PushdownShort,
        namespace: usize,
        x: &mut Executor,
    ) -> Result<(), Reply> {
        if sqe.sgl.kind != Sgl::TRANSPORT {
            return Err(Status::INVALID_SGL_DESCRIPTOR_TYPE.with_dnr().into());
        }
        self.refresh_tables();
        let id = u32::from(short.file);
        let version = self.tables.map(sqe.nsid, id).map_or(0, |map| map.version());
        let first_blocks = u32::from(short.first_blocks);
        let start = Start {
            owner: self.serial,
            namespace: sqe.nsid,
            unit_bytes: x.namespace(namespace).unit_bytes(),
            function: short.function,
            files: &[FileVersion { id, version }],
            first_file: 0,
            first_offset_bytes: 0,
            first_size_bytes: first_blocks * x.namespace(namespace).block_bytes(),
            argument: &short.argument,
            scratch_bytes: DEFAULT_SCRATCH_BYTES,
            answer_max_bytes: sqe.sgl.length_bytes,
        };
        self.start_chain(sqe.cid, namespace, &start, x)
    }

    #[inline]
    fn start_chain(
        &mut self,
        cid: u16,
        namespace: usize,
        start: &Start<'_>,
        x: &mut Executor,
    ) -> Result<(), Reply> {
        self.refresh_tables();
        let answer_max_bytes = start.answer_max_bytes.min(start.scratch_bytes);
        let command = self.occupy(cid, State::Chain { namespace, answer_max_bytes });
        let started = x.start_chain(namespace, command, start, &self.tables);
        if self.tables.function_index(start.function).is_some() {
            self.count(start.function).chains += 1;
        }
        match started {
            Ok(()) => {
                x.admission.started(self.index);
                Ok(())
            }
            Err(error) => {
                self.vacate(command.slot);
                Err(chain_error(error, 0))
            }
        }
    }

    /// A chain of this connection has ended: answers and releases it.
    #[inline]
    pub(crate) fn chain_done(
        &mut self,
        slot: u16,
        chain: ChainId,
        outcome: Outcome,
        x: &mut Executor,
    ) {
        let (cid, state) = self.vacate(slot);
        let usage = x.engine().usage(chain);
        let counters = self.count(usage.function);
        counters.hops += u64::from(usage.hops);
        counters.read_bytes += usage.bytes;
        match outcome {
            Ok(Answer { hops, length_bytes }) => {
                let reply = Reply { status: Status::SUCCESS, dw0: hops, dw1: length_bytes };
                let length = length_bytes as usize;
                let answer = &x.engine().scratch(chain)[..length];
                self.send_data(cid, reply, length, |to| to.own().extend_from_slice(answer));
            }
            Err((error, hops)) => {
                let counters = self.count(usage.last_function);
                match error {
                    ChainError::Fault(fault) => {
                        counters.faults += 1;
                        counters.last_fault = Some(fault);
                    }
                    ChainError::Abort(_) => counters.aborts += 1,
                    _ => {}
                }
                let is_gone = state.namespace().is_some_and(|namespace| x.is_leaving(namespace));
                let reply = match error {
                    ChainError::Device if is_gone => Status::INVALID_NAMESPACE.with_dnr().into(),
                    // Cut short: no device has failed.
                    ChainError::Device if self.abandoned => {
                        Reply { status: Status::ABORTED_SQ_DELETION, dw0: 0, dw1: hops }
                    }
                    error => chain_error(error, hops),
                };
                self.log_refusal(bpfof_nvme::opcode::nvm::PUSHDOWN, &reply, x.now_ns);
                log::debug!("{}: chain ended after {hops} hops: {error}", self.name());
                self.complete(cid, reply);
            }
        }
        x.engine().release(chain);
        self.ask(x);
    }

    /// A chain that has rested has been granted an arena: it goes on, or ends if it cannot.
    pub(crate) fn resume(&mut self, resting: &Resting, x: &mut Executor) {
        let slot = resting.slot;
        let Some(namespace) = self.slots[usize::from(slot)].state.namespace() else { return };
        let command = CommandId { connection: self.index, slot };
        let is_gone = x.is_leaving(namespace);
        let resumed = match is_gone {
            true => Err(ChainError::Device),
            false => x.resume_chain(namespace, command, &resting.chain, &self.tables),
        };
        let Err(error) = resumed else { return x.admission.started(self.index) };
        let reply = match is_gone {
            true => Status::INVALID_NAMESPACE.with_dnr().into(),
            false => chain_error(error, resting.chain.hops()),
        };
        self.log_refusal(bpfof_nvme::opcode::nvm::PUSHDOWN, &reply, x.now_ns);
        self.end_resting(slot, reply, x);
    }

    /// A chain without an arena ends in an error.
    pub(crate) fn end_resting(&mut self, slot: u16, reply: impl Into<Reply>, x: &mut Executor) {
        let (cid, _) = self.vacate(slot);
        self.complete(cid, reply.into());
        self.ask(x);
    }

    /// Begins to wait if a command needs a chain and there is none for it; whether that is so. Then the
    /// command stays where it was received, with all that came after it.
    #[inline]
    pub(crate) fn wait_for_chain(&mut self, sqe: &Sqe, x: &mut Executor) -> bool {
        let waits = matches!(sqe.opcode, opcode::nvm::PUSHDOWN | opcode::nvm::PUSHDOWN_SHORT)
            && !x.may_start_chain(self.index)
            && self.queue.as_ref().is_some_and(|queue| queue.id != 0);
        if waits {
            self.waits_for_chain_since_ns = Some(x.now_ns);
            x.admission.wait(self.index);
        }
        waits
    }

    /// Whether an arena would be of use to it.
    pub(crate) fn wants_chain(&self) -> bool {
        self.waits_for_chain_since_ns.is_some() || !self.resting.is_empty()
    }

    /// A command on a memory namespace is due.
    #[inline]
    pub(crate) fn memory_done(&mut self, slot: u16, x: &mut Executor) {
        let (cid, state) = self.vacate(slot);
        if let State::Read { namespace, offset, length } = state
            && let Backing::Memory(memory) = &x.namespace(namespace).backing
        {
            let reply = Reply::default();
            let (length, lends) = (length as usize, self.lends());
            self.send_data(cid, reply, length, |to| to.add_memory(memory, (offset, length), lends));
        } else if let State::Compare { namespace, offset, expected: Some(expected), .. } = state {
            self.compare_memory(cid, (namespace, offset), expected, x);
        } else {
            self.complete(cid, Reply::default());
        }
        self.ask(x);
    }

    /// A command's file operation has completed with a system call's `result`.
    pub(crate) fn file_done(
        &mut self,
        slot: u16,
        result: i32,
        mut buffer: Option<IoBuffer>,
        x: &mut Executor,
    ) {
        if let State::ZeroesThenSync { namespace } = self.slots[usize::from(slot)].state
            && result == 0
        {
            self.slots[usize::from(slot)].state = State::Plain { namespace };
            let command = CommandId { connection: self.index, slot };
            x.file_operations.push(FileOperation::Sync { namespace, command });
            return;
        }
        let command = CommandId { connection: self.index, slot };
        if result == 0 && self.deallocate_next(command, x) {
            return;
        }
        let (cid, state) = self.vacate(slot);
        let length = buffer.as_ref().map_or(0, |buffer| buffer.len());
        let ok = result >= 0 && result as usize == length;
        let reply =
            if ok { Reply::default() } else { self.file_error(cid, &state, result, x).into() };
        match (state, &buffer) {
            (State::Read { .. }, Some(_)) if ok => {
                let lends = self.lends();
                self.send_data(cid, reply, length, |to| {
                    buffer = buffer.take().and_then(|read| to.add_buffer(read, lends));
                });
            }
            (State::Compare { expected: Some(expected), .. }, Some(found)) if ok => {
                self.compared(cid, &expected, found);
                x.recycle(expected);
            }
            _ => self.complete(cid, reply),
        }
        if let Some(buffer) = buffer {
            x.recycle(buffer);
        }
        self.ask(x);
    }

    /// The status for a failed system call (or a short one), logged with its cause.
    fn file_error(&mut self, cid: u16, state: &State, result: i32, x: &Executor) -> Status {
        let (what, place) = match *state {
            State::Read { namespace, offset, .. }
            | State::Compare { namespace, offset, .. }
            | State::Verify { namespace, offset, .. } => ("read", Some((namespace, offset))),
            State::Write { namespace, offset, .. } => ("write", Some((namespace, offset))),
            State::Deallocate { .. } => ("deallocate", None),
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
                let namespace = x.namespace(namespace);
                let at = format!("{} at byte {offset}", namespace.description);
                (namespace.nsid, offset >> namespace.block_shift, at)
            }
            None => (0, 0, "file".to_owned()),
        };
        self.note(Level::Error, x.now_ns, format_args!("{what} of {where_} failed: {cause}"));
        self.remember_error(cid, status, nsid, lba);
        if let Some(controller) = &self.controller {
            controller.subsystem.health.media_error();
        }
        status
    }
}

/// The status for a system call's error.
fn failure(is_read: bool, is_write: bool, kind: io::ErrorKind) -> Status {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match kind {
        _ if is_read => Status::UNRECOVERED_READ_ERROR,
        StorageFull | QuotaExceeded | FileTooLarge => Status::CAPACITY_EXCEEDED.with_dnr(),
        ReadOnlyFilesystem => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        _ if is_write => Status::WRITE_FAULT,
        // A second flush would succeed, although what the first one lost is not there: the kernel
        // tells of each lost write once. So the host must not try again.
        _ => Status::WRITE_FAULT.with_dnr(),
    }
}

/// A command's range in bytes, checked against the namespace; `transfers` if data of that length
/// crosses the network.
#[inline]
pub(crate) fn byte_range(
    x: &Executor,
    namespace: usize,
    rw: Rw,
    transfers: bool,
) -> Result<(u64, u32), Reply> {
    let namespace = x.namespace(namespace);
    let end = rw.slba.checked_add(u64::from(rw.blocks));
    if end.is_none_or(|end| end > namespace.blocks()) {
        return Err(Status::LBA_OUT_OF_RANGE.with_dnr().into());
    }
    let length = u64::from(rw.blocks) << namespace.block_shift;
    if transfers && length > u64::from(MAX_TRANSFER_BYTES) {
        return Err(Status::INVALID_FIELD.with_dnr().into());
    }
    Ok((rw.slba << namespace.block_shift, length as u32))
}

/// Malformed Request: the field at this byte of the request is at fault.
fn malformed(at: u32) -> Reply {
    Reply { status: Status::MALFORMED_REQUEST.with_dnr(), dw0: at, dw1: 0 }
}

/// A failed chain's completion.
fn chain_error(error: ChainError, hops: u32) -> Reply {
    let (status, dw0) = error.status();
    Reply { status: status.with_dnr(), dw0, dw1: hops }
}

const _: () = assert!(WHOLE_NAMESPACE == 0, "Pushdown Short and file maps reserve file id 0");
const _: () = assert!(DEFAULT_SCRATCH_BYTES as usize == abi::DEFAULT_SCRATCH_BYTES);
// Arguments are limited by the capsule. One that fills the default scratch always fits.
const _: () =
    assert!(32 + 16 * abi::MAX_READS + abi::DEFAULT_SCRATCH_BYTES <= IN_CAPSULE_BYTES as usize);

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
        let read = failure(true, false, io::Error::from(Errno::IO).kind());
        assert_eq!(read, Status::UNRECOVERED_READ_ERROR);
    }
}
