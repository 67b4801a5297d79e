//! Records of application data, sealed and opened in memory (RFC 8446 §5).
//!
//! ```text
//! record      17h, 03h 03h, length (2, big-endian), then so many bytes:
//!             sealed(content, content type (1), padding zeroes), tag (16)
//! nonce       initialization vector XOR number of the record in its direction
//! ```
//!
//! A record without its key is bytes; nothing in it is believed before its tag has been checked.

use crate::cipher::Cipher;
use crate::content_type;
use crate::error::Alert;
use crate::keys::{Side, TrafficKey};
use aws_lc_rs::aead::{Aad, Tag};
use thiserror::Error;

/// Length of a record's header, in bytes (RFC 8446 §5.2).
pub const HEADER_BYTES: usize = 5;
/// Most bytes of content that a record carries (RFC 8446 §5.1).
pub const CONTENT_MAX_BYTES: usize = 1 << 14;
/// Longest record that is taken, in bytes, header and all (RFC 8446 §5.2). A receive buffer of
/// this size never waits in vain.
pub const RECORD_MAX_BYTES: usize = HEADER_BYTES + SEALED_MAX_BYTES;
/// What a record adds to its content, in bytes, if it has no padding: header, content type, tag.
pub const RECORD_OVERHEAD_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;
/// Records after which a key should be replaced: by a new connection, since peers among which is
/// Linux do not take new keys on a live one. For AES-GCM RFC 8446 §5.5 allows 2^24.5 of full size.
pub const KEY_RECORDS_MAX: u64 = 1 << 24;

const TAG_BYTES: usize = 16;
/// Limit of a record's length field (RFC 8446 §5.2).
const SEALED_MAX_BYTES: usize = CONTENT_MAX_BYTES + 256;
/// Content, its type, and padding together (RFC 8446 §5.4).
const INNER_MAX_BYTES: usize = CONTENT_MAX_BYTES + 1;
/// legacy_record_version (RFC 8446 §5.2).
const VERSION: [u8; 2] = [3, 3];

/// A record that ends the connection, or that cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// No record has this length.
    #[error("record {record} has {length_bytes} bytes: it has 17 to {SEALED_MAX_BYTES}")]
    Length {
        /// Number of the record in its direction.
        record: u64,
        /// Its length field; of a record that was opened, without the tag.
        length_bytes: u16,
    },
    /// A record of a type that does not belong behind a handshake.
    #[error("record {record} has content type {content_type}")]
    ContentType {
        /// Number of the record in its direction.
        record: u64,
        /// Its type. 0: it has none.
        content_type: u8,
    },
    /// The tag is wrong: what arrived is not what the peer sealed.
    #[error("record {record} is not as the peer sealed it: its tag is wrong")]
    Tag {
        /// Number of the record in its direction.
        record: u64,
    },
    /// The peer reports an error.
    #[error("the peer ended the connection: {0}")]
    Alert(Alert),
    /// A handshake message. Of those that may follow a handshake a client skips NewSessionTicket;
    /// KeyUpdate (24) and the others are not supported.
    #[error("handshake message {message_type} on a connection that has shaken hands")]
    Handshake {
        /// HandshakeType (RFC 8446 §4).
        message_type: u8,
    },
    /// A record between two parts of one handshake message (RFC 8446 §5.1).
    #[error("record {record} interrupts a handshake message")]
    Interrupted {
        /// Number of the record in its direction.
        record: u64,
    },
    /// All 2^64 records of a key have been used.
    #[error("no record is left")]
    Exhausted,
    /// The cryptographic library refused a key or a record.
    #[error("the cryptographic library failed")]
    Library,
}

/// Seals what one end sends.
pub struct Sealer {
    cipher: Cipher,
}

impl Sealer {
    /// Seals with `key`, which is used up: another user of it would repeat nonces.
    ///
    /// # Errors
    /// [`RecordError::Library`]: never, as far as we know.
    pub fn new(key: TrafficKey) -> Result<Self, RecordError> {
        Ok(Self { cipher: Cipher::new(key).ok_or(RecordError::Library)? })
    }

    /// The key with which somebody else goes on where this one has stopped.
    #[must_use]
    pub fn into_key(self) -> TrafficKey {
        self.cipher.into_key()
    }

    /// Records that should still be sealed: [`KEY_RECORDS_MAX`] with a fresh key. At 0 the connection
    /// ought to be replaced; until it is, sealing goes on.
    #[must_use]
    pub const fn records_left(&self) -> u64 {
        KEY_RECORDS_MAX.saturating_sub(self.cipher.sequence())
    }

