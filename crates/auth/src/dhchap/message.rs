//! The messages of an authentication, as plain values (NVMe Base 2.0 §8.13).
//!
//! They are the data of Authentication Send and Authentication Receive, little-endian. Byte 0 is the type (0 common, 1
//! DH-HMAC-CHAP), byte 1 the id, bytes 5:4 the transaction. Bytes after the end of a message are ignored, because some
//! controllers pad messages to the length that the host allows; so are reserved bytes. Hashes and groups are plain
//! numbers here, so that unknown ones can be parsed and answered.

use crate::error::MessageError;
use std::fmt;

/// Type of the messages that all protocols share (byte 0).
const COMMON: u8 = 0;
/// Type of the messages of DH-HMAC-CHAP (byte 0).
const DH_HMAC_CHAP: u8 = 1;

/// Ids of messages (byte 1).
mod id {
    pub(super) const NEGOTIATE: u8 = 0x00;
    pub(super) const FAILURE1: u8 = 0xF1;
    pub(super) const FAILURE2: u8 = 0xF0;
    pub(super) const CHALLENGE: u8 = 0x01;
    pub(super) const REPLY: u8 = 0x02;
    pub(super) const SUCCESS1: u8 = 0x03;
    pub(super) const SUCCESS2: u8 = 0x04;
}

/// AuthID of DH-HMAC-CHAP in a protocol descriptor (NVMe Base 2.0 §8.13.5.2).
const AUTH_ID_DH_HMAC_CHAP: u8 = 1;
/// Size of a protocol descriptor in bytes.
const DESCRIPTOR_BYTES: usize = 64;
/// Offset of the numbers of hashes in a descriptor.
const HASHES_AT: usize = 4;
/// Offset of the numbers of groups in a descriptor.
const GROUPS_AT: usize = 34;
/// Most hashes, and most groups, in a descriptor.
pub(crate) const LIST_MAX: usize = 30;
/// Reason code of a failure; the only one that is defined (byte 6).
const REASON_CODE_FAILED: u8 = 1;

/// Why an authentication failed: the reason code explanation (NVMe Base 2.0 §8.13, byte 7 of the two
/// failure messages).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureReason {
    /// 1: Authentication failed.
    Failed,
    /// 2: Authentication protocol not usable.
    ProtocolNotUsable,
    /// 3: Secure channel concatenation mismatch.
    ConcatenationMismatch,
    /// 4: Hash function not usable.
    HashNotUsable,
    /// 5: DH group not usable.
    GroupNotUsable,
    /// 6: Incorrect payload.
    IncorrectPayload,
    /// 7: Incorrect protocol message.
    IncorrectMessage,
    /// Any other value.
    Other(u8),
}

impl FailureReason {
    /// The reason with this code.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Failed,
            2 => Self::ProtocolNotUsable,
            3 => Self::ConcatenationMismatch,
            4 => Self::HashNotUsable,
            5 => Self::GroupNotUsable,
            6 => Self::IncorrectPayload,
            7 => Self::IncorrectMessage,
            other => Self::Other(other),
        }
    }

    /// Its code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::ProtocolNotUsable => 2,
            Self::ConcatenationMismatch => 3,
            Self::HashNotUsable => 4,
            Self::GroupNotUsable => 5,
            Self::IncorrectPayload => 6,
            Self::IncorrectMessage => 7,
            Self::Other(code) => code,
        }
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failed => "authentication failed",
            Self::ProtocolNotUsable => "authentication protocol not usable",
            Self::ConcatenationMismatch => "secure channel concatenation mismatch",
            Self::HashNotUsable => "hash function not usable",
            Self::GroupNotUsable => "DH group not usable",
            Self::IncorrectPayload => "incorrect payload",
            Self::IncorrectMessage => "incorrect protocol message",
            Self::Other(code) => return write!(f, "unknown reason {code:02X}h"),
        })
    }
}

/// The algorithms that a host supports, by number, in its order of preference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Hash functions; 30 at most.
    pub hash_ids: Vec<u8>,
    /// Diffie-Hellman groups; 30 at most.
    pub group_ids: Vec<u8>,
}

/// Negotiate: the host begins (NVMe Base 2.0 §8.13.5.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiate {
    /// T_ID: identifies the run in all its messages (bytes 5:4).
    pub t_id: u16,
    /// SC_C: secure channel concatenation; 0 for none (byte 6).
    pub sc_c: u8,
    /// The host's offer for DH-HMAC-CHAP: the first descriptor for that protocol among the NAPD descriptors (byte 7).
    /// None if the host offers other protocols only.
    pub offer: Option<Offer>,
}

