//! Data transfers and the request for them (NVMe/TCP 1.0 §3.6.2.8 to §3.6.2.10).

use super::common::CommonHeader;
use super::digest::Digests;
use super::error::{Fes, PduError};
use super::header::{data_offset, push_header};
use super::types::{flags, pdu_type};
use crate::bytes::{get, put};

/// Size of these headers in bytes.
const HEADER_BYTES: usize = 24;
/// Offset of DATAO and R2TO in the header.
const OFFSET_AT: u32 = 12;
/// Offset of DATAL and R2TL in the header.
const LENGTH_AT: u32 = 16;

/// Host to Controller Data Transfer (NVMe/TCP 1.0 §3.6.2.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct H2cData {
    /// CCCID: the command (bytes 9:8).
    pub cccid: u16,
    /// TTAG: tag of the R2T that is answered (bytes 11:10).
    pub ttag: u16,
    /// DATAO: offset in the command's data (bytes 15:12).
    pub data_offset_bytes: u32,
    /// DATAL: length of this PDU's data (bytes 19:16).
    pub data_length_bytes: u32,
    /// LAST_PDU: the last of the R2T's transfer (flags bit 2).
    pub last: bool,
}

/// Controller to Host Data Transfer (NVMe/TCP 1.0 §3.6.2.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct C2hData {
    /// CCCID: the command (bytes 9:8).
    pub cccid: u16,
    /// DATAO: offset in the command's data (bytes 15:12).
    pub data_offset_bytes: u32,
    /// DATAL: length of this PDU's data (bytes 19:16).
    pub data_length_bytes: u32,
    /// LAST_PDU: the last of the command's transfer (flags bit 2).
    pub last: bool,
    /// SUCCESS: the command succeeded, no response capsule follows (flags bit 3).
    pub success: bool,
}

/// Ready to Transfer (NVMe/TCP 1.0 §3.6.2.10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct R2t {
    /// CCCID: the command (bytes 9:8).
    pub cccid: u16,
    /// TTAG: tag that the H2CData must repeat (bytes 11:10).
    pub ttag: u16,
    /// R2TO: offset in the command's data (bytes 15:12).
    pub offset_bytes: u32,
    /// R2TL: length asked for (bytes 19:16).
    pub length_bytes: u32,
}

/// Reads offset and length, which both data PDUs and R2T have at the same place; their sum must fit
/// 32 bits, and the length must not be 0.
fn range(header: &[u8; HEADER_BYTES]) -> Result<(u32, u32), PduError> {
    let (offset, length): (u32, u32) = (get(header, 12), get(header, 16));
    if length == 0 {
        return Err(PduError::invalid_field(LENGTH_AT, "data length is 0"));
    }
    if offset.checked_add(length).is_none() {
        let reason = "offset and length exceed 32 bits";
        return Err(PduError::new(Fes::DataTransferOutOfRange, OFFSET_AT, reason));
    }
    Ok((offset, length))
}

/// Reads the range of a data PDU; its length must equal the length of the PDU's data.
fn data_range(header: &[u8; HEADER_BYTES], digests: Digests) -> Result<(u32, u32), PduError> {
    let common = CommonHeader::from_bytes(&get(header, 0));
    let (offset, length) = range(header)?;
    if common.data_bytes(digests) != length {
        return Err(PduError::invalid_field(
            LENGTH_AT,
            "data length does not match the PDU length",
        ));
    }
    Ok((offset, length))
}

/// Appends the header of a data PDU up to where its data starts.
#[inline]
fn push_data_header(
    out: &mut Vec<u8>,
    header: [u8; HEADER_BYTES],
    (kind, extra_flags): (u8, u8),
    data_bytes: u32,
    digests: Digests,
    pda: u8,
) {
    let pdo = data_offset(HEADER_BYTES, digests, pda);
    let common = CommonHeader {
        pdu_type: kind,
        flags: extra_flags | digests.flags(true),
        hlen: HEADER_BYTES as u8,
        pdo,
        plen: u32::from(pdo) + data_bytes + digests.data_bytes() as u32,
    };
    push_header(out, header, common, digests.header);
}

impl H2cData {
    /// Size of the header, in bytes.
    pub const HEADER_BYTES: usize = HEADER_BYTES;

