//! Controller properties (NVMe Base 2.0 §3.1.3).

use std::fmt;

/// Offsets of the properties that exist over fabrics (NVMe Base 2.0 §3.1.3).
pub mod offset {
    /// Controller Capabilities, 8 bytes (§3.1.3.1).
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes (§3.1.3.2).
    pub const VS: u32 = 0x08;
    /// Controller Configuration, 4 bytes (§3.1.3.5).
    pub const CC: u32 = 0x14;
    /// Controller Status, 4 bytes (§3.1.3.6).
    pub const CSTS: u32 = 0x1C;
    /// NVM Subsystem Reset, 4 bytes (§3.1.3.7).
    pub const NSSR: u32 = 0x20;
    /// Controller Ready Timeouts, 4 bytes (§3.1.3.16).
    pub const CRTO: u32 = 0x68;
}

/// Controller Capabilities (NVMe Base 2.0 §3.1.3.1). Fields that have no meaning over fabrics are
/// written as zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cap {
    /// MQES: most entries of a queue, as sent: entries − 1 (bits 15:0).
    pub mqes: u16,
    /// CQR: queues must be contiguous; always set over fabrics (bit 16).
    pub cqr: bool,
    /// TO: longest wait for CSTS.RDY to follow CC.EN, in units of 500 ms (bits 31:24).
    pub timeout_500ms: u8,
    /// CSS: supported command sets; bit 0 is the NVM command set (bits 44:37).
    pub css: u8,
    /// MPSMIN: smallest memory page is 2^(12 + this) bytes (bits 51:48).
    pub mpsmin: u8,
    /// MPSMAX: largest memory page is 2^(12 + this) bytes (bits 55:52).
    pub mpsmax: u8,
    /// CRMS: ready modes supported (bits 60:59).
    pub crms: u8,
}

impl From<u64> for Cap {
    fn from(bits: u64) -> Self {
        Self {
            mqes: bits as u16,
            cqr: bits >> 16 & 1 != 0,
            timeout_500ms: (bits >> 24) as u8,
            css: (bits >> 37) as u8,
            mpsmin: (bits >> 48) as u8 & 0xF,
            mpsmax: (bits >> 52) as u8 & 0xF,
            crms: (bits >> 59) as u8 & 3,
        }
    }
}

impl From<Cap> for u64 {
    fn from(cap: Cap) -> Self {
        Self::from(cap.mqes)
            | Self::from(cap.cqr) << 16
            | Self::from(cap.timeout_500ms) << 24
            | Self::from(cap.css) << 37
            | Self::from(cap.mpsmin & 0xF) << 48
            | Self::from(cap.mpsmax & 0xF) << 52
            | Self::from(cap.crms & 3) << 59
    }
}

/// Version of the specification, as VS and Identify Controller's VER report it (NVMe Base 2.0
/// §3.1.3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32);

impl Version {
    /// NVMe Base 1.4.0.
    pub const V1_4: Self = Self(0x0001_0400);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0 >> 16, self.0 >> 8 & 0xFF, self.0 & 0xFF)
    }
}

/// The kind of shutdown that the host requests (NVMe Base 2.0 §3.1.3.5, CC.SHN).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shutdown {
    /// No shutdown (00b).
    #[default]
    None,
    /// Normal shutdown (01b).
    Normal,
    /// Abrupt shutdown (10b).
    Abrupt,
    /// Reserved (11b).
    Reserved,
}

/// Controller Configuration (NVMe Base 2.0 §3.1.3.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerConfig {
    /// EN: enable (bit 0).
    pub enable: bool,
    /// CSS: command set selected; 0 is NVM (bits 6:4).
    pub css: u8,
    /// MPS: the memory page is 2^(12 + this) bytes (bits 10:7).
    pub mps: u8,
    /// AMS: arbitration (bits 13:11).
    pub ams: u8,
    /// SHN: shutdown notification (bits 15:14).
    pub shutdown: Shutdown,
    /// IOSQES: an I/O submission queue entry is 2^this bytes (bits 19:16).
    pub iosqes: u8,
    /// IOCQES: an I/O completion queue entry is 2^this bytes (bits 23:20).
    pub iocqes: u8,
    /// CRIME: ready without media (bit 24).
    pub ready_without_media: bool,
}

