//! Errors that end a connection (NVMe/TCP 1.0 §3.6.2.4, §3.6.2.5).

use std::fmt;
use thiserror::Error;

/// Fatal Error Status (NVMe/TCP 1.0 §3.6.2.4, §3.6.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fes {
    /// 01h: Invalid PDU Header Field; FEI is the byte offset of the field.
    InvalidHeaderField,
    /// 02h: PDU Sequence Error.
    PduSequenceError,
    /// 03h: Header Digest Error; FEI is the digest received.
    HeaderDigestError,
    /// 04h: Data Transfer Out of Range.
    DataTransferOutOfRange,
    /// 05h: R2T Limit Exceeded (from a host), Data Transfer Limit Exceeded (from a controller).
    LimitExceeded,
    /// 06h: Unsupported Parameter; FEI is the byte offset of the field.
    UnsupportedParameter,
    /// Any other value.
    Other(u16),
}

impl Fes {
    /// From the FES field.
    #[must_use]
    pub const fn from_code(code: u16) -> Self {
        match code {
            1 => Self::InvalidHeaderField,
            2 => Self::PduSequenceError,
            3 => Self::HeaderDigestError,
            4 => Self::DataTransferOutOfRange,
            5 => Self::LimitExceeded,
            6 => Self::UnsupportedParameter,
            other => Self::Other(other),
        }
    }

    /// The FES field.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::InvalidHeaderField => 1,
            Self::PduSequenceError => 2,
            Self::HeaderDigestError => 3,
            Self::DataTransferOutOfRange => 4,
            Self::LimitExceeded => 5,
            Self::UnsupportedParameter => 6,
            Self::Other(code) => code,
        }
    }
}

impl Fes {
    /// Its name; all undefined values share one name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidHeaderField => "Invalid PDU Header Field",
            Self::PduSequenceError => "PDU Sequence Error",
            Self::HeaderDigestError => "Header Digest Error",
            Self::DataTransferOutOfRange => "Data Transfer Out of Range",
            Self::LimitExceeded => "Data Transfer or R2T Limit Exceeded",
            Self::UnsupportedParameter => "Unsupported Parameter",
            Self::Other(_) => "an unknown fatal error",
        }
    }
}

impl fmt::Display for Fes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(code) => write!(f, "fatal error status {code:04X}h"),
            known => f.write_str(known.name()),
        }
    }
}

/// An error that ends the connection: the peer's mistake, as a TermReq reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{fes}: {reason} (information {fei:#x})")]
pub struct PduError {
    /// Fatal error status.
    pub fes: Fes,
    /// Fatal error information, as the status defines it.
    pub fei: u32,
    /// A description of the error.
    pub reason: &'static str,
}

impl PduError {
    /// An error of `fes` with information `fei`.
    #[must_use]
    pub const fn new(fes: Fes, fei: u32, reason: &'static str) -> Self {
        Self { fes, fei, reason }
    }

    /// Invalid PDU Header Field: the field `at` bytes into the header.
    #[must_use]
    pub const fn invalid_field(at: u32, reason: &'static str) -> Self {
        Self::new(Fes::InvalidHeaderField, at, reason)
    }

    /// PDU Sequence Error.
    #[must_use]
    pub const fn sequence(reason: &'static str) -> Self {
        Self::new(Fes::PduSequenceError, 0, reason)
    }
}
