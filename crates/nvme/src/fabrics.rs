//! Fabrics commands (NVMe Base 2.0 §6), the Connect data and the controller properties.

mod connect;
mod property;

pub use connect::{ConnectData, ConnectDataError, NQN_MAX_BYTES, NqnError};
pub use property::{Cap, ControllerConfig, Csts, Shutdown, Version, offset};

use crate::opcode::fabrics::{self, FABRICS};
use crate::{Sgl, Sqe};

/// NQN of the discovery subsystem (NVMe Base 2.0 §4.5).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Connect's controller identifier in the dynamic controller model (NVMe Base 2.0 §6.3).
pub const CNTLID_DYNAMIC: u16 = 0xFFFF;
/// Connect attribute: disable submission queue flow control (NVMe Base 2.0 §6.3, CATTR bit 2).
pub const CATTR_DISABLE_SQ_FLOW_CONTROL: u8 = 1 << 2;
/// SQHD of every completion on a queue without flow control (NVMe Base 2.0 §6.3).
pub const SQHD_NO_FLOW_CONTROL: u16 = 0xFFFF;

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
            fabrics::CONNECT => Self::Connect {
                recfmt: sqe.cdw10 as u16,
                qid: (sqe.cdw10 >> 16) as u16,
                sqsize: sqe.cdw11 as u16,
                cattr: (sqe.cdw11 >> 16) as u8,
                kato_ms: sqe.cdw12,
            },
            fabrics::PROPERTY_GET => Self::PropertyGet { offset: sqe.cdw11, size8 },
            fabrics::PROPERTY_SET => Self::PropertySet {
                offset: sqe.cdw11,
                size8,
                value: u64::from(sqe.cdw12) | u64::from(sqe.cdw13) << 32,
            },
            fabrics::DISCONNECT => Self::Disconnect,
            other => Self::Unknown(other),
        }
    }

    /// The submission queue entry of this command. Connect carries its data in the capsule; an
    /// unknown command has only its type.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        let sqe = |fctype: u8| Sqe::new(FABRICS, u32::from(fctype));
        match self {
            Self::Connect { recfmt, qid, sqsize, cattr, kato_ms } => Sqe {
                cdw10: u32::from(recfmt) | u32::from(qid) << 16,
                cdw11: u32::from(sqsize) | u32::from(cattr) << 16,
                cdw12: kato_ms,
                sgl: Sgl::in_capsule(ConnectData::BYTES as u32),
                ..sqe(fabrics::CONNECT)
            },
            Self::PropertyGet { offset, size8 } => {
                Sqe { cdw10: u32::from(size8), cdw11: offset, ..sqe(fabrics::PROPERTY_GET) }
            }
            Self::PropertySet { offset, size8, value } => Sqe {
                cdw10: u32::from(size8),
                cdw11: offset,
                cdw12: value as u32,
                cdw13: (value >> 32) as u32,
                ..sqe(fabrics::PROPERTY_SET)
            },
            Self::Disconnect => sqe(fabrics::DISCONNECT),
            Self::Unknown(fctype) => sqe(fctype),
        }
    }
}
