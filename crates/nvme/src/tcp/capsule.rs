//! Command and response capsules (NVMe/TCP 1.0 §3.6.2.6, §3.6.2.7).

use super::common::CommonHeader;
use super::digest::{Digests, data_digest};
use super::header::{data_offset, push_header};
use super::types::pdu_type;
use crate::{Cqe, Sqe};

/// A command capsule to send (NVMe/TCP 1.0 §3.6.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapsuleCmd<'a> {
    /// The command (bytes 71:8).
    pub sqe: Sqe,
    /// In-capsule data, empty if none.
    pub data: &'a [u8],
}

impl CapsuleCmd<'_> {
    /// Size of the header, in bytes.
    pub const HEADER_BYTES: usize = 72;

    /// Appends the whole PDU to `out`, its data aligned as the controller's `cpda` requires.
    #[inline]
    pub fn encode_into(&self, out: &mut Vec<u8>, digests: Digests, cpda: u8) {
        Self::encode_header_into(&self.sqe, self.data.len() as u32, out, digests, cpda);
        if !self.data.is_empty() {
            out.extend_from_slice(self.data);
            if digests.data {
                out.extend_from_slice(&data_digest(self.data));
            }
        }
    }

    /// Appends the header of a capsule with `data_bytes` of in-capsule data. Unless that is 0, the
    /// caller appends the data and, with data digests, its digest.
    #[inline]
    pub fn encode_header_into(
        sqe: &Sqe,
        data_bytes: u32,
        out: &mut Vec<u8>,
        digests: Digests,
        cpda: u8,
    ) {
        let mut header = [0; Self::HEADER_BYTES];
        header[8..].copy_from_slice(&sqe.to_bytes());
        let has_data = data_bytes != 0;
        let pdo = if has_data { data_offset(Self::HEADER_BYTES, digests, cpda) } else { 0 };
        let plen = if has_data {
            u32::from(pdo) + data_bytes + digests.data_bytes() as u32
        } else {
            (Self::HEADER_BYTES + digests.header_bytes()) as u32
        };
        let common = CommonHeader {
            pdu_type: pdu_type::CAPSULE_CMD,
            flags: digests.flags(has_data),
            hlen: Self::HEADER_BYTES as u8,
            pdo,
            plen,
        };
        push_header(out, header, common, digests.header);
    }
}

/// A response capsule (NVMe/TCP 1.0 §3.6.2.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapsuleResp {
    /// The completion (bytes 23:8).
    pub cqe: Cqe,
}

impl CapsuleResp {
    /// Size of the header, in bytes.
    pub const HEADER_BYTES: usize = 24;

    /// Reads a PDU whose common header was checked.
    #[must_use]
    pub fn parse(header: &[u8; 24]) -> Self {
        Self { cqe: Cqe::from_bytes(&crate::bytes::Field::get(header, 8)) }
    }

    /// Appends the PDU to `out`.
    #[inline]
    pub fn encode_into(&self, out: &mut Vec<u8>, digests: Digests) {
        let mut header = [0; Self::HEADER_BYTES];
        header[8..].copy_from_slice(&self.cqe.to_bytes());
        let common = CommonHeader {
            pdu_type: pdu_type::CAPSULE_RESP,
            flags: digests.flags(false),
            hlen: Self::HEADER_BYTES as u8,
            pdo: 0,
            plen: (Self::HEADER_BYTES + digests.header_bytes()) as u32,
        };
        push_header(out, header, common, digests.header);
    }
}
