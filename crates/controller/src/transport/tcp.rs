//! NVMe/TCP: parses PDUs from a byte stream, and encodes PDUs into one (NVMe/TCP 1.0).

use super::arrival::{Arrival, Fetched, Input, Payload, Violation};
use super::secure::Secure;
use crate::access::{Identity, Rules};
use crate::limits::{
    IDLE_TX_BYTES, IN_CAPSULE_BYTES, MAX_H2C_DATA_BYTES, RX_BYTES, SECURED_RX_BYTES, SMALL_RX_BYTES,
};
use crate::queue::Fetch;
use bpfof_device::{IoBuffer, Outgoing};
use bpfof_nvme::Cqe;
use bpfof_nvme::fabrics::SQHD_NO_FLOW_CONTROL;
use bpfof_nvme::tcp::{
    C2hData, CapsuleResp, DataPdu, Digests, Fes, H2cData, IcReq, IcResp, Pdu, PduError, PduEvent,
    PduReceiver, R2t, Sender, TermReq, data_digest,
};
use std::ops::Range;

/// Data of a command that is arriving by H2CData.
#[derive(Debug)]
struct Arriving {
    cid: u16,
    buffer: IoBuffer,
    received: u32,
    intact: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct TcpPort {
    receiver: PduReceiver,
    digests: Digests,
    /// Alignment of data that the host wants, in units of 4 bytes less 1 (§3.6.2.2, HPDA).
    hpda: u8,
    /// None while the socket receives into it, or while it is being processed.
    rx: Option<Vec<u8>>,
    rx_filled: usize,
    /// The plaintext part of that; behind it are records that are not opened yet, or a part of one.
    rx_plain: usize,
    /// None on a connection without TLS.
    secure: Option<Box<Secure>>,
    /// The send buffer.
    tx: Box<Outgoing>,
    /// The other send buffer; none while it is being sent.
    spare_tx: Option<Box<Outgoing>>,
    sending_bytes: usize,
    /// By transfer tag, which is the command's slot.
    arriving: Vec<Option<Arriving>>,
}

impl Default for TcpPort {
    fn default() -> TcpPort {
        TcpPort {
            // The longest capsule: header, header digest, padding, data, data digest.
            receiver: PduReceiver::for_target(72 + 4 + 128 + IN_CAPSULE_BYTES + 4),
            digests: Digests::default(),
            hpda: 0,
            rx: Some(vec![0; SMALL_RX_BYTES]),
            rx_filled: 0,
            rx_plain: 0,
            secure: None,
            tx: Box::default(),
            spare_tx: Some(Box::default()),
            sending_bytes: 0,
            arriving: Vec::new(),
        }
    }
}

impl TcpPort {
    /// A connection that TLS protects.
    pub(crate) fn secured(secure: Secure) -> TcpPort {
        TcpPort {
            rx: Some(vec![0; SECURED_RX_BYTES]),
            secure: Some(Box::new(secure)),
            ..TcpPort::default()
        }
    }

    /// Bytes of memory that TLS takes: a record must fit its receive buffer.
    pub(super) fn own_bytes(&self) -> usize {
        let secured = self.secure.as_ref();
        secured.map_or(0, |_| SECURED_RX_BYTES - SMALL_RX_BYTES + size_of::<Secure>())
    }

    pub(super) fn identity(&self) -> Option<&Identity> {
        self.secure.as_ref().map(|secure| &secure.identity)
    }

    pub(super) fn is_key_valid(&self, rules: &Rules) -> bool {
        self.secure.as_ref().is_none_or(|secure| secure.is_key_valid(rules))
    }

    pub(super) fn connected(&mut self) {
        if let Some(secure) = &mut self.secure {
            secure.connected();
        }
    }

    #[inline]
    pub(super) fn take_spent(&mut self) -> u64 {
        self.secure.as_mut().map_or(0, |secure| secure.take_spent())
    }

    /// Whether there may be more whole records to open.
    #[inline]
    pub(super) fn has_unopened(&self) -> bool {
        self.secure.as_ref().is_some_and(|secure| secure.has_more)
    }

    /// Whether a part of a record has arrived.
    pub(super) fn has_part_of_record(&self) -> bool {
        self.rx_filled > self.rx_plain
    }
}

/// The port's interface for a queue pair.
impl TcpPort {
    #[inline]
    pub(super) fn take_input(&mut self) -> Option<Input> {
        let mut buffer = self.rx.take()?;
        self.rx_plain = match &mut self.secure {
            None => self.rx_filled,
            Some(secure) => {
                let (plain, filled) = secure.open(&mut buffer, (self.rx_plain, self.rx_filled));
                self.rx_filled = filled;
                plain
            }
        };
        Some(Input::Stream { buffer, filled: self.rx_plain })
    }

    #[inline]
    pub(super) fn put_back(&mut self, mut buffer: Vec<u8>, left: Range<usize>) {
        // Including the sealed bytes behind the plaintext.
        buffer.copy_within(left.start..self.rx_filled, 0);
        self.rx_filled -= left.start;
        self.rx_plain = left.len();
        self.rx = Some(buffer);
    }

