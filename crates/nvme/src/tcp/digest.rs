//! Header and data digests (NVMe/TCP 1.0 §3.6.2.1).

use super::types::flags;

/// Length of a digest in bytes (NVMe/TCP 1.0 §3.6.2.1).
pub const DIGEST_BYTES: usize = 4;
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
    pub(super) const fn flags(self, has_data: bool) -> u8 {
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
