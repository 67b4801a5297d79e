//! The submission queue entry (NVMe Base 2.0 §3.3.3.1).

use crate::bytes::{get, put};

/// A submission queue entry, all 64 bytes of it (NVMe Base 2.0 §3.3.3.1). Reading and writing preserve every bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sqe {
    /// CDW0 bits 7:0: opcode (§3.3.3.1).
    pub opcode: u8,
    /// CDW0 bits 15:8: fused operation (1:0) and PRP or SGL for data transfer (7:6) (§3.3.3.1).
    pub flags: u8,
    /// CDW0 bits 31:16: command identifier (§3.3.3.1).
    pub cid: u16,
    /// Namespace identifier; in a fabrics command the low byte is FCTYPE (§3.3.3.1, §6).
    pub nsid: u32,
    /// Command dword 2 (§3.3.3.1).
    pub cdw2: u32,
    /// Command dword 3 (§3.3.3.1).
    pub cdw3: u32,
    /// Metadata pointer (§3.3.3.1).
    pub mptr: u64,
    /// Data pointer, as a scatter-gather descriptor (§3.3.3.1, §4.1.2).
    pub sgl: Sgl,
    /// Command dword 10 (§3.3.3.1).
    pub cdw10: u32,
    /// Command dword 11 (§3.3.3.1).
    pub cdw11: u32,
    /// Command dword 12 (§3.3.3.1).
    pub cdw12: u32,
    /// Command dword 13 (§3.3.3.1).
    pub cdw13: u32,
    /// Command dword 14 (§3.3.3.1).
    pub cdw14: u32,
    /// Command dword 15 (§3.3.3.1).
    pub cdw15: u32,
}

impl Sqe {
    /// Size on the wire, in bytes.
    pub const BYTES: usize = 64;
    /// `flags` of every NVMe over Fabrics command: SGLs for this transfer (NVMe Base 2.0 §3.3.3.1,
    /// PSDT 01b).
    pub const FLAGS_SGL: u8 = 0x40;

    /// A command with `opcode` for `nsid`, without data, every other field zero.
    #[must_use]
    pub fn new(opcode: u8, nsid: u32) -> Self {
        Self { opcode, flags: Self::FLAGS_SGL, nsid, sgl: Sgl::transport(0), ..Self::default() }
    }

    /// Reads an entry.
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: &[u8; 64]) -> Self {
        Self {
            opcode: bytes[0],
            flags: bytes[1],
            cid: get(bytes, 2),
            nsid: get(bytes, 4),
            cdw2: get(bytes, 8),
            cdw3: get(bytes, 12),
            mptr: get(bytes, 16),
            sgl: Sgl {
                address: get(bytes, 24),
                length_bytes: get(bytes, 32),
                reserved: get(bytes, 36),
                kind: bytes[39],
            },
            cdw10: get(bytes, 40),
            cdw11: get(bytes, 44),
            cdw12: get(bytes, 48),
            cdw13: get(bytes, 52),
            cdw14: get(bytes, 56),
            cdw15: get(bytes, 60),
        }
    }

    /// Writes an entry.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[0] = self.opcode;
        bytes[1] = self.flags;
        put(&mut bytes, 2, self.cid);
        put(&mut bytes, 4, self.nsid);
        put(&mut bytes, 8, self.cdw2);
        put(&mut bytes, 12, self.cdw3);
        put(&mut bytes, 16, self.mptr);
        put(&mut bytes, 24, self.sgl.address);
        put(&mut bytes, 32, self.sgl.length_bytes);
        put(&mut bytes, 36, self.sgl.reserved);
        bytes[39] = self.sgl.kind;
        put(&mut bytes, 40, self.cdw10);
        put(&mut bytes, 44, self.cdw11);
        put(&mut bytes, 48, self.cdw12);
        put(&mut bytes, 52, self.cdw13);
        put(&mut bytes, 56, self.cdw14);
        put(&mut bytes, 60, self.cdw15);
        bytes
    }
}

/// A scatter-gather descriptor (NVMe Base 2.0 §4.1.2; kinds allowed here: NVMe/TCP 1.0 §3.6.2.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sgl {
    /// Address, or the offset into the in-capsule data for [`Sgl::IN_CAPSULE_OFFSET`] (§4.1.2).
    pub address: u64,
    /// Length of the data in bytes (§4.1.2).
    pub length_bytes: u32,
    /// Reserved bytes 12 to 14 of the descriptor (§4.1.2).
    pub reserved: [u8; 3],
    /// SGL identifier: descriptor type (7:4) and sub type (3:0) (§4.1.2).
    pub kind: u8,
}

impl Sgl {
    /// Data block whose address is an offset into the capsule (NVMe Base 2.0 §4.1.2: type 0h, sub
    /// type 1h).
    pub const IN_CAPSULE_OFFSET: u8 = 0x01;
    /// Transport data block: the transport moves the data (NVMe Base 2.0 §4.1.2: type 5h, sub type
    /// Ah).
    pub const TRANSPORT: u8 = 0x5A;
    /// Keyed data block (NVMe Base 2.0 §4.1.2: type 4h, sub type 0h): memory of the host, by its key.
    pub const KEYED: u8 = 0x40;
    /// The same, and the key is to be invalidated (NVMe Base 2.0 §4.1.2: type 4h, sub type Fh).
    pub const KEYED_INVALIDATE: u8 = 0x4F;

    /// `length_bytes` of data at the start of the in-capsule data.
    #[must_use]
    pub const fn in_capsule(length_bytes: u32) -> Self {
        Self { address: 0, length_bytes, reserved: [0; 3], kind: Self::IN_CAPSULE_OFFSET }
    }

    /// `length_bytes` of data moved by H2CData or C2HData.
    #[must_use]
    pub const fn transport(length_bytes: u32) -> Self {
        Self { address: 0, length_bytes, reserved: [0; 3], kind: Self::TRANSPORT }
    }

    /// `length_bytes` (below 2^24) of data at `address` of the memory with this `key`.
    #[must_use]
    pub const fn keyed(address: u64, length_bytes: u32, key: u32) -> Self {
        debug_assert!(length_bytes < 1 << 24, "the length field has three bytes");
        let [first, second, third, fourth] = key.to_le_bytes();
        let [a, b, c, _] = length_bytes.to_le_bytes();
        let length_bytes = u32::from_le_bytes([a, b, c, first]);
        Self { address, length_bytes, reserved: [second, third, fourth], kind: Self::KEYED }
    }
}