    /// Appends `pieces` to `out` as application data: one record if they have at most 16 KiB
    /// together, otherwise as few as can be. No pieces or empty ones make no record.
    ///
    /// Sealing everything that leaves in one go at once costs a fixed part (some 100 ns) once.
    ///
    /// # Errors
    /// [`RecordError::Exhausted`] or [`RecordError::Library`], neither of which anyone will see.
    /// `out` is then as long as before.
    pub fn seal<'a>(
        &mut self,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        let start = out.len();
        let sealed = self.seal_as(content_type::APPLICATION_DATA, pieces, out);
        if sealed.is_err() {
            // What was not sealed must not be sent.
            out.truncate(start);
        }
        sealed
    }

    /// Like [`seal`](Self::seal), with another content type. After an error `out` may end in
    /// plaintext.
    pub(crate) fn seal_as<'a>(
        &mut self,
        content_type: u8,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        let mut pieces = pieces.into_iter().peekable();
        let mut begun = None;
        while let Some(piece) = pieces.next() {
            let mut rest = piece;
            while !rest.is_empty() {
                let is_alone = rest.len() >= CONTENT_MAX_BYTES || pieces.peek().is_none();
                if begun.is_none() && is_alone {
                    let (now, later) = rest.split_at(rest.len().min(CONTENT_MAX_BYTES));
                    self.seal_one(content_type, now, out)?;
                    rest = later;
                    continue;
                }
                let header_at = *begun.get_or_insert(out.len());
                if header_at == out.len() {
                    out.reserve(CONTENT_MAX_BYTES + RECORD_OVERHEAD_BYTES);
                    out.extend_from_slice(&[0; HEADER_BYTES]);
                }
                let room = CONTENT_MAX_BYTES + HEADER_BYTES - (out.len() - header_at);
                let (now, later) = rest.split_at(rest.len().min(room));
                out.extend_from_slice(now);
                rest = later;
                if now.len() == room {
                    self.seal_gathered(content_type, header_at, out)?;
                    begun = None;
                }
            }
        }
        match begun {
            Some(header_at) => self.seal_gathered(content_type, header_at, out),
            None => Ok(()),
        }
    }

    /// Appends a record with all of `content`, which is at most [`CONTENT_MAX_BYTES`] long. It is
    /// sealed on its way and not copied before: a quarter faster than
    /// [`seal_gathered`](Self::seal_gathered) for content of 4 KiB and more.
    fn seal_one(
        &mut self,
        content_type: u8,
        content: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        let header = header(content.len() + 1)?;
        let sealed_at = out.len() + HEADER_BYTES;
        out.extend_from_slice(&header);
        out.resize(sealed_at + content.len() + 1 + TAG_BYTES, 0);
        let (sealed, behind) = out
            .get_mut(sealed_at..)
            .and_then(|record| record.split_at_mut_checked(content.len()))
            .ok_or(RecordError::Library)?;
        let (nonce, aad) = (self.cipher.nonce(), Aad::from(header));
        self.cipher
            .key()
            .seal_out_of_place_scatter(nonce, aad, content, sealed, &[content_type], behind)
            .map_err(|_| RecordError::Library)?;
        self.cipher.advance().ok_or(RecordError::Exhausted)
    }

    /// Seals the content that was put together behind room for a header, which is at `header_at`.
    fn seal_gathered(
        &mut self,
        content_type: u8,
        header_at: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        out.push(content_type);
        let record = out.get_mut(header_at..).unwrap_or_default();
        let tag = self.seal_in_place(record)?;
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Writes the header at the front of `record`, and seals what is behind it.
    pub(crate) fn seal_in_place(&mut self, record: &mut [u8]) -> Result<Tag, RecordError> {
        let (room, inner) =
            record.split_first_chunk_mut::<HEADER_BYTES>().ok_or(RecordError::Library)?;
        *room = header(inner.len())?;
        let (nonce, aad) = (self.cipher.nonce(), Aad::from(&*room));
        let tag = self
            .cipher
            .key()
            .seal_in_place_separate_tag(nonce, aad, inner)
            .map_err(|_| RecordError::Library)?;
        self.cipher.advance().ok_or(RecordError::Exhausted)?;
        Ok(tag)
    }
}

/// The header of a record whose inner plaintext (content, type, padding) has this length.
fn header(inner_bytes: usize) -> Result<[u8; HEADER_BYTES], RecordError> {
    let length = u16::try_from(inner_bytes + TAG_BYTES).map_err(|_| RecordError::Library)?;
    let [high, low] = length.to_be_bytes();
    Ok([content_type::APPLICATION_DATA, VERSION[0], VERSION[1], high, low])
}

