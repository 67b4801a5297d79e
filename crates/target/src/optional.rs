//! Optional commands of the NVM command set: Compare, Verify and Dataset Management.

use crate::connection::{Connection, Reply, State};
use crate::executor::{CommandId, Executor};
use crate::io::byte_range;
use crate::limits::{BYTES_PER_UNIT, ZEROES_PART_BYTES};
use crate::namespace::Backing;
use bpfof_device::IoBuffer;
use bpfof_nvme::{DsmRange, Rw, Sgl, Sqe, Status};

impl Connection {
    /// Compare (NVM Command Set 1.0 §3.2.1).
    pub(crate) fn take_compare(
        &mut self,
        sqe: &Sqe,
        rw: Rw,
        namespace: usize,
        data: &[u8],
        x: &mut Executor,
    ) -> Result<(), Reply> {
        let (offset, length) = byte_range(x, namespace, rw, true)?;
        let state = |data| State::Compare { namespace, offset, data, expected: None };
        let here = self.take_data(sqe, data, length, x, state)?;
        self.traffic.reads += 1;
        self.traffic.read_bytes += u64::from(length);
        if let Some((command, expected)) = here {
            self.compare(command, (namespace, offset), expected, x);
        }
        Ok(())
    }

    /// Reads what is to be compared with the command's data, which is here.
    pub(crate) fn compare(
        &mut self,
        command: CommandId,
        (namespace, offset): (usize, u64),
        from_host: IoBuffer,
        x: &mut Executor,
    ) {
        let length = from_host.len() as u32;
        if let State::Compare { expected, .. } = &mut self.slots[usize::from(command.slot)].state {
            *expected = Some(from_host);
        }
        x.submit_read(namespace, command, (offset, length));
    }

    /// Answers a Compare on a memory namespace.
    pub(crate) fn compare_memory(
        &mut self,
        cid: u16,
        (namespace, offset): (usize, u64),
        expected: IoBuffer,
        x: &mut Executor,
    ) {
        let mut found = x.buffer(expected.len());
        if let Backing::Memory(memory) = &x.namespace(namespace).backing {
            memory.read(offset, &mut found);
            x.spend(found.len() as u64 / BYTES_PER_UNIT);
        }
        self.compared(cid, &expected, &found);
        x.recycle(expected);
        x.recycle(found);
    }

    /// Answers a Compare: the same, or not.
    pub(crate) fn compared(&mut self, cid: u16, expected: &[u8], found: &[u8]) {
        let status =
            if expected == found { Status::SUCCESS } else { Status::COMPARE_FAILURE.with_dnr() };
        self.complete(cid, status.into());
    }

    /// Verify (§3.2.5): reads, and keeps what it has read to itself.
    pub(crate) fn take_verify(
        &mut self,
        sqe: &Sqe,
        rw: Rw,
        namespace: usize,
        x: &mut Executor,
    ) -> Result<(), Reply> {
        let (offset, length) = byte_range(x, namespace, rw, true)?;
        let command = self.occupy(sqe.cid, State::Verify { namespace, offset, length });
        x.submit_read(namespace, command, (offset, length));
        Ok(())
    }

    /// Dataset Management (§3.2.3).
    pub(crate) fn take_dataset_management(
        &mut self,
        sqe: &Sqe,
        (ranges, deallocate): (u16, bool),
        namespace: usize,
        data: &[u8],
        x: &mut Executor,
    ) -> Result<(), Reply> {
        if !x.namespace(namespace).deallocates() {
            return Err(Status::INVALID_OPCODE.with_dnr().into());
        }
        let length = u32::from(ranges) * DsmRange::BYTES as u32;
        // Linux offers a whole page, whatever the number of ranges.
        if sqe.sgl.length_bytes < length || sqe.sgl.length_bytes > MAX_RANGES_BYTES {
            return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr().into());
        }
        match sqe.sgl.kind {
            Sgl::TRANSPORT => {
                let length = sqe.sgl.length_bytes;
                self.request_data(sqe.cid, length, x, |data| State::Ranges {
                    namespace,
                    ranges,
                    deallocate,
                    data,
                });
                Ok(())
            }
            Sgl::IN_CAPSULE_OFFSET => {
                self.deallocate(sqe.cid, (ranges, deallocate), namespace, data, x)
            }
            _ => Err(Status::INVALID_SGL_DESCRIPTOR_TYPE.with_dnr().into()),
        }
    }

    /// Begins to deallocate the ranges, which are here. Other attributes are hints we do not use.
    pub(crate) fn deallocate(
        &mut self,
        cid: u16,
        (ranges, deallocate): (u16, bool),
        namespace: usize,
        data: &[u8],
        x: &mut Executor,
    ) -> Result<(), Reply> {
        let place = x.namespace(namespace);
        let mut list = Vec::with_capacity(usize::from(ranges));
        for bytes in data.as_chunks().0.iter().take(ranges.into()) {
            let DsmRange { blocks, slba, .. } = DsmRange::from_bytes(bytes);
            let end = slba.checked_add(blocks.into());
            if end.is_none_or(|end| end > place.blocks()) {
                return Err(Status::LBA_OUT_OF_RANGE.with_dnr().into());
            }
            if deallocate && blocks > 0 {
                list.push((slba << place.block_shift, u64::from(blocks) << place.block_shift));
            }
        }
        if list.is_empty() {
            self.complete(cid, Reply::default());
        } else {
            let command = self.occupy(cid, State::Deallocate { namespace, ranges: list, next: 0 });
            self.deallocate_next(command, x);
        }
        Ok(())
    }

    /// Hands the next range of a Dataset Management command to its device, one at a time; false if
    /// there is none left.
    pub(crate) fn deallocate_next(&mut self, command: CommandId, x: &mut Executor) -> bool {
        let state = &mut self.slots[usize::from(command.slot)].state;
        let State::Deallocate { namespace, ranges, next } = state else { return false };
        let Some(range) = ranges.get_mut(*next) else { return false };
        let (offset, length) = *range;
        let namespace = *namespace;
        // A file system may hold up others while it takes blocks from a file.
        let part = match x.namespace(namespace).backing {
            Backing::File(_) => length.min(ZEROES_PART_BYTES),
            Backing::Memory(_) => length,
        };
        *range = (offset + part, length - part);
        *next += usize::from(part == length);
        x.submit_zero(namespace, command, (offset, part));
        true
    }

    /// Zeroes of a memory namespace are due; they end here unless they are still `wanted`.
    pub(crate) fn zero_memory(
        &mut self,
        namespace: usize,
        command: CommandId,
        (range, wanted): ((u64, u64), bool),
        x: &mut Executor,
    ) {
        let reply = if !wanted {
            Status::ABORTED_SQ_DELETION.into()
        } else if !x.zero_some(namespace, command, range) || self.deallocate_next(command, x) {
            return;
        } else {
            Reply::default()
        };
        let (cid, _) = self.vacate(command.slot);
        self.complete(cid, reply);
        self.ask(x);
    }
}

/// Data of a Dataset Management command with as many ranges as there can be.
const MAX_RANGES_BYTES: u32 = 256 * DsmRange::BYTES as u32;
