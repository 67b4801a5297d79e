//! Commands of I/O queues, parsed once (NVM Command Set 1.0 §3.2, protocol.md).

use crate::bytes::{get, put};
use crate::fabrics::FabricsCommand;
use crate::opcode::{FABRICS, nvm};
use crate::vendor_specific::PushdownShort;
use crate::{Sqe, Status};

/// A range of logical blocks that a command reads or changes (NVM Command Set 1.0 §3.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rw {
    /// First logical block (CDW10 and 11).
    pub slba: u64,
    /// Number of logical blocks, 1 to 65,536 (CDW12 bits 15:0, there 0's based).
    pub blocks: u32,
    /// Force Unit Access (CDW12 bit 30).
    pub fua: bool,
}

impl Rw {
    fn from_sqe(sqe: &Sqe) -> Self {
        Self {
            slba: u64::from(sqe.cdw10) | u64::from(sqe.cdw11) << 32,
            blocks: (sqe.cdw12 & 0xFFFF) + 1,
            fua: sqe.cdw12 & 1 << 30 != 0,
        }
    }

    /// A command with this range. `blocks` outside 1 to 65,536 is clamped.
    #[must_use]
    #[inline]
    pub fn to_sqe(self, opcode: u8, nsid: u32) -> Sqe {
        let count = self.blocks.clamp(1, 0x1_0000) - 1;
        Sqe {
            cdw10: self.slba as u32,
            cdw11: (self.slba >> 32) as u32,
            cdw12: count | u32::from(self.fua) << 30,
            ..Sqe::new(opcode, nsid)
        }
    }
}

/// A command of an I/O queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmCommand {
    /// Flush (NVMe Base 2.0 §7.1).
    Flush,
    /// Read (NVM Command Set 1.0 §3.2.4).
    Read(Rw),
    /// Write (§3.2.6).
    Write(Rw),
    /// Write Zeroes (§3.2.8).
    WriteZeroes {
        /// The blocks.
        rw: Rw,
        /// DEAC: the host asks for the blocks to be deallocated (CDW12 bit 25).
        deallocate: bool,
    },
    /// Compare (§3.2.1).
    Compare(Rw),
    /// Dataset Management (§3.2.3).
    DatasetManagement {
        /// Number of ranges in the data, 1 to 256 (CDW10 bits 7:0, there 0's based).
        ranges: u16,
        /// Attribute Deallocate (CDW11 bit 2).
        deallocate: bool,
    },
    /// Verify (§3.2.5).
    Verify(Rw),
    /// Pushdown (protocol.md); its request is the in-capsule data.
    Pushdown,
    /// Pushdown Vector (protocol.md); its request is the in-capsule data.
    PushdownVector,
    /// Pushdown Short (protocol.md).
    PushdownShort(PushdownShort),
    /// A fabrics command (NVMe Base 2.0 §6).
    Fabrics(FabricsCommand),
    /// Any other opcode.
    Unknown(u8),
}

impl NvmCommand {
    /// Parses a command. Only vendor commands have their reserved fields checked.
    ///
    /// # Errors
    /// The status to answer: Invalid Field in Command for a reserved field of Pushdown or Pushdown
    /// Vector that is set;
    /// Malformed Request for a Pushdown Short that reads nothing, with DW0
    /// [`PushdownShort::FIRST_BLOCKS_AT`].
    #[inline]
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        Ok(match sqe.opcode {
            nvm::READ => Self::Read(Rw::from_sqe(sqe)),
            nvm::WRITE => Self::Write(Rw::from_sqe(sqe)),
            nvm::PUSHDOWN | nvm::PUSHDOWN_VECTOR => {
                let set = sqe.cdw2 | sqe.cdw3 | sqe.cdw10 | sqe.cdw11 | sqe.cdw12 | sqe.cdw13;
                if set | sqe.cdw14 | sqe.cdw15 != 0 {
                    return Err(Status::INVALID_FIELD.with_dnr());
                }
                if sqe.opcode == nvm::PUSHDOWN { Self::Pushdown } else { Self::PushdownVector }
            }
            nvm::PUSHDOWN_SHORT => {
                let short = PushdownShort::from_sqe(sqe);
                if short.first_blocks == 0 {
                    return Err(Status::MALFORMED_REQUEST);
                }
                Self::PushdownShort(short)
            }
            nvm::FLUSH => Self::Flush,
            nvm::WRITE_ZEROES => {
                Self::WriteZeroes { rw: Rw::from_sqe(sqe), deallocate: sqe.cdw12 & 1 << 25 != 0 }
            }
            nvm::COMPARE => Self::Compare(Rw::from_sqe(sqe)),
            nvm::VERIFY => Self::Verify(Rw::from_sqe(sqe)),
            nvm::DATASET_MANAGEMENT => Self::DatasetManagement {
                ranges: (sqe.cdw10 & 0xFF) as u16 + 1,
                deallocate: sqe.cdw11 & 1 << 2 != 0,
            },
            FABRICS => Self::Fabrics(FabricsCommand::parse(sqe)),
            other => Self::Unknown(other),
        })
    }
}

/// One range of a Dataset Management command (NVM Command Set 1.0 §3.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DsmRange {
    /// Context attributes: hints.
    pub attributes: u32,
    /// Length in logical blocks; 0 is an empty range.
    pub blocks: u32,
    /// First logical block.
    pub slba: u64,
}

impl DsmRange {
    /// Size on the wire, in bytes.
    pub const BYTES: usize = 16;

    /// Reads a range.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 16]) -> Self {
        Self { attributes: get(bytes, 0), blocks: get(bytes, 4), slba: get(bytes, 8) }
    }

    /// Writes a range.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        put(&mut bytes, 0, self.attributes);
        put(&mut bytes, 4, self.blocks);
        put(&mut bytes, 8, self.slba);
        bytes
    }

    /// The whole ranges at the start of `data`, at most `ranges`.
    pub fn list(data: &[u8], ranges: u16) -> impl Iterator<Item = Self> + '_ {
        data.as_chunks::<16>().0.iter().take(usize::from(ranges)).map(Self::from_bytes)
    }
}
