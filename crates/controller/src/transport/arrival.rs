//! What crosses between a port and its queue pair.

use bpfof_device::{IoBuffer, MemoryNamespace};
use bpfof_nvme::Sqe;
use std::cell::RefCell;
use std::sync::Arc;

/// The peer breaks the rules of the transport; it has been told, if the transport has words for that.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub(crate) struct Violation(pub(crate) String);

/// What has arrived.
pub(crate) enum Arrival<'a> {
    /// A command, with the data in its capsule; `intact` unless a digest says that this is damaged.
    Command { sqe: Sqe, data: &'a [u8], intact: bool },
    /// So many bytes of data that was fetched, perhaps the last.
    Data { bytes: usize, fetched: Option<Fetched> },
    /// Something that concerns the transport alone.
    Nothing,
    /// The peer ends the connection, and says why.
    Ended(String),
}

/// All of a command's data is here; `intact` unless a digest says that it is damaged.
pub(crate) struct Fetched {
    pub(crate) slot: u16,
    pub(crate) buffer: IoBuffer,
    pub(crate) intact: bool,
}

/// What has been received and not been looked at.
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
    /// So many bytes at an offset of a namespace in memory.
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
    /// Data that was fetched for the command in this slot; none once it was looked at.
    Fetched {
        slot: u16,
        buffer: RefCell<Option<IoBuffer>>,
    },
}
