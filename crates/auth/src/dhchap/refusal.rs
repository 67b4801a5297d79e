//! Why one side refuses the other, as text and as a reason of the protocol.

use super::group::Group;
use super::message::FailureReason;
use crate::error::{GroupValueError, MessageError, RandomError};
use crate::hash::Hash;
use thiserror::Error;

/// Why this side refuses the other one. The text is for this side's log; the other side gets only the
/// [`reason`](Self::reason).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A message that cannot be read.
    #[error("it sent {0}")]
    Malformed(#[from] MessageError),
    /// A message, or an Authentication Receive, that is not due.
    #[error("unexpected {message}; expected: {due}")]
    OutOfOrder {
        /// The received message.
        message: &'static str,
        /// What was expected.
        due: &'static str,
    },
    /// A message of another run.
    #[error("{message} names transaction {found}, but transaction {expected} is in progress")]
    OtherTransaction {
        /// The received message.
        message: &'static str,
        /// T_ID of the run.
        expected: u16,
        /// T_ID of the message.
        found: u16,
    },
    /// The host wants to derive a key for TLS from the authentication.
    #[error(
        "it asks for secure channel concatenation (SC_C {0}), which is not offered: connect without \
         it (nvme-cli: without --concat)"
    )]
    Concatenation(u8),
    /// The host does not offer DH-HMAC-CHAP.
    #[error("it does not offer DH-HMAC-CHAP, the only supported protocol")]
    NoProtocol,
    /// No hash is allowed by both sides.
    #[error("it offers none of the hash functions that this side allows")]
    NoHash,
    /// No group is allowed by both sides.
    #[error("it offers none of the Diffie-Hellman groups that this side allows")]
    NoGroup,
    /// The controller chose a hash that was not offered.
    #[error("it chose hash {0}, which was not offered")]
    HashNotOffered(u8),
    /// The controller chose a group that was not offered.
    #[error("it chose Diffie-Hellman group {0}, which was not offered")]
    GroupNotOffered(u8),
    /// A challenge or response that is not as long as the hash's output.
    #[error("{message} has values of {found_bytes} bytes; {hash} needs {}", hash.length_bytes())]
    HashLength {
        /// Which message.
        message: &'static str,
        /// The hash of the run.
        hash: Hash,
        /// HL of the message.
        found_bytes: usize,
    },
    /// A sequence number of 0, which Challenge must not have.
    #[error("Challenge has sequence number 0")]
    Sequence,
    /// A public value that is invalid.
    #[error("{message} has {error} ({group})")]
    Value {
        /// Which message.
        message: &'static str,
        /// The group of the run.
        group: Group,
        /// What is wrong with it.
        error: GroupValueError,
    },
    /// The host's response matches none of its secrets.
    #[error(
        "its response fits no secret that is configured for it: both sides need the same DHHC-1 \
         secret, and the same NQNs of host and subsystem"
    )]
    WrongHostKey,
    /// The host challenges the controller, which has no secret.
    #[error(
        "it wants the controller authenticated too, but no controller secret is configured here: \
         configure one, or let the host connect without it (nvme-cli: without --dhchap-ctrl-secret)"
    )]
    NoControllerKey,
    /// The controller's response does not match its secret.
    #[error(
        "its response does not fit the controller secret that is configured here: both sides need \
         the same DHHC-1 secret, and the same NQNs of host and subsystem"
    )]
    WrongControllerKey,
    /// The controller was challenged and did not respond.
    #[error("it was challenged and did not respond")]
    NoResponse,
    /// No random bytes.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The host begins run after run without completing one.
    #[error("it has begun {0} authentications without completing one")]
    TooManyRuns(u32),
    /// The host has given up, but continues.
    #[error("it has aborted the authentication ({0})")]
    GivenUp(FailureReason),
    /// The result of a [`Work`](super::Work) that this queue did not ask for.
    #[error("a result arrived for a computation that this queue did not request")]
    ForeignWork,
}

impl Refusal {
    /// The reason that the other side gets (NVMe Base 2.0 §8.13).
    #[must_use]
    pub const fn reason(&self) -> FailureReason {
        match self {
            Self::Malformed(MessageError::Unexpected { .. })
            | Self::OutOfOrder { .. }
            | Self::GivenUp(_) => FailureReason::IncorrectMessage,
            Self::Malformed(_)
            | Self::OtherTransaction { .. }
            | Self::HashLength { .. }
            | Self::Sequence
            | Self::Value { .. } => FailureReason::IncorrectPayload,
            Self::Concatenation(_) => FailureReason::ConcatenationMismatch,
            Self::NoProtocol => FailureReason::ProtocolNotUsable,
            Self::NoHash | Self::HashNotOffered(_) => FailureReason::HashNotUsable,
            Self::NoGroup | Self::GroupNotOffered(_) => FailureReason::GroupNotUsable,
            Self::WrongHostKey
            | Self::NoControllerKey
            | Self::WrongControllerKey
            | Self::NoResponse
            | Self::Random(_)
            | Self::TooManyRuns(_)
            | Self::ForeignWork => FailureReason::Failed,
        }
    }
}
