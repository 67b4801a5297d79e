//! The requests of one queue, independent of the transport: slots, command identifiers, timeouts, and completions.

mod slot;

pub(crate) use slot::{Returns, SLOTS_MAX, Slot};

use crate::{
    CommandError, Completion, Done, LostReason, NamespaceInfo, PushdownVectorCall, Request,
    RequestError, SubmitError,
};
use bpfof_nvme::opcode::{admin, command_name, nvm};
use bpfof_nvme::tcp::Digests;
use bpfof_nvme::vendor_specific::PushdownParts;
use bpfof_nvme::{Cqe, Rw, Sqe};
use std::sync::Arc;

/// Most in-capsule data this host uses, in bytes, even if a target offers more: bounds the send buffer.
pub(crate) const IN_CAPSULE_MAX_BYTES: u32 = 64 << 10;
/// Most logical blocks of one command (NVM Command Set 1.0 §3.2.4, NLB).
const BLOCKS_MAX: u64 = 0x1_0000;

/// The configuration of a queue.
#[derive(Clone, Debug)]
pub struct InitiatorConfig {
    /// Whether this is an admin queue.
    pub admin: bool,
    /// Digests to ask for.
    pub digests: Digests,
    /// Requests in flight, 1 to 4095; other values are clamped.
    pub depth: u16,
    /// Most in-capsule data that the controller accepts, in bytes (IOCCSZ; 8192 on the admin queue).
    pub in_capsule_bytes: u32,
    /// Most data of one command, in bytes (MDTS).
    pub max_transfer_bytes: u32,
    /// The namespaces that requests may name.
    pub namespaces: Arc<[NamespaceInfo]>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Opening,
    Ready,
    Failed(LostReason),
}

/// Data that a command sends.
#[derive(Clone, Copy)]
pub(crate) enum DataOut<'a> {
    None,
    Bytes(&'a [u8]),
    /// A pushdown request, which must be sent in the capsule and fits there.
    Pushdown(PushdownParts<'a>),
    /// The same.
    PushdownVector(&'a PushdownVectorCall<'a>),
}

/// A request as a command, without the location of its data.
pub(crate) struct Plan<'a> {
    pub(crate) sqe: Sqe,
    pub(crate) data_out: DataOut<'a>,
    pub(crate) returns: Returns,
    /// Data to receive, at most.
    pub(crate) expected_bytes: u32,
}

pub(crate) type OnCompletion<'f> = dyn FnMut(Completion<'_>) + 'f;

/// The requests of one queue.
#[derive(Debug)]
pub(crate) struct Requests {
    config: InitiatorConfig,
    phase: Phase,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Slots whose command has not been sent.
    unsent: Vec<u16>,
    completed: u64,
}

impl Requests {
    /// For a queue that is being opened.
    pub(crate) fn new(mut config: InitiatorConfig) -> Requests {
        config.depth = config.depth.clamp(1, SLOTS_MAX);
        config.in_capsule_bytes = config.in_capsule_bytes.min(IN_CAPSULE_MAX_BYTES);
        Requests {
            phase: Phase::Opening,
            slots: (0..config.depth).map(|_| Slot::default()).collect(),
            free: (0..config.depth).rev().collect(),
            unsent: Vec::with_capacity(usize::from(config.depth)),
            completed: 0,
            config,
        }
    }

    /// The transport is ready: requests are accepted.
    pub(crate) const fn open(&mut self) {
        self.phase = Phase::Ready;
    }

