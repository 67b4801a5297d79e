//! The status field of a completion (NVMe Base 2.0 §3.3.3.2.1), and the names of its codes.

use std::fmt;

/// The 15-bit status field: status code (bits 7:0), status code type (10:8), command retry delay
/// (12:11), More (13) and Do Not Retry (14) (NVMe Base 2.0 §3.3.3.2.1).
///
/// The generic constants carry no Do Not Retry: the controller decides. Those of `docs/protocol.md`
/// carry it where that document says so. Compare codes with [`Status::same_code`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// Status code types (NVMe Base 2.0 §3.3.3.2.1.1).
const GENERIC: u8 = 0;
const COMMAND_SPECIFIC: u8 = 1;
const MEDIA: u8 = 2;
const PATH: u8 = 3;
const VENDOR: u8 = 7;

impl Status {
    /// The mask of the code: status code and its type.
    const CODE: u16 = 0x07FF;
    /// More bit (NVMe Base 2.0 §3.3.3.2.1): the Error Information log has more.
    const MORE: u16 = 1 << 13;
    /// Do Not Retry bit (NVMe Base 2.0 §3.3.3.2.1).
    const DNR: u16 = 1 << 14;

    /// A status of type `sct` (3 bits) and code `sc`, no other bit set.
    #[must_use]
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self((sct as u16 & 7) << 8 | sc as u16)
    }

    const fn vendor(sc: u8) -> Self {
        Self::new(VENDOR, sc).with_dnr()
    }

    /// From the 15-bit field; bit 15 is dropped.
    #[must_use]
    pub const fn from_field(field: u16) -> Self {
        Self(field & 0x7FFF)
    }

    /// The 15-bit field.
    #[must_use]
    pub const fn field(self) -> u16 {
        self.0
    }

    /// Status code type (NVMe Base 2.0 §3.3.3.2.1.1).
    #[must_use]
    pub const fn sct(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// Status code (NVMe Base 2.0 §3.3.3.2.1.2 to .5).
    #[must_use]
    pub const fn sc(self) -> u8 {
        self.0 as u8
    }

    /// Whether the Error Information log says more (NVMe Base 2.0 §3.3.3.2.1).
    #[must_use]
    pub const fn more(self) -> bool {
        self.0 & Self::MORE != 0
    }

    /// Whether the same command would fail again (NVMe Base 2.0 §3.3.3.2.1).
    #[must_use]
    pub const fn dnr(self) -> bool {
        self.0 & Self::DNR != 0
    }

    /// The same status with Do Not Retry set.
    #[must_use]
    pub const fn with_dnr(self) -> Self {
        Self(self.0 | Self::DNR)
    }

    /// Whether the command succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & Self::CODE == 0
    }

    /// Whether both have the same type and code, whatever their other bits.
    #[must_use]
    pub const fn same_code(self, other: Self) -> bool {
        self.0 & Self::CODE == other.0 & Self::CODE
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $constant:ident = $new:ident($($number:expr),+), $name:literal;)*) => {
        impl Status {
            $( $(#[$doc])* pub const $constant: Self = Self::$new($($number),+); )*

            /// The code's name in the specification or in `docs/protocol.md`.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match Self(self.0 & Self::CODE) {
                    $( code if code == Self(Self::$constant.0 & Self::CODE) => Some($name), )*
                    _ => None,
                }
            }

            /// Every named code, for tests and tools.
            pub const ALL: &'static [Self] = &[$(Self::$constant),*];
        }
    };
}

