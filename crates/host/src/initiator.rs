//! The host's end of one queue, without a socket: requests and received bytes in, bytes to send
//! and completions out.

use crate::names::command_name;
use crate::slot::{Returns, SLOTS_MAX, Slot};
use crate::{Completion, Done, LostReason, NamespaceInfo, Request, RequestError, SubmitError};
use bpfof_nvme::opcode::{fabrics::FABRICS, nvm};
use bpfof_nvme::tcp::{
    ADMIN_IN_CAPSULE_BYTES, C2hData, CapsuleCmd, DataPdu, Digests, Fes, H2cData, IcReq, IcResp,
    MAXH2CDATA_MIN_BYTES, Pdu, PduError, PduEvent, PduReceiver, R2t, Sender, TermReq, data_digest,
};
use bpfof_nvme::{Cqe, Rw, Sgl, Sqe};
use std::sync::Arc;

/// Most in-capsule data this host uses, in bytes, whatever a target offers: bounds the send buffer.
const IN_CAPSULE_MAX_BYTES: u32 = 64 << 10;
/// Size of the send buffer in bytes up to which it is kept, and from which on what was sent of it
/// is dropped: a batch of small requests never gets there, one of large writes does.
const OUTGOING_KEEP_BYTES: usize = 1 << 20;
/// Most logical blocks of one command (NVM Command Set 1.0 §3.2.4, NLB).
const BLOCKS_MAX: u64 = 0x1_0000;

/// What a queue needs to know before it opens.
#[derive(Clone, Debug)]
pub struct InitiatorConfig {
    /// Whether this is an admin queue.
    pub admin: bool,
    /// Digests to ask for.
    pub digests: Digests,
    /// Requests in flight, 1 to 4095; other values are clamped.
    pub depth: u16,
    /// In-capsule data that the controller takes, in bytes (IOCCSZ; 8192 on the admin queue).
    pub in_capsule_bytes: u32,
    /// Most data of one command, in bytes (MDTS).
    pub max_transfer_bytes: u32,
    /// The namespaces that requests may name.
    pub namespaces: Arc<[NamespaceInfo]>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// ICReq is queued; ICResp has not come.
    Opening,
    Ready,
    Failed(LostReason),
}

/// The host's end of one queue pair and its connection.
///
/// The owner sends [`outgoing`](Self::outgoing) and reports it by [`sent`](Self::sent), passes
/// what it receives to [`receive`](Self::receive), and after a failure takes the requests that are
/// lost by [`lost`](Self::lost).
#[derive(Debug)]
pub struct Initiator {
    config: InitiatorConfig,
    phase: Phase,
    receiver: PduReceiver,
    /// Digests in use: none until ICResp.
    digests: Digests,
    cpda: u8,
    maxh2cdata_bytes: u32,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Slots whose command is in `outgoing`.
    unsent: Vec<u16>,
    outgoing: Vec<u8>,
    outgoing_sent: usize,
    /// Whether the doorbell was rung, or `outgoing` has what the target waits for.
    urgent: bool,
    completed: u64,
}

type OnCompletion<'f> = dyn FnMut(Completion<'_>) + 'f;

impl Initiator {
    /// A queue that opens: ICReq is ready to be sent.
    #[must_use]
    pub fn new(mut config: InitiatorConfig) -> Self {
        config.depth = config.depth.clamp(1, SLOTS_MAX);
        config.in_capsule_bytes = config.in_capsule_bytes.min(IN_CAPSULE_MAX_BYTES);
        let mut outgoing = Vec::new();
        let digests = config.digests;
        IcReq { digests, ..IcReq::default() }.encode_into(&mut outgoing);
        Self {
            phase: Phase::Opening,
            receiver: PduReceiver::for_host(),
            digests: Digests::default(),
            cpda: 0,
            maxh2cdata_bytes: MAXH2CDATA_MIN_BYTES,
            slots: (0..config.depth).map(|_| Slot::default()).collect(),
            free: (0..config.depth).rev().collect(),
            unsent: Vec::with_capacity(usize::from(config.depth)),
            outgoing,
            outgoing_sent: 0,
            urgent: true,
            completed: 0,
            config,
        }
    }

