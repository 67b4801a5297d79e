//! Errors of keys, names and messages. No error contains a part of a key.

use std::fmt;
use thiserror::Error;

/// The operating system gives no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the operating system provides no random bytes (getrandom failed)")]
pub struct RandomError;

/// The two kinds of keys that are exchanged as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A pre-shared key for TLS, `NVMeTLSkey-1:…` (NVMe/TCP 1.0 §3.6.1.5).
    TlsPsk,
    /// A secret of DH-HMAC-CHAP, `DHHC-1:…` (NVMe Base 2.0 §8.13.5.8).
    DhChap,
}

impl KeyKind {
    pub(crate) const ALL: [KeyKind; 2] = [Self::TlsPsk, Self::DhChap];

    /// The start of the text, with its colon.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::TlsPsk => "NVMeTLSkey-1:",
            Self::DhChap => "DHHC-1:",
        }
    }

    /// Lengths that a key may have, in bytes.
    pub(crate) const fn key_lengths_bytes(self) -> &'static [usize] {
        match self {
            Self::TlsPsk => &[32, 48],
            Self::DhChap => &[32, 48, 64],
        }
    }

    /// Lengths that the text may have, in characters, as words for messages.
    const fn text_lengths(self) -> &'static str {
        match self {
            Self::TlsPsk => "65 or 89",
            Self::DhChap => "59, 83 or 103",
        }
    }

    /// The command that makes such a key.
    const fn command(self) -> &'static str {
        match self {
            Self::TlsPsk => "bpfof key new tls",
            Self::DhChap => "bpfof key new dhchap",
        }
    }

    /// What its text is used as, in words for messages.
    const fn place(self) -> &'static str {
        match self {
            Self::TlsPsk => "a TLS key",
            Self::DhChap => "a DH-HMAC-CHAP secret",
        }
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TlsPsk => "TLS key",
            Self::DhChap => "DH-HMAC-CHAP secret",
        })
    }
}

/// What is wrong with the text of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyProblem {
    /// It begins with the prefix of no kind of key.
    Prefix,
    /// It is a key of the other kind.
    OtherKind(KeyKind),
    /// The two digits of the hash are missing, or are not digits.
    HashDigits,
    /// A hash that is not defined for this kind.
    UnknownHash(u8),
    /// The hash does not fit a key of this length.
    HashForLength {
        /// The hash that the text names (1 SHA-256, 2 SHA-384).
        hash_id: u8,
        /// Length of the key in bytes.
        key_bytes: usize,
    },
    /// No colon at the end.
    End,
    /// No key has this number of characters.
    Length(usize),
    /// The key is not in base64.
    Base64,
    /// The checksum does not match the key.
    Checksum,
}

/// Why the text of a key is refused, and what to do. It reveals nothing about the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyError {
    /// The expected kind of key.
    pub kind: KeyKind,
    /// What is wrong with the text.
    pub problem: KeyProblem,
}

impl std::error::Error for KeyError {}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, problem } = *self;
        let (prefix, command) = (kind.prefix(), kind.command());
        write!(f, "the {kind} cannot be used: ")?;
        match problem {
            KeyProblem::Prefix => {
                write!(f, "it does not begin with {prefix} (`{command}` makes such keys)")
            }
            KeyProblem::OtherKind(found) => {
                let (place, elsewhere) = (kind.place(), found.place());
                write!(f, "it is {elsewhere}, but {place} ({prefix}…) is needed")
            }
            KeyProblem::HashDigits => {
                write!(f, "two digits and a colon must follow {prefix}, as in {prefix}01:")
            }
            KeyProblem::UnknownHash(id) => {
                write!(f, "its hash is {id:02x}, which is not defined; make one by `{command}`")
            }
            KeyProblem::HashForLength { hash_id, key_bytes } => write!(
                f,
                "its hash {hash_id:02x} does not fit a key of {key_bytes} bytes: 00 or 01 goes \
                 with 32 bytes, 00 or 02 with 48"
            ),
            KeyProblem::End => write!(
                f,
                "its last character is not a colon; it may have been cut off: copy the whole text"
            ),
            KeyProblem::Length(found) => {
                let lengths = kind.text_lengths();
                write!(f, "it has {found} characters, not {lengths}: copy the whole text")
            }
            KeyProblem::Base64 => {
                write!(f, "the part between its last two colons is not base64: copy it again")
            }
            KeyProblem::Checksum => write!(
                f,
                "its checksum is wrong, so a character was changed: copy it again, or make a new \
                 one by `{command}`"
            ),
        }
    }
}

/// Which of the two names an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// The NQN of the host.
    Host,
    /// The NQN of the subsystem.
    Subsystem,
}

impl fmt::Display for NameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Subsystem => "subsystem",
        })
    }
}

/// Why an NQN cannot be authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// The NQN is missing.
    #[error("the {0} has no NQN, and authentication needs one: give it one")]
    Empty(NameKind),
    /// The NQN is too long (NVMe Base 2.0 §4.5).
    #[error("the NQN of the {kind} has {found_bytes} bytes; at most 223 are allowed")]
    TooLong {
        /// Whose NQN it is.
        kind: NameKind,
        /// Its length in bytes.
        found_bytes: usize,
    },
    /// The NQN has white space or control characters. Identities join two NQNs with a space, so two
    /// different pairs would have the same identity.
    #[error("the NQN of the {0} contains white space or control characters: use another")]
    Character(NameKind),
}

/// Why a TLS identity cannot be made (RFC 8446 §7.1: a context has at most 255 bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the TLS identity of version 0 has {found_bytes} bytes, but at most 255 are possible: use \
     version 1, or shorter NQNs"
)]
pub struct IdentityTooLong {
    /// Length of the identity in bytes.
    pub found_bytes: usize,
}

/// Why a message of the authentication cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// The message is shorter than its header or its own length fields require.
    #[error("{message} of {found_bytes} bytes ends before byte {needed_bytes}")]
    Short {
        /// Which message.
        message: &'static str,
        /// Bytes that it must have.
        needed_bytes: usize,
        /// Bytes that it has.
        found_bytes: usize,
    },
    /// A type and id that this side does not receive, or that are not defined.
    #[error("a message of type {kind:02X}h and id {id:02X}h, which this side does not expect")]
    Unexpected {
        /// Type: 0 common, 1 DH-HMAC-CHAP (byte 0).
        kind: u8,
        /// Id within the type (byte 1).
        id: u8,
    },
    /// A field with a value that is not defined.
    #[error("{message} with {field} {value}, which is not defined")]
    Field {
        /// Which message.
        message: &'static str,
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u32,
    },
}

/// Why a public Diffie-Hellman value is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GroupValueError {
    /// The value is not as long as the group's prime.
    #[error(
        "a Diffie-Hellman value of {found_bytes} bytes in a group whose values have {needed_bytes}"
    )]
    Length {
        /// Length of a value in this group, in bytes.
        needed_bytes: usize,
        /// Length of the received value, in bytes.
        found_bytes: usize,
    },
    /// At most 1, or at least p − 1: anyone could compute the shared secret (RFC 7919 §5.1).
    #[error("a Diffie-Hellman value that would make the shared secret 0, 1 or p - 1")]
    Range,
}
