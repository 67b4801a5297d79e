//! Search for all positions of a few bytes.
#![allow(unsafe_code)]

use super::call::{Call, EINVAL, charge};
use crate::fault_kind::FaultKind;

/// Bytes compared at once: one for each bit of a word.
const PART: usize = 64;

/// Positions written at once.
const EIGHT: usize = 8;

/// Price of comparing a part, and of writing a position.
const PART_COST: u64 = 32;
const PLACE_COST: u64 = 4;

/// Fixed price of a search, in addition.
const FIXED_COST: u64 = 15;

/// The longest range whose positions fit into 16 bits.
const RANGE_MAX_BYTES: u64 = 1 << 16;

/// `bpfof_find_all`: lists the positions of the four low bytes of `bytes` in a range, the first `most` of them, and
/// returns their number; [`EINVAL`] if the range is too long, or overlaps the list.
pub(super) fn find_all(
    call: &mut Call<'_>,
    (data, len): (u64, u64),
    bytes: u64,
    (list, most): (u64, u64),
) -> Result<u64, FaultKind> {
    call.charge(FIXED_COST)?;
    let data = call.readable(data, len)?;
    if len > RANGE_MAX_BYTES {
        return Ok(EINVAL as u64);
    }
    let list = call.writable(list, most.min(len) * 2)?;
    let Ok([data, list]) = call.memory.get_disjoint_mut([data, list]) else {
        return Ok(EINVAL as u64);
    };
    let (places, _) = list.as_chunks_mut::<2>();
    let [a, b, c, d, ..] = bytes.to_le_bytes();
    list_places(data, [a, b, c, d], places, call.budget)
}

/// As [`list_places_anywhere`], compiled for instructions that most processors have.
#[cfg(target_arch = "x86_64")]
fn list_places(
    data: &[u8],
    bytes: [u8; 4],
    places: &mut [[u8; 2]],
    budget: &mut i64,
) -> Result<u64, FaultKind> {
    #[target_feature(enable = "bmi1,popcnt")]
    fn counting(
        data: &[u8],
        bytes: [u8; 4],
        places: &mut [[u8; 2]],
        budget: &mut i64,
    ) -> Result<u64, FaultKind> {
        list_places_anywhere(data, bytes, places, budget)
    }
    if is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("popcnt") {
        // SAFETY: this processor has the features that the function is compiled for.
        return unsafe { counting(data, bytes, places, budget) };
    }
    list_places_anywhere(data, bytes, places, budget)
}

#[cfg(not(target_arch = "x86_64"))]
use list_places_anywhere as list_places;

/// Lists the positions of the bytes, as long as there is room and budget; returns their number.
#[inline(always)]
fn list_places_anywhere(
    data: &[u8],
    bytes: [u8; 4],
    places: &mut [[u8; 2]],
    budget: &mut i64,
) -> Result<u64, FaultKind> {
    let (parts, rest) = data.as_chunks::<PART>();
    let mut last = [0; PART];
    last[..rest.len()].copy_from_slice(rest);
    let of_last = (1u64 << rest.len()) - 1;
    let parts = parts.iter().map(|part| (part, u64::MAX)).chain([(&last, of_last)]);
    let mut next = 0;
    for ((part, valid), start) in parts.zip((0u32..).step_by(PART)) {
        if next == places.len() || valid == 0 {
            break;
        }
        let mut found = equal(part, bytes) & valid;
        let count = (found.count_ones() as usize).min(places.len() - next);
        charge(budget, PART_COST + count as u64 * PLACE_COST)?;
        let mut take = || {
            let place = (start + found.trailing_zeros()) as u16;
            found &= found.wrapping_sub(1);
            place.to_le_bytes()
        };
        // Most parts have up to eight positions. Then always eight are written, so that nothing depends on the number:
        // the surplus is overwritten, or lies behind the end of the list.
        match places[next..].first_chunk_mut::<EIGHT>() {
            Some(eight) if count <= EIGHT => eight.fill_with(&mut take),
            _ => places[next..][..count].fill_with(&mut take),
        }
        next += count;
    }
    Ok(next as u64)
}

/// Which bytes are one of the four, as bits; the first byte is the lowest bit.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn equal(part: &[u8; PART], bytes: [u8; 4]) -> u64 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8,
    };
    // SAFETY: each processor of this architecture has SSE2; the call has no other requirement.
    let [a, b, c, d] = bytes.map(|byte| unsafe { _mm_set1_epi8(byte as i8) });
    let (words, _) = part.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    let mut bits = 0;
    for (index, [low, high]) in pairs.iter().enumerate() {
        // SAFETY: as above.
        let found = unsafe {
            let from = _mm_set_epi64x(i64::from_le_bytes(*high), i64::from_le_bytes(*low));
            let first = _mm_or_si128(_mm_cmpeq_epi8(from, a), _mm_cmpeq_epi8(from, b));
            let second = _mm_or_si128(_mm_cmpeq_epi8(from, c), _mm_cmpeq_epi8(from, d));
            _mm_movemask_epi8(_mm_or_si128(first, second)) as u64
        };
        bits |= found << (16 * index);
    }
    bits
}

/// Which bytes are one of the four, as bits; the first byte is the lowest bit. The compiler vectorises the first loop.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn equal_anywhere(part: &[u8; PART], [a, b, c, d]: [u8; 4]) -> u64 {
    let mut is_one = [0u8; PART];
    for (is_one, byte) in is_one.iter_mut().zip(part) {
        *is_one = u8::from((*byte == a) | (*byte == b) | (*byte == c) | (*byte == d));
    }
    let (words, _) = is_one.as_chunks::<8>();
    words.iter().rev().fold(0, |bits, word| {
        // Collects the lowest bits of all bytes in the highest byte.
        bits << 8 | u64::from_le_bytes(*word).wrapping_mul(0x0102_0408_1020_4080) >> 56
    })
}
#[cfg(not(target_arch = "x86_64"))]
use equal_anywhere as equal;

#[cfg(test)]
mod tests {
    use super::*;

    fn both(part: &[u8; PART], bytes: [u8; 4]) -> u64 {
        let bits = equal(part, bytes);
        assert_eq!(equal_anywhere(part, bytes), bits);
        bits
    }

    #[test]
    fn each_byte_has_its_bit() {
        let part: [u8; PART] = std::array::from_fn(|at| at as u8);
        for (at, byte) in part.iter().enumerate() {
            assert_eq!(both(&part, [*byte; 4]), 1 << at);
        }
        assert_eq!(both(&part, [0, 9, 63, 200]), 1 | 1 << 9 | 1 << 63);
        assert_eq!(both(&[7; PART], [1, 2, 3, 7]), u64::MAX);
    }
}