codes! {
    /// The command ended without error (NVMe Base 2.0 §3.3.3.2.1.2).
    SUCCESS = new(GENERIC, 0x00), "Successful Completion";
    /// Generic 01h (NVMe Base 2.0 §3.3.3.2.1.2).
    INVALID_OPCODE = new(GENERIC, 0x01), "Invalid Command Opcode";
    /// Generic 02h (NVMe Base 2.0 §3.3.3.2.1.2).
    INVALID_FIELD = new(GENERIC, 0x02), "Invalid Field in Command";
    /// Generic 03h (NVMe Base 2.0 §3.3.3.2.1.2).
    COMMAND_ID_CONFLICT = new(GENERIC, 0x03), "Command ID Conflict";
    /// Generic 04h (NVMe Base 2.0 §3.3.3.2.1.2).
    DATA_TRANSFER_ERROR = new(GENERIC, 0x04), "Data Transfer Error";
    /// Generic 05h (NVMe Base 2.0 §3.3.3.2.1.2).
    ABORTED_POWER_LOSS = new(GENERIC, 0x05), "Commands Aborted due to Power Loss Notification";
    /// Generic 06h (NVMe Base 2.0 §3.3.3.2.1.2).
    INTERNAL_ERROR = new(GENERIC, 0x06), "Internal Error";
    /// Generic 07h (NVMe Base 2.0 §3.3.3.2.1.2).
    ABORT_REQUESTED = new(GENERIC, 0x07), "Command Abort Requested";
    /// Generic 08h (NVMe Base 2.0 §3.3.3.2.1.2).
    ABORTED_SQ_DELETION = new(GENERIC, 0x08), "Command Aborted due to SQ Deletion";
    /// Generic 0Bh (NVMe Base 2.0 §3.3.3.2.1.2).
    INVALID_NAMESPACE = new(GENERIC, 0x0B), "Invalid Namespace or Format";
    /// Generic 0Ch (NVMe Base 2.0 §3.3.3.2.1.2).
    COMMAND_SEQUENCE_ERROR = new(GENERIC, 0x0C), "Command Sequence Error";
    /// Generic 0Dh (NVMe Base 2.0 §3.3.3.2.1.2).
    INVALID_SGL_SEGMENT_DESCRIPTOR = new(GENERIC, 0x0D), "Invalid SGL Segment Descriptor";
    /// Generic 0Eh (NVMe Base 2.0 §3.3.3.2.1.2).
    INVALID_SGL_DESCRIPTOR_COUNT = new(GENERIC, 0x0E), "Invalid Number of SGL Descriptors";
    /// Generic 0Fh (NVMe Base 2.0 §3.3.3.2.1.2).
    DATA_SGL_LENGTH_INVALID = new(GENERIC, 0x0F), "Data SGL Length Invalid";
    /// Generic 11h (NVMe Base 2.0 §3.3.3.2.1.2).
    INVALID_SGL_DESCRIPTOR_TYPE = new(GENERIC, 0x11), "SGL Descriptor Type Invalid";
    /// Generic 13h (NVMe Base 2.0 §3.3.3.2.1.2).
    INVALID_PRP_OFFSET = new(GENERIC, 0x13), "PRP Offset Invalid";
    /// Generic 15h (NVMe Base 2.0 §3.3.3.2.1.2).
    OPERATION_DENIED = new(GENERIC, 0x15), "Operation Denied";
    /// Generic 16h (NVMe Base 2.0 §3.3.3.2.1.2).
    INVALID_SGL_OFFSET = new(GENERIC, 0x16), "SGL Offset Invalid";
    /// Generic 18h (NVMe Base 2.0 §3.3.3.2.1.2).
    HOST_ID_INCONSISTENT = new(GENERIC, 0x18), "Host Identifier Inconsistent Format";
    /// Generic 19h (NVMe Base 2.0 §3.3.3.2.1.2).
    KEEP_ALIVE_EXPIRED = new(GENERIC, 0x19), "Keep Alive Timer Expired";
    /// Generic 1Ah (NVMe Base 2.0 §3.3.3.2.1.2).
    INVALID_KEEP_ALIVE_TIMEOUT = new(GENERIC, 0x1A), "Keep Alive Timeout Invalid";
    /// Generic 20h (NVMe Base 2.0 §3.3.3.2.1.2).
    NAMESPACE_WRITE_PROTECTED = new(GENERIC, 0x20), "Namespace is Write Protected";
    /// Generic 21h (NVMe Base 2.0 §3.3.3.2.1.2).
    COMMAND_INTERRUPTED = new(GENERIC, 0x21), "Command Interrupted";
    /// Generic 22h: also the answer to a command with a data digest error (NVMe Base 2.0
    /// §3.3.3.2.1.2, NVMe/TCP 1.0 §3.6.2.1).
    TRANSIENT_TRANSPORT_ERROR = new(GENERIC, 0x22), "Transient Transport Error";
    /// Generic 80h (NVM Command Set 1.0 §2.1).
    LBA_OUT_OF_RANGE = new(GENERIC, 0x80), "LBA Out of Range";
    /// Generic 81h (NVM Command Set 1.0 §2.1).
    CAPACITY_EXCEEDED = new(GENERIC, 0x81), "Capacity Exceeded";
    /// Generic 82h (NVMe Base 2.0 §3.3.3.2.1.2).
    NAMESPACE_NOT_READY = new(GENERIC, 0x82), "Namespace Not Ready";

    /// Command specific 01h (NVMe Base 2.0 §3.3.3.2.1.3).
    INVALID_QUEUE_ID = new(COMMAND_SPECIFIC, 0x01), "Invalid Queue Identifier";
    /// Command specific 02h (NVMe Base 2.0 §3.3.3.2.1.3).
    INVALID_QUEUE_SIZE = new(COMMAND_SPECIFIC, 0x02), "Invalid Queue Size";
    /// Command specific 03h (NVMe Base 2.0 §5.1).
    ABORT_LIMIT_EXCEEDED = new(COMMAND_SPECIFIC, 0x03), "Abort Command Limit Exceeded";
    /// Command specific 05h (NVMe Base 2.0 §5.2).
    ASYNC_EVENT_LIMIT = new(COMMAND_SPECIFIC, 0x05), "Asynchronous Event Request Limit Exceeded";
    /// Command specific 09h (NVMe Base 2.0 §5.16).
    INVALID_LOG_PAGE = new(COMMAND_SPECIFIC, 0x09), "Invalid Log Page";
    /// Command specific 0Dh (NVMe Base 2.0 §5.27).
    FEATURE_NOT_SAVEABLE = new(COMMAND_SPECIFIC, 0x0D), "Feature Identifier Not Saveable";
    /// Command specific 0Eh (NVMe Base 2.0 §5.27).
    FEATURE_NOT_CHANGEABLE = new(COMMAND_SPECIFIC, 0x0E), "Feature Not Changeable";
    /// Command specific 0Fh (NVMe Base 2.0 §5.27).
    FEATURE_NOT_PER_NAMESPACE = new(COMMAND_SPECIFIC, 0x0F), "Feature Not Namespace Specific";
    /// Command specific 80h of Connect and Disconnect (NVMe Base 2.0 §6.3).
    CONNECT_INCOMPATIBLE_FORMAT = new(COMMAND_SPECIFIC, 0x80), "Incompatible Format";
    /// Command specific 81h of Connect (NVMe Base 2.0 §6.3).
    CONNECT_CONTROLLER_BUSY = new(COMMAND_SPECIFIC, 0x81), "Controller Busy";
    /// Command specific 82h of Connect (NVMe Base 2.0 §6.3).
    CONNECT_INVALID_PARAMETERS = new(COMMAND_SPECIFIC, 0x82), "Connect Invalid Parameters";
    /// Command specific 83h of Connect (NVMe Base 2.0 §6.3).
    CONNECT_RESTART_DISCOVERY = new(COMMAND_SPECIFIC, 0x83), "Connect Restart Discovery";
    /// Command specific 84h of Connect (NVMe Base 2.0 §6.3).
    CONNECT_INVALID_HOST = new(COMMAND_SPECIFIC, 0x84), "Connect Invalid Host";
    /// Command specific 85h of Disconnect (NVMe Base 2.0 §6.4).
    INVALID_QUEUE_TYPE = new(COMMAND_SPECIFIC, 0x85), "Invalid Queue Type";
    /// Command specific 91h of fabrics commands (NVMe Base 2.0 §8.13).
    AUTHENTICATION_REQUIRED = new(COMMAND_SPECIFIC, 0x91), "Authentication Required";

    /// Media 80h (NVMe Base 2.0 §3.3.3.2.1.4).
    WRITE_FAULT = new(MEDIA, 0x80), "Write Fault";
    /// Media 81h: also the status of a chain whose device read failed (NVMe Base 2.0 §3.3.3.2.1.4).
    UNRECOVERED_READ_ERROR = new(MEDIA, 0x81), "Unrecovered Read Error";
    /// Media 85h (NVMe Base 2.0 §3.3.3.2.1.4).
    COMPARE_FAILURE = new(MEDIA, 0x85), "Compare Failure";
    /// Media 86h (NVMe Base 2.0 §3.3.3.2.1.4).
    ACCESS_DENIED = new(MEDIA, 0x86), "Access Denied";
    /// Media 87h (NVMe Base 2.0 §3.3.3.2.1.4).
    UNWRITTEN_BLOCK = new(MEDIA, 0x87), "Deallocated or Unwritten Logical Block";

    /// Path 00h (NVMe Base 2.0 §3.3.3.2.1.5).
    INTERNAL_PATH_ERROR = new(PATH, 0x00), "Internal Path Error";
    /// Path 02h (NVMe Base 2.0 §3.3.3.2.1.5).
    ANA_INACCESSIBLE = new(PATH, 0x02), "Asymmetric Access Inaccessible";

    /// Vendor 01h (protocol.md, "Statuses").
    UNKNOWN_FUNCTION = vendor(0x01), "Unknown Function";
    /// Vendor 02h (protocol.md, "Statuses").
    UNKNOWN_FILE = vendor(0x02), "Unknown File";
    /// Vendor 03h (protocol.md, "Statuses").
    STALE_FILE_MAP = vendor(0x03), "Stale File Map";
    /// Vendor 04h (protocol.md, "Statuses").
    READ_OUTSIDE_FILE = vendor(0x04), "Read Outside File";
    /// Vendor 05h (protocol.md, "Statuses").
    HOP_BUDGET_EXHAUSTED = vendor(0x05), "Hop Budget Exhausted";
    /// Vendor 06h (protocol.md, "Statuses").
    BYTE_BUDGET_EXHAUSTED = vendor(0x06), "Byte Budget Exhausted";
    /// Vendor 07h (protocol.md, "Statuses").
    INSTRUCTION_BUDGET_EXHAUSTED = vendor(0x07), "Instruction Budget Exhausted";
    /// Vendor 08h (protocol.md, "Statuses").
    FUNCTION_FAULT = vendor(0x08), "Function Fault";
    /// Vendor 09h (protocol.md, "Statuses").
    FUNCTION_ABORT = vendor(0x09), "Function Abort";
    /// Vendor 0Ah (protocol.md, "Statuses").
    INVALID_FUNCTION_OUTPUT = vendor(0x0A), "Invalid Function Output";
    /// Vendor 0Bh (protocol.md, "Statuses").
    MALFORMED_REQUEST = vendor(0x0B), "Malformed Request";
    /// Vendor 0Ch (protocol.md, "Statuses").
    FUNCTION_REJECTED = vendor(0x0C), "Function Rejected";
    /// Vendor 0Dh (protocol.md, "Statuses").
    ANSWER_TOO_LONG = vendor(0x0D), "Answer Too Long";
    /// Vendor 0Eh (protocol.md, "Statuses").
    RESOURCE_LIMIT = vendor(0x0E), "Resource Limit";
    /// Vendor 0Fh (protocol.md, "Statuses").
    UNKNOWN_MAP = vendor(0x0F), "Unknown Map";
    /// Vendor 10h (protocol.md, "Statuses").
    NO_SUCH_ENTRY = vendor(0x10), "No Such Entry";
    /// Vendor 11h (protocol.md, "Statuses").
    ENTRY_EXISTS = vendor(0x11), "Entry Exists";
    /// Vendor 12h (protocol.md, "Statuses").
    MAP_FULL = vendor(0x12), "Map Full";
    /// Vendor 13h (protocol.md, "Statuses"): the host may request the chain again.
    VECTOR_FULL = new(VENDOR, 0x13), "Vector Full";
}

impl fmt::Display for Status {
    /// `Stale File Map (7h/03h)`, or `status 7h/55h` for a code without a name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:X}h/{:02X}h)", self.sct(), self.sc()),
            None => write!(f, "status {:X}h/{:02X}h", self.sct(), self.sc()),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}{}", if self.dnr() { " DNR" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn codes_and_names_are_unique() {
        let codes: HashSet<u16> = Status::ALL.iter().map(|code| code.0 & Status::CODE).collect();
        let names: HashSet<_> = Status::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(codes.len(), Status::ALL.len());
        assert_eq!(names.len(), Status::ALL.len());
    }

    #[test]
    fn shows_name_and_code() {
        assert_eq!(Status::STALE_FILE_MAP.to_string(), "Stale File Map (7h/03h)");
        assert_eq!(Status::new(7, 0x55).to_string(), "status 7h/55h");
        assert_eq!(Status::STALE_FILE_MAP.field(), 0x4703);
        assert!(Status::new(7, 3).same_code(Status::STALE_FILE_MAP));
        assert!(!Status::INVALID_FIELD.dnr() && Status::INVALID_FIELD.with_dnr().dnr());
    }
}
