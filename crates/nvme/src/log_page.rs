//! Log pages (NVMe Base 2.0 §5.16.1).

use crate::bytes::{put, wire_struct};
use crate::opcode::{CommandEntry, Effect};
use crate::{NulPadded, SpacePadded};

/// Log page identifiers (NVMe Base 2.0 §5.16.1).
pub mod lid {
    /// Supported Log Pages (§5.16.1.1).
    pub const SUPPORTED: u8 = 0x00;
    /// Error Information (§5.16.1.2).
    pub const ERROR: u8 = 0x01;
    /// SMART / Health Information (§5.16.1.3).
    pub const SMART: u8 = 0x02;
    /// Firmware Slot Information (§5.16.1.4).
    pub const FIRMWARE_SLOT: u8 = 0x03;
    /// Changed Namespace List (§5.16.1.5).
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands Supported and Effects (§5.16.1.6).
    pub const COMMAND_EFFECTS: u8 = 0x05;
    /// Asymmetric Namespace Access (§5.16.1.13).
    pub const ANA: u8 = 0x0C;
    /// Discovery (§5.16.1.23).
    pub const DISCOVERY: u8 = 0x70;
}

wire_struct! {
    /// Header of the discovery log page (NVMe Base 2.0 §5.16.1.23).
    pub struct DiscoveryHeader [1024] {
        /// GENCTR: changes with the contents (bytes 7:0).
        0 => generation: u64,
        /// NUMREC: number of entries that follow (bytes 15:8).
        8 => records: u64,
        /// RECFMT: format of the log page, 0 (bytes 17:16).
        16 => recfmt: u16,
    }
}

wire_struct! {
    /// An entry of the discovery log page (NVMe Base 2.0 §5.16.1.23).
    pub struct DiscoveryEntry [1024] {
        /// TRTYPE: transport; [`DiscoveryEntry::TRTYPE_TCP`] or [`DiscoveryEntry::TRTYPE_RDMA`] (byte 0).
        0 => trtype: u8,
        /// ADRFAM: address family; 1 IPv4, 2 IPv6 (byte 1).
        1 => adrfam: u8,
        /// SUBTYPE: 1 referral, 2 NVM subsystem, 3 this discovery subsystem (byte 2).
        2 => subtype: u8,
        /// TREQ: bits 1:0 secure channel; bit 2: SQ flow control may be disabled (byte 3).
        3 => treq: u8,
        /// PORTID: port of the subsystem (bytes 5:4).
        4 => portid: u16,
        /// CNTLID: FFFFh in the dynamic controller model (bytes 7:6).
        6 => cntlid: u16,
        /// ASQSZ: largest admin submission queue in entries (bytes 9:8).
        8 => asqsz: u16,
        /// EFLAGS: entry flags (bytes 11:10).
        10 => eflags: u16,
        /// TRSVCID: port in decimal (bytes 63:32).
        32 => trsvcid: SpacePadded<32>,
        /// SUBNQN: NQN of the subsystem (bytes 511:256).
        256 => subnqn: NulPadded<256>,
        /// TRADDR: address (bytes 767:512).
        512 => traddr: SpacePadded<256>,
        /// TSAS: for TCP, byte 0 is the security type, 0 none, 2 TLS 1.3; for RDMA, bytes 0 to 2 are
        /// [`DiscoveryEntry::RDMA_TSAS`] (bytes 1023:768).
        768 => tsas: [u8; 3],
    }
}

impl DiscoveryEntry {
    /// TRTYPE of TCP (NVMe Base 2.0 §5.16.1.23).
    pub const TRTYPE_TCP: u8 = 3;
    /// TRTYPE of RDMA (NVMe Base 2.0 §5.16.1.23).
    pub const TRTYPE_RDMA: u8 = 1;
    /// TSAS of RDMA: reliable connected queue pairs, no provider named, the RDMA connection manager (NVMe
    /// RDMA Transport 1.0 §3.1).
    pub const RDMA_TSAS: [u8; 3] = [1, 1, 1];
    /// ADRFAM of IPv4 (NVMe Base 2.0 §5.16.1.23).
    pub const ADRFAM_IPV4: u8 = 1;
    /// ADRFAM of IPv6 (NVMe Base 2.0 §5.16.1.23).
    pub const ADRFAM_IPV6: u8 = 2;
    /// SUBTYPE of a subsystem with namespaces (NVMe Base 2.0 §5.16.1.23).
    pub const SUBTYPE_NVM: u8 = 2;
    /// SUBTYPE of the discovery subsystem that answers (NVMe Base 2.0 §5.16.1.23).
    pub const SUBTYPE_CURRENT_DISCOVERY: u8 = 3;
    /// TREQ: a secure channel is required (NVMe Base 2.0 §5.16.1.23, bits 1:0 = 01b).
    pub const TREQ_REQUIRED: u8 = 1;
    /// TREQ: no secure channel required (NVMe Base 2.0 §5.16.1.23, bits 1:0 = 10b).
    pub const TREQ_NOT_REQUIRED: u8 = 2;
    /// TREQ: SQ flow control may be disabled (NVMe Base 2.0 §5.16.1.23, bit 2).
    pub const TREQ_NO_SQ_FLOW_CONTROL: u8 = 1 << 2;
    /// Security type of TCP: TLS 1.3 (NVMe/TCP 1.0 §3.1.1, TSAS).
    pub const SECTYPE_TLS13: u8 = 2;
}

