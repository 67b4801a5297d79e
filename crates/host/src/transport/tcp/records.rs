//! TLS records of a socket, sealed and opened in this process.
//!
//! Not by the kernel, even where it could: some servers send NewSessionTickets behind the handshake,
//! which end a receive of the kernel's with an error, and are skipped here.

use super::stream::{read, write};
use crate::LostReason;
use bpfof_tls::{
    HandshakeError, Opener, Psk, RECORD_MAX_BYTES, RecordError, Sealer, Secured, Side, TrafficKey,
};
use std::net::TcpStream;
use std::sync::Once;
use std::time::Instant;

/// Most bytes that one receive takes from the kernel.
const RECEIVE_BYTES: usize = 128 << 10;

/// Both directions.
pub(crate) struct Records {
    sealer: Sealer,
    opener: Opener,
    /// Sealed, and what of it the kernel has taken.
    sealed: Vec<u8>,
    sent: usize,
    /// Received: a part of a record at its front, `received` bytes long.
    buffer: Box<[u8]>,
    received: usize,
    is_closed: bool,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").field("received", &self.received).finish_non_exhaustive()
    }
}

/// The keys of both directions, each as it is for the next record.
#[derive(Debug)]
pub(crate) struct Keys {
    /// Seals what this end sends.
    pub(crate) write: TrafficKey,
    /// Opens what the target sends.
    pub(crate) read: TrafficKey,
}

impl Records {
    /// Plaintext that one receive may bring.
    pub(crate) const MOST_AT_ONCE_BYTES: usize = RECEIVE_BYTES;

    /// Connects by TLS.
    pub(super) fn shake_hands(
        stream: &TcpStream,
        psk: &Psk,
        deadline: Instant,
    ) -> Result<Self, HandshakeError> {
        static ONCE: Once = Once::new();
        // Else the first handshake is slow; what it would report the handshake reports as well.
        ONCE.call_once(|| drop(bpfof_tls::init()));
        let secured = bpfof_tls::connect(stream, psk, deadline)?;
        let Secured { write, read, .. } = secured;
        Self::new(Keys { write, read })
            .map_err(|error| HandshakeError::Io(std::io::Error::other(error)))
    }

    pub(super) fn new(keys: Keys) -> Result<Self, RecordError> {
        let Keys { write, read } = keys;
        Ok(Self {
            sealer: Sealer::new(write)?,
            opener: Opener::new(read, Side::Client)?,
            sealed: Vec::new(),
            sent: 0,
            buffer: vec![0; RECEIVE_BYTES + RECORD_MAX_BYTES].into_boxed_slice(),
            received: 0,
            is_closed: false,
        })
    }

    /// Whether nothing that was received or sealed is left here.
    pub(super) const fn is_at_rest(&self) -> bool {
        self.received == 0 && !self.has_unsent() && self.opener.goes_on()
    }

    /// The keys, with which somebody else goes on.
    pub(super) fn into_keys(self) -> Keys {
        Keys { write: self.sealer.into_key(), read: self.opener.into_key() }
    }

    /// Records that the keys of both directions should still be used for, the smaller number.
    pub(super) fn left(&self) -> u64 {
        self.sealer.records_left().min(self.opener.records_left())
    }

    pub(super) const fn has_unsent(&self) -> bool {
        self.sent < self.sealed.len()
    }

    /// Seals `bytes`, as few records as can be, and gives the kernel what it takes. All are taken, unless
    /// it has not even taken those of the call before.
    pub(super) fn send(
        &mut self,
        stream: &mut TcpStream,
        bytes: &[u8],
    ) -> Result<usize, LostReason> {
        self.flush(stream)?;
        if self.has_unsent() {
            return Ok(0);
        }
        self.sealer.seal([bytes], &mut self.sealed).map_err(|_| LostReason::Tls)?;
        self.flush(stream)?;
        Ok(bytes.len())
    }

    fn flush(&mut self, stream: &mut TcpStream) -> Result<(), LostReason> {
        if let Some(rest) = self.sealed.get(self.sent..).filter(|rest| !rest.is_empty()) {
            self.sent += write(stream, rest)?;
        }
        if !self.has_unsent() {
            self.sealed.clear();
            self.sent = 0;
        }
        Ok(())
    }

    /// Receives once, and copies the plaintext of all records that are whole to `to`.
    pub(super) fn receive(
        &mut self,
        stream: &mut TcpStream,
        to: &mut [u8],
    ) -> Result<usize, LostReason> {
        if self.is_closed {
            return Err(LostReason::Closed);
        }
        // The part of a record that is here is part of the plaintext that comes.
        let most = to.len().min(Self::MOST_AT_ONCE_BYTES);
        let end = self.buffer.len().min(most.max(RECORD_MAX_BYTES));
        let free = self.buffer.get_mut(self.received..end).unwrap_or(&mut []);
        self.received += read(stream, free)?;
        let records = self.buffer.get_mut(..self.received).unwrap_or(&mut []);
        let opened = self.opener.open(records).map_err(|error| {
            log::warn!("the target's TLS: {error}");
            LostReason::Tls
        })?;
        self.is_closed = opened.closed;
        let plain = self.buffer.get(..opened.plaintext_bytes).unwrap_or(&[]);
        let Some(to) = to.get_mut(..plain.len()) else { return Err(LostReason::Tls) };
        to.copy_from_slice(plain);
        self.buffer.copy_within(opened.consumed_bytes..self.received, 0);
        self.received -= opened.consumed_bytes;
        Ok(opened.plaintext_bytes)
    }
}
