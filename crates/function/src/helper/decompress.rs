//! Decompression of blocks in the formats that stores use.

use super::call::{Call, EINVAL};
use crate::fault_kind::FaultKind;
use std::cell::RefCell;
use zstd_safe::DCtx;

/// Price of each byte of compressed data, and of each byte of room for the result. Data that is copied in pieces of one
/// byte takes that long; most data takes a small part of it.
fn byte_costs(format: u64) -> (u64, u64) {
    match format {
        1 => (16, 3),
        4 | 5 => (6, 4),
        _ => (8, 8),
    }
}

/// Fixed price of a call, in addition.
const FIXED_COST: u64 = 100;

/// Price of a block of a Zstandard frame, in addition: the block may have tables that must be built, which takes much
/// longer than its few bytes suggest.
const ZSTD_BLOCK_COST: u64 = 30_000;

/// Magic number of a Zstandard frame (RFC 8878 §3.1.1), little-endian.
const ZSTD_MAGIC: [u8; 4] = 0xfd2f_b528u32.to_le_bytes();

thread_local! {
    /// Made when a thread first decompresses a frame, and then reused, so that a call does not allocate.
    static ZSTD: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// `bpfof_decompress`: returns the size of the result, or [`EINVAL`] if the data is invalid or does not fit.
///
/// The formats have the numbers of RocksDB. The sizes bound the time of each format, and no format writes beyond its
/// room. The blocks of a frame are counted and paid for before the decompressor runs.
pub(super) fn decompress(
    call: &mut Call<'_>,
    format: u64,
    (to, to_size): (u64, u64),
    (from, from_size): (u64, u64),
) -> Result<u64, FaultKind> {
    let from = call.readable(from, from_size)?;
    let to = call.writable(to, to_size)?;
    let (from_cost, to_cost) = byte_costs(format);
    call.charge(FIXED_COST + from_size * from_cost + to_size * to_cost)?;
    let mut frame = 0;
    if format == 7 {
        let Some((bytes, blocks)) = measure_frame(&call.memory[from.clone()]) else {
            return Ok(EINVAL as u64);
        };
        call.charge(blocks * ZSTD_BLOCK_COST)?;
        frame = bytes;
    }
    // Source and destination must not overlap.
    let Ok([from, to]) = call.memory.get_disjoint_mut([from, to]) else {
        return Ok(EINVAL as u64);
    };
    let size = match format {
        1 => snap::raw::Decoder::new().decompress(from, to).ok(),
        4 | 5 => lz4_flex::block::decompress_into(from, to).ok(),
        7 => {
            let size = ZSTD.with_borrow_mut(|context| context.decompress(to, &from[..frame]).ok());
            // The library copies more than the result at first. Bytes behind the result may then come from its context,
            // that is, from another host's frame: clear them.
            to[size.unwrap_or(0)..].fill(0);
            size
        }
        _ => None,
    };
    Ok(size.map_or(EINVAL as u64, |size| size as u64))
}

/// The length in bytes of the Zstandard frame at the start of `data`, and its number of blocks. None if the frame is
/// incomplete.
fn measure_frame(data: &[u8]) -> Option<(usize, u64)> {
    let descriptor = *data.strip_prefix(&ZSTD_MAGIC)?.first()?;
    let is_single_segment = descriptor & 0x20 != 0;
    let window = usize::from(!is_single_segment);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        1 => 2,
        2 => 4,
        _ => 8,
    };
    let checksum = usize::from(descriptor & 4);
    let mut at = ZSTD_MAGIC.len() + 1 + window + dictionary + content;
    let mut blocks = 0;
    loop {
        let (header, _) = data.get(at..)?.split_first_chunk::<3>()?;
        let [low, middle, high] = *header;
        let header = u32::from_le_bytes([low, middle, high, 0]);
        let is_repeated_byte = header >> 1 & 3 == 1;
        at += 3 + if is_repeated_byte { 1 } else { (header >> 3) as usize };
        blocks += 1;
        if header & 1 != 0 {
            break;
        }
    }
    at += checksum;
    (at <= data.len()).then_some((at, blocks))
}