wire_struct! {
    /// SMART / Health Information (NVMe Base 2.0 §5.16.1.3).
    pub struct SmartLog [512] {
        /// Critical warning (byte 0).
        0 => critical_warning: u8,
        /// Composite temperature in kelvin (bytes 2:1).
        1 => temperature_kelvin: u16,
        /// Available spare in per cent (byte 3).
        3 => spare_percent: u8,
        /// Available spare threshold in per cent (byte 4).
        4 => spare_threshold_percent: u8,
        /// Percentage used (byte 5).
        5 => used_percent: u8,
        /// Data units read, each 1000 × 512 bytes (bytes 47:32).
        32 => data_units_read: u128,
        /// Data units written, likewise (bytes 63:48).
        48 => data_units_written: u128,
        /// Host read commands (bytes 79:64).
        64 => host_reads: u128,
        /// Host write commands (bytes 95:80).
        80 => host_writes: u128,
        /// Controller busy time in minutes (bytes 111:96).
        96 => busy_minutes: u128,
        /// Power cycles (bytes 127:112).
        112 => power_cycles: u128,
        /// Power on hours (bytes 143:128).
        128 => power_on_hours: u128,
        /// Unsafe shutdowns (bytes 159:144).
        144 => unsafe_shutdowns: u128,
        /// Media and data integrity errors (bytes 175:160).
        160 => media_errors: u128,
        /// Error information log entries (bytes 191:176).
        176 => error_log_entries: u128,
    }
}

wire_struct! {
    /// An entry of the Error Information log (NVMe Base 2.0 §5.16.1.2).
    pub struct ErrorLogEntry [64] {
        /// Error count: a unique number, 0 for an invalid entry (bytes 7:0).
        0 => error_count: u64,
        /// Submission queue of the command (bytes 9:8).
        8 => sqid: u16,
        /// Command identifier (bytes 11:10).
        10 => cid: u16,
        /// The completion's status field in bits 15:1 (bytes 13:12).
        12 => status_field: u16,
        /// Where in the command the error is: byte (7:0) and bit (10:8) (bytes 15:14).
        14 => parameter_location: u16,
        /// First logical block at fault (bytes 23:16).
        16 => lba: u64,
        /// Namespace (bytes 27:24).
        24 => nsid: u32,
        /// Transport type; 3 is TCP (byte 29).
        29 => trtype: u8,
        /// Command specific information (bytes 39:32).
        32 => command_specific: u64,
    }
}

wire_struct! {
    /// Header of the Asymmetric Namespace Access log (NVMe Base 2.0 §5.16.1.13).
    pub struct AnaHeader [16] {
        /// Change count of the log (bytes 7:0).
        0 => change_count: u64,
        /// Number of group descriptors that follow (bytes 9:8).
        8 => groups: u16,
    }
}

wire_struct! {
    /// An ANA Group Descriptor without the namespace identifiers behind it, each a dword (NVMe Base
    /// 2.0 §5.16.1.13).
    pub struct AnaGroup [32] {
        /// Group identifier, not 0 (bytes 3:0).
        0 => group: u32,
        /// Number of namespace identifiers that follow (bytes 7:4).
        4 => namespaces: u32,
        /// Change count of the group, 0 if there is none (bytes 15:8).
        8 => change_count: u64,
        /// Bits 3:0: the state, such as [`AnaGroup::OPTIMIZED`] (byte 16).
        16 => state: u8,
    }
}

impl AnaGroup {
    /// ANA state: optimized (NVMe Base 2.0 §8.1.1).
    pub const OPTIMIZED: u8 = 1;
    /// ANA state: non-optimized (NVMe Base 2.0 §8.1.1).
    pub const NON_OPTIMIZED: u8 = 2;
    /// ANA state: inaccessible (NVMe Base 2.0 §8.1.1).
    pub const INACCESSIBLE: u8 = 3;
}

/// Firmware Slot Information with one slot, active, holding `revision` (NVMe Base 2.0 §5.16.1.4).
#[must_use]
pub fn firmware_slot(revision: SpacePadded<8>) -> [u8; 512] {
    let mut bytes = [0; 512];
    bytes[0] = 1;
    put(&mut bytes, 8, revision);
    bytes
}

/// Effects of a command (NVMe Base 2.0 §5.16.1.6): supported.
pub const EFFECT_SUPPORTED: u32 = 1 << 0;
/// Effects of a command (NVMe Base 2.0 §5.16.1.6): changes the contents of logical blocks.
pub const EFFECT_BLOCKS_CHANGE: u32 = 1 << 1;

/// Commands Supported and Effects (NVMe Base 2.0 §5.16.1.6) with these admin and I/O commands.
#[must_use]
pub fn command_effects(admin: &[CommandEntry], io: &[CommandEntry]) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    for (base, commands) in [(0, admin), (1024, io)] {
        for command in commands {
            let effects = match command.effect {
                Effect::None => EFFECT_SUPPORTED,
                Effect::ChangesBlocks => EFFECT_SUPPORTED | EFFECT_BLOCKS_CHANGE,
                Effect::Unlisted => 0,
            };
            put(&mut bytes, base + usize::from(command.opcode) * 4, effects);
        }
    }
    bytes
}

/// Supported Log Pages (NVMe Base 2.0 §5.16.1.1): LSUPP of each of `lids`.
#[must_use]
pub fn supported_log_pages(lids: &[u8]) -> [u8; 1024] {
    let mut bytes = [0; 1024];
    for &lid in lids {
        put(&mut bytes, usize::from(lid) * 4, 1_u32);
    }
    bytes
}
