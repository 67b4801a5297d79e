//! Types that pass between a port and its queue pair.

use bpfof_device::{IoBuffer, MemoryNamespace};
use bpfof_nvme::Sqe;
use std::cell::RefCell;
use std::sync::Arc;

/// The peer breaks the rules of the transport; it has been told, if the transport has a message for that.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub(crate) struct Violation(pub(crate) String);

/// Something that has arrived from the peer.
pub(crate) enum Arrival<'a> {
    /// A command, with the data in its capsule; `intact` unless a digest shows that the data is damaged.
    Command { sqe: Sqe, data: &'a [u8], intact: bool },
    /// Bytes of fetched data; with `fetched` if they were the last.
    Data { bytes: usize, fetched: Option<Fetched> },
    /// Something that concerns the transport alone.
    Nothing,
    /// The peer ends the connection, and says why.
    Ended(String),
}

/// All of a command's data; `intact` unless a digest shows that it is damaged.
pub(crate) struct Fetched {
    pub(crate) slot: u16,
    pub(crate) buffer: IoBuffer,
    pub(crate) intact: bool,
}

/// Received input that has not been processed.
pub(crate) enum Input {
    /// Bytes of a stream: the first `filled` of a buffer.
    Stream { buffer: Vec<u8>, filled: usize },
    /// Messages.
    Messages(Vec<Received>),
}

impl Input {
    /// How much there is: bytes, or messages.
    pub(crate) fn len(&self) -> usize {
        match self {
            Input::Stream { filled, .. } => *filled,
            Input::Messages(received) => received.len(),
        }
    }
}

/// Data for the host.
pub(crate) enum Payload<'a> {
    None,
    Bytes(&'a [u8]),
    /// A range of a namespace in memory: offset and length in bytes.
    Memory(&'a Arc<MemoryNamespace>, u64, usize),
    Buffer(IoBuffer),
}

impl Payload<'_> {
    /// Its length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Payload::None => 0,
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Memory(.., length) => *length,
            Payload::Buffer(buffer) => buffer.len(),
        }
    }
}

/// A message that has been received.
#[derive(Debug)]
pub(crate) enum Received {
    Capsule(Vec<u8>),
    /// Data that was fetched for the command in this slot; none once it has been processed.
    Fetched {
        slot: u16,
        buffer: RefCell<Option<IoBuffer>>,
    },
}
