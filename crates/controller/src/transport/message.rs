//! Capsules that arrive whole, one in each message, and data that the controller reads and writes in the host's memory
//! by key: the form of NVMe over RDMA (NVMe RDMA Transport 1.0).
//!
//! If a command has no data pointer for its answer, the answer follows the completion in its message.

use super::arrival::{Arrival, Fetched, Input, Payload, Received, Violation};
use crate::limits::{IN_CAPSULE_BYTES, MAX_QUEUE_ENTRIES, RDMA_IN_CAPSULE_BYTES};
use crate::queue::Fetch;
use bpfof_device::IoBuffer;
use bpfof_device::fabric::Work;
use bpfof_device::rdma::Shape;
use bpfof_nvme::{Cqe, DataPointer, Sqe};

/// Unprocessed messages that a connection may have before its queue is known.
const PENDING_MESSAGES: usize = 4;

/// See the module.
#[derive(Debug)]
pub(crate) struct MessagePort {
    /// Bytes of data that a capsule has room for.
    in_capsule_bytes: u32,
    /// Bytes of its registered memory and of waiting messages.
    own_bytes: usize,
    /// The queue id in the connection request.
    asked_qid: Option<u16>,
    /// None while it is being processed.
    inbox: Option<Vec<Received>>,
    /// How many capsules are in it or being processed.
    capsules: usize,
    /// How many capsules it may hold.
    room: usize,
    unposted: Vec<Work>,
    unposted_bytes: usize,
    /// Works that have not ended, and their bytes.
    posted: usize,
    posted_bytes: usize,
    /// The part of these bytes that is being read from the host.
    reading_bytes: usize,
}

impl Default for MessagePort {
    fn default() -> MessagePort {
        MessagePort {
            in_capsule_bytes: IN_CAPSULE_BYTES,
            own_bytes: 0,
            asked_qid: None,
            inbox: Some(Vec::new()),
            capsules: 0,
            room: PENDING_MESSAGES,
            unposted: Vec::new(),
            unposted_bytes: 0,
            posted: 0,
            posted_bytes: 0,
            reading_bytes: 0,
        }
    }
}

impl MessagePort {
    /// The port of a connection by RDMA.
    pub(crate) fn rdma(shape: &Shape, qid: u16) -> MessagePort {
        // There are at most as many messages as receives.
        let inbox_bytes =
            usize::from(shape.receives) * (shape.receive_bytes + size_of::<Received>());
        MessagePort {
            in_capsule_bytes: RDMA_IN_CAPSULE_BYTES,
            own_bytes: shape.registered_bytes() + inbox_bytes,
            asked_qid: Some(qid),
            ..MessagePort::default()
        }
    }
}

/// The port's interface for a queue pair.
impl MessagePort {
    pub(super) fn in_capsule_bytes(&self) -> u32 {
        self.in_capsule_bytes
    }

    pub(super) fn own_bytes(&self) -> usize {
        self.own_bytes
    }

    pub(super) fn asked_qid(&self) -> Option<u16> {
        self.asked_qid
    }

    pub(super) fn take_input(&mut self) -> Option<Input> {
        self.inbox.take().map(Input::Messages)
    }

    pub(super) fn put_back(&mut self, mut received: Vec<Received>, used: usize) {
        let seen = received.drain(..used);
        self.capsules -= seen.filter(|one| matches!(one, Received::Capsule(_))).count();
        self.inbox = Some(received);
    }

