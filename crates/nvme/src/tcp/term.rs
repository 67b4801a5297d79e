//! The PDU that reports an error (NVMe/TCP 1.0 §3.6.2.4, §3.6.2.5).

use super::common::{CommonHeader, Sender, TERM_HEADER_MAX_BYTES};
use super::error::{Fes, PduError};
use super::header::push_header;
use super::types::pdu_type;
use crate::bytes::{get, put};

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

    /// Appends the PDU to `out`, with at most the first 128 bytes of `header`.
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