/// What [`Opener::open`] made of its buffer.
///
/// ```text
/// before   | record | record | begun record |
/// after    | plaintext |    no meaning    | begun record |
///          0       plaintext_bytes    consumed_bytes
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Length of the plaintext, which stands at the front of the buffer.
    pub plaintext_bytes: usize,
    /// Length of the records that were opened. What is behind them is a part of a record, which
    /// waits for its rest.
    pub consumed_bytes: usize,
    /// Whether the peer has said that it sends no more (close_notify). What it sent behind that is
    /// not looked at.
    pub closed: bool,
    /// Whether it stopped because it had opened as many as it may: there may be whole records behind
    /// them.
    pub has_more: bool,
}

/// Opens what one end receives, where it stands. Allocates nothing.
///
/// The caller keeps what it received in one buffer with room for [`RECORD_MAX_BYTES`] at least:
///
/// ```
/// # use bpfof_tls::{Opener, RecordError};
/// /// Opens the records in `buffer`, from `plaintext` on; before that is plaintext of earlier
/// /// calls. Gives where the plaintext ends now; what is behind it is a part of a record.
/// fn open(opener: &mut Opener, buffer: &mut Vec<u8>, plaintext: usize) -> Result<usize, RecordError> {
///     let opened = opener.open(&mut buffer[plaintext..])?;
///     let end = plaintext + opened.plaintext_bytes;
///     buffer.drain(end..plaintext + opened.consumed_bytes);
///     Ok(end)
/// }
/// ```
///
/// After an error the connection is over, and the opener gives the same error again.
pub struct Opener {
    cipher: Cipher,
    side: Side,
    messages: Messages,
    closed: bool,
    failed: Option<RecordError>,
}

impl Opener {
    /// Opens with `key`, which is used up, what the peer of `side` sends. A client skips
    /// NewSessionTicket messages, which some servers send unasked; a server takes no message.
    ///
    /// # Errors
    /// [`RecordError::Library`]: never, as far as we know.
    pub fn new(key: TrafficKey, side: Side) -> Result<Self, RecordError> {
        let cipher = Cipher::new(key).ok_or(RecordError::Library)?;
        let messages = Messages::default();
        Ok(Self { cipher, side, messages, closed: false, failed: None })
    }

    /// Records that the peer should still seal, as [`Sealer::records_left`].
    #[must_use]
    pub const fn records_left(&self) -> u64 {
        KEY_RECORDS_MAX.saturating_sub(self.cipher.sequence())
    }

    /// Whether somebody else could go on here: behind a whole message that is not the last one.
    #[must_use]
    pub const fn goes_on(&self) -> bool {
        !self.closed && self.failed.is_none() && !self.messages.is_within()
    }

    /// The key with which somebody else [goes on](Self::goes_on).
    #[must_use]
    pub fn into_key(self) -> TrafficKey {
        self.cipher.into_key()
    }

    /// Opens all records that are whole, from the front of `received`, and moves what was in them
    /// together there.
    ///
    /// # Errors
    /// A record that ends the connection. Plaintext that arrived together with it is lost.
    pub fn open(&mut self, received: &mut [u8]) -> Result<Opened, RecordError> {
        self.open_some(received, usize::MAX)
    }

