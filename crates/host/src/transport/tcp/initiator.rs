//! The host's end of one queue over NVMe/TCP, without a socket: takes requests and received bytes, produces bytes to
//! send and completions.

use crate::requests::{DataOut, OnCompletion, Plan, Requests, Returns, Slot};
use crate::{Done, InitiatorConfig, LostReason, Request, SubmitError, Violation};
use bpfof_nvme::opcode::FABRICS;
use bpfof_nvme::tcp::{
    ADMIN_IN_CAPSULE_BYTES, C2hData, CapsuleCmd, DataPdu, Digests, Fes, H2cData, IcReq, IcResp,
    MAXH2CDATA_MIN_BYTES, Pdu, PduError, PduEvent, PduReceiver, R2t, Sender, TermReq, data_digest,
};
use bpfof_nvme::{Cqe, Sgl, Sqe};

/// Send buffers up to this size in bytes are kept; larger ones drop their sent part. A batch of small requests stays
/// below it, a batch of large writes does not.
const OUTGOING_KEEP_BYTES: usize = 1 << 20;

/// The host's end of one queue pair and its connection.
///
/// The owner sends [`outgoing`](Self::outgoing) and reports it by [`sent`](Self::sent), passes what it receives to
/// [`receive`](Self::receive), and after a failure gets the lost requests from [`lost`](Self::lost).
#[derive(Debug)]
pub struct Initiator {
    requests: Requests,
    receiver: PduReceiver,
    /// Digests in use: none until ICResp.
    digests: Digests,
    cpda: u8,
    maxh2cdata_bytes: u32,
    outgoing: Vec<u8>,
    outgoing_sent: usize,
    /// Number of bytes of the connection before the start of `outgoing`.
    outgoing_from: u64,
    /// Whether the doorbell was rung, or `outgoing` has data that the target waits for.
    urgent: bool,
    /// Whether a part of `outgoing` was sent, perhaps of a PDU, and the rest was not.
    send_begun: bool,
}

/// Why a queue ends: a protocol error, which is reported to the target, or another reason, which is not.
enum End {
    Protocol(PduError),
    Other(LostReason),
}

/// The shortest piece of data that a target may ask for, except for the last piece, in bytes.
const R2T_MIN_BYTES: usize = 512;
const NOT_IN_FLIGHT: PduError = PduError::sequence("the command identifier is not in flight");
const NOT_SENT: PduError = PduError::sequence("an answer to a command that was not sent");

impl From<PduError> for LostReason {
    fn from(error: PduError) -> LostReason {
        let PduError { fes, fei, reason } = error;
        LostReason::Protocol(Violation { kind: fes.name(), reason, information: fei })
    }
}

impl Initiator {
    /// A queue that is being opened: ICReq is ready to be sent.
    #[must_use]
    pub fn new(config: InitiatorConfig) -> Self {
        let mut outgoing = Vec::new();
        let digests = config.digests;
        IcReq { digests, ..IcReq::default() }.encode_into(&mut outgoing);
        Self {
            requests: Requests::new(config),
            receiver: PduReceiver::for_host(),
            digests: Digests::default(),
            cpda: 0,
            maxh2cdata_bytes: MAXH2CDATA_MIN_BYTES,
            outgoing,
            outgoing_sent: 0,
            outgoing_from: 0,
            urgent: true,
            send_begun: false,
        }
    }

    /// A queue that is already open; `opened` is the target's ICResp.
    pub(crate) fn adopted(config: InitiatorConfig, opened: &IcResp) -> Result<Self, LostReason> {
        let mut initiator = Self::new(config);
        initiator.sent(initiator.outgoing.len(), 0);
        let mut response = Vec::new();
        opened.encode_into(&mut response);
        initiator.receive(&response, &mut |_| {})?;
        Ok(initiator)
    }

    /// The negotiated parameters, as the target's ICResp.
    pub(crate) fn opened_by(&self) -> IcResp {
        let Self { digests, cpda, maxh2cdata_bytes, .. } = *self;
        IcResp { digests, cpda, maxh2cdata_bytes, ..IcResp::default() }
    }

