//! Types and flags of PDUs (NVMe/TCP 1.0 §3.6).

/// PDU types (NVMe/TCP 1.0 §3.6.2.1).
pub mod pdu_type {
    /// Initialize Connection Request (§3.6.2.2).
    pub const IC_REQ: u8 = 0x00;
    /// Initialize Connection Response (§3.6.2.3).
    pub const IC_RESP: u8 = 0x01;
    /// Host to Controller Terminate Connection Request (§3.6.2.4).
    pub const H2C_TERM_REQ: u8 = 0x02;
    /// Controller to Host Terminate Connection Request (§3.6.2.5).
    pub const C2H_TERM_REQ: u8 = 0x03;
    /// Command Capsule (§3.6.2.6).
    pub const CAPSULE_CMD: u8 = 0x04;
    /// Response Capsule (§3.6.2.7).
    pub const CAPSULE_RESP: u8 = 0x05;
    /// Host to Controller Data Transfer (§3.6.2.8).
    pub const H2C_DATA: u8 = 0x06;
    /// Controller to Host Data Transfer (§3.6.2.9).
    pub const C2H_DATA: u8 = 0x07;
    /// Ready to Transfer (§3.6.2.10).
    pub const R2T: u8 = 0x09;
}

/// Flags of the common header (NVMe/TCP 1.0 §3.6.2.1).
pub mod flags {
    /// HDGSTF: a header digest follows the header.
    pub const HDGST: u8 = 1 << 0;
    /// DDGSTF: a data digest follows the data.
    pub const DDGST: u8 = 1 << 1;
    /// LAST_PDU: the last data PDU of its transfer (§3.6.2.8, §3.6.2.9).
    pub const LAST: u8 = 1 << 2;
    /// SUCCESS: the command succeeded and no response capsule follows (§3.6.2.9).
    pub const SUCCESS: u8 = 1 << 3;
}

/// Largest data alignment that HPDA and CPDA may ask for: 128 bytes (NVMe/TCP 1.0 §3.6.2.2).
pub const PDA_MAX: u8 = 31;
