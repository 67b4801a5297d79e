//! The receiving half of a connection, without the connection: bytes in, events out.

use super::capsule::{CapsuleCmd, CapsuleResp};
use super::common::PLEN_AT;
use super::common::{CommonHeader, Sender};
use super::data::{C2hData, H2cData, R2t};
use super::digest::{DIGEST_BYTES, Digests, data_digest, header_digest_ok};
use super::error::{Fes, PduError};
use super::init::{IcReq, IcResp};
use super::term::TermReq;
use super::types::pdu_type;
use crate::Sqe;
use crate::bytes::get;

/// A whole PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu<'a> {
    /// The host opens the connection.
    IcReq(IcReq),
    /// The controller accepts it.
    IcResp(IcResp),
    /// The peer ends the connection.
    TermReq(TermReq<'a>),
    /// A command.
    CapsuleCmd {
        /// The command.
        sqe: Sqe,
        /// Its in-capsule data, empty if none.
        data: &'a [u8],
        /// Whether the data's digest is right; true without a digest.
        digest_ok: bool,
    },
    /// A completion.
    CapsuleResp(CapsuleResp),
    /// The controller asks for data.
    R2t(R2t),
}

/// The header of a PDU whose data is handed out in fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPdu {
    /// From the host.
    H2c(H2cData),
    /// From the controller.
    C2h(C2hData),
}

impl DataPdu {
    /// DATAO and DATAL, in bytes.
    const fn range(&self) -> (u32, u32) {
        match self {
            Self::H2c(pdu) => (pdu.data_offset_bytes, pdu.data_length_bytes),
            Self::C2h(pdu) => (pdu.data_offset_bytes, pdu.data_length_bytes),
        }
    }
}

/// An event of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PduEvent<'a> {
    /// A whole PDU.
    Header(Pdu<'a>),
    /// A piece of the data of an H2CData or C2HData PDU.
    Data {
        /// The PDU's header, the same for each of its pieces.
        pdu: DataPdu,
        /// Where the piece belongs in the command's data, in bytes.
        offset_bytes: u32,
        /// The piece. Empty only if the whole data was handed out before its digest arrived.
        bytes: &'a [u8],
        /// Whether the PDU ends here.
        last_fragment: bool,
        /// On the last fragment: whether the data's digest is right; true without a digest.
        digest_ok: bool,
    },
}

/// Payload of a PDU that has not arrived completely.
#[derive(Clone, Copy, Debug)]
struct Payload {
    pdu: DataPdu,
    /// Where the next piece belongs in the command's data.
    offset_bytes: u32,
    remaining_bytes: u32,
    crc: u32,
}

/// Turns a stream of bytes into [`PduEvent`]s. It copies nothing and allocates nothing.
///
/// The caller keeps the unconsumed bytes in one contiguous buffer that holds at least
/// [`PduReceiver::buffer_min_bytes`], calls [`next`](Self::next) until it returns `None`, drops the
/// consumed bytes, and appends the next bytes from the connection. After ICReq or ICResp it calls
/// [`set_digests`](Self::set_digests). An error ends the connection: the remaining bytes have no
/// meaning, and the receiver returns the same error again.
#[derive(Debug)]
pub struct PduReceiver {
    from: Sender,
    digests: Digests,
    capsule_max_bytes: u32,
    /// Whether ICReq or ICResp has arrived.
    initialized: bool,
    payload: Option<Payload>,
}

type Next<'a> = Result<Option<(usize, PduEvent<'a>)>, PduError>;

impl PduReceiver {
    /// A controller's receiver. `capsule_max_bytes` limits a whole command capsule: header,
    /// digests, padding and in-capsule data.
    #[must_use]
    pub const fn for_target(capsule_max_bytes: u32) -> Self {
        Self::new(Sender::Host, capsule_max_bytes)
    }

    /// A host's receiver.
    #[must_use]
    pub const fn for_host() -> Self {
        Self::new(Sender::Controller, 0)
    }

    const fn new(from: Sender, capsule_max_bytes: u32) -> Self {
        let digests = Digests { header: false, data: false };
        Self { from, digests, capsule_max_bytes, initialized: false, payload: None }
    }

    /// Whether a PDU has begun whose data has not arrived completely.
    #[must_use]
    pub const fn is_within_data(&self) -> bool {
        self.payload.is_some()
    }

    /// Smallest buffer, in bytes, that is large enough for any PDU.
    #[must_use]
    pub fn buffer_min_bytes(&self) -> usize {
        // 256: the largest data offset, and one byte of data; TermReq is shorter.
        (self.capsule_max_bytes as usize).max(256)
    }