/// Challenge: the controller chooses, and challenges the host (NVMe Base 2.0 §8.13.5.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// T_ID of the run (bytes 5:4).
    pub t_id: u16,
    /// Number of the hash (byte 8).
    pub hash_id: u8,
    /// Number of the group (byte 9).
    pub group_id: u8,
    /// S1: sequence number; not 0 (bytes 15:12).
    pub s1: u32,
    /// C1, HL bytes; 255 at most (byte 6; from byte 16).
    pub c1: Vec<u8>,
    /// g^x, DHVLEN bytes; 65,535 at most (bytes 11:10; after C1).
    pub value: Vec<u8>,
}

/// Reply: the host responds, and may challenge the controller (NVMe Base 2.0 §8.13.5.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// T_ID of the run (bytes 5:4).
    pub t_id: u16,
    /// S2: sequence number (bytes 15:12). Some hosts send one without a challenge.
    pub s2: u32,
    /// R1, HL bytes; 255 at most (byte 6; from byte 16).
    pub r1: Vec<u8>,
    /// C2, HL bytes (after R1), if CVALID is 1 (byte 8).
    pub c2: Option<Vec<u8>>,
    /// g^y, DHVLEN bytes; 65,535 at most (bytes 11:10; after C2).
    pub value: Vec<u8>,
}

/// Success1: the host is authenticated, and the controller responds if it was challenged (NVMe Base
/// 2.0 §8.13.5.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Success1 {
    /// T_ID of the run (bytes 5:4).
    pub t_id: u16,
    /// HL: length of a response in bytes, even without a response, because Linux requires it (byte 6).
    pub hash_bytes: u8,
    /// R2, HL bytes (from byte 16), if RVALID is 1 (byte 8).
    pub r2: Option<Vec<u8>>,
}

/// Success2: the controller is authenticated (NVMe Base 2.0 §8.13.5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success2 {
    /// T_ID of the run (bytes 5:4).
    pub t_id: u16,
}

/// Failure1 of a controller, or Failure2 of a host (NVMe Base 2.0 §8.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// T_ID of the run (bytes 5:4).
    pub t_id: u16,
    /// Why (byte 7).
    pub reason: FailureReason,
}

/// A message that a host sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMessage {
    /// Begins a run.
    Negotiate(Negotiate),
    /// Answers the challenge.
    Reply(Reply),
    /// Ends a run in which both were authenticated.
    Success2(Success2),
    /// Ends a run: the host refuses the controller.
    Failure2(Failure),
}

/// A message that a controller sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerMessage {
    /// Answers Negotiate.
    Challenge(Challenge),
    /// Answers a good Reply.
    Success1(Success1),
    /// Ends a run: the controller refuses the host.
    Failure1(Failure),
}

/// A message being parsed: its name, for errors, and its bytes.
#[derive(Clone, Copy)]
struct Reader<'a> {
    message: &'static str,
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn slice(self, at: usize, length: usize) -> Result<&'a [u8], MessageError> {
        let needed_bytes = at.saturating_add(length);
        self.bytes.get(at..needed_bytes).ok_or(MessageError::Short {
            message: self.message,
            needed_bytes,
            found_bytes: self.bytes.len(),
        })
    }

    fn array<const N: usize>(self, at: usize) -> Result<[u8; N], MessageError> {
        // `slice` returns exactly N bytes.
        let mut array = [0; N];
        array.copy_from_slice(self.slice(at, N)?);
        Ok(array)
    }

    fn u8(self, at: usize) -> Result<u8, MessageError> {
        self.array(at).map(u8::from_le_bytes)
    }

    fn u16(self, at: usize) -> Result<u16, MessageError> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(self, at: usize) -> Result<u32, MessageError> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn error(self, field: &'static str, value: u32) -> MessageError {
        MessageError::Field { message: self.message, field, value }
    }

    /// A byte that is 0 or 1.
    fn flag(self, at: usize, field: &'static str) -> Result<bool, MessageError> {
        match self.u8(at)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.error(field, u32::from(other))),
        }
    }

    /// A list whose length, 30 at most, is the byte at `length_at`.
    fn list(
        self,
        length_at: usize,
        at: usize,
        field: &'static str,
    ) -> Result<Vec<u8>, MessageError> {
        let length = usize::from(self.u8(length_at)?);
        if length > LIST_MAX {
            return Err(self.error(field, length as u32));
        }
        self.slice(at, length).map(<[u8]>::to_vec)
    }
}

