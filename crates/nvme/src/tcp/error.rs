//! Errors that end a connection, and the PDU that reports them (NVMe/TCP 1.0 §3.6.2.4, §3.6.2.5).

use super::common::TERM_HEADER_MAX_BYTES;
use super::{CommonHeader, Sender, pdu_type, push_header};
use crate::bytes::{get, put};
use std::fmt;
use thiserror::Error;

/// Fatal Error Status (NVMe/TCP 1.0 §3.6.2.4, §3.6.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fes {
    /// 01h: Invalid PDU Header Field; FEI is the byte offset of the field.
    InvalidHeaderField,
    /// 02h: PDU Sequence Error.
    PduSequenceError,
    /// 03h: Header Digest Error; FEI is the digest received.
    HeaderDigestError,
    /// 04h: Data Transfer Out of Range.
    DataTransferOutOfRange,
    /// 05h: R2T Limit Exceeded (from a host), Data Transfer Limit Exceeded (from a controller).
    LimitExceeded,
    /// 06h: Unsupported Parameter; FEI is the byte offset of the field.
    UnsupportedParameter,
    /// Any other value.
    Other(u16),
}

impl Fes {
    /// From the FES field.
    #[must_use]
    pub const fn from_code(code: u16) -> Self {
        match code {
            1 => Self::InvalidHeaderField,
            2 => Self::PduSequenceError,
            3 => Self::HeaderDigestError,
            4 => Self::DataTransferOutOfRange,
            5 => Self::LimitExceeded,
            6 => Self::UnsupportedParameter,
            other => Self::Other(other),
        }
    }

    /// The FES field.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::InvalidHeaderField => 1,
            Self::PduSequenceError => 2,
            Self::HeaderDigestError => 3,
            Self::DataTransferOutOfRange => 4,
            Self::LimitExceeded => 5,
            Self::UnsupportedParameter => 6,
            Self::Other(code) => code,
        }
    }
}

impl fmt::Display for Fes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::InvalidHeaderField => "Invalid PDU Header Field",
            Self::PduSequenceError => "PDU Sequence Error",
            Self::HeaderDigestError => "Header Digest Error",
            Self::DataTransferOutOfRange => "Data Transfer Out of Range",
            Self::LimitExceeded => "Data Transfer or R2T Limit Exceeded",
            Self::UnsupportedParameter => "Unsupported Parameter",
            Self::Other(code) => return write!(f, "fatal error status {code:04X}h"),
        };
        f.write_str(name)
    }
}

/// A PDU that ends the connection: what the peer did wrong, as a TermReq reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{fes}: {reason} (information {fei:#x})")]
pub struct PduError {
    /// Fatal error status.
    pub fes: Fes,
    /// Fatal error information, as the status defines it.
    pub fei: u32,
    /// What is wrong, in words.
    pub reason: &'static str,
}

impl PduError {
    /// An error of `fes` with information `fei`.
    #[must_use]
    pub const fn new(fes: Fes, fei: u32, reason: &'static str) -> Self {
        Self { fes, fei, reason }
    }

    /// Invalid PDU Header Field: the field `at` bytes into the header.
    #[must_use]
    pub const fn invalid_field(at: u32, reason: &'static str) -> Self {
        Self::new(Fes::InvalidHeaderField, at, reason)
    }

    /// PDU Sequence Error.
    #[must_use]
    pub const fn sequence(reason: &'static str) -> Self {
        Self::new(Fes::PduSequenceError, 0, reason)
    }
}

/// Terminate Connection Request of either side (NVMe/TCP 1.0 §3.6.2.4, §3.6.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermReq<'a> {
    /// Whether the host sends it (H2CTermReq) or the controller (C2HTermReq).
    pub from_host: bool,
    /// FES: fatal error status (bytes 9:8).
    pub fes: Fes,
    /// FEI: fatal error information (bytes 13:10).
    pub fei: u32,
    /// The header of the PDU at fault, at most 128 bytes (bytes 24 on).
    pub header: &'a [u8],
}

impl<'a> TermReq<'a> {
    /// Size without the copied header, in bytes.
    pub const HEADER_BYTES: usize = 24;

    /// The report by `from` of `error` in a PDU that starts at `pdu`; only its header is copied.
    #[must_use]
    pub fn for_error(error: &PduError, from: Sender, pdu: &'a [u8]) -> Self {
        let hlen = pdu.get(2).copied().map_or(0, usize::from);
        let length = hlen.min(pdu.len()).min(TERM_HEADER_MAX_BYTES as usize);
        let from_host = from == Sender::Host;
        Self { from_host, fes: error.fes, fei: error.fei, header: &pdu[..length] }
    }

    /// Reads a whole PDU whose common header was checked.
    pub(super) fn parse(pdu: &'a [u8]) -> Self {
        Self {
            from_host: get::<u8>(pdu, 0) == pdu_type::H2C_TERM_REQ,
            fes: Fes::from_code(get(pdu, 8)),
            fei: get(pdu, 10),
            header: pdu.get(Self::HEADER_BYTES..).unwrap_or(&[]),
        }
    }

    /// Appends the PDU to `out`; of `header` the first 128 bytes.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let copied = &self.header[..self.header.len().min(TERM_HEADER_MAX_BYTES as usize)];
        let mut header = [0; Self::HEADER_BYTES];
        put(&mut header, 8, self.fes.code());
        put(&mut header, 10, self.fei);
        let common = CommonHeader {
            pdu_type: if self.from_host { pdu_type::H2C_TERM_REQ } else { pdu_type::C2H_TERM_REQ },
            hlen: Self::HEADER_BYTES as u8,
            plen: (Self::HEADER_BYTES + copied.len()) as u32,
            ..CommonHeader::default()
        };
        push_header(out, header, common, false);
        out.extend_from_slice(copied);
    }
}
