//! Identify Namespace of the NVM command set (NVM Command Set 1.0 §4.1.5.1).

use crate::bytes::{Field, get, put, wire_struct};

wire_struct! {
    /// Identify Namespace (NVM Command Set 1.0 §4.1.5.1): the fields that a host or target uses.
    pub struct IdentifyNamespace [4096] {
        /// NSZE: size in logical blocks (bytes 7:0).
        0 => nsze: u64,
        /// NCAP: capacity in logical blocks (bytes 15:8).
        8 => ncap: u64,
        /// NUSE: logical blocks allocated (bytes 23:16).
        16 => nuse: u64,
        /// NSFEAT: features; bit 0 thin provisioning, bit 2 deallocated-block errors, bit 4
        /// NPWG and its like are valid (byte 24).
        24 => nsfeat: u8,
        /// NLBAF: LBA formats, as sent: formats − 1 (byte 25).
        25 => nlbaf: u8,
        /// FLBAS: bits 3:0 select the format in use (byte 26).
        26 => flbas: u8,
        /// MC: metadata capabilities (byte 27).
        27 => mc: u8,
        /// DPC: protection capabilities (byte 28).
        28 => dpc: u8,
        /// DPS: protection in use (byte 29).
        29 => dps: u8,
        /// NMIC: bit 0: may be shared by controllers (byte 30).
        30 => nmic: u8,
        /// RESCAP: reservations (byte 31).
        31 => rescap: u8,
        /// DLFEAT: what deallocated blocks read as; 1 is zeroes; bit 3: Write Zeroes deallocates
        /// (byte 33).
        33 => dlfeat: u8,
        /// NAWUN: blocks written atomically, as sent: blocks − 1 (bytes 35:34).
        34 => nawun: u16,
        /// NAWUPF: likewise across a power failure (bytes 37:36).
        36 => nawupf: u16,
        /// NOIOB: optimal I/O boundary in blocks (bytes 47:46).
        46 => noiob: u16,
        /// NPWG: preferred write granularity in blocks, as sent: blocks − 1 (bytes 65:64).
        64 => npwg: u16,
        /// NPWA: preferred write alignment, likewise (bytes 67:66).
        66 => npwa: u16,
        /// NPDG: preferred deallocate granularity, likewise (bytes 69:68).
        68 => npdg: u16,
        /// NPDA: preferred deallocate alignment, likewise (bytes 71:70).
        70 => npda: u16,
        /// NOWS: optimal write size in blocks, likewise (bytes 73:72).
        72 => nows: u16,
        /// ANAGRPID: ANA group (bytes 95:92).
        92 => anagrpid: u32,
        /// NSATTR: bit 0: write protected (byte 99).
        99 => nsattr: u8,
        /// NGUID: globally unique identifier, zero if none (bytes 119:104).
        104 => nguid: [u8; 16],
        /// EUI64: IEEE extended unique identifier, zero if none (bytes 127:120).
        120 => eui64: [u8; 8],
        /// LBAF0 to LBAF15: the LBA formats (bytes 191:128).
        128 => lbaf: [LbaFormat; 16],
    }
}

wire_struct! {
    /// Command set independent Identify Namespace (NVMe Base 2.0 §5.17.2.8): the fields that a
    /// target uses.
    pub struct IndependentNamespace [4096] {
        /// NSFEAT: features (byte 0).
        0 => nsfeat: u8,
        /// NMIC: bit 0: may be shared by controllers (byte 1).
        1 => nmic: u8,
        /// RESCAP: reservations (byte 2).
        2 => rescap: u8,
        /// ANAGRPID: ANA group (bytes 7:4).
        4 => anagrpid: u32,
        /// NSATTR: bit 0: write protected (byte 8).
        8 => nsattr: u8,
        /// NSTAT: bit 0: ready (byte 14).
        14 => nstat: u8,
    }
}

impl IdentifyNamespace {
    /// The LBA format in use (FLBAS bits 3:0).
    #[must_use]
    pub fn format(&self) -> LbaFormat {
        self.lbaf[usize::from(self.flbas & 0xF)]
    }
}

/// An LBA format (NVM Command Set 1.0 §4.1.5.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LbaFormat {
    /// MS: metadata per block in bytes (bits 15:0).
    pub metadata_bytes: u16,
    /// LBADS: a block is 2^this bytes; 0 if the format does not exist (bits 23:16).
    pub lbads: u8,
    /// RP: relative performance, 0 is best (bits 25:24).
    pub performance: u8,
}

impl LbaFormat {
    /// Bytes of a logical block, or `None` if the format does not exist or is absurd: the
    /// specification starts at 512 bytes, and nothing above 2 GiB fits a transfer.
    #[must_use]
    pub fn block_bytes(self) -> Option<u32> {
        (9..32).contains(&self.lbads).then(|| 1 << self.lbads)
    }
}

impl Field for [LbaFormat; 16] {
    const BYTES: usize = 64;
    fn get(from: &[u8], at: usize) -> Self {
        std::array::from_fn(|index| {
            let bits: u32 = get(from, at + index * 4);
            LbaFormat {
                metadata_bytes: bits as u16,
                lbads: (bits >> 16) as u8,
                performance: (bits >> 24) as u8 & 3,
            }
        })
    }
    fn put(&self, to: &mut [u8], at: usize) {
        for (index, format) in self.iter().enumerate() {
            let bits = u32::from(format.metadata_bytes)
                | u32::from(format.lbads) << 16
                | u32::from(format.performance & 3) << 24;
            put(to, at + index * 4, bits);
        }
    }
}