    #[inline]
    pub(super) fn next<'a>(
        &mut self,
        input: &'a [u8],
    ) -> Result<Option<(usize, Arrival<'a>)>, Violation> {
        let error = match self.receiver.next(input) {
            Ok(None) => {
                return self.secure.as_ref().map_or(Ok(()), |secure| secure.check()).map(|()| None);
            }
            Ok(Some((length, PduEvent::Header(Pdu::CapsuleCmd { sqe, data, digest_ok })))) => {
                return Ok(Some((length, Arrival::Command { sqe, data, intact: digest_ok })));
            }
            Ok(Some((length, event))) => match self.event(event) {
                Ok(arrival) => return Ok(Some((length, arrival))),
                Err(error) => error,
            },
            Err(error) => error,
        };
        TermReq::for_error(&error, Sender::Controller, input).encode_into(self.tx.own());
        Err(Violation(error.to_string()))
    }

    /// Handles an event that is not a command.
    fn event(&mut self, event: PduEvent<'_>) -> Result<Arrival<'static>, PduError> {
        match event {
            PduEvent::Data {
                pdu: DataPdu::H2c(pdu),
                offset_bytes,
                bytes,
                last_fragment,
                digest_ok,
            } => {
                let fetched = self.data(&pdu, offset_bytes, bytes, (last_fragment, digest_ok))?;
                Ok(Arrival::Data { bytes: bytes.len(), fetched })
            }
            PduEvent::Header(Pdu::IcReq(request)) => {
                self.initialize(&request);
                Ok(Arrival::Nothing)
            }
            PduEvent::Header(Pdu::TermReq(request)) => {
                Ok(Arrival::Ended(format!("{} (information {:#x})", request.fes, request.fei)))
            }
            _ => Err(PduError::sequence("a PDU that only controllers send")),
        }
    }

    /// NVMe/TCP 1.0 §3.6.2.2: the host's digests are granted.
    fn initialize(&mut self, request: &IcReq) {
        self.digests = request.digests;
        self.hpda = request.hpda;
        IcResp { pfv: 0, cpda: 0, digests: request.digests, maxh2cdata_bytes: MAX_H2C_DATA_BYTES }
            .encode_into(self.tx.own());
        self.receiver.set_digests(self.digests);
    }

    /// A piece of a command's data (NVMe/TCP 1.0 §3.3.2).
    fn data(
        &mut self,
        pdu: &H2cData,
        offset: u32,
        bytes: &[u8],
        (last_fragment, digest_ok): (bool, bool),
    ) -> Result<Option<Fetched>, PduError> {
        let out_of_range = |reason| PduError::new(Fes::DataTransferOutOfRange, 0, reason);
        let slot = pdu.ttag;
        let arriving = self.arriving.get_mut(usize::from(slot)).and_then(Option::as_mut);
        let arriving = arriving.filter(|arriving| arriving.cid == pdu.cccid);
        let Some(Arriving { buffer, received, intact, .. }) = arriving else {
            return Err(PduError::invalid_field(8, "data that was not requested"));
        };
        if pdu.data_length_bytes > MAX_H2C_DATA_BYTES {
            return Err(PduError::new(Fes::LimitExceeded, 16, "H2CData above MAXH2CDATA"));
        }
        let length = buffer.len() as u32;
        if offset != *received || bytes.len() as u32 > length - *received {
            return Err(out_of_range("data out of order or beyond what was requested"));
        }
        buffer[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        *received += bytes.len() as u32;
        *intact &= digest_ok;
        if !last_fragment || *received < length {
            if last_fragment && pdu.last {
                return Err(out_of_range("the last H2CData ends before the data"));
            }
            return Ok(None);
        }
        let arriving = self.arriving[usize::from(slot)].take();
        Ok(arriving.map(|Arriving { buffer, intact, .. }| Fetched { slot, buffer, intact }))
    }

    /// Tells the peer that it breaks a rule of the queue with this PDU (NVMe/TCP 1.0 §3.6.2.5).
    pub(super) fn terminate(&mut self, reason: &'static str, pdu: &[u8]) {
        let error = PduError::new(Fes::LimitExceeded, 0, reason);
        TermReq::for_error(&error, Sender::Controller, pdu).encode_into(self.tx.own());
    }

    #[inline]
    pub(super) fn is_within_data(&self) -> bool {
        self.receiver.is_within_data()
    }

    /// Omits a completion that only reports success if the queue has no flow control: the data has the SUCCESS flag
    /// (NVMe/TCP 1.0 §3.3.3.2).
    #[inline]
    pub(super) fn respond(&mut self, cqe: Cqe, payload: Payload<'_>) -> Option<IoBuffer> {
        let length = payload.len();
        let mut copied = None;
        if length > 0 {
            let is_bare = cqe.status.is_success() && cqe.dw0 == 0 && cqe.dw1 == 0;
            let success = is_bare && cqe.sqhd == SQHD_NO_FLOW_CONTROL;
            C2hData {
                cccid: cqe.cid,
                data_offset_bytes: 0,
                data_length_bytes: length as u32,
                last: true,
                success,
            }
            .encode_header_into(self.tx.own(), self.digests, self.hpda);
            copied = self.add(payload, length);
            if success {
                return copied;
            }
        }
        CapsuleResp { cqe }.encode_into(self.tx.own(), self.digests);
        copied
    }

    /// Adds data, and its digest.
    #[inline]
    fn add(&mut self, payload: Payload<'_>, length: usize) -> Option<IoBuffer> {
        // Data may be sent in place at the end of this turn, before commands can overwrite it. With a digest it is
        // copied, because the bytes must not change after the digest is computed.
        let lends = !self.digests.data && self.sending_bytes == 0 && self.secure.is_none();
        let (start, before) = (self.tx.own().len(), self.tx.len());
        let mut copied = None;
        match payload {
            Payload::None => {}
            Payload::Bytes(bytes) => self.tx.own().extend_from_slice(bytes),
            Payload::Memory(memory, offset, length) => {
                self.tx.add_memory(memory, (offset, length), lends);
            }
            Payload::Buffer(buffer) => copied = self.tx.add_buffer(buffer, lends),
        }
        debug_assert_eq!(self.tx.len(), before + length);
        if self.digests.data {
            let own = self.tx.own();
            let digest = data_digest(&own[start..]);
            own.extend_from_slice(&digest);
        }
        copied
    }

    pub(super) fn fetch(&mut self, fetch: Fetch, buffer: IoBuffer) {
        let Fetch { slot, cid, length_bytes, .. } = fetch;
        let at = usize::from(slot);
        if self.arriving.len() <= at {
            self.arriving.resize_with(at + 1, || None);
        }
        self.arriving[at] = Some(Arriving { cid, buffer, received: 0, intact: true });
        R2t { cccid: cid, ttag: slot, offset_bytes: 0, length_bytes }
            .encode_into(self.tx.own(), self.digests);
    }

    #[inline]
    pub(super) fn unsent_bytes(&self) -> usize {
        self.tx.len()
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.tx.is_empty()
    }

    #[inline]
    pub(super) fn sending_bytes(&self) -> usize {
        self.sending_bytes
    }

    pub(super) fn stop_fetching(&mut self, give_back: impl FnMut(IoBuffer)) {
        let arriving = std::mem::take(&mut self.arriving);
        arriving.into_iter().flatten().map(|arriving| arriving.buffer).for_each(give_back);
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.rx.is_some() && self.spare_tx.is_some()
    }

    pub(super) fn grow(&mut self) {
        if let Some(rx) = &mut self.rx {
            rx.resize(RX_BYTES, 0);
        }
    }

    pub(super) fn shrink(&mut self) {
        if let Some(spare) = &mut self.spare_tx {
            spare.clear(IDLE_TX_BYTES, |_| ());
            self.tx.clear(IDLE_TX_BYTES, |_| ());
        }
    }
}

/// The port's interface for a socket.
impl TcpPort {
    /// The buffer to receive into, and how many of its first bytes are filled.
    pub(crate) fn receive_buffer(&mut self) -> Option<(Vec<u8>, usize)> {
        self.rx.take().map(|buffer| (buffer, self.rx_filled))
    }

    /// This many bytes have been received.
    pub(crate) fn received(&mut self, buffer: Vec<u8>, bytes: usize) {
        self.rx = Some(buffer);
        self.rx_filled += bytes;
    }

    /// Takes the data to be sent now, if there is any and no send is in progress.
    pub(crate) fn take_unsent(&mut self) -> Option<Box<Outgoing>> {
        if self.tx.is_empty() {
            return None;
        }
        let mut spare = self.spare_tx.take()?;
        let full = match &mut self.secure {
            None => std::mem::replace(&mut self.tx, spare),
            Some(secure) if secure.is_sealed_by_kernel() => std::mem::replace(&mut self.tx, spare),
            Some(secure) => {
                secure.seal(self.tx.own(), spare.own());
                self.tx.clear(RX_BYTES, |_| ());
                spare
            }
        };
        self.sending_bytes = full.len();
        Some(full)
    }

    /// Whether a send may take only a part of its data.
    pub(crate) fn sends_in_parts(&self) -> bool {
        self.secure.as_ref().is_some_and(|secure| secure.is_sealed_by_kernel())
    }

    /// This many bytes of the current send are left.
    pub(crate) fn sends_on(&mut self, bytes: usize) {
        self.sending_bytes = bytes;
    }

    /// A send has ended, successfully or not.
    pub(crate) fn sent(&mut self, mut sent: Box<Outgoing>, give_back: impl FnMut(IoBuffer)) {
        sent.clear(RX_BYTES, give_back);
        self.spare_tx = Some(sent);
        self.sending_bytes = 0;
    }

    /// Whether something is being sent.
    pub(crate) fn is_sending(&self) -> bool {
        self.spare_tx.is_none()
    }
}
