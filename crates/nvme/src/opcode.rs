//! Opcodes by queue (NVMe Base 2.0 §5, §6; NVM Command Set 1.0 §3; protocol.md, "Commands").

/// Opcodes of the admin queue (NVMe Base 2.0 §5).
pub mod admin {
    /// Delete I/O Submission Queue; not supported over fabrics (§5.7).
    pub const DELETE_IO_SQ: u8 = 0x00;
    /// Get Log Page (§5.16).
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify (§5.17).
    pub const IDENTIFY: u8 = 0x06;
    /// Abort (§5.1).
    pub const ABORT: u8 = 0x08;
    /// Set Features (§5.27).
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features (§5.15).
    pub const GET_FEATURES: u8 = 0x0A;
    /// Asynchronous Event Request (§5.2).
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0C;
    /// Keep Alive (§5.18).
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Function Load (protocol.md).
    pub const FUNCTION_LOAD: u8 = 0xC1;
    /// Map Report (protocol.md).
    pub const MAP_REPORT: u8 = 0xC2;
    /// Map Get (protocol.md).
    pub const MAP_GET: u8 = 0xC3;
    /// Function Unload (protocol.md).
    pub const FUNCTION_UNLOAD: u8 = 0xC4;
    /// File Map Set (protocol.md).
    pub const FILE_MAP_SET: u8 = 0xC5;
    /// Function Report (protocol.md).
    pub const FUNCTION_REPORT: u8 = 0xC6;
    /// Map Change (protocol.md).
    pub const MAP_CHANGE: u8 = 0xC9;
    /// Pushdown Identify (protocol.md).
    pub const PUSHDOWN_IDENTIFY: u8 = 0xCA;
    /// Map Read (protocol.md).
    pub const MAP_READ: u8 = 0xCE;
}

/// Opcodes of I/O queues with the NVM command set (NVM Command Set 1.0 §3.2).
pub mod nvm {
    /// Flush (NVMe Base 2.0 §7.1).
    pub const FLUSH: u8 = 0x00;
    /// Write (§3.2.6).
    pub const WRITE: u8 = 0x01;
    /// Read (§3.2.4).
    pub const READ: u8 = 0x02;
    /// Compare (§3.2.1).
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes (§3.2.8).
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management (§3.2.3).
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify (§3.2.5).
    pub const VERIFY: u8 = 0x0C;
    /// Pushdown Short (protocol.md).
    pub const PUSHDOWN_SHORT: u8 = 0x82;
    /// Pushdown (protocol.md).
    pub const PUSHDOWN: u8 = 0x83;
}

/// The fabrics opcode and its command types (NVMe Base 2.0 §6).
pub mod fabrics {
    /// Opcode of every fabrics command, on any queue (§6).
    pub const FABRICS: u8 = 0x7F;
    /// FCTYPE of Property Set (§6.6).
    pub const PROPERTY_SET: u8 = 0x00;
    /// FCTYPE of Connect (§6.3).
    pub const CONNECT: u8 = 0x01;
    /// FCTYPE of Property Get (§6.5).
    pub const PROPERTY_GET: u8 = 0x04;
    /// FCTYPE of Authentication Send (§6.2).
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// FCTYPE of Authentication Receive (§6.1).
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// FCTYPE of Disconnect (§6.4).
    pub const DISCONNECT: u8 = 0x08;
}
