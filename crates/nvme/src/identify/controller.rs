//! Identify Controller (NVMe Base 2.0 §5.17.2.1).

use crate::bytes::wire_struct;
use crate::{NulPadded, SpacePadded};

wire_struct! {
    /// Identify Controller (NVMe Base 2.0 §5.17.2.1): the fields that a fabrics host or target
    /// uses. All others are zero.
    pub struct IdentifyController [4096] {
        /// VID: PCI vendor id, 0 if none (bytes 1:0).
        0 => vid: u16,
        /// SSVID: PCI subsystem vendor id (bytes 3:2).
        2 => ssvid: u16,
        /// SN: serial number (bytes 23:4).
        4 => serial: SpacePadded<20>,
        /// MN: model number (bytes 63:24).
        24 => model: SpacePadded<40>,
        /// FR: firmware revision (bytes 71:64).
        64 => firmware: SpacePadded<8>,
        /// RAB: recommended arbitration burst (byte 72).
        72 => rab: u8,
        /// IEEE: organisation identifier (bytes 75:73).
        73 => ieee: [u8; 3],
        /// CMIC: multi-path and sharing; bit 0: more than one port; bit 1: more than one controller; bit 3: ANA (byte 76).
        76 => cmic: u8,
        /// MDTS: largest transfer is 2^this memory pages of CAP.MPSMIN; 0 is no limit (byte 77).
        77 => mdts: u8,
        /// CNTLID: controller identifier (bytes 79:78).
        78 => cntlid: u16,
        /// VER: version, as property VS (bytes 83:80).
        80 => ver: u32,
        /// RTD3R: resume latency in µs (bytes 87:84).
        84 => rtd3r_us: u32,
        /// RTD3E: typical time of a shutdown in µs (bytes 91:88).
        88 => rtd3e_us: u32,
        /// OAES: optional asynchronous events; bit 8: namespace attribute changed (bytes 95:92).
        92 => oaes: u32,
        /// CTRATT: attributes; bit 0: 128-bit host id; bit 6: traffic based keep alive (bytes
        /// 99:96).
        96 => ctratt: u32,
        /// CNTRLTYPE: 1 I/O, 2 discovery, 3 administrative (byte 111).
        111 => cntrltype: u8,
        /// CRDT1: delay named by a status with CRD 1, in 100 ms (bytes 129:128).
        128 => crdt1_100ms: u16,
        /// OACS: optional admin commands (bytes 257:256).
        256 => oacs: u16,
        /// ACL: concurrent Abort commands, as sent: limit − 1 (byte 258).
        258 => acl: u8,
        /// AERL: outstanding Asynchronous Event Requests, as sent: limit − 1 (byte 259).
        259 => aerl: u8,
        /// FRMW: firmware slots; bits 3:1 their number, bit 0 slot 1 is read-only (byte 260).
        260 => frmw: u8,
        /// LPA: log pages; bit 1: commands supported and effects; bit 2: extended data (byte 261).
        261 => lpa: u8,
        /// ELPE: error log entries, as sent: entries − 1 (byte 262).
        262 => elpe: u8,
        /// NPSS: power states, as sent: states − 1 (byte 263).
        263 => npss: u8,
        /// WCTEMP: warning temperature in kelvin (bytes 267:266).
        266 => wctemp_kelvin: u16,
        /// CCTEMP: critical temperature in kelvin (bytes 269:268).
        268 => cctemp_kelvin: u16,
        /// KAS: granularity of the keep alive timer in 100 ms; 0 is no keep alive (bytes 321:320).
        320 => kas_100ms: u16,
        /// ANATT: longest ANA transition in seconds (byte 342).
        342 => anatt_s: u8,
        /// ANACAP: ANA states reported (byte 343).
        343 => anacap: u8,
        /// ANAGRPMAX: largest ANA group identifier (bytes 347:344).
        344 => anagrpmax: u32,
        /// NANAGRPID: number of ANA groups (bytes 351:348).
        348 => nanagrpid: u32,
        /// SQES: sizes of submission queue entries: minimum 2^(3:0), maximum 2^(7:4) (byte 512).
        512 => sqes: u8,
        /// CQES: sizes of completion queue entries, likewise (byte 513).
        513 => cqes: u8,
        /// MAXCMD: most outstanding commands of an I/O queue (bytes 515:514).
        514 => maxcmd: u16,
        /// NN: largest namespace identifier (bytes 519:516).
        516 => nn: u32,
        /// ONCS: optional NVM commands; bit 0 Compare, 2 Dataset Management, 3 Write Zeroes, 7
        /// Verify (bytes 521:520).
        520 => oncs: u16,
        /// FUSES: fused operations (bytes 523:522).
        522 => fuses: u16,
        /// FNA: format attributes (byte 524).
        524 => fna: u8,
        /// VWC: volatile write cache; bit 0: present; bits 2:1: Flush of all namespaces (byte
        /// 525).
        525 => vwc: u8,
        /// AWUN: blocks written atomically, as sent: blocks − 1 (bytes 527:526).
        526 => awun: u16,
        /// AWUPF: likewise across a power failure (bytes 529:528).
        528 => awupf: u16,
        /// NWPC: namespace write protection (byte 531).
        531 => nwpc: u8,
        /// ACWU: blocks compared and written atomically, as sent: blocks − 1 (bytes 533:532).
        532 => acwu: u16,
        /// SGLS: SGL support; bit 0 supported, bit 20 offsets in capsules (bytes 539:536).
        536 => sgls: u32,
        /// MNAN: most namespaces allowed (bytes 543:540).
        540 => mnan: u32,
        /// SUBNQN: NQN of the subsystem (bytes 1023:768).
        768 => subnqn: NulPadded<256>,
        /// IOCCSZ: largest I/O command capsule in 16 bytes (bytes 1795:1792).
        1792 => ioccsz_16b: u32,
        /// IORCSZ: largest I/O response capsule in 16 bytes (bytes 1799:1796).
        1796 => iorcsz_16b: u32,
        /// ICDOFF: offset of in-capsule data in 16 bytes (bytes 1801:1800).
        1800 => icdoff_16b: u16,
        /// FCATT: fabrics controller attributes; bit 0: static controller model (byte 1802).
        1802 => fcatt: u8,
        /// MSDBD: most SGL data blocks of a command, 0 for no limit (byte 1803).
        1803 => msdbd: u8,
        /// OFCS: optional fabrics commands; bit 0: Disconnect (bytes 1805:1804).
        1804 => ofcs: u16,
        /// DCTYPE: type of a discovery controller (byte 1806).
        1806 => dctype: u8,
    }
}

wire_struct! {
    /// I/O command set specific Identify Controller of the NVM command set (NVM Command Set 1.0
    /// §4.1.5.4): the fields that a target uses.
    pub struct NvmController [4096] {
        /// VSL: largest Verify is 2^this memory pages of CAP.MPSMIN; 0 is no limit (byte 0).
        0 => vsl: u8,
    }
}

impl IdentifyController {
    /// Largest data transfer in bytes with memory pages of 2^(12 + `mpsmin`) bytes, or `None`
    /// without a limit (MDTS).
    #[must_use]
    pub fn max_transfer_bytes(&self, mpsmin: u8) -> Option<u64> {
        if self.mdts == 0 {
            return None;
        }
        1u64.checked_shl(12 + u32::from(mpsmin & 0xF) + u32::from(self.mdts))
    }

    /// In-capsule data of an I/O command in bytes: the capsule without its 64-byte entry (IOCCSZ).
    #[must_use]
    pub fn in_capsule_bytes(&self) -> u64 {
        (u64::from(self.ioccsz_16b) * 16).saturating_sub(crate::Sqe::BYTES as u64)
    }
}
