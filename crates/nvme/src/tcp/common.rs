//! The common header of every PDU (NVMe/TCP 1.0 §3.6.2.1).

use super::digest::Digests;
use super::error::PduError;
use super::types::{flags, pdu_type};
use crate::bytes::{get, put};

/// Which end of a connection sends a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The host.
    Host,
    /// The controller.
    Controller,
}

/// The common header (NVMe/TCP 1.0 §3.6.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommonHeader {
    /// PDU-Type (byte 0).
    pub pdu_type: u8,
    /// Flags (byte 1).
    pub flags: u8,
    /// HLEN: length of the header without its digest, in bytes (byte 2).
    pub hlen: u8,
    /// PDO: offset of the data from the start of the PDU, in bytes (byte 3).
    pub pdo: u8,
    /// PLEN: length of the whole PDU in bytes (bytes 7:4).
    pub plen: u32,
}

/// Longest copy of a header that a TermReq carries, in bytes (NVMe/TCP 1.0 §3.6.2.4).
pub(super) const TERM_HEADER_MAX_BYTES: u32 = 128;
const TYPE_AT: u32 = 0;
const FLAGS_AT: u32 = 1;
const HLEN_AT: u32 = 2;
const PDO_AT: u32 = 3;
/// Offset of PLEN, which length errors report.
pub(super) const PLEN_AT: u32 = 4;

impl CommonHeader {
    /// Size of the common header, in bytes.
    pub const BYTES: usize = 8;

    /// Reads the fields without checking them.
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: &[u8; 8]) -> Self {
        Self {
            pdu_type: bytes[0],
            flags: bytes[1],
            hlen: bytes[2],
            pdo: bytes[3],
            plen: get(bytes, 4),
        }
    }

    /// Writes the fields.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; 8] {
        let mut bytes = [self.pdu_type, self.flags, self.hlen, self.pdo, 0, 0, 0, 0];
        put(&mut bytes, 4, self.plen);
        bytes
    }

    /// Reads and checks a header that `from` sent on a connection with `digests`.
    ///
    /// # Errors
    /// Invalid PDU Header Field for a type that does not exist or that `from` does not send, a
    /// header length that is not the type's, digest flags that contradict the connection's, and a
    /// length or data offset that does not fit the rest.
    #[inline]
    pub fn parse(bytes: &[u8; 8], from: Sender, digests: Digests) -> Result<Self, PduError> {
        let header = Self::from_bytes(bytes);
        let (sender, hlen) = match header.pdu_type {
            pdu_type::IC_REQ => (Sender::Host, 128),
            pdu_type::IC_RESP => (Sender::Controller, 128),
            pdu_type::H2C_TERM_REQ => (Sender::Host, 24),
            pdu_type::C2H_TERM_REQ => (Sender::Controller, 24),
            pdu_type::CAPSULE_CMD => (Sender::Host, 72),
            pdu_type::CAPSULE_RESP => (Sender::Controller, 24),
            pdu_type::H2C_DATA => (Sender::Host, 24),
            pdu_type::C2H_DATA => (Sender::Controller, 24),
            pdu_type::R2T => (Sender::Controller, 24),
            _ => return Err(PduError::invalid_field(TYPE_AT, "unknown PDU type")),
        };
        if sender != from {
            return Err(PduError::invalid_field(TYPE_AT, "PDU type is for the other direction"));
        }
        if header.hlen != hlen {
            return Err(PduError::invalid_field(
                HLEN_AT,
                "header length does not match the PDU type",
            ));
        }
        header.check_lengths(digests)?;
        Ok(header)
    }

    /// Whether PDUs of this type carry digests once these are negotiated (NVMe/TCP 1.0 §3.6.2.1).
    pub(super) fn has_digests(self) -> bool {
        self.pdu_type >= pdu_type::CAPSULE_CMD
    }

    fn check_lengths(self, digests: Digests) -> Result<(), PduError> {
        let bare = u32::from(self.hlen);
        if !self.has_digests() {
            let most = match self.pdu_type {
                pdu_type::IC_REQ | pdu_type::IC_RESP => bare,
                _ => bare + TERM_HEADER_MAX_BYTES,
            };
            return self.check_plen(bare..=most);
        }
        if (self.flags & flags::HDGST != 0) != digests.header {
            return Err(PduError::invalid_field(
                FLAGS_AT,
                "header digest flag is not as negotiated",
            ));
        }
        let bare = bare + digests.header_bytes() as u32;
        match self.pdu_type {
            pdu_type::CAPSULE_RESP | pdu_type::R2T => return self.check_plen(bare..=bare),
            pdu_type::CAPSULE_CMD if self.plen == bare => return Ok(()),
            _ => {}
        }
        if (self.flags & flags::DDGST != 0) != digests.data {
            return Err(PduError::invalid_field(FLAGS_AT, "data digest flag is not as negotiated"));
        }
        if u32::from(self.pdo) < bare || !self.pdo.is_multiple_of(4) {
            return Err(PduError::invalid_field(
                PDO_AT,
                "data offset is in the header or unaligned",
            ));
        }
        self.check_plen(u32::from(self.pdo) + digests.data_bytes() as u32 + 1..=u32::MAX)
    }

    fn check_plen(self, allowed: std::ops::RangeInclusive<u32>) -> Result<(), PduError> {
        if allowed.contains(&self.plen) {
            return Ok(());
        }
        Err(PduError::invalid_field(PLEN_AT, "PDU length does not match the PDU type"))
    }

    /// Length of the data of a PDU whose header was checked, in bytes.
    pub(super) fn data_bytes(self, digests: Digests) -> u32 {
        if self.plen == u32::from(self.hlen) + digests.header_bytes() as u32 {
            return 0;
        }
        self.plen - u32::from(self.pdo) - digests.data_bytes() as u32
    }
}
