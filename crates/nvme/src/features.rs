//! Feature identifiers (NVMe Base 2.0 §5.27.1) and the selectors of Get Features (§5.15).

/// Arbitration (§5.27.1.1).
pub const ARBITRATION: u8 = 0x01;
/// Power Management (§5.27.1.2).
pub const POWER_MANAGEMENT: u8 = 0x02;
/// Temperature Threshold (§5.27.1.3).
pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
/// Error Recovery (NVM Command Set 1.0 §4.1.3.2).
pub const ERROR_RECOVERY: u8 = 0x05;
/// Volatile Write Cache (§5.27.1.4).
pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
/// Number of Queues (§5.27.1.5).
pub const NUMBER_OF_QUEUES: u8 = 0x07;
/// Write Atomicity Normal (NVM Command Set 1.0 §4.1.3.3).
pub const WRITE_ATOMICITY: u8 = 0x0A;
/// Asynchronous Event Configuration (§5.27.1.8).
pub const ASYNC_EVENT_CONFIGURATION: u8 = 0x0B;
/// Keep Alive Timer (§5.27.1.12).
pub const KEEP_ALIVE_TIMER: u8 = 0x0F;
/// Host Identifier (§5.27.1.25).
pub const HOST_IDENTIFIER: u8 = 0x81;
/// Queue Restriction: the commands that the I/O queues of the association accept
/// (docs/protocol.md).
pub const QUEUE_RESTRICTION: u8 = 0xC0;

/// Queue Restriction: only chains over mapped files.
pub const PUSHDOWN_ONLY: u32 = 1;

/// Get Features selector: the current value (§5.15).
pub const SELECT_CURRENT: u8 = 0;
/// Get Features selector: the default value (§5.15).
pub const SELECT_DEFAULT: u8 = 1;
/// Get Features selector: the saved value (§5.15).
pub const SELECT_SAVED: u8 = 2;
/// Get Features selector: the capabilities of the feature (§5.15).
pub const SELECT_SUPPORTED: u8 = 3;

/// CDW11 of Set Features, Number of Queues, asking for `queues` I/O queue pairs (1 to 65,535); also
/// DW0 of the answer, which grants them (§5.27.1.5).
#[must_use]
pub const fn number_of_queues(queues: u16) -> u32 {
    let zero_based = queues.saturating_sub(1) as u32;
    zero_based << 16 | zero_based
}

/// Queue pairs granted by DW0 of Set Features, Number of Queues: the smaller of its two counts
/// (§5.27.1.5).
#[must_use]
pub const fn queues_granted(dw0: u32) -> u32 {
    let (submission, completion) = (dw0 & 0xFFFF, dw0 >> 16);
    1 + if submission < completion { submission } else { completion }
}
