//! The interface between a queue pair and its transport: capsules come in, responses go out, data is fetched.
//!
//! A [`Port`] is one connection's end of a transport, without its socket: the reactor gives it received bytes or
//! messages and takes those to be sent. [`tcp`] cuts a byte stream into PDUs; [`message`] has capsules that arrive
//! whole, and data that the controller reads and writes by key, as with RDMA.

pub(crate) mod message;
pub(crate) mod secure;
pub(crate) mod tcp;

mod arrival;

pub(crate) use arrival::{Arrival, Fetched, Input, Payload, Received, Violation};

use crate::access::{Identity, Rules};
use crate::limits::IN_CAPSULE_BYTES;
use crate::queue::Fetch;
use bpfof_device::IoBuffer;
use bpfof_nvme::{Cqe, DataPointer, Sgl};
use message::MessagePort;
use tcp::TcpPort;

/// One connection's end of a transport.
#[derive(Debug)]
pub(crate) enum Port {
    Tcp(TcpPort),
    Message(MessagePort),
}

impl Port {
    /// Reads a command's SGL descriptor. Types that the transport does not have are unknown.
    #[inline]
    pub(crate) fn pointer(&self, sgl: &Sgl) -> DataPointer {
        match (self, DataPointer::of(sgl)) {
            (Port::Tcp(_), DataPointer::Keyed { .. })
            | (Port::Message(_), DataPointer::Transport { .. }) => DataPointer::Unknown(sgl.kind),
            (_, pointer) => pointer,
        }
    }

    /// Whether hosts refer to data by keys.
    pub(crate) fn is_keyed(&self) -> bool {
        matches!(self, Port::Message(_))
    }

    /// Bytes of data that a capsule has room for.
    pub(crate) fn in_capsule_bytes(&self) -> u32 {
        match self {
            Port::Tcp(_) => IN_CAPSULE_BYTES,
            Port::Message(port) => port.in_capsule_bytes(),
        }
    }

    /// Bytes of memory that it takes beyond that of a TCP connection without TLS: memory that is registered with a
    /// network card, waiting messages, or what TLS needs.
    pub(crate) fn own_bytes(&self) -> usize {
        match self {
            Port::Tcp(port) => port.own_bytes(),
            Port::Message(port) => port.own_bytes(),
        }
    }

    /// The queue id that the peer has asked for by its connection request; none by TCP, where only Connect names it.
    pub(crate) fn asked_qid(&self) -> Option<u16> {
        match self {
            Port::Tcp(_) => None,
            Port::Message(port) => port.asked_qid(),
        }
    }

