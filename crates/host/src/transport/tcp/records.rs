//! TLS records of a socket, sealed and opened in this process.
//!
//! The kernel is not used for this, even where it could be: some servers send NewSessionTickets after the handshake.
//! With kernel TLS they make a receive fail; here they are skipped.

use super::stream::{read, write};
use crate::LostReason;
use bpfof_tls::{
    HandshakeError, Opener, Psk, RECORD_MAX_BYTES, RecordError, Sealer, Secured, Side, TrafficKey,
};
use std::net::TcpStream;
use std::sync::Once;
use std::time::Instant;

/// Most bytes per receive from the kernel.
const RECEIVE_BYTES: usize = 128 << 10;

/// The TLS records of both directions.
pub(crate) struct Records {
    sealer: Sealer,
    opener: Opener,
    /// Sealed bytes, and how many of them the kernel has accepted.
    sealed: Vec<u8>,
    sent: usize,
    /// Received bytes: starts with an incomplete record of `received` bytes.
    buffer: Box<[u8]>,
    received: usize,
    is_closed: bool,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").field("received", &self.received).finish_non_exhaustive()
    }
}

/// The keys of both directions, each in the state for the next record.
#[derive(Debug)]
pub(crate) struct Keys {
    /// Seals records that this end sends.
    pub(crate) write: TrafficKey,
    /// Opens records of the target.
    pub(crate) read: TrafficKey,
}

impl Records {
    /// Most plaintext that one receive may return.
    pub(crate) const MOST_AT_ONCE_BYTES: usize = RECEIVE_BYTES;

    /// Performs the TLS handshake.
    pub(super) fn shake_hands(
        stream: &TcpStream,
        psk: &Psk,
        deadline: Instant,
    ) -> Result<Self, HandshakeError> {
        static ONCE: Once = Once::new();
        // Otherwise the first handshake is slow. The handshake reports the same errors.
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

    /// Whether no received or sealed bytes are left here.
    pub(super) const fn is_at_rest(&self) -> bool {
        self.received == 0 && !self.has_unsent() && self.opener.goes_on()
    }

    /// Gives out the keys, for another process to continue with.
    pub(super) fn into_keys(self) -> Keys {
        Keys { write: self.sealer.into_key(), read: self.opener.into_key() }
    }

    /// How many more records the keys may be used for: the smaller number of both directions.
    pub(super) fn left(&self) -> u64 {
        self.sealer.records_left().min(self.opener.records_left())
    }

    pub(super) const fn has_unsent(&self) -> bool {
        self.sent < self.sealed.len()
    }

    /// Seals `bytes` in as few records as possible, and passes the kernel what it accepts. Takes all bytes, or none if
    /// the kernel has not yet accepted those of an earlier call.
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

    /// Receives once, and copies the plaintext of all complete records to `to`.
    pub(super) fn receive(
        &mut self,
        stream: &mut TcpStream,
        to: &mut [u8],
    ) -> Result<usize, LostReason> {
        if self.is_closed {
            return Err(LostReason::Closed);
        }
        // The incomplete record that is already here counts towards the limit of plaintext.
        let most = to.len().min(Self::MOST_AT_ONCE_BYTES);
        let end = self.buffer.len().min(most.max(RECORD_MAX_BYTES));
        let free = self.buffer.get_mut(self.received..end).unwrap_or(&mut []);
        self.received += read(stream, free)?;
        let records = self.buffer.get_mut(..self.received).unwrap_or(&mut []);
        let opened = self.opener.open(records).map_err(|error| {
            log::warn!("invalid TLS record from the target: {error}");
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
