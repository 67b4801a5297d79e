//! Writing headers.

use super::common::CommonHeader;
use super::digest::{Digests, data_digest};
use super::types::PDA_MAX;

/// Appends a header: `header` with its common part filled in, its digest, and zeroes up to
/// `data_at` if data follows.
#[inline]
pub(super) fn push_header<const N: usize>(
    out: &mut Vec<u8>,
    mut header: [u8; N],
    common: CommonHeader,
    digest: bool,
) {
    let common_bytes = common.to_bytes();
    for (to, from) in header.iter_mut().zip(common_bytes) {
        *to = from;
    }
    let start = out.len();
    out.extend_from_slice(&header);
    if digest {
        out.extend_from_slice(&data_digest(&header));
    }
    let data_at = start + usize::from(common.pdo);
    if data_at > out.len() {
        out.resize(data_at, 0);
    }
}

/// Where data starts behind a header of `header_bytes`: at a multiple of the receiver's alignment,
/// `pda` (0's based dwords, at most [`PDA_MAX`]) (NVMe/TCP 1.0 §3.6.2.2, HPDA; §3.6.2.3, CPDA).
#[inline]
pub(super) fn data_offset(header_bytes: usize, digests: Digests, pda: u8) -> u8 {
    let alignment = (usize::from(pda.min(PDA_MAX)) + 1) * 4;
    // At most 76 bytes rounded up to a multiple of 128.
    (header_bytes + digests.header_bytes()).next_multiple_of(alignment) as u8
}