    pub(super) fn next<'a>(
        &mut self,
        received: &'a [Received],
    ) -> Result<Option<(usize, Arrival<'a>)>, Violation> {
        if self.capsules > self.room {
            return Err(Violation("more commands than the queue has entries".to_owned()));
        }
        let arrival = match received.first() {
            None => return Ok(None),
            Some(Received::Capsule(bytes)) => capsule(bytes, self.in_capsule_bytes)?,
            Some(Received::Fetched { slot, buffer }) => {
                let buffer = buffer.take();
                let bytes = buffer.as_ref().map_or(0, |buffer| buffer.len());
                let fetched = buffer.map(|buffer| Fetched { slot: *slot, buffer, intact: true });
                Arrival::Data { bytes, fetched }
            }
        };
        Ok(Some((1, arrival)))
    }

    pub(super) fn respond(
        &mut self,
        pointer: DataPointer,
        cqe: Cqe,
        payload: Payload<'_>,
    ) -> Option<IoBuffer> {
        let mut data = Vec::with_capacity(payload.len());
        let mut copied = None;
        match payload {
            Payload::None => {}
            Payload::Bytes(bytes) => data.extend_from_slice(bytes),
            Payload::Memory(memory, offset, length) => memory.append(offset, length, &mut data),
            Payload::Buffer(buffer) => {
                data.extend_from_slice(&buffer);
                copied = Some(buffer);
            }
        }
        let mut response = cqe.to_bytes().to_vec();
        match pointer {
            DataPointer::Keyed { address, key, .. } if !data.is_empty() => {
                self.post(Work::Write { key, address, bytes: data });
            }
            _ => response.append(&mut data),
        }
        self.post(Work::Send(response));
        copied
    }

    pub(super) fn fetch(&mut self, fetch: Fetch, buffer: IoBuffer) {
        let DataPointer::Keyed { address, key, .. } = fetch.pointer else {
            unreachable!("other pointers are refused")
        };
        self.post(Work::Read { id: fetch.slot.into(), key, address, buffer });
    }

    fn post(&mut self, work: Work) {
        self.unposted_bytes += work.bytes();
        self.unposted.push(work);
    }

    pub(crate) fn unsent_bytes(&self) -> usize {
        self.unposted_bytes
    }

    pub(super) fn posted_bytes(&self) -> usize {
        self.posted_bytes
    }

    /// Bytes for the host that it has not taken.
    pub(super) fn backlog_bytes(&self) -> usize {
        self.unposted_bytes + self.posted_bytes.saturating_sub(self.reading_bytes)
    }

    /// Data that is being read still arrives and is dropped then.
    pub(super) fn stop_fetching(&mut self) {
        self.unposted.retain(|work| !is_read(work));
        self.unposted_bytes = self.unposted.iter().map(Work::bytes).sum();
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.posted == 0
    }

    pub(super) fn grow(&mut self, entries: u16) {
        debug_assert!(entries <= MAX_QUEUE_ENTRIES);
        self.room = entries.into();
    }
}

/// The port's interface for a fabric's endpoint.
impl MessagePort {
    /// Something has been received.
    pub(crate) fn deliver(&mut self, received: Received) {
        if let Some(inbox) = &mut self.inbox {
            self.capsules += usize::from(matches!(received, Received::Capsule(_)));
            inbox.push(received);
        }
    }

    /// Takes the works that are to be posted now.
    pub(crate) fn take_unposted(&mut self) -> Vec<Work> {
        self.posted += self.unposted.len();
        self.reading_bytes +=
            self.unposted.iter().filter(|work| is_read(work)).map(Work::bytes).sum::<usize>();
        self.posted_bytes += std::mem::take(&mut self.unposted_bytes);
        std::mem::take(&mut self.unposted)
    }

    /// A work of this many bytes has ended.
    pub(crate) fn ended(&mut self, bytes: usize) {
        self.posted -= 1;
        self.posted_bytes -= bytes;
    }

    /// This many bytes have been read from the host.
    pub(crate) fn has_read(&mut self, bytes: usize) {
        self.reading_bytes -= bytes;
        self.ended(bytes);
    }

    /// Whether works are posted that have not ended.
    pub(crate) fn is_sending(&self) -> bool {
        self.posted > 0
    }
}

fn is_read(work: &Work) -> bool {
    matches!(work, Work::Read { .. })
}

fn capsule(bytes: &[u8], in_capsule_bytes: u32) -> Result<Arrival<'_>, Violation> {
    let most = Sqe::BYTES + in_capsule_bytes as usize;
    if bytes.len() > most {
        let words = format!("a capsule of {} bytes; the limit is {most}", bytes.len());
        return Err(Violation(words));
    }
    let Some((sqe, data)) = bytes.split_first_chunk() else {
        return Err(Violation(format!("a capsule of {} bytes, less than a command", bytes.len())));
    };
    Ok(Arrival::Command { sqe: Sqe::from_bytes(sqe), data, intact: true })
}
