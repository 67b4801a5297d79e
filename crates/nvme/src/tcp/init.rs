//! The two PDUs that open a connection (NVMe/TCP 1.0 §3.6.2.2, §3.6.2.3).

use super::common::CommonHeader;
use super::digest::Digests;
use super::error::{Fes, PduError};
use super::header::push_header;
use super::types::{PDA_MAX, pdu_type};
use crate::bytes::{get, put};

/// PDU format version of NVMe/TCP 1.0 (NVMe/TCP 1.0 §3.6.2.2).
pub const PFV_1_0: u16 = 0;
/// Smallest MAXH2CDATA in bytes (NVMe/TCP 1.0 §3.6.2.3).
pub const MAXH2CDATA_MIN_BYTES: u32 = 4096;

const PFV_AT: u32 = 8;
const PDA_AT: u32 = 10;

/// Initialize Connection Request (NVMe/TCP 1.0 §3.6.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IcReq {
    /// PFV: PDU format version (bytes 9:8).
    pub pfv: u16,
    /// HPDA: alignment of data the host receives, in dwords, 0's based (byte 10).
    pub hpda: u8,
    /// DGST: the digests the host wants (byte 11).
    pub digests: Digests,
    /// MAXR2T: outstanding R2Ts per command, as sent: limit − 1 (bytes 15:12).
    pub maxr2t: u32,
}

/// Initialize Connection Response (NVMe/TCP 1.0 §3.6.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IcResp {
    /// PFV: PDU format version (bytes 9:8).
    pub pfv: u16,
    /// CPDA: alignment of data the controller receives, in dwords, 0's based (byte 10).
    pub cpda: u8,
    /// DGST: the digests in use (byte 11).
    pub digests: Digests,
    /// MAXH2CDATA: most data of one H2CData PDU, in bytes (bytes 15:12).
    pub maxh2cdata_bytes: u32,
}

/// Size of both PDUs in bytes.
const INIT_BYTES: usize = 128;

fn check(pfv: u16, pda: u8) -> Result<(), PduError> {
    if pfv != PFV_1_0 {
        let reason = "PDU format version is not that of NVMe/TCP 1.0";
        return Err(PduError::new(Fes::UnsupportedParameter, PFV_AT, reason));
    }
    if pda > PDA_MAX {
        return Err(PduError::invalid_field(PDA_AT, "data alignment is above 128 bytes"));
    }
    Ok(())
}

fn encode(out: &mut Vec<u8>, kind: u8, pfv: u16, pda: u8, digests: Digests, last: u32) {
    let mut header = [0; INIT_BYTES];
    put(&mut header, 8, pfv);
    put(&mut header, 10, pda);
    put(&mut header, 11, digests.bits());
    put(&mut header, 12, last);
    let common = CommonHeader {
        pdu_type: kind,
        hlen: INIT_BYTES as u8,
        plen: INIT_BYTES as u32,
        ..CommonHeader::default()
    };
    push_header(out, header, common, false);
}

impl IcReq {
    /// Size on the wire, in bytes.
    pub const BYTES: usize = INIT_BYTES;

    /// Reads a PDU whose common header was checked.
    ///
    /// # Errors
    /// Unsupported Parameter for another format version; Invalid PDU Header Field for an alignment
    /// above 128 bytes.
    pub fn parse(header: &[u8; 128]) -> Result<Self, PduError> {
        let (pfv, hpda) = (get(header, 8), get(header, 10));
        check(pfv, hpda)?;
        let digests = Digests::from_bits(get(header, 11));
        Ok(Self { pfv, hpda, digests, maxr2t: get(header, 12) })
    }

    /// Appends the PDU to `out`.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        encode(out, pdu_type::IC_REQ, self.pfv, self.hpda, self.digests, self.maxr2t);
    }
}

impl IcResp {
    /// Size on the wire, in bytes.
    pub const BYTES: usize = INIT_BYTES;

    /// Reads a PDU whose common header was checked.
    ///
    /// # Errors
    /// Unsupported Parameter for another format version; Invalid PDU Header Field for an alignment
    /// above 128 bytes or a MAXH2CDATA below 4096 or not a multiple of 4.
    pub fn parse(header: &[u8; 128]) -> Result<Self, PduError> {
        let (pfv, cpda) = (get(header, 8), get(header, 10));
        check(pfv, cpda)?;
        let maxh2cdata_bytes: u32 = get(header, 12);
        if maxh2cdata_bytes < MAXH2CDATA_MIN_BYTES || !maxh2cdata_bytes.is_multiple_of(4) {
            return Err(PduError::invalid_field(12, "MAXH2CDATA is below 4096 or not in dwords"));
        }
        let digests = Digests::from_bits(get(header, 11));
        Ok(Self { pfv, cpda, digests, maxh2cdata_bytes })
    }

    /// Appends the PDU to `out`.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        encode(out, pdu_type::IC_RESP, self.pfv, self.cpda, self.digests, self.maxh2cdata_bytes);
    }
}
