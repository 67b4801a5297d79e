//! PDUs of NVMe/TCP (NVMe/TCP 1.0 §3.6).
//!
//! Sending: `encode_into` appends a whole PDU; data PDUs and long capsules have
//! `encode_header_into`, after which the caller appends the data and, with data digests, its
//! [`data_digest`]. Receiving: [`PduReceiver`].

mod capsule;
mod common;
mod data;
mod error;
mod init;
mod receiver;

pub use capsule::{CapsuleCmd, CapsuleResp};
pub use common::{CommonHeader, Sender, flags, pdu_type};
pub use data::{C2hData, H2cData, R2t};
pub use error::{Fes, PduError, TermReq};
pub use init::{IcReq, IcResp, MAXH2CDATA_MIN_BYTES, PDA_MAX, PFV_1_0};
pub use receiver::{DataPdu, Pdu, PduEvent, PduReceiver};

/// Length of a digest in bytes (NVMe/TCP 1.0 §3.6.2.1).
pub const DIGEST_BYTES: usize = 4;
/// TCP port assigned to NVMe/TCP controllers (IANA, service nvme).
pub const DEFAULT_PORT: u16 = 4420;
/// TCP port assigned to discovery controllers (IANA, service nvme).
pub const DISCOVERY_PORT: u16 = 8009;
/// In-capsule data that every controller accepts on its admin queue, and for fabrics commands, in
/// bytes (NVMe/TCP 1.0 §3.6.2.6).
pub const ADMIN_IN_CAPSULE_BYTES: usize = 8192;

/// Which digests a connection uses (NVMe/TCP 1.0 §3.6.2.1; DGST in §3.6.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// PDU headers are followed by a digest.
    pub header: bool,
    /// PDU data is followed by a digest.
    pub data: bool,
}

impl Digests {
    /// From the DGST byte of ICReq and ICResp; other bits are ignored.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self { header: bits & 1 != 0, data: bits & 2 != 0 }
    }

    /// The DGST byte of ICReq and ICResp.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.header as u8 | (self.data as u8) << 1
    }

    /// The digest flags of a PDU, whose data digest exists only if it has data.
    #[inline]
    const fn flags(self, has_data: bool) -> u8 {
        let (header, data) = (self.header as u8, (self.data && has_data) as u8);
        (header * flags::HDGST) | (data * flags::DDGST)
    }

    /// Bytes of a header digest: 4 or 0.
    #[must_use]
    pub const fn header_bytes(self) -> usize {
        self.header as usize * DIGEST_BYTES
    }

    /// Bytes of a data digest: 4 or 0.
    #[must_use]
    pub const fn data_bytes(self) -> usize {
        self.data as usize * DIGEST_BYTES
    }
}

/// CRC32C of `bytes` (NVMe/TCP 1.0 §3.6.2.1).
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    ::crc32c::crc32c(bytes)
}

/// The digest that follows `data` when data digests are on (NVMe/TCP 1.0 §3.6.2.1).
#[must_use]
pub fn data_digest(data: &[u8]) -> [u8; DIGEST_BYTES] {
    crc32c(data).to_le_bytes()
}

/// Whether `bytes` end with the digest of what precedes it (NVMe/TCP 1.0 §3.6.2.1).
#[must_use]
pub fn header_digest_ok(bytes: &[u8]) -> bool {
    bytes.split_last_chunk().is_some_and(|(header, digest)| data_digest(header) == *digest)
}

/// Appends a header: `header` with its common part filled in, its digest, and zeroes up to
/// `data_at` if data follows.
#[inline]
fn push_header<const N: usize>(
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
fn data_offset(header_bytes: usize, digests: Digests, pda: u8) -> u8 {
    let alignment = (usize::from(pda.min(PDA_MAX)) + 1) * 4;
    // At most 76 bytes rounded up to a multiple of 128.
    (header_bytes + digests.header_bytes()).next_multiple_of(alignment) as u8
}