    pub(crate) const fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready)
    }

    /// Why the queue failed, if it did.
    pub(crate) const fn failure(&self) -> Option<LostReason> {
        match self.phase {
            Phase::Failed(reason) => Some(reason),
            _ => None,
        }
    }

    /// Requests in flight, those not yet sent included.
    pub(crate) const fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Requests that have not been sent.
    pub(crate) const fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Requests completed since the beginning, those lost included.
    pub(crate) const fn completed(&self) -> u64 {
        self.completed
    }

    /// The configuration, with its values clamped.
    pub(crate) const fn config(&self) -> &InitiatorConfig {
        &self.config
    }

    /// The request that has just [taken](Self::take) a slot waits on this side, and is not sent with the others.
    pub(crate) fn hold_back(&mut self) {
        self.unsent.pop();
    }

    /// The request of this slot was held back, and is sent with the others now.
    pub(crate) fn let_go(&mut self, index: u16) {
        self.unsent.push(index);
    }

    /// Notes that all commands were sent at `now_us`, where their timeouts start.
    #[inline]
    pub(crate) fn sent(&mut self, now_us: u64) {
        for index in self.unsent.drain(..) {
            if let Some(slot) = self.slots.get_mut(usize::from(index)) {
                slot.sent_us = Some(now_us);
            }
        }
    }

    /// Turns a request into a command.
    ///
    /// # Errors
    /// See [`SubmitError`].
    #[inline]
    pub(crate) fn plan<'a>(&self, request: &Request<'a>) -> Result<Plan<'a>, SubmitError> {
        let plan = |sqe, data_out, returns, expected_bytes| {
            Ok(Plan { sqe, data_out, returns, expected_bytes })
        };
        match *request {
            Request::Read { nsid, offset_bytes, length_bytes } => {
                let rw = self.range(nsid, offset_bytes, u64::from(length_bytes))?;
                plan(rw.to_sqe(nvm::READ, nsid), DataOut::None, Returns::Exactly, length_bytes)
            }
            Request::Write { nsid, offset_bytes, data, fua } => {
                let rw = self.range(nsid, offset_bytes, data.len() as u64)?;
                let sqe = Rw { fua, ..rw }.to_sqe(nvm::WRITE, nsid);
                plan(sqe, DataOut::Bytes(data), Returns::Exactly, 0)
            }
            Request::Flush { nsid } => {
                plan(Sqe::new(nvm::FLUSH, nsid), DataOut::None, Returns::Exactly, 0)
            }
            Request::WriteZeroes { nsid, offset_bytes, length_bytes, fua } => {
                let rw = self.range(nsid, offset_bytes, u64::from(length_bytes))?;
                let sqe = Rw { fua, ..rw }.to_sqe(nvm::WRITE_ZEROES, nsid);
                plan(sqe, DataOut::None, Returns::Exactly, 0)
            }
            Request::Pushdown(ref call) => {
                let parts = call.parts();
                self.check_capsule(parts.encoded_bytes())?;
                self.check_transfer(u64::from(call.answer_max_bytes))?;
                let sqe = Sqe::new(nvm::PUSHDOWN, call.nsid);
                plan(sqe, DataOut::Pushdown(parts), Returns::Answer, call.answer_max_bytes)
            }
            Request::PushdownVector(call) => {
                if !call.parts().is_consistent() {
                    return Err(SubmitError::UnevenVector);
                }
                self.check_capsule(call.encoded_bytes())?;
                self.check_transfer(u64::from(call.room_bytes))?;
                let sqe = Sqe::new(nvm::PUSHDOWN_VECTOR, call.nsid);
                plan(sqe, DataOut::PushdownVector(call), Returns::Answer, call.room_bytes)
            }
            Request::Raw { mut sqe, data_out, data_in_max_bytes } => {
                self.check_transfer(u64::from(data_in_max_bytes))?;
                self.check_transfer(data_out.len() as u64)?;
                sqe.flags = Sqe::FLAGS_SGL;
                let data =
                    if data_out.is_empty() { DataOut::None } else { DataOut::Bytes(data_out) };
                plan(sqe, data, Returns::AtMost, data_in_max_bytes)
            }
        }
    }

    /// Converts a range of bytes to logical blocks.
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

    #[inline]
    fn check_capsule(&self, bytes: usize) -> Result<(), SubmitError> {
        let (bytes, max_bytes) = (bytes as u64, u64::from(self.config.in_capsule_bytes));
        if bytes > max_bytes { Err(SubmitError::TooLong { bytes, max_bytes }) } else { Ok(()) }
    }

    /// The slot that the next request will take.
    pub(crate) fn next_slot(&self) -> Option<u16> {
        self.free.last().copied()
    }

    /// Takes a slot for `sqe` and gives it its command identifier.
    ///
    /// # Errors
    /// The queue is not open, or full.
    #[inline]
    pub(crate) fn take(
        &mut self,
        tag: u64,
        sqe: &mut Sqe,
        returns: Returns,
        expected_bytes: u32,
    ) -> Result<&mut Slot, SubmitError> {
        if !self.is_ready() {
            return Err(SubmitError::NotConnected);
        }
        let index = self.free.pop().ok_or(SubmitError::QueueFull)?;
        self.unsent.push(index);
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            unreachable!("free slots are slots")
        };
        slot.take(tag, sqe, returns, expected_bytes);
        sqe.cid = slot.cid(index);
        Ok(slot)
    }

    /// Sets where the capsule of the request that has just [taken](Self::take) a slot ends in the connection's bytes.
    #[inline]
    pub(crate) fn leaves_at(&mut self, cid: u16, position: u64) {
        if let Some(slot) = self.slots.get_mut(usize::from(Slot::index_of(cid))) {
            slot.leaves_at = position;
        }
    }

    /// The slot in flight that `cid` names.
    #[inline]
    pub(crate) fn find(&mut self, cid: u16) -> Option<(u16, &mut Slot)> {
        let index = Slot::index_of(cid);
        let slot = self.slots.get_mut(usize::from(index))?;
        (slot.in_flight && slot.cid(index) == cid).then_some((index, slot))
    }

    /// Handles a completion, which comes after all data of its request. Returns false if it reports success before all
    /// data was transferred, which breaks the protocol.
    #[inline]
    pub(crate) fn respond(
        &mut self,
        index: u16,
        cqe: &Cqe,
        on_completion: &mut OnCompletion<'_>,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(usize::from(index)) else { return false };
        let (dw0, dw1, status) = (cqe.dw0, cqe.dw1, cqe.status);
        if !status.is_success() {
            let error = RequestError::Command(CommandError { status, dw0, dw1 });
            self.finish(index, Err(error), on_completion);
            return true;
        }
        let complete = match slot.returns {
            Returns::Exactly => slot.received_bytes == slot.expected_bytes,
            Returns::AtMost => true,
            Returns::Answer => slot.received_bytes == dw1,
        };
        if !complete || (slot.data_out_sent_bytes as usize) < slot.data_out.len() {
            return false;
        }
        if slot.digest_failed {
            self.finish(index, Err(RequestError::DataDigest), on_completion);
            return true;
        }
        // The buffer is taken out of its slot during the call, so that the slot can be freed first.
        let kept = std::mem::take(&mut slot.data_in);
        let data = kept.get(..slot.received_bytes as usize).unwrap_or(&[]);
        self.finish(index, Ok(Done { data, dw0, dw1 }), on_completion);
        if let Some(slot) = self.slots.get_mut(usize::from(index)) {
            slot.data_in = kept;
        }
        true
    }

    /// Frees a slot and reports its request.
    #[inline]
    pub(crate) fn finish(
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

    /// Marks the queue as failed for `reason`, unless it has failed already. Returns whether this is the first failure.
    pub(crate) fn fail(&mut self, reason: LostReason) -> bool {
        let is_first = self.failure().is_none();
        if is_first {
            self.phase = Phase::Failed(reason);
            self.unsent.clear();
        }
        is_first
    }

    /// After a failure, reports each request still in flight, once.
    pub(crate) fn lost(&mut self, on_completion: &mut OnCompletion<'_>) {
        let Some(reason) = self.failure() else { return };
        for index in 0..self.slots.len() as u16 {
            if self.slots.get(usize::from(index)).is_some_and(|slot| slot.in_flight) {
                self.finish(index, Err(RequestError::Lost(reason)), on_completion);
            }
        }
    }

    /// The reason to give up at `now_us`: a command that was sent more than `timeout_us` ago. Asynchronous Event
    /// Requests have no timeout: they wait until an event occurs.
    pub(crate) fn expired(&self, now_us: u64, timeout_us: u64) -> Option<LostReason> {
        let waited_us = |slot: &Slot| slot.sent_us.map_or(0, |sent| now_us.saturating_sub(sent));
        let may_wait = |slot: &Slot| self.config.admin && slot.opcode == admin::ASYNC_EVENT_REQUEST;
        let in_flight = self.slots.iter().filter(|slot| slot.in_flight && !may_wait(slot));
        let oldest = in_flight.max_by_key(|slot| waited_us(slot))?;
        let name = command_name(self.config.admin, oldest.opcode, oldest.fctype);
        (waited_us(oldest) > timeout_us).then(|| LostReason::Timeout {
            command: name.unwrap_or("a command"),
            waited_ms: waited_us(oldest) / 1000,
        })
    }
}
