//! The reads of the next hop: checks them, lays them out in the data area, and emits device reads.

use super::{Chain, Read};
use crate::chain::{ChainError, ChainId, DeviceRead, InvalidOutput};
use crate::cost;
use crate::file_map::FileMap;
use crate::tables::Tables;
use bpfof_function::Arena;
use bpfof_function::abi::{MAX_HOP_BYTES, MAX_READS, context};

impl Chain {
    /// Emits the reads that the function has requested.
    #[inline]
    pub(super) fn plan_next(
        &mut self,
        id: ChainId,
        tables: &Tables,
        spent: &mut u64,
        emit: &mut impl FnMut(DeviceRead),
    ) -> Result<(), ChainError> {
        match self.arena.context_u32(context::READS) {
            // The usual case of a lookup.
            1 => self.plan_one(id, tables, next_read(&self.arena, 0), spent, emit),
            count => self.plan(id, tables, count as usize, spent, emit),
        }
    }

    /// Checks the only read of the next hop and emits it.
    #[inline]
    pub(super) fn plan_one(
        &mut self,
        id: ChainId,
        tables: &Tables,
        asked: (u32, u64, u32),
        spent: &mut u64,
        emit: &mut impl FnMut(DeviceRead),
    ) -> Result<(), ChainError> {
        self.read_count = 0;
        if asked.2 == 0 {
            return Err(ChainError::InvalidOutput(InvalidOutput::NoProgress));
        }
        let read = self.place(tables, 0, asked, spent)?;
        self.reads[0] = read;
        self.read_count = 1;
        self.pay(read.length)?;
        if read.in_one_piece {
            self.pending = 1;
            let Read { device_offset, length, data_at, .. } = read;
            emit(DeviceRead { chain: id, device_offset, length, data_at });
        } else {
            self.emit(id, tables, &read, emit);
        }
        Ok(())
    }

    /// Lays the next `count` reads out in the data area and emits them, or emits none if any of
    /// them is invalid. Skips reads of size 0.
    #[inline(never)]
    fn plan(
        &mut self,
        id: ChainId,
        tables: &Tables,
        count: usize,
        spent: &mut u64,
        emit: &mut impl FnMut(DeviceRead),
    ) -> Result<(), ChainError> {
        if count > MAX_READS {
            return Err(ChainError::InvalidOutput(InvalidOutput::TooManyReads));
        }
        self.read_count = 0;
        let mut at = 0;
        for index in 0..count {
            let asked = next_read(&self.arena, index);
            if asked.2 == 0 {
                continue;
            }
            let read = self.place(tables, at, asked, spent)?;
            at += read.length;
            self.reads[self.read_count] = read;
            self.read_count += 1;
        }
        if self.read_count == 0 {
            return Err(ChainError::InvalidOutput(InvalidOutput::NoProgress));
        }
        self.pay(at)?;
        for index in 0..self.read_count {
            let read = self.reads[index];
            self.emit(id, tables, &read, emit);
        }
        Ok(())
    }

    #[inline]
    fn pay(&mut self, bytes: u32) -> Result<(), ChainError> {
        let left = self.bytes_left.checked_sub(u64::from(bytes));
        self.bytes_left = left.ok_or(ChainError::ByteBudget)?;
        Ok(())
    }

    /// Checks one read (file, offset, size), and places the units that contain it at `data_at` of
    /// the data area. Pays for the contiguous pieces of the namespace that it spans.
    #[inline(always)]
    fn place(
        &self,
        tables: &Tables,
        data_at: u32,
        (file, offset, size): (u32, u64, u32),
        spent: &mut u64,
    ) -> Result<Read, ChainError> {
        if file as usize >= self.file_count {
            return Err(ChainError::InvalidOutput(InvalidOutput::NoSuchFile));
        }
        let outside = ChainError::OutsideFile(file);
        let map = self.map(tables, file)?;
        let end = offset.checked_add(u64::from(size)).ok_or(outside)?;
        if end > map.length_bytes() {
            return Err(outside);
        }
        // Cannot overflow: `FileMap` bounds a file's length.
        let first = offset & !self.unit_mask;
        let length = ((end + self.unit_mask) & !self.unit_mask) - first;
        if u64::from(data_at) + length > MAX_HOP_BYTES as u64 {
            return Err(ChainError::InvalidOutput(InvalidOutput::HopTooLarge));
        }
        let (device_offset, contiguous) = map.find(first).ok_or(outside)?;
        let in_one_piece = contiguous >= length;
        if !in_one_piece {
            let mut pieces = 0;
            let is_mapped = map.translate(first, length, |_, _| pieces += 1);
            *spent += cost::pieces(pieces);
            if !is_mapped {
                return Err(outside);
            }
        }
        let start = data_at + (offset - first) as u32;
        let (end, length) = (start + size, length as u32);
        Ok(Read { file, offset, start, end, data_at, length, device_offset, in_one_piece })
    }

    /// Emits the device reads for a read that was placed with the same tables.
    #[inline]
    fn emit(
        &mut self,
        chain: ChainId,
        tables: &Tables,
        read: &Read,
        emit: &mut impl FnMut(DeviceRead),
    ) {
        let Read { mut data_at, length, device_offset, .. } = *read;
        if read.in_one_piece {
            self.pending += 1;
            return emit(DeviceRead { chain, device_offset, length, data_at });
        }
        let Ok(map) = self.map(tables, read.file) else { unreachable!("placed before") };
        let pending = &mut self.pending;
        let first = read.offset & !self.unit_mask;
        map.translate(first, u64::from(length), |device_offset, length| {
            let length = length as u32;
            emit(DeviceRead { chain, device_offset, length, data_at });
            data_at += length;
            *pending += 1;
        });
    }

    /// The map of a file of the request, after [`Chain::find`] with the same tables.
    #[inline]
    fn map<'a>(&self, tables: &'a Tables, file: u32) -> Result<&'a FileMap, ChainError> {
        tables.map_at(self.maps[file as usize]).ok_or(ChainError::UnknownFile(file))
    }
}

/// The read that a function requests in entry `index` of its outputs: file, offset, size.
#[inline]
fn next_read(arena: &Arena, index: usize) -> (u32, u64, u32) {
    (
        arena.context_u32(context::NEXT_FILE + 4 * index),
        arena.context_u64(context::NEXT_OFFSET + 8 * index),
        arena.context_u32(context::NEXT_SIZE + 4 * index),
    )
}

const _: () = assert!(MAX_HOP_BYTES <= u32::MAX as usize);
