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
mod tests {
    use super::*;
    use crate::content_type::{ALERT, APPLICATION_DATA, HANDSHAKE};
    use crate::keys::Suite;

    fn key(suite: Suite) -> TrafficKey {
        TrafficKey::derive(suite, &vec![0x5A; suite.secret_bytes()], 0).unwrap()
    }

    fn pair(suite: Suite, side: Side) -> (Sealer, Opener) {
        (Sealer::new(key(suite)).unwrap(), Opener::new(key(suite), side).unwrap())
    }

    fn aes(side: Side) -> (Sealer, Opener) {
        pair(Suite::Aes128GcmSha256, side)
    }

    fn sealed(sealer: &mut Sealer, content_type: u8, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        sealer.seal_as(content_type, [content], &mut out).unwrap();
        out
    }

    /// A record whose inner plaintext is all of `inner`, which no [`Sealer`] would make.
    fn sealed_inner(sealer: &mut Sealer, inner: &[u8]) -> Vec<u8> {
        let mut record = [&[0; HEADER_BYTES][..], inner].concat();
        let tag = sealer.seal_in_place(&mut record).unwrap();
        record.extend_from_slice(tag.as_ref());
        record
    }

    /// RFC 8448 §3, "{client} send application_data record".
    #[test]
    fn known_answer_of_rfc_8448() {
        const SECRET: [u8; 32] = [
            0x9e, 0x40, 0x64, 0x6c, 0xe7, 0x9a, 0x7f, 0x9d, 0xc0, 0x5a, 0xf8, 0x88, 0x9b, 0xce,
            0x65, 0x52, 0x87, 0x5a, 0xfa, 0x0b, 0x06, 0xdf, 0x00, 0x87, 0xf7, 0x92, 0xeb, 0xb7,
            0xc1, 0x75, 0x04, 0xa5,
        ];
        const RECORD: [u8; 72] = [
            0x17, 0x03, 0x03, 0x00, 0x43, 0xa2, 0x3f, 0x70, 0x54, 0xb6, 0x2c, 0x94, 0xd0, 0xaf,
            0xfa, 0xfe, 0x82, 0x28, 0xba, 0x55, 0xcb, 0xef, 0xac, 0xea, 0x42, 0xf9, 0x14, 0xaa,
            0x66, 0xbc, 0xab, 0x3f, 0x2b, 0x98, 0x19, 0xa8, 0xa5, 0xb4, 0x6b, 0x39, 0x5b, 0xd5,
            0x4a, 0x9a, 0x20, 0x44, 0x1e, 0x2b, 0x62, 0x97, 0x4e, 0x1f, 0x5a, 0x62, 0x92, 0xa2,
            0x97, 0x70, 0x14, 0xbd, 0x1e, 0x3d, 0xea, 0xe6, 0x3a, 0xee, 0xbb, 0x21, 0x69, 0x49,
            0x15, 0xe4,
        ];
        let key = || TrafficKey::derive(Suite::Aes128GcmSha256, &SECRET, 0).unwrap();
        let plaintext: Vec<u8> = (0..50).collect();
        let mut out = Vec::new();
        let (first, second) = plaintext.split_at(20);
        Sealer::new(key()).unwrap().seal([first, second], &mut out).unwrap();
        assert_eq!(out, RECORD);
        out.clear();
        Sealer::new(key()).unwrap().seal([&plaintext[..]], &mut out).unwrap();
        assert_eq!(out, RECORD);
        let opened = Opener::new(key(), Side::Server).unwrap().open(&mut out).unwrap();
        let expected = Opened { plaintext_bytes: 50, consumed_bytes: 72, ..Opened::default() };
        assert_eq!(opened, expected);
        assert_eq!(out[..50], plaintext);
    }

    #[test]
    fn records_are_opened_some_at_a_time() {
        let (mut sealer, mut opener) = aes(Side::Server);
        let mut received = Vec::new();
        for content in [&b""[..], b"a", b"", b"", b"bc", b""] {
            let inner = [content, &[APPLICATION_DATA]].concat();
            received.extend(sealed_inner(&mut sealer, &inner));
        }
        let part = sealed(&mut sealer, APPLICATION_DATA, b"d");
        received.extend_from_slice(&part[..part.len() - 1]);
        let mut found = Vec::new();
        let mut rounds = Vec::new();
        loop {
            let opened = opener.open_some(&mut received, 2).unwrap();
            found.extend_from_slice(&received[..opened.plaintext_bytes]);
            received.drain(..opened.consumed_bytes);
            rounds.push((opened.plaintext_bytes, opened.has_more));
            if !opened.has_more {
                break;
            }
        }
        assert_eq!(rounds, [(1, true), (0, true), (2, true), (0, false)]);
        assert_eq!((&found[..], received.len()), (&b"abc"[..], part.len() - 1));
    }