/// The first `N` bytes of a message: type, id and transaction.
fn header<const N: usize>(kind: u8, id: u8, t_id: u16) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[0] = kind;
    bytes[1] = id;
    bytes[4..6].copy_from_slice(&t_id.to_le_bytes());
    bytes
}

/// The transaction that a message names; none if the message is too short.
#[must_use]
pub fn transaction(message: &[u8]) -> Option<u16> {
    Reader { message: "", bytes: message }.u16(4).ok()
}

/// Whether the message is a Negotiate, even a malformed one.
#[must_use]
pub(crate) fn is_negotiate(message: &[u8]) -> bool {
    message.starts_with(&[COMMON, id::NEGOTIATE])
}

impl Negotiate {
    fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let reader = Reader { message: "Negotiate", bytes };
        let (t_id, sc_c) = (reader.u16(4)?, reader.u8(6)?);
        let descriptors = usize::from(reader.u8(7)?);
        let mut offer = None;
        for number in 0..descriptors {
            let at = 8 + number * DESCRIPTOR_BYTES;
            let _ = reader.slice(at, DESCRIPTOR_BYTES)?;
            if offer.is_none() && reader.u8(at)? == AUTH_ID_DH_HMAC_CHAP {
                offer = Some(Offer {
                    hash_ids: reader.list(at + 2, at + HASHES_AT, "HALEN")?,
                    group_ids: reader.list(at + 3, at + GROUPS_AT, "DHLEN")?,
                });
            }
        }
        Ok(Self { t_id, sc_c, offer })
    }

    /// Writes the message: 72 bytes, or 8 without an offer. At most 30 numbers of each list are written.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = header::<8>(COMMON, id::NEGOTIATE, self.t_id).to_vec();
        bytes[6] = self.sc_c;
        bytes[7] = u8::from(self.offer.is_some());
        if let Some(offer) = &self.offer {
            let mut descriptor = [0; DESCRIPTOR_BYTES];
            descriptor[0] = AUTH_ID_DH_HMAC_CHAP;
            for (length_at, at, list) in
                [(2, HASHES_AT, &offer.hash_ids), (3, GROUPS_AT, &offer.group_ids)]
            {
                descriptor[length_at] = list.len().min(LIST_MAX) as u8;
                for (to, from) in descriptor[at..at + LIST_MAX].iter_mut().zip(list) {
                    *to = *from;
                }
            }
            bytes.extend_from_slice(&descriptor);
        }
        bytes
    }
}

impl Challenge {
    fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let reader = Reader { message: "Challenge", bytes };
        let (hash_bytes, value_bytes) = (usize::from(reader.u8(6)?), usize::from(reader.u16(10)?));
        Ok(Self {
            t_id: reader.u16(4)?,
            hash_id: reader.u8(8)?,
            group_id: reader.u8(9)?,
            s1: reader.u32(12)?,
            c1: reader.slice(16, hash_bytes)?.to_vec(),
            value: reader.slice(16 + hash_bytes, value_bytes)?.to_vec(),
        })
    }

    /// Writes the message: 16 bytes, the challenge, the public value.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = header::<16>(DH_HMAC_CHAP, id::CHALLENGE, self.t_id);
        bytes[6] = self.c1.len() as u8;
        bytes[8] = self.hash_id;
        bytes[9] = self.group_id;
        bytes[10..12].copy_from_slice(&(self.value.len() as u16).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.s1.to_le_bytes());
        [&bytes[..], &self.c1, &self.value].concat()
    }
}

impl Reply {
    fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let reader = Reader { message: "Reply", bytes };
        let (hash_bytes, value_bytes) = (usize::from(reader.u8(6)?), usize::from(reader.u16(10)?));
        let challenges = reader.flag(8, "CVALID")?;
        let c2 = reader.slice(16 + hash_bytes, hash_bytes)?;
        Ok(Self {
            t_id: reader.u16(4)?,
            s2: reader.u32(12)?,
            r1: reader.slice(16, hash_bytes)?.to_vec(),
            c2: challenges.then(|| c2.to_vec()),
            value: reader.slice(16 + 2 * hash_bytes, value_bytes)?.to_vec(),
        })
    }

    /// Writes the message: 16 bytes, the response, the challenge or as many zeroes, the public value.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = header::<16>(DH_HMAC_CHAP, id::REPLY, self.t_id);
        bytes[6] = self.r1.len() as u8;
        bytes[8] = u8::from(self.c2.is_some());
        bytes[10..12].copy_from_slice(&(self.value.len() as u16).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.s2.to_le_bytes());
        let none = vec![0; self.r1.len()];
        [&bytes[..], &self.r1, self.c2.as_ref().unwrap_or(&none), &self.value].concat()
    }
}