    /// The identity that the peer has proved by TLS, if it has.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        match self {
            Port::Tcp(port) => port.identity(),
            Port::Message(_) => None,
        }
    }

    /// Whether `rules` still have the key that the peer has proved below this, if it has proved one.
    pub(crate) fn is_key_valid(&self, rules: &Rules) -> bool {
        match self {
            Port::Tcp(port) => port.is_key_valid(rules),
            Port::Message(_) => true,
        }
    }

    /// Connect has succeeded.
    pub(crate) fn connected(&mut self) {
        if let Port::Tcp(port) = self {
            port.connected();
        }
    }

    /// Cost of encryption since the last call, in units.
    #[inline]
    pub(crate) fn take_spent(&mut self) -> u64 {
        match self {
            Port::Tcp(port) => port.take_spent(),
            Port::Message(_) => 0,
        }
    }

    /// Takes the received input; the caller must [put it back](Self::put_back). None while a receive has
    /// the buffer, or earlier input is being processed.
    #[inline]
    pub(crate) fn take_input(&mut self) -> Option<Input> {
        match self {
            Port::Tcp(port) => port.take_input(),
            Port::Message(port) => port.take_input(),
        }
    }

    /// Gives the input back without its first `used` bytes or messages.
    #[inline]
    pub(crate) fn put_back(&mut self, input: Input, used: usize) {
        match (self, input) {
            (Port::Tcp(port), Input::Stream { buffer, filled }) => {
                port.put_back(buffer, used..filled);
            }
            (Port::Message(port), Input::Messages(received)) => port.put_back(received, used),
            _ => unreachable!("the input is not from this port"),
        }
    }

    /// The next arrival in the input behind its first `used` bytes or messages, and how many of them it takes; none if
    /// it is not complete.
    ///
    /// # Errors
    /// If the peer breaks the rules. A message that tells it so is added to the send buffer.
    #[inline]
    pub(crate) fn next<'a>(
        &mut self,
        input: &'a Input,
        used: usize,
    ) -> Result<Option<(usize, Arrival<'a>)>, Violation> {
        match (self, input) {
            (Port::Tcp(port), Input::Stream { buffer, filled }) => {
                port.next(&buffer[used..*filled])
            }
            (Port::Message(port), Input::Messages(received)) => port.next(&received[used..]),
            _ => unreachable!("the input is not from this port"),
        }
    }

    /// The peer breaks a rule of the queue with the PDU or message behind the first `used` of the input.
    pub(crate) fn violated(
        &mut self,
        reason: &'static str,
        input: &Input,
        used: usize,
    ) -> Violation {
        if let (Port::Tcp(port), Input::Stream { buffer, filled }) = (self, input) {
            port.terminate(reason, &buffer[used..*filled]);
        }
        Violation(reason.to_owned())
    }

    /// Whether there is received data that is not in the input yet and can be opened.
    #[inline]
    pub(crate) fn has_unopened(&self) -> bool {
        match self {
            Port::Tcp(port) => port.has_unopened(),
            Port::Message(_) => false,
        }
    }

    /// Whether a PDU or record has arrived in part, once `used` of `length` bytes have been processed.
    #[inline]
    pub(crate) fn is_within(&self, used: usize, length: usize) -> bool {
        match self {
            Port::Tcp(port) => used < length || port.is_within_data() || port.has_part_of_record(),
            Port::Message(_) => false,
        }
    }

    /// Sends a command's data, which its pointer has room for, and its completion. Returns a buffer whose data was
    /// copied.
    #[inline]
    pub(crate) fn respond(
        &mut self,
        pointer: DataPointer,
        cqe: Cqe,
        payload: Payload<'_>,
    ) -> Option<IoBuffer> {
        match self {
            Port::Tcp(port) => port.respond(cqe, payload),
            Port::Message(port) => port.respond(pointer, cqe, payload),
        }
    }

    /// Fetches a command's data from the host into a buffer of its length; the data arrives as [`Fetched`].
    pub(crate) fn fetch(&mut self, fetch: Fetch, buffer: IoBuffer) {
        match self {
            Port::Tcp(port) => port.fetch(fetch, buffer),
            Port::Message(port) => port.fetch(fetch, buffer),
        }
    }

    /// Bytes that are to be sent and whose send has not begun.
    #[inline]
    pub(crate) fn unsent_bytes(&self) -> usize {
        match self {
            Port::Tcp(port) => port.unsent_bytes(),
            Port::Message(port) => port.unsent_bytes(),
        }
    }

    /// Bytes for the host that it, or its kernel, has not taken yet.
    #[inline]
    pub(crate) fn backlog_bytes(&self) -> usize {
        match self {
            Port::Tcp(port) => port.unsent_bytes(),
            Port::Message(port) => port.backlog_bytes(),
        }
    }

    /// Unsent bytes, and bytes that are being sent.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Port::Tcp(port) => port.unsent_bytes() + port.sending_bytes(),
            Port::Message(port) => port.unsent_bytes() + port.posted_bytes(),
        }
    }

    /// Stops waiting for data that is being fetched, because the connection closes. Gives the buffers back.
    pub(crate) fn stop_fetching(&mut self, give_back: impl FnMut(IoBuffer)) {
        match self {
            Port::Tcp(port) => port.stop_fetching(give_back),
            Port::Message(port) => port.stop_fetching(),
        }
    }

    /// Whether all of its buffers have come back from the ring or the card.
    pub(crate) fn is_at_rest(&self) -> bool {
        match self {
            Port::Tcp(port) => port.is_at_rest(),
            Port::Message(port) => port.is_at_rest(),
        }
    }

    /// Makes room for the commands of a queue with this many entries.
    pub(crate) fn grow(&mut self, entries: u16, is_io: bool) {
        match self {
            Port::Tcp(port) if is_io => port.grow(),
            Port::Tcp(_) => {}
            Port::Message(port) => port.grow(entries),
        }
    }

    /// Gives back memory from a busy time.
    pub(crate) fn shrink(&mut self) {
        if let Port::Tcp(port) = self {
            port.shrink();
        }
    }
}