    /// The queue's requests.
    pub(crate) const fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Whether requests are accepted.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.requests.is_ready()
    }

    /// Why the queue failed, if it did.
    #[must_use]
    pub const fn failure(&self) -> Option<LostReason> {
        self.requests.failure()
    }

    /// Requests in flight, those not yet sent included.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.requests.in_flight()
    }

    /// Requests queued since the last send: their commands are wholly in [`outgoing`](Self::outgoing).
    #[must_use]
    pub const fn unsent(&self) -> usize {
        self.requests.unsent()
    }

    /// Requests completed since the beginning, those lost included.
    #[must_use]
    pub const fn completed(&self) -> u64 {
        self.requests.completed()
    }

    /// The configuration, with its values clamped.
    #[must_use]
    pub const fn config(&self) -> &InitiatorConfig {
        self.requests.config()
    }

    /// Bytes to send.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.get(self.outgoing_sent..).unwrap_or(&[])
    }

    /// Rings the doorbell: `outgoing` is to be sent.
    pub const fn ring(&mut self) {
        self.urgent = true;
    }

    /// Whether `outgoing` must be sent now: the doorbell was rung, a part of it has been sent already, or the target
    /// waits for it.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        !self.outgoing().is_empty() && (self.urgent || self.send_begun)
    }

    /// Reports that the first `bytes` of `outgoing` were sent at `now_us`, where the command timeouts start.
    pub fn sent(&mut self, bytes: usize, now_us: u64) {
        self.requests.sent(now_us);
        self.outgoing_sent += bytes;
        self.send_begun |= bytes > 0;
        if self.outgoing_sent >= self.outgoing.len() {
            self.outgoing_from += self.outgoing.len() as u64;
            self.outgoing.clear();
            self.outgoing.shrink_to(OUTGOING_KEEP_BYTES);
            self.outgoing_sent = 0;
            self.urgent = false;
            self.send_begun = false;
        } else if self.outgoing_sent >= OUTGOING_KEEP_BYTES {
            self.outgoing_from += self.outgoing_sent as u64;
            self.outgoing.drain(..self.outgoing_sent);
            self.outgoing_sent = 0;
        }
    }

    /// Queues a request after those queued before. Its completion will carry `tag`.
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing is queued then.
    #[inline]
    pub fn submit(&mut self, tag: u64, request: &Request<'_>) -> Result<(), SubmitError> {
        let cid = self.queue(tag, request)?;
        let leaves_at = self.outgoing_from + self.outgoing.len() as u64;
        self.requests.leaves_at(cid, leaves_at);
        Ok(())
    }

    /// Takes a slot for a request, appends its capsule to `outgoing`, and returns its command identifier.
    #[inline]
    fn queue(&mut self, tag: u64, request: &Request<'_>) -> Result<u16, SubmitError> {
        let Plan { mut sqe, data_out, returns, expected_bytes } = self.requests.plan(request)?;
        let data = match data_out {
            DataOut::None => {
                sqe.sgl = Sgl::transport(expected_bytes);
                self.requests.take(tag, &mut sqe, returns, expected_bytes)?;
                CapsuleCmd::encode_header_into(
                    &sqe,
                    0,
                    &mut self.outgoing,
                    self.digests,
                    self.cpda,
                );
                return Ok(sqe.cid);
            }
            DataOut::Pushdown(parts) => {
                let bytes = parts.encoded_bytes() as u32;
                sqe.sgl = Sgl::in_capsule(bytes);
                self.requests.take(tag, &mut sqe, returns, expected_bytes)?;
                self.encode_capsule(&sqe, bytes, |out| parts.encode_into(out));
                return Ok(sqe.cid);
            }
            DataOut::PushdownVector(call) => {
                let bytes = call.encoded_bytes() as u32;
                sqe.sgl = Sgl::in_capsule(bytes);
                self.requests.take(tag, &mut sqe, returns, expected_bytes)?;
                self.encode_capsule(&sqe, bytes, |out| call.parts().encode_into(out));
                return Ok(sqe.cid);
            }
            DataOut::Bytes(data) => data,
        };
        // Data goes in the capsule if it fits, otherwise after R2T.
        let mut in_capsule = self.requests.config().in_capsule_bytes as usize;
        if sqe.opcode == FABRICS {
            in_capsule = in_capsule.max(ADMIN_IN_CAPSULE_BYTES);
        }
        let length_bytes = data.len() as u32;
        if data.len() <= in_capsule {
            sqe.sgl = Sgl::in_capsule(length_bytes);
            self.requests.take(tag, &mut sqe, returns, expected_bytes)?;
            let capsule = CapsuleCmd { sqe, data };
            capsule.encode_into(&mut self.outgoing, self.digests, self.cpda);
            return Ok(sqe.cid);
        }
        sqe.sgl = Sgl::transport(length_bytes);
        let slot = self.requests.take(tag, &mut sqe, returns, expected_bytes)?;
        slot.data_out.extend_from_slice(data);
        CapsuleCmd::encode_header_into(&sqe, 0, &mut self.outgoing, self.digests, self.cpda);
        Ok(sqe.cid)
    }

    /// Queues a command with `bytes` bytes of in-capsule data, which `encode` appends.
    #[inline]
    fn encode_capsule(&mut self, sqe: &Sqe, bytes: u32, encode: impl FnOnce(&mut Vec<u8>)) {
        let (out, digests) = (&mut self.outgoing, self.digests);
        CapsuleCmd::encode_header_into(sqe, bytes, out, digests, self.cpda);
        let data_at = out.len();
        encode(out);
        if digests.data {
            let digest = data_digest(out.get(data_at..).unwrap_or(&[]));
            out.extend_from_slice(&digest);
        }
    }

    /// Takes received bytes, calls `on_completion` for each request that ends, and returns how many bytes it used. The
    /// caller keeps the unused bytes and passes them again, followed by more.
    ///
    /// # Errors
    /// The queue is over: the target broke the protocol, declined the digests, or ended the connection. `outgoing` then
    /// holds the report to the target, if one is due and no PDU has been sent in part.
    #[inline]
    pub fn receive(
        &mut self,
        input: &[u8],
        on_completion: &mut OnCompletion<'_>,
    ) -> Result<usize, LostReason> {
        if let Some(reason) = self.failure() {
            return Err(reason);
        }
        let mut rest = input;
        loop {
            let end = match self.receiver.next(rest) {
                Ok(None) => return Ok(input.len() - rest.len()),
                Ok(Some((used, event))) => match self.handle(event, on_completion) {
                    Ok(()) => {
                        rest = rest.get(used..).unwrap_or(&[]);
                        continue;
                    }
                    Err(end) => end,
                },
                Err(error) => End::Protocol(error),
            };
            let reason = match end {
                End::Protocol(error) => error.into(),
                End::Other(reason) => reason,
            };
            self.fail(reason);
            // In the middle of a PDU the target would take the report for the rest of the PDU, for example of a write.
            if let End::Protocol(error) = end
                && !self.send_begun
            {
                TermReq::for_error(&error, Sender::Host, rest).encode_into(&mut self.outgoing);
                self.urgent = true;
            }
            return Err(reason);
        }
    }

    #[inline]
    fn handle(
        &mut self,
        event: PduEvent<'_>,
        on_completion: &mut OnCompletion<'_>,
    ) -> Result<(), End> {
        let handled = match event {
            PduEvent::Data {
                pdu: DataPdu::C2h(pdu),
                offset_bytes,
                bytes,
                last_fragment,
                digest_ok,
            } => {
                let ends = last_fragment.then_some(digest_ok);
                self.data(pdu, offset_bytes, bytes, ends, on_completion)
            }
            PduEvent::Header(Pdu::CapsuleResp(response)) => {
                self.response(&response.cqe, on_completion)
            }
            PduEvent::Header(Pdu::R2t(r2t)) => self.r2t(r2t),
            PduEvent::Header(Pdu::IcResp(response)) => return self.opened(response),
            PduEvent::Header(Pdu::TermReq(term)) => {
                let (kind, information) = (term.fes.name(), term.fei);
                return Err(End::Other(LostReason::Terminated { kind, information }));
            }
            PduEvent::Header(Pdu::IcReq(_) | Pdu::CapsuleCmd { .. })
            | PduEvent::Data { pdu: DataPdu::H2c(_), .. } => {
                Err(PduError::invalid_field(0, "a host's PDU from the target"))
            }
        };
        handled.map_err(End::Protocol)
    }

    fn opened(&mut self, response: IcResp) -> Result<(), End> {
        let (asked, got) = (self.config().digests, response.digests);
        if (got.header && !asked.header) || (got.data && !asked.data) {
            let error = PduError::invalid_field(11, "digests that were not requested");
            return Err(End::Protocol(error));
        }
        if got != asked {
            return Err(End::Other(LostReason::DigestsDeclined));
        }
        self.digests = got;
        self.cpda = response.cpda;
        self.maxh2cdata_bytes = response.maxh2cdata_bytes;
        self.receiver.set_digests(got);
        self.requests.open();
        Ok(())
    }

    /// Bytes of the connection that were sent.
    const fn sent_bytes(&self) -> u64 {
        self.outgoing_from + self.outgoing_sent as u64
    }

    /// Handles a piece of a command's data. `ends` is `Some` if the PDU ends here, with whether its digest is right.
    #[inline]
    fn data(
        &mut self,
        pdu: C2hData,
        offset_bytes: u32,
        bytes: &[u8],
        ends: Option<bool>,
        on_completion: &mut OnCompletion<'_>,
    ) -> Result<(), PduError> {
        let sent = self.sent_bytes();
        let (index, slot) = find(&mut self.requests, pdu.cccid, sent)?;
        if offset_bytes == pdu.data_offset_bytes {
            let room = slot.expected_bytes - slot.received_bytes;
            if slot.data_ended || pdu.data_length_bytes > room {
                let reason = "more data than was requested";
                return Err(PduError::new(Fes::DataTransferOutOfRange, 16, reason));
            }
            if offset_bytes != slot.received_bytes {
                let reason = "data out of order";
                return Err(PduError::new(Fes::DataTransferOutOfRange, 12, reason));
            }
            let whole = bytes.len() == slot.expected_bytes as usize;
            if pdu.success && whole && ends == Some(true) && slot.returns != Returns::Answer {
                slot.received_bytes = slot.expected_bytes;
                let done = Done { data: bytes, dw0: 0, dw1: 0 };
                self.requests.finish(index, Ok(done), on_completion);
                return Ok(());
            }
        }
        slot.keep(bytes);
        let Some(digest_ok) = ends else { return Ok(()) };
        slot.digest_failed |= !digest_ok;
        slot.data_ended |= pdu.last;
        if !pdu.success {
            return Ok(());
        }
        if slot.returns == Returns::Answer {
            return Err(PduError::invalid_field(1, "a chain's answer without a response"));
        }
        let cqe = Cqe { cid: pdu.cccid, ..Cqe::default() };
        self.response(&cqe, on_completion)
    }

    /// Handles the completion of a command.
    #[inline]
    fn response(
        &mut self,
        cqe: &Cqe,
        on_completion: &mut OnCompletion<'_>,
    ) -> Result<(), PduError> {
        let sent = self.sent_bytes();
        let (index, _) = find(&mut self.requests, cqe.cid, sent)?;
        match self.requests.respond(index, cqe, on_completion) {
            true => Ok(()),
            false => Err(PduError::sequence("success before all data was transferred")),
        }
    }

    /// Queues the data that the target asks for, in PDUs of the size that it accepts.
    fn r2t(&mut self, r2t: R2t) -> Result<(), PduError> {
        let sent = self.sent_bytes();
        let (_, slot) = find(&mut self.requests, r2t.cccid, sent)?;
        if r2t.offset_bytes != slot.data_out_sent_bytes {
            let reason = "data requested out of order";
            return Err(PduError::new(Fes::DataTransferOutOfRange, 12, reason));
        }
        let start = r2t.offset_bytes as usize;
        let Some(wanted) = slot.data_out.get(start..start + r2t.length_bytes as usize) else {
            let reason = "more data requested than the command has";
            return Err(PduError::new(Fes::DataTransferOutOfRange, 16, reason));
        };
        // Each piece costs a header: a target that asks for single bytes would make the buffer many times larger than
        // the data.
        let left = slot.data_out.len() - start;
        if wanted.len() < left.min(R2T_MIN_BYTES) {
            let reason = "data requested in pieces of less than 512 bytes";
            return Err(PduError::new(Fes::DataTransferOutOfRange, 16, reason));
        }
        slot.data_out_sent_bytes += r2t.length_bytes;
        let mut offset = r2t.offset_bytes;
        let mut pieces = wanted.chunks(self.maxh2cdata_bytes as usize).peekable();
        while let Some(piece) = pieces.next() {
            let pdu = H2cData {
                cccid: r2t.cccid,
                ttag: r2t.ttag,
                data_offset_bytes: offset,
                data_length_bytes: piece.len() as u32,
                last: pieces.peek().is_none(),
            };
            pdu.encode_header_into(&mut self.outgoing, self.digests, self.cpda);
            self.outgoing.extend_from_slice(piece);
            if self.digests.data {
                self.outgoing.extend_from_slice(&data_digest(piece));
            }
            offset += piece.len() as u32;
        }
        self.urgent = true;
        Ok(())
    }

    /// Marks the queue as failed for `reason`, unless it has failed already.
    pub fn fail(&mut self, reason: LostReason) {
        if self.requests.fail(reason) {
            self.outgoing.clear();
            self.outgoing_sent = 0;
        }
    }

    /// The reason to give up at `now_us`: a command that was sent more than `timeout_us` ago.
    #[must_use]
    pub fn expired(&self, now_us: u64, timeout_us: u64) -> Option<LostReason> {
        self.requests.expired(now_us, timeout_us)
    }

    /// After a failure, reports each request still in flight, once.
    pub fn lost(&mut self, on_completion: &mut OnCompletion<'_>) {
        self.requests.lost(on_completion);
    }
}

/// Finds the slot of a command that the target may refer to, because its capsule was sent. A target that does not read
/// gets no further capsules, and so cannot answer later commands and make `outgoing` grow: it holds at most one capsule
/// and the data of one command for each slot.
#[inline]
fn find(requests: &mut Requests, cid: u16, sent_bytes: u64) -> Result<(u16, &mut Slot), PduError> {
    let (index, slot) = requests.find(cid).ok_or(NOT_IN_FLIGHT)?;
    if slot.leaves_at > sent_bytes { Err(NOT_SENT) } else { Ok((index, slot)) }
}