    /// Whether requests are accepted.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready)
    }

    /// Why the queue is over, if it is.
    #[must_use]
    pub const fn failure(&self) -> Option<LostReason> {
        match self.phase {
            Phase::Failed(reason) => Some(reason),
            _ => None,
        }
    }

    /// Requests in flight, those not yet sent included.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Requests whose commands are all in [`outgoing`](Self::outgoing).
    #[must_use]
    pub const fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Requests completed since the beginning, those lost included.
    #[must_use]
    pub const fn completed(&self) -> u64 {
        self.completed
    }

    /// The configuration, with its values clamped.
    #[must_use]
    pub const fn config(&self) -> &InitiatorConfig {
        &self.config
    }

    /// Bytes to send.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.get(self.outgoing_sent..).unwrap_or(&[])
    }

    /// Rings the doorbell: all that is in `outgoing` is to be sent.
    pub const fn ring(&mut self) {
        self.urgent = true;
    }

    /// Whether `outgoing` is to be sent now: the doorbell was rung for it, its start has been sent
    /// already, or the target waits for it.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        !self.outgoing().is_empty() && (self.urgent || self.outgoing_sent != 0)
    }

    /// Reports that the first `bytes` of `outgoing` were sent at `now_us`, from where the command
    /// timeouts count.
    pub fn sent(&mut self, bytes: usize, now_us: u64) {
        for index in self.unsent.drain(..) {
            if let Some(slot) = self.slots.get_mut(usize::from(index)) {
                slot.sent_us = Some(now_us);
            }
        }
        self.outgoing_sent += bytes;
        if self.outgoing_sent >= self.outgoing.len() {
            self.outgoing.clear();
            self.outgoing.shrink_to(OUTGOING_KEEP_BYTES);
            self.outgoing_sent = 0;
            self.urgent = false;
        } else if self.outgoing_sent >= OUTGOING_KEEP_BYTES {
            self.outgoing.drain(..self.outgoing_sent);
            self.outgoing_sent = 0;
            // What remains is still the rest of something begun.
            self.urgent = true;
        }
    }

    /// Queues a request behind those queued before. Its completion will carry `tag`.
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing is queued then.
    #[inline]
    pub fn submit(&mut self, tag: u64, request: &Request<'_>) -> Result<(), SubmitError> {
        match *request {
            Request::Read { nsid, offset_bytes, length_bytes } => {
                let rw = self.range(nsid, offset_bytes, u64::from(length_bytes))?;
                let mut sqe = rw.to_sqe(nvm::READ, nsid);
                sqe.sgl = Sgl::transport(length_bytes);
                self.push(tag, sqe, &[], Returns::Exactly, length_bytes)
            }
            Request::Write { nsid, offset_bytes, data, fua } => {
                let rw = self.range(nsid, offset_bytes, data.len() as u64)?;
                let sqe = Rw { fua, ..rw }.to_sqe(nvm::WRITE, nsid);
                self.push(tag, sqe, data, Returns::Exactly, 0)
            }
            Request::Flush { nsid } => {
                self.push(tag, Sqe::new(nvm::FLUSH, nsid), &[], Returns::Exactly, 0)
            }
            Request::WriteZeroes { nsid, offset_bytes, length_bytes, fua } => {
                let rw = self.range(nsid, offset_bytes, u64::from(length_bytes))?;
                let sqe = Rw { fua, ..rw }.to_sqe(nvm::WRITE_ZEROES, nsid);
                self.push(tag, sqe, &[], Returns::Exactly, 0)
            }
            Request::Pushdown(ref call) => {
                let parts = call.parts();
                let bytes = parts.encoded_bytes();
                if bytes > self.config.in_capsule_bytes as usize {
                    let max_bytes = u64::from(self.config.in_capsule_bytes);
                    return Err(SubmitError::TooLong { bytes: bytes as u64, max_bytes });
                }
                self.check_transfer(u64::from(call.answer_max_bytes))?;
                let mut sqe = Sqe::new(nvm::PUSHDOWN, call.nsid);
                sqe.sgl = Sgl::in_capsule(bytes as u32);
                self.take(tag, &mut sqe, Returns::Answer, call.answer_max_bytes)?;
                let (out, digests) = (&mut self.outgoing, self.digests);
                CapsuleCmd::encode_header_into(&sqe, bytes as u32, out, digests, self.cpda);
                let data_at = out.len();
                parts.encode_into(out);
                if digests.data {
                    let digest = data_digest(out.get(data_at..).unwrap_or(&[]));
                    out.extend_from_slice(&digest);
                }
                Ok(())
            }
            Request::Raw { mut sqe, data_out, data_in_max_bytes } => {
                self.check_transfer(u64::from(data_in_max_bytes))?;
                sqe.flags = Sqe::FLAGS_SGL;
                sqe.sgl = Sgl::transport(data_in_max_bytes);
                self.push(tag, sqe, data_out, Returns::AtMost, data_in_max_bytes)
            }
        }
    }

    /// Blocks of a range of bytes.
    #[inline]
    fn range(&self, nsid: u32, offset_bytes: u64, length_bytes: u64) -> Result<Rw, SubmitError> {
        let namespace = self.config.namespaces.iter().find(|namespace| namespace.nsid == nsid);
        let Some(namespace) = namespace else {
            return Err(SubmitError::UnknownNamespace { nsid });
        };
        let block_bytes = namespace.block_bytes;
        let mask = u64::from(block_bytes) - 1;
        if length_bytes == 0 || (offset_bytes | length_bytes) & mask != 0 {
            return Err(SubmitError::Unaligned { block_bytes });
        }
        self.check_transfer(length_bytes)?;
        let shift = block_bytes.trailing_zeros();
        let blocks = length_bytes >> shift;
        if blocks > BLOCKS_MAX {
            let max_bytes = BLOCKS_MAX << shift;
            return Err(SubmitError::TooLong { bytes: length_bytes, max_bytes });
        }
        Ok(Rw { slba: offset_bytes >> shift, blocks: blocks as u32, fua: false })
    }

    #[inline]
    fn check_transfer(&self, bytes: u64) -> Result<(), SubmitError> {
        let max_bytes = u64::from(self.config.max_transfer_bytes);
        if bytes > max_bytes { Err(SubmitError::TooLong { bytes, max_bytes }) } else { Ok(()) }
    }

    /// Takes a slot for `sqe` and gives it its command identifier.
    #[inline]
    fn take(
        &mut self,
        tag: u64,
        sqe: &mut Sqe,
        returns: Returns,
        expected_bytes: u32,
    ) -> Result<(), SubmitError> {
        if !self.is_ready() {
            return Err(SubmitError::NotConnected);
        }
        let index = self.free.pop().ok_or(SubmitError::QueueFull)?;
        if let Some(slot) = self.slots.get_mut(usize::from(index)) {
            slot.take(tag, sqe, returns, expected_bytes);
            sqe.cid = slot.cid(index);
        }
        self.unsent.push(index);
        Ok(())
    }

    /// Queues a command whose data, if any, goes in the capsule where it fits, else by R2T.
    #[inline]
    fn push(
        &mut self,
        tag: u64,
        mut sqe: Sqe,
        data_out: &[u8],
        returns: Returns,
        expected_bytes: u32,
    ) -> Result<(), SubmitError> {
        if data_out.is_empty() {
            self.take(tag, &mut sqe, returns, expected_bytes)?;
            CapsuleCmd::encode_header_into(&sqe, 0, &mut self.outgoing, self.digests, self.cpda);
            return Ok(());
        }
        self.check_transfer(data_out.len() as u64)?;
        let mut in_capsule = self.config.in_capsule_bytes as usize;
        if sqe.opcode == FABRICS {
            in_capsule = in_capsule.max(ADMIN_IN_CAPSULE_BYTES);
        }
        let length_bytes = data_out.len() as u32;
        if data_out.len() <= in_capsule {
            sqe.sgl = Sgl::in_capsule(length_bytes);
            self.take(tag, &mut sqe, returns, expected_bytes)?;
            let capsule = CapsuleCmd { sqe, data: data_out };
            capsule.encode_into(&mut self.outgoing, self.digests, self.cpda);
            return Ok(());
        }
        sqe.sgl = Sgl::transport(length_bytes);
        self.take(tag, &mut sqe, returns, expected_bytes)?;
        if let Some(slot) = self.slots.get_mut(usize::from(Slot::index_of(sqe.cid))) {
            slot.data_out.extend_from_slice(data_out);
        }
        CapsuleCmd::encode_header_into(&sqe, 0, &mut self.outgoing, self.digests, self.cpda);
        Ok(())
    }

    /// Takes what was received, calls `on_completion` for each request that ends, and returns how
    /// many bytes it used. The caller keeps the others and offers them again with more behind.
    ///
    /// # Errors
    /// The queue is over: the target broke the protocol, declined the digests, or ended the
    /// connection. `outgoing` is then the report to the target, if one is due.
    #[inline]
    pub fn receive(
        &mut self,
        input: &[u8],
        on_completion: &mut OnCompletion<'_>,
    ) -> Result<usize, LostReason> {
        if let Phase::Failed(reason) = self.phase {
            return Err(reason);
        }
        let mut rest = input;
        loop {
            let reason = match self.receiver.next(rest) {
                Ok(None) => return Ok(input.len() - rest.len()),
                Ok(Some((used, event))) => match self.handle(event, on_completion) {
                    Ok(()) => {
                        rest = rest.get(used..).unwrap_or(&[]);
                        continue;
                    }
                    Err(reason) => reason,
                },
                Err(error) => LostReason::Protocol(error),
            };
            self.fail(reason);
            if let LostReason::Protocol(error) = reason {
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
    ) -> Result<(), LostReason> {
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
                return Err(LostReason::Terminated { fes: term.fes, fei: term.fei });
            }
            PduEvent::Header(Pdu::IcReq(_) | Pdu::CapsuleCmd { .. })
            | PduEvent::Data { pdu: DataPdu::H2c(_), .. } => {
                Err(PduError::invalid_field(0, "a host's PDU from the target"))
            }
        };
        handled.map_err(LostReason::Protocol)
    }

    fn opened(&mut self, response: IcResp) -> Result<(), LostReason> {
        let (asked, got) = (self.config.digests, response.digests);
        if (got.header && !asked.header) || (got.data && !asked.data) {
            let error = PduError::invalid_field(11, "digests that were not asked for");
            return Err(LostReason::Protocol(error));
        }
        if got != asked {
            return Err(LostReason::DigestsDeclined);
        }
        self.digests = got;
        self.cpda = response.cpda;
        self.maxh2cdata_bytes = response.maxh2cdata_bytes;
        self.receiver.set_digests(got);
        self.phase = Phase::Ready;
        Ok(())
    }

    /// The slot in flight that `cid` names.
    #[inline]
    fn find(slots: &mut [Slot], cid: u16) -> Result<(u16, &mut Slot), PduError> {
        let index = Slot::index_of(cid);
        match slots.get_mut(usize::from(index)) {
            Some(slot) if slot.in_flight && slot.cid(index) == cid => Ok((index, slot)),
            _ => Err(PduError::sequence("a command identifier that is not in flight")),
        }
    }

    /// A piece of the data of a command. `ends`: the PDU ends here, and whether its digest is
    /// right.
    #[inline]
    fn data(
        &mut self,
        pdu: C2hData,
        offset_bytes: u32,
        bytes: &[u8],
        ends: Option<bool>,
        on_completion: &mut OnCompletion<'_>,
    ) -> Result<(), PduError> {
        let (index, slot) = Self::find(&mut self.slots, pdu.cccid)?;
        if offset_bytes == pdu.data_offset_bytes {
            let room = slot.expected_bytes - slot.received_bytes;
            if slot.data_ended || pdu.data_length_bytes > room {
                let reason = "more data than was asked for";
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
                self.finish(index, Ok(done), on_completion);
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

    /// The end of a command.
    #[inline]
    fn response(
        &mut self,
        cqe: &Cqe,
        on_completion: &mut OnCompletion<'_>,
    ) -> Result<(), PduError> {
        let (index, slot) = Self::find(&mut self.slots, cqe.cid)?;
        let (dw0, dw1, status) = (cqe.dw0, cqe.dw1, cqe.status);
        if !status.is_success() {
            let error = RequestError::Command(crate::CommandError { status, dw0, dw1 });
            self.finish(index, Err(error), on_completion);
            return Ok(());
        }
        let complete = match slot.returns {
            Returns::Exactly => slot.received_bytes == slot.expected_bytes,
            Returns::AtMost => true,
            Returns::Answer => slot.received_bytes == dw1,
        };
        if !complete || (slot.data_out_sent_bytes as usize) < slot.data_out.len() {
            return Err(PduError::sequence("success before all data was transferred"));
        }
        if slot.digest_failed {
            self.finish(index, Err(RequestError::DataDigest), on_completion);
            return Ok(());
        }
        // The buffer leaves its slot for the call, so that the slot can be freed first.
        let kept = std::mem::take(&mut slot.data_in);
        let data = kept.get(..slot.received_bytes as usize).unwrap_or(&[]);
        self.finish(index, Ok(Done { data, dw0, dw1 }), on_completion);
        if let Some(slot) = self.slots.get_mut(usize::from(index)) {
            slot.data_in = kept;
        }
        Ok(())
    }

    /// Frees a slot and reports its request.
    #[inline]
    fn finish(
        &mut self,
        index: u16,
        result: Result<Done<'_>, RequestError>,
        on_completion: &mut OnCompletion<'_>,
    ) {
        if let Some(slot) = self.slots.get_mut(usize::from(index)) {
            slot.in_flight = false;
            self.free.push(index);
            self.completed += 1;
            on_completion(Completion { tag: slot.tag, result });
        }
    }

    /// The target asks for data: queues it in PDUs that it can take.
    fn r2t(&mut self, r2t: R2t) -> Result<(), PduError> {
        let (_, slot) = Self::find(&mut self.slots, r2t.cccid)?;
        if r2t.offset_bytes != slot.data_out_sent_bytes {
            let reason = "data asked for out of order";
            return Err(PduError::new(Fes::DataTransferOutOfRange, 12, reason));
        }
        let start = r2t.offset_bytes as usize;
        let Some(wanted) = slot.data_out.get(start..start + r2t.length_bytes as usize) else {
            let reason = "more data asked for than the command has";
            return Err(PduError::new(Fes::DataTransferOutOfRange, 16, reason));
        };
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

    /// Ends the queue for `reason`, unless it is over already.
    pub fn fail(&mut self, reason: LostReason) {
        if self.failure().is_none() {
            self.phase = Phase::Failed(reason);
            self.outgoing.clear();
            self.outgoing_sent = 0;
            self.unsent.clear();
        }
    }

    /// Reports each request still in flight after a failure, once.
    pub fn lost(&mut self, on_completion: &mut OnCompletion<'_>) {
        let Some(reason) = self.failure() else { return };
        for index in 0..self.slots.len() as u16 {
            if self.slots.get(usize::from(index)).is_some_and(|slot| slot.in_flight) {
                self.finish(index, Err(RequestError::Lost(reason)), on_completion);
            }
        }
    }

    /// The reason to give up at `now_us`: a command that was sent more than `timeout_us` ago.
    #[must_use]
    pub fn expired(&self, now_us: u64, timeout_us: u64) -> Option<LostReason> {
        let waited_us = |slot: &Slot| slot.sent_us.map_or(0, |sent| now_us.saturating_sub(sent));
        let in_flight = self.slots.iter().filter(|slot| slot.in_flight);
        let oldest = in_flight.max_by_key(|slot| waited_us(slot))?;
        (waited_us(oldest) > timeout_us).then(|| LostReason::Timeout {
            command: command_name(self.config.admin, oldest.opcode, oldest.fctype),
            waited_ms: waited_us(oldest) / 1000,
        })
    }
}
