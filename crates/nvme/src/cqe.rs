//! The completion queue entry (NVMe Base 2.0 §3.3.3.2).

use crate::Status;
use crate::bytes::{get, put};

/// A completion queue entry (NVMe Base 2.0 §3.3.3.2). The phase bit has no meaning over fabrics
/// and is written as zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cqe {
    /// Dword 0: command specific (§3.3.3.2).
    pub dw0: u32,
    /// Dword 1: command specific (§3.3.3.2).
    pub dw1: u32,
    /// Submission queue head pointer; FFFFh if SQ flow control is disabled (§3.3.3.2, §6.3).
    pub sqhd: u16,
    /// Submission queue identifier; reserved over fabrics (§3.3.3.2).
    pub sqid: u16,
    /// Identifier of the command that ended (§3.3.3.2).
    pub cid: u16,
    /// Status field, without the phase bit (§3.3.3.2.1).
    pub status: Status,
}

impl Cqe {
    /// Size on the wire, in bytes.
    pub const BYTES: usize = 16;

    /// Reads an entry; the phase bit is ignored.
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: &[u8; 16]) -> Self {
        Self {
            dw0: get(bytes, 0),
            dw1: get(bytes, 4),
            sqhd: get(bytes, 8),
            sqid: get(bytes, 10),
            cid: get(bytes, 12),
            status: Status::from_field(get::<u16>(bytes, 14) >> 1),
        }
    }

    /// Writes an entry.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        put(&mut bytes, 0, self.dw0);
        put(&mut bytes, 4, self.dw1);
        put(&mut bytes, 8, self.sqhd);
        put(&mut bytes, 10, self.sqid);
        put(&mut bytes, 12, self.cid);
        put(&mut bytes, 14, self.status.field() << 1);
        bytes
    }

    /// Dwords 0 and 1 as one number, as Property Get answers (NVMe Base 2.0 §6.5).
    #[must_use]
    pub const fn dw01(&self) -> u64 {
        self.dw0 as u64 | (self.dw1 as u64) << 32
    }
}