    /// Sets the digests of all PDUs after ICReq and ICResp.
    pub const fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    /// The next event of `input`, and the number of bytes it consumed; `None` if more bytes are
    /// needed first.
    ///
    /// # Errors
    /// A PDU that ends the connection: a header that [`CommonHeader::parse`] refuses, a wrong
    /// header digest, a capsule above the limit, ICReq or ICResp missing or repeated, or fields
    /// that contradict each other.
    #[inline]
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Next<'a> {
        if let Some(payload) = self.payload {
            return Ok(self.data(payload, input, 0));
        }
        let Some(start) = input.first_chunk::<{ CommonHeader::BYTES }>() else {
            return Ok(None);
        };
        let header = CommonHeader::parse(start, self.from, self.digests)?;
        let opens = header.pdu_type <= pdu_type::IC_RESP;
        let in_sequence = if opens { !self.initialized } else { self.initialized };
        if !in_sequence && (opens || header.has_digests()) {
            return Err(PduError::sequence("ICReq and ICResp must come first and only once"));
        }
        match header.pdu_type {
            pdu_type::CAPSULE_CMD => self.capsule_cmd(header, input),
            pdu_type::H2C_DATA | pdu_type::C2H_DATA => self.data_header(header, input),
            _ => self.whole(header, input),
        }
    }

    /// A command capsule: handed out once it has arrived completely.
    #[inline]
    fn capsule_cmd<'a>(&self, header: CommonHeader, input: &'a [u8]) -> Next<'a> {
        if header.plen > self.capsule_max_bytes {
            let reason = "capsule is longer than IOCCSZ allows";
            return Err(PduError::invalid_field(PLEN_AT, reason));
        }
        let Some(pdu) = input.get(..header.plen as usize) else { return Ok(None) };
        self.check_header_digest(header, pdu)?;
        let data_bytes = header.data_bytes(self.digests) as usize;
        let (mut data, mut digest_ok): (&[u8], bool) = (&[], true);
        if data_bytes != 0 {
            let at = usize::from(header.pdo);
            data = pdu.get(at..at + data_bytes).unwrap_or(&[]);
            digest_ok = !self.digests.data
                || data_digest(data) == get::<[u8; DIGEST_BYTES]>(pdu, at + data_bytes);
        }
        let sqe = Sqe::from_bytes(&get(pdu, CapsuleCmd::HEADER_BYTES - Sqe::BYTES));
        Ok(Some((pdu.len(), PduEvent::Header(Pdu::CapsuleCmd { sqe, data, digest_ok }))))
    }

    /// The start of a data PDU: its header is handed out with the first piece of its data.
    #[inline]
    fn data_header<'a>(&mut self, header: CommonHeader, input: &'a [u8]) -> Next<'a> {
        let data_at = usize::from(header.pdo);
        if input.len() <= data_at {
            return Ok(None);
        }
        self.check_header_digest(header, input)?;
        let fields = get(input, 0);
        let pdu = match header.pdu_type {
            pdu_type::H2C_DATA => DataPdu::H2c(H2cData::parse(&fields, self.digests)?),
            _ => DataPdu::C2h(C2hData::parse(&fields, self.digests)?),
        };
        let (offset_bytes, remaining_bytes) = pdu.range();
        let payload = Payload { pdu, offset_bytes, remaining_bytes, crc: 0 };
        Ok(self.data(payload, input, data_at))
    }

    /// The next piece of a data PDU, which starts `at` bytes into `input`.
    #[inline]
    fn data<'a>(
        &mut self,
        mut payload: Payload,
        input: &'a [u8],
        at: usize,
    ) -> Option<(usize, PduEvent<'a>)> {
        let rest = input.get(at..)?;
        let length = rest.len().min(payload.remaining_bytes as usize);
        let (bytes, behind) = rest.split_at(length);
        let offset_bytes = payload.offset_bytes;
        payload.offset_bytes += length as u32;
        payload.remaining_bytes -= length as u32;
        if self.digests.data {
            payload.crc = ::crc32c::crc32c_append(payload.crc, bytes);
        }
        let digest = behind.first_chunk::<DIGEST_BYTES>();
        let ends = payload.remaining_bytes == 0 && (!self.digests.data || digest.is_some());
        if bytes.is_empty() && !ends {
            return None;
        }
        let mut consumed = at + length;
        let mut digest_ok = true;
        if ends && self.digests.data {
            consumed += DIGEST_BYTES;
            digest_ok = digest == Some(&payload.crc.to_le_bytes());
        }
        self.payload = (!ends).then_some(payload);
        let pdu = payload.pdu;
        let event = PduEvent::Data { pdu, offset_bytes, bytes, last_fragment: ends, digest_ok };
        Some((consumed, event))
    }

    /// A PDU that is short and handed out as a whole.
    fn whole<'a>(&mut self, header: CommonHeader, input: &'a [u8]) -> Next<'a> {
        let Some(pdu) = input.get(..header.plen as usize) else { return Ok(None) };
        if header.has_digests() {
            self.check_header_digest(header, pdu)?;
        }
        let parsed = match header.pdu_type {
            pdu_type::IC_REQ => Pdu::IcReq(IcReq::parse(&get(pdu, 0))?),
            pdu_type::IC_RESP => Pdu::IcResp(IcResp::parse(&get(pdu, 0))?),
            pdu_type::CAPSULE_RESP => Pdu::CapsuleResp(CapsuleResp::parse(&get(pdu, 0))),
            pdu_type::R2T => Pdu::R2t(R2t::parse(&get(pdu, 0))?),
            _ => Pdu::TermReq(TermReq::parse(pdu)),
        };
        self.initialized |= header.pdu_type <= pdu_type::IC_RESP;
        Ok(Some((pdu.len(), PduEvent::Header(parsed))))
    }

    #[inline]
    fn check_header_digest(&self, header: CommonHeader, pdu: &[u8]) -> Result<(), PduError> {
        if !self.digests.header {
            return Ok(());
        }
        let hlen = usize::from(header.hlen);
        let covered = pdu.get(..hlen + DIGEST_BYTES).unwrap_or(&[]);
        if header_digest_ok(covered) {
            return Ok(());
        }
        let received = get(pdu, hlen);
        Err(PduError::new(Fes::HeaderDigestError, received, "header digest is wrong"))
    }
}