    /// Reads a header whose common part was checked.
    ///
    /// # Errors
    /// Invalid PDU Header Field for a data length that is 0 or not the PDU's; Data Transfer Out of
    /// Range for a range that exceeds 32 bits.
    pub fn parse(header: &[u8; 24], digests: Digests) -> Result<Self, PduError> {
        let (data_offset_bytes, data_length_bytes) = data_range(header, digests)?;
        Ok(Self {
            cccid: get(header, 8),
            ttag: get(header, 10),
            data_offset_bytes,
            data_length_bytes,
            last: get::<u8>(header, 1) & flags::LAST != 0,
        })
    }

    /// Appends the header, and padding for the controller's `cpda`. The caller appends
    /// `data_length_bytes` of data and, with data digests, their digest.
    #[inline]
    pub fn encode_header_into(&self, out: &mut Vec<u8>, digests: Digests, cpda: u8) {
        let mut header = [0; HEADER_BYTES];
        put(&mut header, 8, self.cccid);
        put(&mut header, 10, self.ttag);
        put(&mut header, 12, self.data_offset_bytes);
        put(&mut header, 16, self.data_length_bytes);
        let kind = (pdu_type::H2C_DATA, u8::from(self.last) * flags::LAST);
        push_data_header(out, header, kind, self.data_length_bytes, digests, cpda);
    }
}

impl C2hData {
    /// Size of the header, in bytes.
    pub const HEADER_BYTES: usize = HEADER_BYTES;

    /// Reads a header whose common part was checked.
    ///
    /// # Errors
    /// Invalid PDU Header Field for a data length that is 0 or not the PDU's, or SUCCESS without
    /// LAST_PDU; Data Transfer Out of Range for a range that exceeds 32 bits.
    pub fn parse(header: &[u8; 24], digests: Digests) -> Result<Self, PduError> {
        let (data_offset_bytes, data_length_bytes) = data_range(header, digests)?;
        let bits: u8 = get(header, 1);
        let (last, success) = (bits & flags::LAST != 0, bits & flags::SUCCESS != 0);
        if success && !last {
            return Err(PduError::invalid_field(1, "SUCCESS flag without LAST_PDU"));
        }
        let cccid = get(header, 8);
        Ok(Self { cccid, data_offset_bytes, data_length_bytes, last, success })
    }

    /// Appends the header, and padding for the host's `hpda`. The caller appends
    /// `data_length_bytes` of data and, with data digests, their digest.
    #[inline]
    pub fn encode_header_into(&self, out: &mut Vec<u8>, digests: Digests, hpda: u8) {
        let mut header = [0; HEADER_BYTES];
        put(&mut header, 8, self.cccid);
        put(&mut header, 12, self.data_offset_bytes);
        put(&mut header, 16, self.data_length_bytes);
        let (last, success) = (u8::from(self.last), u8::from(self.success));
        let bits = (last * flags::LAST) | (success * flags::SUCCESS);
        let kind = (pdu_type::C2H_DATA, bits);
        push_data_header(out, header, kind, self.data_length_bytes, digests, hpda);
    }
}

impl R2t {
    /// Size of the header, in bytes.
    pub const HEADER_BYTES: usize = HEADER_BYTES;

    /// Reads a PDU whose common header was checked.
    ///
    /// # Errors
    /// Invalid PDU Header Field for a length of 0; Data Transfer Out of Range for a range that
    /// exceeds 32 bits.
    pub fn parse(header: &[u8; 24]) -> Result<Self, PduError> {
        let (offset_bytes, length_bytes) = range(header)?;
        Ok(Self { cccid: get(header, 8), ttag: get(header, 10), offset_bytes, length_bytes })
    }

    /// Appends the PDU to `out`.
    pub fn encode_into(&self, out: &mut Vec<u8>, digests: Digests) {
        let mut header = [0; HEADER_BYTES];
        put(&mut header, 8, self.cccid);
        put(&mut header, 10, self.ttag);
        put(&mut header, 12, self.offset_bytes);
        put(&mut header, 16, self.length_bytes);
        let common = CommonHeader {
            pdu_type: pdu_type::R2T,
            flags: digests.flags(false),
            hlen: HEADER_BYTES as u8,
            pdo: 0,
            plen: (HEADER_BYTES + digests.header_bytes()) as u32,
        };
        push_header(out, header, common, digests.header);
    }
}