    #[test]
    fn many_sizes_in_all_suites() {
        let sizes =
            [1, 2, 15, 16, 17, 64, 600, 4096, 16_383, 16_384, 16_385, 32_768, 40_000, 100_000];
        for suite in Suite::ALL {
            let (mut sealer, mut opener) = pair(suite, Side::Server);
            let mut total = 0;
            for size in sizes {
                let plaintext: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
                let mut out = b"before".to_vec();
                let halves = [&plaintext[..size / 2], &[], &plaintext[size / 2..]];
                let bytes: Vec<&[u8]> = plaintext.chunks(size / 50 + 1).collect();
                for pieces in [&[&plaintext[..]][..], &halves, &bytes] {
                    out.truncate(6);
                    sealer.seal(pieces.iter().copied(), &mut out).unwrap();
                    let records = size.div_ceil(CONTENT_MAX_BYTES);
                    total += records as u64;
                    assert_eq!(sealer.records_left(), KEY_RECORDS_MAX - total);
                    assert_eq!(out.len(), 6 + size + records * RECORD_OVERHEAD_BYTES);
                    let opened = opener.open(&mut out[6..]).unwrap();
                    assert_eq!(opened.plaintext_bytes, size);
                    assert_eq!(opened.consumed_bytes, out.len() - 6);
                    assert_eq!(out[6..6 + size], plaintext);
                }
            }
        }
    }

    #[test]
    fn nothing_makes_no_record() {
        let (mut sealer, mut opener) = aes(Side::Server);
        let mut out = Vec::new();
        sealer.seal([], &mut out).unwrap();
        sealer.seal([&[][..], &[]], &mut out).unwrap();
        assert!(out.is_empty());
        assert_eq!(sealer.records_left(), KEY_RECORDS_MAX);
        assert_eq!(opener.open(&mut []).unwrap(), Opened::default());
    }

    /// Three records and the part that is left, for each split into two receives.
    #[test]
    fn split_at_every_byte() {
        let (mut sealer, _) = aes(Side::Server);
        let mut stream = Vec::new();
        for content in [&b"one"[..], b"the second", b"3"] {
            sealer.seal([content], &mut stream).unwrap();
        }
        let plaintext = b"onethe second3";
        for split in 0..=stream.len() {
            let (_, mut opener) = aes(Side::Server);
            let mut buffer = stream[..split].to_vec();
            let first = opener.open(&mut buffer).unwrap();
            let mut got = buffer[..first.plaintext_bytes].to_vec();
            let mut buffer = buffer[first.consumed_bytes..].to_vec();
            buffer.extend_from_slice(&stream[split..]);
            let second = opener.open(&mut buffer).unwrap();
            assert_eq!(second.consumed_bytes, buffer.len());
            got.extend_from_slice(&buffer[..second.plaintext_bytes]);
            assert_eq!(got, plaintext, "split at {split}");
        }
    }

    #[test]
    fn lengths_out_of_range_are_refused_by_their_header() {
        for length_bytes in [0, 1, 16, 16_641, 65_535_u16] {
            let (_, mut opener) = aes(Side::Server);
            let [high, low] = length_bytes.to_be_bytes();
            let error = RecordError::Length { record: 0, length_bytes };
            assert_eq!(opener.open(&mut [23, 3, 3, high, low]), Err(error));
            assert_eq!(opener.open(&mut []), Err(error));
        }
        for length_bytes in [17, 16_640_u16] {
            let (_, mut opener) = aes(Side::Server);
            let [high, low] = length_bytes.to_be_bytes();
            assert_eq!(opener.open(&mut [23, 3, 3, high, low]).unwrap(), Opened::default());
        }
    }

