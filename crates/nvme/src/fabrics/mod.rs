//! Fabrics commands (NVMe Base 2.0 §6), the Connect data and the controller properties.

mod connect;
mod property;

pub use connect::{ConnectData, ConnectDataError, NQN_MAX_BYTES, NqnError};
pub use property::{Cap, ControllerConfig, Csts, Shutdown, Version, offset};

use crate::opcode::{FABRICS, fabrics_type};
use crate::{Sgl, Sqe};

/// NQN of the discovery subsystem (NVMe Base 2.0 §4.5).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Connect's controller identifier in the dynamic controller model (NVMe Base 2.0 §6.3).
pub const CNTLID_DYNAMIC: u16 = 0xFFFF;
/// Connect attribute: disable submission queue flow control (NVMe Base 2.0 §6.3, CATTR bit 2).
pub const CATTR_DISABLE_SQ_FLOW_CONTROL: u8 = 1 << 2;
/// SQHD of every completion on a queue without flow control (NVMe Base 2.0 §6.3).
pub const SQHD_NO_FLOW_CONTROL: u16 = 0xFFFF;

/// Which security protocol the data of an authentication command belongs to (NVMe Base 2.0 §6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecurityProtocol {
    /// SECP (byte 43).
    pub secp: u8,
    /// SPSP0 (byte 41).
    pub spsp0: u8,
    /// SPSP1 (byte 42).
    pub spsp1: u8,
}

impl SecurityProtocol {
    /// In-band authentication of NVMe over Fabrics (§8.13.2).
    pub const IN_BAND: Self = Self { secp: 0xE9, spsp0: 1, spsp1: 1 };

    const fn of(cdw10: u32) -> Self {
        let [_, spsp0, spsp1, secp] = cdw10.to_le_bytes();
        Self { secp, spsp0, spsp1 }
    }

    const fn to_cdw10(self) -> u32 {
        u32::from_le_bytes([0, self.spsp0, self.spsp1, self.secp])
    }
}

/// A fabrics command (NVMe Base 2.0 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricsCommand {
    /// Connect (§6.3).
    Connect {
        /// Record format; only 0 is defined (bytes 41:40).
        recfmt: u16,
        /// Queue to create; 0 is the admin queue (bytes 43:42).
        qid: u16,
        /// Size of the submission queue as sent: entries − 1 (bytes 45:44).
        sqsize: u16,
        /// Connect attributes (byte 46).
        cattr: u8,
        /// Keep alive timeout, 0 for none (bytes 51:48).
        kato_ms: u32,
    },
    /// Property Get (§6.5).
    PropertyGet {
        /// Offset of the property (bytes 47:44).
        offset: u32,
        /// Whether the property is 8 bytes, not 4 (byte 40).
        size8: bool,
    },
    /// Property Set (§6.6).
    PropertySet {
        /// Offset of the property (bytes 47:44).
        offset: u32,
        /// Whether the property is 8 bytes, not 4 (byte 40).
        size8: bool,
        /// The value; the upper half means nothing for 4 bytes (bytes 55:48).
        value: u64,
    },
    /// Authentication Send (§6.2): the host sends a message.
    AuthenticationSend {
        /// Which security protocol.
        protocol: SecurityProtocol,
        /// Bytes of the message (TL, bytes 47:44).
        length_bytes: u32,
    },
    /// Authentication Receive (§6.1): the host asks for a message.
    AuthenticationReceive {
        /// Which security protocol.
        protocol: SecurityProtocol,
        /// Size of the host's buffer in bytes (AL, bytes 47:44).
        length_bytes: u32,
    },
    /// Disconnect (§6.4).
    Disconnect,
    /// Any other command type (FCTYPE).
    Unknown(u8),
}

impl FabricsCommand {
    /// Parses a command with the fabrics opcode.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let size8 = sqe.cdw10 & 7 == 1;
        match sqe.nsid as u8 {
            fabrics_type::CONNECT => Self::Connect {
                recfmt: sqe.cdw10 as u16,
                qid: (sqe.cdw10 >> 16) as u16,
                sqsize: sqe.cdw11 as u16,
                cattr: (sqe.cdw11 >> 16) as u8,
                kato_ms: sqe.cdw12,
            },
            fabrics_type::PROPERTY_GET => Self::PropertyGet { offset: sqe.cdw11, size8 },
            fabrics_type::PROPERTY_SET => Self::PropertySet {
                offset: sqe.cdw11,
                size8,
                value: u64::from(sqe.cdw12) | u64::from(sqe.cdw13) << 32,
            },
            fabrics_type::AUTHENTICATION_SEND => Self::AuthenticationSend {
                protocol: SecurityProtocol::of(sqe.cdw10),
                length_bytes: sqe.cdw11,
            },
            fabrics_type::AUTHENTICATION_RECEIVE => Self::AuthenticationReceive {
                protocol: SecurityProtocol::of(sqe.cdw10),
                length_bytes: sqe.cdw11,
            },
            fabrics_type::DISCONNECT => Self::Disconnect,
            other => Self::Unknown(other),
        }
    }

    /// The submission queue entry of this command. Connect and Authentication Send carry their data in
    /// the capsule; an unknown command has only its type.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        let sqe = |fctype: u8| Sqe::new(FABRICS, u32::from(fctype));
        match self {
            Self::Connect { recfmt, qid, sqsize, cattr, kato_ms } => Sqe {
                cdw10: u32::from(recfmt) | u32::from(qid) << 16,
                cdw11: u32::from(sqsize) | u32::from(cattr) << 16,
                cdw12: kato_ms,
                sgl: Sgl::in_capsule(ConnectData::BYTES as u32),
                ..sqe(fabrics_type::CONNECT)
            },
            Self::PropertyGet { offset, size8 } => {
                Sqe { cdw10: u32::from(size8), cdw11: offset, ..sqe(fabrics_type::PROPERTY_GET) }
            }
            Self::PropertySet { offset, size8, value } => Sqe {
                cdw10: u32::from(size8),
                cdw11: offset,
                cdw12: value as u32,
                cdw13: (value >> 32) as u32,
                ..sqe(fabrics_type::PROPERTY_SET)
            },
            Self::AuthenticationSend { protocol, length_bytes } => Sqe {
                cdw10: protocol.to_cdw10(),
                cdw11: length_bytes,
                sgl: Sgl::in_capsule(length_bytes),
                ..sqe(fabrics_type::AUTHENTICATION_SEND)
            },
            Self::AuthenticationReceive { protocol, length_bytes } => Sqe {
                cdw10: protocol.to_cdw10(),
                cdw11: length_bytes,
                sgl: Sgl::transport(length_bytes),
                ..sqe(fabrics_type::AUTHENTICATION_RECEIVE)
            },
            Self::Disconnect => sqe(fabrics_type::DISCONNECT),
            Self::Unknown(fctype) => sqe(fctype),
        }
    }
}
