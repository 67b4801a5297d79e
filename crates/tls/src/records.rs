//! Records of application data, sealed and opened in memory (RFC 8446 §5).
//!
//! ```text
//! record      17h, 03h 03h, length (2, big-endian), then as many bytes:
//!             sealed(content, content type (1), padding zeroes), tag (16)
//! nonce       initialization vector XOR number of the record in its direction
//! ```
//!
//! Nothing in a record is trusted before its tag has been checked.

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
/// Longest accepted record, in bytes, with its header (RFC 8446 §5.2). A receive buffer of this size can hold any
/// record.
pub const RECORD_MAX_BYTES: usize = HEADER_BYTES + SEALED_MAX_BYTES;
/// Overhead of a record without padding, in bytes: header, content type, tag.
pub const RECORD_OVERHEAD_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;
/// Records after which a key should be replaced: by a new connection, since some peers, such as Linux, accept no new
/// keys on a live one. For AES-GCM, RFC 8446 §5.5 allows 2^24.5 full-size records.
pub const KEY_RECORDS_MAX: u64 = 1 << 24;

const TAG_BYTES: usize = 16;
/// Limit of a record's length field (RFC 8446 §5.2).
const SEALED_MAX_BYTES: usize = CONTENT_MAX_BYTES + 256;
/// Content, its type, and padding together (RFC 8446 §5.4).
const INNER_MAX_BYTES: usize = CONTENT_MAX_BYTES + 1;
/// legacy_record_version (RFC 8446 §5.2).
const VERSION: [u8; 2] = [3, 3];

/// Why a record ends the connection, or cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The record has an invalid length.
    #[error("record {record} has {length_bytes} bytes, not 17 to {SEALED_MAX_BYTES}")]
    Length {
        /// Number of the record in its direction.
        record: u64,
        /// Its length field; for an opened record, the length without the tag.
        length_bytes: u16,
    },
    /// A record of a type that is not allowed after a handshake.
    #[error("record {record} has the unexpected content type {content_type}")]
    ContentType {
        /// Number of the record in its direction.
        record: u64,
        /// Its type; 0 if it has none.
        content_type: u8,
    },
    /// The tag is wrong: the record is not as the peer sealed it.
    #[error("record {record} is not as the peer sealed it: its authentication tag is wrong")]
    Tag {
        /// Number of the record in its direction.
        record: u64,
    },
    /// The peer reports an error.
    #[error("the peer ended the connection: {0}")]
    Alert(Alert),
    /// A handshake message. After a handshake, a client skips NewSessionTicket; KeyUpdate (24) and other messages are
    /// not supported.
    #[error("handshake message {message_type} after the handshake")]
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
    #[error("the key has been used for all its records")]
    Exhausted,
    /// The cryptographic library refused a key or a record.
    #[error("the cryptographic library failed")]
    Library,
}

/// Seals the records that one end sends.
pub struct Sealer {
    cipher: Cipher,
}

impl Sealer {
    /// Seals with `key`, and takes it over: a second user of it would repeat nonces.
    ///
    /// # Errors
    /// [`RecordError::Library`]: never, as far as we know.
    pub fn new(key: TrafficKey) -> Result<Self, RecordError> {
        Ok(Self { cipher: Cipher::new(key).ok_or(RecordError::Library)? })
    }

    /// The key, in the state for the next record, for another sealer to continue with.
    #[must_use]
    pub fn into_key(self) -> TrafficKey {
        self.cipher.into_key()
    }

    /// How many more records should be sealed with the key: [`KEY_RECORDS_MAX`] for a fresh one. At 0 the connection
    /// should be replaced; sealing still works until then.
    #[must_use]
    pub const fn records_left(&self) -> u64 {
        KEY_RECORDS_MAX.saturating_sub(self.cipher.sequence())
    }