impl Success1 {
    fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let reader = Reader { message: "Success1", bytes };
        let (t_id, hash_bytes) = (reader.u16(4)?, reader.u8(6)?);
        let responds = reader.flag(8, "RVALID")?;
        // Some controllers end the message here if they do not respond.
        let _ = reader.slice(0, 16)?;
        let r2 =
            if responds { Some(reader.slice(16, usize::from(hash_bytes))?.to_vec()) } else { None };
        Ok(Self { t_id, hash_bytes, r2 })
    }

    /// Writes the message: 16 bytes, then the response or as many zeroes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = header::<16>(DH_HMAC_CHAP, id::SUCCESS1, self.t_id);
        bytes[6] = self.hash_bytes;
        bytes[8] = u8::from(self.r2.is_some());
        let mut message = bytes.to_vec();
        message.extend_from_slice(self.r2.as_deref().unwrap_or(&[]));
        message.resize(16 + usize::from(self.hash_bytes), 0);
        message
    }
}

impl Success2 {
    fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let reader = Reader { message: "Success2", bytes };
        let _ = reader.slice(0, 16)?;
        Ok(Self { t_id: reader.u16(4)? })
    }

    /// Writes the message: 16 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        header::<16>(DH_HMAC_CHAP, id::SUCCESS2, self.t_id).to_vec()
    }
}

impl Failure {
    fn parse(message: &'static str, bytes: &[u8]) -> Result<Self, MessageError> {
        let reader = Reader { message, bytes };
        Ok(Self { t_id: reader.u16(4)?, reason: FailureReason::from_code(reader.u8(7)?) })
    }

    fn to_bytes(self, id: u8) -> Vec<u8> {
        let mut bytes = header::<8>(COMMON, id, self.t_id);
        bytes[6] = REASON_CODE_FAILED;
        bytes[7] = self.reason.code();
        bytes.to_vec()
    }
}

fn kind_and_id(bytes: &[u8]) -> Result<(u8, u8), MessageError> {
    let reader = Reader { message: "a message", bytes };
    Ok((reader.u8(0)?, reader.u8(1)?))
}

impl HostMessage {
    /// Parses a message of a host.
    ///
    /// # Errors
    /// The message is not one of a host, ends too early, or has a field that is not defined.
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        match kind_and_id(bytes)? {
            (COMMON, id::NEGOTIATE) => Negotiate::parse(bytes).map(Self::Negotiate),
            (COMMON, id::FAILURE2) => Failure::parse("Failure2", bytes).map(Self::Failure2),
            (DH_HMAC_CHAP, id::REPLY) => Reply::parse(bytes).map(Self::Reply),
            (DH_HMAC_CHAP, id::SUCCESS2) => Success2::parse(bytes).map(Self::Success2),
            (kind, id) => Err(MessageError::Unexpected { kind, id }),
        }
    }

    /// Writes the message.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Negotiate(negotiate) => negotiate.to_bytes(),
            Self::Reply(reply) => reply.to_bytes(),
            Self::Success2(success) => success.to_bytes(),
            Self::Failure2(failure) => failure.to_bytes(id::FAILURE2),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Negotiate(_) => "Negotiate",
            Self::Reply(_) => "Reply",
            Self::Success2(_) => "Success2",
            Self::Failure2(_) => "Failure2",
        }
    }
}

impl ControllerMessage {
    /// Parses a message of a controller.
    ///
    /// # Errors
    /// The message is not one of a controller, ends too early, or has a field that is not defined.
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        match kind_and_id(bytes)? {
            (COMMON, id::FAILURE1) => Failure::parse("Failure1", bytes).map(Self::Failure1),
            (DH_HMAC_CHAP, id::CHALLENGE) => Challenge::parse(bytes).map(Self::Challenge),
            (DH_HMAC_CHAP, id::SUCCESS1) => Success1::parse(bytes).map(Self::Success1),
            (kind, id) => Err(MessageError::Unexpected { kind, id }),
        }
    }

    /// Writes the message.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Challenge(challenge) => challenge.to_bytes(),
            Self::Success1(success) => success.to_bytes(),
            Self::Failure1(failure) => failure.to_bytes(id::FAILURE1),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Challenge(_) => "Challenge",
            Self::Success1(_) => "Success1",
            Self::Failure1(_) => "Failure1",
        }
    }
}