    /// The same with so many records at most: one without content takes as long to open as a short
    /// one, and a buffer has room for thousands.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_some(
        &mut self,
        received: &mut [u8],
        most_records: usize,
    ) -> Result<Opened, RecordError> {
        let opened = match self.failed {
            Some(error) => Err(error),
            None => self.open_records(received, most_records),
        };
        self.failed = opened.as_ref().err().copied();
        opened
    }

    fn open_records(
        &mut self,
        received: &mut [u8],
        most_records: usize,
    ) -> Result<Opened, RecordError> {
        let mut opened = Opened { closed: self.closed, ..Opened::default() };
        let mut records = 0;
        while !self.closed {
            if records == most_records {
                opened.has_more = true;
                break;
            }
            records += 1;
            let rest = received.get(opened.consumed_bytes..).unwrap_or_default();
            let Some(header) = rest.first_chunk::<HEADER_BYTES>().copied() else { break };
            let end = opened.consumed_bytes + self.record_bytes(header)?;
            let Some(record) = received.get_mut(opened.plaintext_bytes..end) else { break };
            let sealed_at = opened.consumed_bytes + HEADER_BYTES - opened.plaintext_bytes;
            opened.plaintext_bytes += self.open_record(header, record, sealed_at)?;
            opened.consumed_bytes = end;
            opened.closed = self.closed;
        }
        Ok(opened)
    }

    /// Length of the record with this header, in bytes.
    fn record_bytes(&self, header: [u8; HEADER_BYTES]) -> Result<usize, RecordError> {
        // The version has no meaning (RFC 8446 §5.1), but the tag covers it.
        let [content_type, _, _, high, low] = header;
        let record = self.cipher.sequence();
        if content_type != content_type::APPLICATION_DATA {
            return Err(RecordError::ContentType { record, content_type });
        }
        let length_bytes = u16::from_be_bytes([high, low]);
        // A type and a tag are the least.
        if !(1 + TAG_BYTES..=SEALED_MAX_BYTES).contains(&usize::from(length_bytes)) {
            return Err(RecordError::Length { record, length_bytes });
        }
        Ok(HEADER_BYTES + usize::from(length_bytes))
    }

    /// Opens what stands at `sealed_at` in `record`, to its end, and moves it to the front. Gives
    /// the number of bytes of application data there.
    fn open_record(
        &mut self,
        header: [u8; HEADER_BYTES],
        record: &mut [u8],
        sealed_at: usize,
    ) -> Result<usize, RecordError> {
        let number = self.cipher.sequence();
        let nonce = self.cipher.nonce();
        let inner = self
            .cipher
            .key()
            .open_within(nonce, Aad::from(header), record, sealed_at..)
            .map_err(|_| RecordError::Tag { record: number })?;
        self.cipher.advance().ok_or(RecordError::Exhausted)?;
        if inner.len() > INNER_MAX_BYTES {
            let length_bytes = inner.len() as u16; // At most SEALED_MAX_BYTES.
            return Err(RecordError::Length { record: number, length_bytes });
        }
        // Padding follows the content type, which is not zero (RFC 8446 §5.4).
        let type_at = inner.iter().rposition(|byte| *byte != 0);
        let (content, content_type) = match type_at.and_then(|at| inner.split_at_checked(at)) {
            Some((content, [content_type, ..])) => (content, *content_type),
            _ => (&[][..], 0),
        };
        if self.messages.is_within() && content_type != content_type::HANDSHAKE {
            return Err(RecordError::Interrupted { record: number });
        }
        match content_type {
            content_type::APPLICATION_DATA => return Ok(content.len()),
            content_type::ALERT => self.alert(content)?,
            content_type::HANDSHAKE if !content.is_empty() => {
                self.messages.skip_tickets(content, self.side)?;
            }
            _ => return Err(RecordError::ContentType { record: number, content_type }),
        }
        Ok(0)
    }

    /// An alert (RFC 8446 §6): its level, which has no meaning, and its description.
    fn alert(&mut self, content: &[u8]) -> Result<(), RecordError> {
        let [_, description] = content else {
            let record = self.cipher.sequence().saturating_sub(1);
            let content_type = content_type::ALERT;
            return Err(RecordError::ContentType { record, content_type });
        };
        match Alert(*description) {
            Alert::CLOSE_NOTIFY => {
                self.closed = true;
                Ok(())
            }
            other => Err(RecordError::Alert(other)),
        }
    }
}

/// Handshake messages behind the handshake, of which several may be in a record, and each in
/// several records (RFC 8446 §4.6, §5.1).
#[derive(Default)]
struct Messages {
    /// Bytes of the current message's header that have arrived, 0 to 3.
    header_bytes: u8,
    /// Its length so far; when the header is whole, what is left of the message.
    left_bytes: u32,
}

impl Messages {
    const NEW_SESSION_TICKET: u8 = 4;
    /// Type and length.
    const HEADER_BYTES: u8 = 4;

    const fn is_within(&self) -> bool {
        self.header_bytes != 0 || self.left_bytes != 0
    }

    /// Skips all of `content`, if it is tickets for a client.
    fn skip_tickets(&mut self, content: &[u8], side: Side) -> Result<(), RecordError> {
        let mut rest = content;
        while let [first, behind @ ..] = rest {
            if self.header_bytes == 0 && self.left_bytes != 0 {
                let skipped = rest.len().min(self.left_bytes as usize);
                self.left_bytes -= skipped as u32;
                rest = rest.get(skipped..).unwrap_or_default();
                continue;
            }
            if self.header_bytes == 0 {
                if side == Side::Server || *first != Self::NEW_SESSION_TICKET {
                    return Err(RecordError::Handshake { message_type: *first });
                }
            } else {
                self.left_bytes = self.left_bytes << 8 | u32::from(*first);
            }
            self.header_bytes = (self.header_bytes + 1) % Self::HEADER_BYTES;
            rest = behind;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