    /// Appends `pieces` to `out` as application data: one record if they have at most 16 KiB together, otherwise as few
    /// records as possible. Without pieces, or with empty ones only, no record is made.
    ///
    /// Sealing everything that leaves together in one call pays the fixed cost (some 100 ns) only once.
    ///
    /// # Errors
    /// [`RecordError::Exhausted`] or [`RecordError::Library`], neither of which occurs in practice. `out` is then as
    /// long as before.
    pub fn seal<'a>(
        &mut self,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        let start = out.len();
        let sealed = self.seal_as(content_type::APPLICATION_DATA, pieces, out);
        if sealed.is_err() {
            // Unsealed bytes must not be sent.
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

    /// Appends a record with all of `content`, which is at most [`CONTENT_MAX_BYTES`] long. The content is sealed out
    /// of place, without a copy before: a quarter faster than [`seal_gathered`](Self::seal_gathered) for content of 4
    /// KiB and more.
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

    /// Seals the content that was gathered at the end of `out`, after room for a header at `header_at`.
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

    /// Writes the header at the front of `record`, and seals the rest.
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

/// The contents of a buffer after [`Opener::open`].
///
/// ```text
/// before   | record | record | begun record |
/// after    | plaintext |    no meaning    | begun record |
///          0       plaintext_bytes    consumed_bytes
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Length of the plaintext at the front of the buffer.
    pub plaintext_bytes: usize,
    /// Length of the opened records. After them follows an incomplete record, if anything.
    pub consumed_bytes: usize,
    /// Whether the peer has announced the end of its data (close_notify). Data after that is ignored.
    pub closed: bool,
    /// Whether opening stopped at the limit of records: there may be further complete records.
    pub has_more: bool,
}

/// Opens the records that one end receives, in place. Allocates nothing.
///
/// The caller keeps received bytes in one buffer with room for [`RECORD_MAX_BYTES`] at least:
///
/// ```
/// # use bpfof_tls::{Opener, RecordError};
/// /// Opens the records in `buffer`, from `plaintext` on; before that is plaintext of earlier
/// /// calls. Returns the new end of the plaintext; an incomplete record may follow it.
/// fn open(opener: &mut Opener, buffer: &mut Vec<u8>, plaintext: usize) -> Result<usize, RecordError> {
///     let opened = opener.open(&mut buffer[plaintext..])?;
///     let end = plaintext + opened.plaintext_bytes;
///     buffer.drain(end..plaintext + opened.consumed_bytes);
///     Ok(end)
/// }
/// ```
///
/// After an error the connection is over, and each further call returns the same error.
pub struct Opener {
    cipher: Cipher,
    side: Side,
    messages: Messages,
    closed: bool,
    failed: Option<RecordError>,
}

impl Opener {
    /// Opens the records of the peer of `side` with `key`, which it takes over. A client skips NewSessionTicket
    /// messages, which some servers send unasked; a server accepts no message.
    ///
    /// # Errors
    /// [`RecordError::Library`]: never, as far as we know.
    pub fn new(key: TrafficKey, side: Side) -> Result<Self, RecordError> {
        let cipher = Cipher::new(key).ok_or(RecordError::Library)?;
        let messages = Messages::default();
        Ok(Self { cipher, side, messages, closed: false, failed: None })
    }

    /// How many more records the peer should seal with the key, as [`Sealer::records_left`].
    #[must_use]
    pub const fn records_left(&self) -> u64 {
        KEY_RECORDS_MAX.saturating_sub(self.cipher.sequence())
    }

    /// Whether another opener could continue here: the connection is open, and no handshake message is incomplete.
    #[must_use]
    pub const fn goes_on(&self) -> bool {
        !self.closed && self.failed.is_none() && !self.messages.is_within()
    }

    /// The key, in the state for the next record, for another opener to [continue](Self::goes_on) with.
    #[must_use]
    pub fn into_key(self) -> TrafficKey {
        self.cipher.into_key()
    }

    /// Opens all complete records from the front of `received`, and moves their contents together to its front.
    ///
    /// # Errors
    /// A record that ends the connection. Plaintext that arrived together with it is lost.
    pub fn open(&mut self, received: &mut [u8]) -> Result<Opened, RecordError> {
        self.open_some(received, usize::MAX)
    }

    /// The same with at most `most_records` records: opening an empty record takes as long as a short one, and a buffer
    /// has room for thousands.
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
        // A record has at least a type and a tag.
        if !(1 + TAG_BYTES..=SEALED_MAX_BYTES).contains(&usize::from(length_bytes)) {
            return Err(RecordError::Length { record, length_bytes });
        }
        Ok(HEADER_BYTES + usize::from(length_bytes))
    }

    /// Opens the sealed bytes of `record` from `sealed_at` to its end, and moves the result to its front. Returns the
    /// number of bytes of application data there.
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

    /// Handles an alert (RFC 8446 §6): its level, which is ignored, and its description.
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

/// Handshake messages after the handshake. A record may have several of them, and a message may span several records
/// (RFC 8446 §4.6, §5.1).
#[derive(Default)]
struct Messages {
    /// Bytes of the current message's header that have arrived, 0 to 3.
    header_bytes: u8,
    /// The length field as far as it has arrived; after the complete header, the bytes of the message that are still
    /// missing.
    left_bytes: u32,
}

impl Messages {
    const NEW_SESSION_TICKET: u8 = 4;
    /// Type and length.
    const HEADER_BYTES: u8 = 4;

    const fn is_within(&self) -> bool {
        self.header_bytes != 0 || self.left_bytes != 0
    }

    /// Skips `content` if it consists of tickets for a client.
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