impl ControllerConfig {
    /// The value with which a host enables a controller: entries of 64 and 16 bytes, the NVM
    /// command set.
    pub const ENABLED: Self = Self {
        enable: true,
        css: 0,
        mps: 0,
        ams: 0,
        shutdown: Shutdown::None,
        iosqes: 6,
        iocqes: 4,
        ready_without_media: false,
    };
}

impl From<u32> for ControllerConfig {
    fn from(bits: u32) -> Self {
        Self {
            enable: bits & 1 != 0,
            css: (bits >> 4) as u8 & 7,
            mps: (bits >> 7) as u8 & 0xF,
            ams: (bits >> 11) as u8 & 7,
            shutdown: match bits >> 14 & 3 {
                0 => Shutdown::None,
                1 => Shutdown::Normal,
                2 => Shutdown::Abrupt,
                _ => Shutdown::Reserved,
            },
            iosqes: (bits >> 16) as u8 & 0xF,
            iocqes: (bits >> 20) as u8 & 0xF,
            ready_without_media: bits >> 24 & 1 != 0,
        }
    }
}

impl From<ControllerConfig> for u32 {
    fn from(cc: ControllerConfig) -> Self {
        Self::from(cc.enable)
            | Self::from(cc.css & 7) << 4
            | Self::from(cc.mps & 0xF) << 7
            | Self::from(cc.ams & 7) << 11
            | (cc.shutdown as Self) << 14
            | Self::from(cc.iosqes & 0xF) << 16
            | Self::from(cc.iocqes & 0xF) << 20
            | Self::from(cc.ready_without_media) << 24
    }
}

/// Controller Status (NVMe Base 2.0 §3.1.3.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Csts {
    /// RDY: ready for commands (bit 0).
    pub ready: bool,
    /// CFS: fatal error; only a reset helps (bit 1).
    pub fatal: bool,
    /// SHST: 0 no shutdown, 1 in progress, 2 complete (bits 3:2).
    pub shutdown: u8,
}

impl Csts {
    /// `shutdown` while commands are still being ended (NVMe Base 2.0 §3.1.3.6, SHST 01b).
    pub const SHUTDOWN_IN_PROGRESS: u8 = 1;
    /// The same when shutdown processing is complete (SHST 10b).
    pub const SHUTDOWN_COMPLETE: u8 = 2;
}

impl From<u32> for Csts {
    fn from(bits: u32) -> Self {
        Self { ready: bits & 1 != 0, fatal: bits & 2 != 0, shutdown: (bits >> 2) as u8 & 3 }
    }
}

impl From<Csts> for u32 {
    fn from(csts: Csts) -> Self {
        Self::from(csts.ready) | Self::from(csts.fatal) << 1 | Self::from(csts.shutdown & 3) << 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // What Linux 6.12 writes: 64-byte and 16-byte entries; then enable; then shut down.
        assert_eq!(u32::from(ControllerConfig::ENABLED), 0x0046_0001);
        let down = ControllerConfig::from(0x0046_4001);
        assert_eq!(down.shutdown, Shutdown::Normal);
        assert_eq!(u32::from(down), 0x0046_4001);
        let cap = Cap { mqes: 127, cqr: true, timeout_500ms: 30, css: 1, ..Cap::default() };
        assert_eq!(u64::from(cap), 0x0000_0020_1E01_007F);
        assert_eq!(Cap::from(u64::from(cap)), cap);
        assert_eq!(Version::V1_4.to_string(), "1.4.0");
        let csts = Csts { ready: true, fatal: false, shutdown: 2 };
        assert_eq!(u32::from(csts), 9);
        assert_eq!(Csts::from(9), csts);
    }
}