    #[test]
    fn content_types_in_the_clear_are_refused() {
        for content_type in [0, 20, 21, 22, 24, 255] {
            let (_, mut opener) = aes(Side::Client);
            let error = RecordError::ContentType { record: 0, content_type };
            assert_eq!(opener.open(&mut [content_type, 3, 3, 0, 2, 1, 0]), Err(error));
        }
    }

    #[test]
    fn sealed_content_types_are_refused() {
        for content_type in [20, 24, 255] {
            let (mut sealer, mut opener) = aes(Side::Client);
            let mut stream = sealed(&mut sealer, APPLICATION_DATA, b"x");
            stream.extend(sealed(&mut sealer, content_type, b"y"));
            let error = RecordError::ContentType { record: 1, content_type };
            assert_eq!(opener.open(&mut stream), Err(error));
        }
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let (mut sealer, _) = aes(Side::Server);
        let record = sealed(&mut sealer, APPLICATION_DATA, b"something");
        for at in 0..record.len() {
            let (_, mut opener) = aes(Side::Server);
            let mut changed = record.clone();
            changed[at] ^= 0x10;
            let opened = opener.open(&mut changed);
            // A longer record is waited for.
            let waits = opened == Ok(Opened::default()) && (at == 3 || at == 4);
            let is_tag = opened == Err(RecordError::Tag { record: 0 });
            let is_header =
                matches!(opened, Err(RecordError::ContentType { .. } | RecordError::Length { .. }));
            assert!(waits || is_tag || (is_header && at < HEADER_BYTES), "{at}: {opened:?}");
        }
    }

    #[test]
    fn records_out_of_order_are_refused() {
        let (mut sealer, mut opener) = aes(Side::Server);
        let first = sealed(&mut sealer, APPLICATION_DATA, b"1");
        let second = sealed(&mut sealer, APPLICATION_DATA, b"2");
        let mut twice = [&first[..], &first].concat();
        assert_eq!(opener.open(&mut twice), Err(RecordError::Tag { record: 1 }));
        let (_, mut opener) = aes(Side::Server);
        let mut missing = second;
        assert_eq!(opener.open(&mut missing), Err(RecordError::Tag { record: 0 }));
    }

    #[test]
    fn padding_is_removed() {
        let (mut sealer, mut opener) = aes(Side::Server);
        let inner = [&b"content\0"[..], &[APPLICATION_DATA], &[0; 300]].concat();
        let mut stream = sealed_inner(&mut sealer, &inner);
        let opened = opener.open(&mut stream).unwrap();
        assert_eq!(&stream[..opened.plaintext_bytes], b"content\0");
    }

    #[test]
    fn inner_plaintext_has_a_type_and_a_limit() {
        let (mut sealer, mut opener) = aes(Side::Server);
        let mut stream = sealed_inner(&mut sealer, &[0; 40]);
        let error = RecordError::ContentType { record: 0, content_type: 0 };
        assert_eq!(opener.open(&mut stream), Err(error));

        let (mut sealer, mut opener) = aes(Side::Server);
        let mut inner = vec![APPLICATION_DATA; INNER_MAX_BYTES];
        let mut stream = sealed_inner(&mut sealer, &inner);
        assert_eq!(opener.open(&mut stream).unwrap().plaintext_bytes, CONTENT_MAX_BYTES);
        inner.push(0);
        let mut stream = sealed_inner(&mut sealer, &inner);
        let error = RecordError::Length { record: 1, length_bytes: 16_386 };
        assert_eq!(opener.open(&mut stream), Err(error));
    }

    /// Allowed, against analysis of traffic (RFC 8446 §5.1).
    #[test]
    fn empty_application_data_is_nothing() {
        let (mut sealer, mut opener) = aes(Side::Server);
        let mut stream = sealed_inner(&mut sealer, &[APPLICATION_DATA]);
        let expected = Opened { plaintext_bytes: 0, consumed_bytes: 22, ..Opened::default() };
        assert_eq!(opener.open(&mut stream), Ok(expected));
        for content_type in [HANDSHAKE, ALERT] {
            let (mut sealer, mut opener) = aes(Side::Client);
            let mut stream = sealed_inner(&mut sealer, &[content_type]);
            let error = RecordError::ContentType { record: 0, content_type };
            assert_eq!(opener.open(&mut stream), Err(error));
        }
    }

