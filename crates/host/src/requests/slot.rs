//! The slots of requests in flight. A slot keeps its buffers from one request to the next.

use bpfof_nvme::Sqe;

/// Bits of a command identifier for the slot's index; the others count its uses, so that a late or
/// repeated completion is detected.
const INDEX_BITS: u32 = 12;
/// Most slots of a queue: 4095, so that a queue has at most 4096 entries.
pub(crate) const SLOTS_MAX: u16 = (1 << INDEX_BITS) - 1;

/// How much data a request returns when it succeeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Returns {
    /// Exactly the expected length.
    #[default]
    Exactly,
    /// Up to the expected length.
    AtMost,
    /// Up to the expected length; dword 1 has the actual one, and a response is mandatory
    /// (protocol.md, Pushdown).
    Answer,
}

/// A request in flight, or the room for one.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) in_flight: bool,
    uses: u16,
    pub(crate) tag: u64,
    pub(crate) opcode: u8,
    pub(crate) fctype: u8,
    /// When the request was sent, in µs of the lane's clock; `None` until then.
    pub(crate) sent_us: Option<u64>,
    /// Position in the sent bytes of a TCP connection where its capsule ends: it has left when this
    /// many bytes were sent.
    pub(crate) leaves_at: u64,
    pub(crate) returns: Returns,
    /// Data to receive.
    pub(crate) expected_bytes: u32,
    pub(crate) received_bytes: u32,
    /// Whether the last data PDU of the transfer has come.
    pub(crate) data_ended: bool,
    pub(crate) digest_failed: bool,
    /// Data received in more than one piece; at least `received_bytes` long.
    pub(crate) data_in: Vec<u8>,
    /// Data to send after R2T; empty if there is none.
    pub(crate) data_out: Vec<u8>,
    pub(crate) data_out_sent_bytes: u32,
}

impl Slot {
    /// Takes the slot for a request.
    #[inline]
    pub(crate) fn take(&mut self, tag: u64, sqe: &Sqe, returns: Returns, expected_bytes: u32) {
        self.in_flight = true;
        self.uses = self.uses.wrapping_add(1);
        self.tag = tag;
        self.opcode = sqe.opcode;
        self.fctype = sqe.nsid as u8;
        self.sent_us = None;
        self.returns = returns;
        self.expected_bytes = expected_bytes;
        self.received_bytes = 0;
        self.data_ended = false;
        self.digest_failed = false;
        self.data_out.clear();
        self.data_out_sent_bytes = 0;
    }

    /// Command identifier of the slot at `index`.
    #[inline]
    pub(crate) fn cid(&self, index: u16) -> u16 {
        self.uses << INDEX_BITS | index
    }

    /// Index of the slot that `cid` names.
    #[inline]
    pub(crate) fn index_of(cid: u16) -> u16 {
        cid & SLOTS_MAX
    }

    /// Appends a piece of data to the data received so far.
    #[inline]
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        self.keep_with(bytes.len(), |place| place.copy_from_slice(bytes));
    }

    /// The same for `length` bytes, which `fill` writes.
    #[inline]
    pub(crate) fn keep_with(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) {
        let start = self.received_bytes as usize;
        let end = start + length;
        if self.data_in.len() < end {
            // Grow to the final size at once, instead of with each piece.
            self.data_in.resize(end.max(self.expected_bytes as usize), 0);
        }
        if let Some(place) = self.data_in.get_mut(start..end) {
            fill(place);
        }
        self.received_bytes += length as u32;
    }
}