    #[test]
    fn close_notify_ends_the_stream() {
        let (mut sealer, mut opener) = aes(Side::Server);
        let mut stream = sealed(&mut sealer, APPLICATION_DATA, b"last");
        stream.extend(sealed(&mut sealer, ALERT, &[1, 0]));
        let consumed_bytes = stream.len();
        stream.extend(sealed(&mut sealer, APPLICATION_DATA, b"too late"));
        let opened = opener.open(&mut stream).unwrap();
        let expected = Opened { plaintext_bytes: 4, consumed_bytes, closed: true, has_more: false };
        assert_eq!(opened, expected);
        assert_eq!(&stream[..4], b"last");
        let again = Opened { closed: true, ..Opened::default() };
        assert_eq!(opener.open(&mut stream[consumed_bytes..]).unwrap(), again);
    }

    #[test]
    fn other_alerts_are_errors() {
        let (mut sealer, mut opener) = aes(Side::Server);
        let mut stream = sealed(&mut sealer, ALERT, &[2, 20]);
        assert_eq!(opener.open(&mut stream), Err(RecordError::Alert(Alert(20))));
        for content in [&[0][..], &[1, 0, 0]] {
            let (mut sealer, mut opener) = aes(Side::Server);
            let mut stream = sealed(&mut sealer, ALERT, content);
            let error = RecordError::ContentType { record: 0, content_type: ALERT };
            assert_eq!(opener.open(&mut stream), Err(error));
        }
    }

    /// Two tickets, in records of every size, between application data.
    #[test]
    fn a_client_skips_tickets() {
        let ticket = |length: u16| {
            let [high, low] = length.to_be_bytes();
            [&[4, 0, high, low], &vec![0xEE; usize::from(length)][..]].concat()
        };
        let messages = [ticket(0), ticket(300), ticket(5)].concat();
        for size in 1..=messages.len() {
            let (mut sealer, mut opener) = aes(Side::Client);
            let mut stream = sealed(&mut sealer, APPLICATION_DATA, b"a");
            for part in messages.chunks(size) {
                stream.extend(sealed(&mut sealer, HANDSHAKE, part));
            }
            stream.extend(sealed(&mut sealer, APPLICATION_DATA, b"b"));
            let opened = opener.open(&mut stream).unwrap();
            assert_eq!(opened.consumed_bytes, stream.len());
            assert_eq!(&stream[..opened.plaintext_bytes], b"ab", "{size}");
        }
    }

    #[test]
    fn other_handshake_messages_are_errors() {
        const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
        for (side, message, message_type) in [
            (Side::Client, &KEY_UPDATE[..], 24),
            (Side::Server, &KEY_UPDATE, 24),
            (Side::Server, &[4, 0, 0, 1, 0], 4),
            (Side::Client, &[4, 0, 0, 1, 0, 13, 0, 0, 0], 13),
        ] {
            let (mut sealer, mut opener) = aes(side);
            let mut stream = sealed(&mut sealer, HANDSHAKE, message);
            let error = RecordError::Handshake { message_type };
            assert_eq!(opener.open(&mut stream), Err(error));
        }
    }

    #[test]
    fn nothing_interrupts_a_handshake_message() {
        for begun in [&[4][..], &[4, 0, 0], &[4, 0, 0, 2, 9]] {
            for content_type in [APPLICATION_DATA, ALERT] {
                let (mut sealer, mut opener) = aes(Side::Client);
                let mut stream = sealed(&mut sealer, HANDSHAKE, begun);
                stream.extend(sealed(&mut sealer, content_type, &[1, 0]));
                let error = RecordError::Interrupted { record: 1 };
                assert_eq!(opener.open(&mut stream), Err(error));
            }
        }
    }

    #[test]
    fn no_nonce_is_used_twice() {
        let suite = Suite::Aes128GcmSha256;
        for pieces in [&[&b"more"[..]][..], &[b"and", b" more"]] {
            let last = TrafficKey::derive(suite, &[1; 32], u64::MAX - 1).unwrap();
            let mut sealer = Sealer::new(last).unwrap();
            let mut out = Vec::new();
            sealer.seal([&b"last"[..]], &mut out).unwrap();
            let length = out.len();
            for _ in 0..2 {
                let error = sealer.seal(pieces.iter().copied(), &mut out).unwrap_err();
                assert_eq!(error, RecordError::Exhausted);
                assert_eq!(out.len(), length, "something is left in the send buffer");
            }
        }
    }
}
